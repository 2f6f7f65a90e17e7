package seal_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/seal"
)

const id = "01890a5d-ac96-774b-bcce-b302099a8057"

// secret is one for tests: 32 bytes from a first one up.
func secret(first byte) []byte {
	s := make([]byte, seal.SecretSize)
	for i := range s {
		s[i] = first + byte(i)
	}
	return s
}

func key(tb testing.TB, id string, first byte) seal.Key {
	tb.Helper()
	k, err := seal.NewKey(id, secret(first))
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

func box(tb testing.TB, opts *seal.Options, current seal.Key, others ...seal.Key) *seal.Box {
	tb.Helper()
	ring, err := seal.NewRing(current, others...)
	if err != nil {
		tb.Fatal(err)
	}
	return seal.New(ring, opts)
}

func message() postrider.Message {
	return postrider.Message{
		ID: id, Topic: "customers", Key: "customer-42", Type: "customer.moved", Payload: []byte(`{"street":"Lindenstraße 7"}`),
		ContentType: "application/json", Headers: map[string]string{"traceparent": "00-ab"}, Version: 3,
	}
}

func mustSeal(tb testing.TB, b *seal.Box, m postrider.Message) postrider.Message {
	tb.Helper()
	sealed, err := b.Seal(tb.Context(), m)
	if err != nil {
		tb.Fatal(err)
	}
	return sealed
}

func TestRoundTrip(t *testing.T) {
	b := box(t, nil, key(t, "2026-11", 1))
	for name, change := range map[string]func(m *postrider.Message){
		"full":       func(*postrider.Message) {},
		"no headers": func(m *postrider.Message) { m.Headers = nil },
		"no key":     func(m *postrider.Message) { m.Key, m.Type = "", "" },
		"empty":      func(m *postrider.Message) { m.Payload = []byte{} },
		"megabyte":   func(m *postrider.Message) { m.Payload = bytes.Repeat([]byte("x"), 1<<20) },
		"upper case": func(m *postrider.Message) { m.ID = strings.ToUpper(m.ID) },
	} {
		want := message()
		change(&want)
		before := want
		before.Headers = maps.Clone(want.Headers)
		sealed := mustSeal(t, b, want)
		if !reflect.DeepEqual(want, before) {
			t.Errorf("%s: Seal changed its argument", name)
		}
		if err := sealed.Validate(); err != nil {
			t.Errorf("%s: the sealed message breaks a rule: %v", name, err)
		}
		if bytes.Contains(sealed.Payload, []byte("Linden")) || len(sealed.Payload) != len(want.Payload)+seal.Overhead {
			t.Errorf("%s: %d bytes became %d", name, len(want.Payload), len(sealed.Payload))
		}
		sealed.ID, sealed.Topic = strings.ToLower(sealed.ID), "routed.elsewhere"
		sealed.Headers["postrider-generation"] = "1"
		got, err := b.Open(t.Context(), sealed)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		delete(got.Headers, "postrider-generation")
		if !bytes.Equal(got.Payload, want.Payload) || !maps.Equal(got.Headers, want.Headers) || got.ContentType != want.ContentType {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	one, two := mustSeal(t, b, message()), mustSeal(t, b, message())
	if bytes.Equal(one.Payload, two.Payload) {
		t.Error("the same message is sealed to the same bytes twice")
	}
}

// Whatever is changed of what is authenticated, the message does not open.
//
// Promises: C
func TestTampered(t *testing.T) {
	b := box(t, nil, key(t, "a", 1), key(t, "b", 2))
	for name, change := range map[string]func(m *postrider.Message){
		"id":        func(m *postrider.Message) { m.ID = "01890a5d-ac96-774b-bcce-b302099a8058" },
		"key":       func(m *postrider.Message) { m.Key = "customer-43" },
		"type":      func(m *postrider.Message) { m.Type = "customer.left" },
		"between":   func(m *postrider.Message) { m.Key, m.Type = "customer-42c", "ustomer.moved" },
		"key's id":  func(m *postrider.Message) { m.Headers[seal.HeaderKey] = "b" },
		"nonce":     func(m *postrider.Message) { m.Payload[0] ^= 1 },
		"text":      func(m *postrider.Message) { m.Payload[14] ^= 1 },
		"tag":       func(m *postrider.Message) { m.Payload[len(m.Payload)-1] ^= 1 },
		"truncated": func(m *postrider.Message) { m.Payload = m.Payload[:len(m.Payload)-1] },
		"short":     func(m *postrider.Message) { m.Payload = m.Payload[:5] },
		"empty":     func(m *postrider.Message) { m.Payload = nil },
	} {
		m := mustSeal(t, b, message())
		change(&m)
		got, err := b.Open(t.Context(), m)
		if !errors.Is(err, seal.ErrTampered) || got.Payload != nil {
			t.Errorf("%s: %v, payload %q", name, err, got.Payload)
		}
		if err != nil && strings.Contains(err.Error(), "Linden") {
			t.Errorf("%s: the error quotes the payload", name)
		}
	}
}

func TestRotation(t *testing.T) {
	oldKey, newKey := key(t, "2026-10", 1), key(t, "2026-11", 9)
	before, during, after := box(t, nil, oldKey), box(t, nil, oldKey, newKey), box(t, nil, newKey, oldKey)
	done := box(t, nil, newKey)
	first, second := mustSeal(t, before, message()), mustSeal(t, after, message())
	if first.Headers[seal.HeaderKey] != "2026-10" || second.Headers[seal.HeaderKey] != "2026-11" {
		t.Errorf("sealed with %q and %q", first.Headers[seal.HeaderKey], second.Headers[seal.HeaderKey])
	}
	for name, b := range map[string]*seal.Box{"during": during, "after": after} {
		for _, m := range []postrider.Message{first, second} {
			if _, err := b.Open(t.Context(), m); err != nil {
				t.Errorf("%s the rotation: %v", name, err)
			}
		}
	}
	_, err := done.Open(t.Context(), first)
	var missing *seal.KeyError
	if !errors.As(err, &missing) || missing.ID != "2026-10" || !errors.Is(err, seal.ErrUnknownKey) {
		t.Errorf("a key that was taken away: %v", err)
	}
}

func TestPlainMessages(t *testing.T) {
	closed, open := box(t, nil, key(t, "a", 1)), box(t, &seal.Options{AllowPlain: true}, key(t, "a", 1))
	if _, err := closed.Open(t.Context(), message()); !errors.Is(err, seal.ErrNotSealed) {
		t.Errorf("a plain message: %v", err)
	}
	if got, err := open.Open(t.Context(), message()); err != nil || !reflect.DeepEqual(got, message()) {
		t.Errorf("a plain message that is allowed: %+v, %v", got, err)
	}
	half := mustSeal(t, open, message())
	delete(half.Headers, seal.HeaderAlgorithm)
	if _, err := open.Open(t.Context(), half); !errors.Is(err, seal.ErrNotSealed) {
		t.Errorf("a message with half of the headers: %v", err)
	}
	if _, err := open.Seal(t.Context(), mustSeal(t, open, message())); !errors.Is(err, seal.ErrSealed) {
		t.Errorf("sealed twice: %v", err)
	}
	other := mustSeal(t, open, message())
	other.Headers[seal.HeaderAlgorithm] = "A512"
	if _, err := open.Open(t.Context(), other); !errors.Is(err, seal.ErrUnknownKey) {
		t.Errorf("another algorithm: %v", err)
	}
	anonymous := message()
	anonymous.ID = ""
	if _, err := open.Seal(t.Context(), anonymous); err == nil {
		t.Error("a message without an id was sealed")
	}
}

// A key shows its name and nothing else, wherever it is printed.
//
// Promises: C
func TestKeysKeepTheirSecret(t *testing.T) {
	k := key(t, "2026-11", 'A')
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "key", k)
	all := fmt.Sprintf("%v %+v %#v %s %q", k, k, k, k, k) + log.String()
	for _, leak := range []string{"ABCD", "41424344", "65 66", "0x41", base64.StdEncoding.EncodeToString(secret('A'))[:8]} {
		if strings.Contains(all, leak) {
			t.Errorf("%q in %s", leak, all)
		}
	}
	if !strings.Contains(all, "2026-11") {
		t.Errorf("the name is missing: %s", all)
	}
}

func TestKeysThatCannotBe(t *testing.T) {
	good := base64.StdEncoding.EncodeToString(secret(7))
	if k, err := seal.ParseKey("a:b:" + good + "\n"); err != nil || k.ID() != "a:b" {
		t.Errorf("ParseKey: %v, %v", k, err)
	}
	for _, text := range []string{"", good, ":" + good, good + ":a", "a:" + good[:20], "a b:" + good, "a:" + base64.StdEncoding.EncodeToString(make([]byte, 32)), strings.Repeat("a", 129) + ":" + good} {
		if _, err := seal.ParseKey(text); err == nil || strings.Contains(err.Error(), good[:8]) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	k := key(t, "a", 1)
	if _, err := seal.NewRing(k, key(t, "a", 2)); err == nil {
		t.Error("two keys of one name")
	}
	if _, err := seal.NewRing(seal.Key{}); err == nil {
		t.Error("an empty key")
	}
}

// wrongKeys answers with whatever it holds.
type wrongKeys struct {
	key seal.Key
	err error
}

func (w wrongKeys) SealingKey(context.Context, *postrider.Message) (seal.Key, error) {
	return w.key, w.err
}

func (w wrongKeys) OpeningKey(context.Context, string, *postrider.Message) (seal.Key, error) {
	return w.key, w.err
}

func TestWrongKeys(t *testing.T) {
	sealed := mustSeal(t, box(t, nil, key(t, "a", 1)), message())
	away := errors.New("the key server is away")
	for _, w := range []wrongKeys{{}, {err: away}, {key: key(t, "b", 1)}} {
		b := seal.New(w, nil)
		if _, err := b.Open(t.Context(), sealed); err == nil || errors.Is(err, seal.ErrTampered) || errors.Is(err, away) != (w.err != nil) {
			t.Errorf("%+v: open: %v", w, err)
		}
		if _, err := b.Seal(t.Context(), message()); (err == nil) != (w.key.ID() == "b") {
			t.Errorf("%+v: seal: %v", w, err)
		}
	}
}

// What was sealed once opens for ever: these are messages of the first release.
func TestGolden(t *testing.T) {
	data, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		ID, Key, Type, KeyID    string
		Secret, Sealed, Payload []byte
	}
	if err := json.Unmarshal(data, &cases); err != nil || len(cases) < 3 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for _, c := range cases {
		k, err := seal.NewKey(c.KeyID, c.Secret)
		if err != nil {
			t.Fatal(err)
		}
		m := postrider.Message{
			ID: c.ID, Topic: "t", Key: c.Key, Type: c.Type, Payload: c.Sealed,
			Headers: map[string]string{seal.HeaderAlgorithm: "A256GCM", seal.HeaderKey: c.KeyID},
		}
		got, err := box(t, nil, k).Open(t.Context(), m)
		if err != nil || !bytes.Equal(got.Payload, c.Payload) {
			t.Errorf("%s: payload %q, %v", c.ID, got.Payload, err)
		}
	}
}

// Nothing opens that was not sealed so, and nothing panics.
func FuzzOpen(f *testing.F) {
	b := box(f, nil, key(f, "a", 1))
	sealed := mustSeal(f, b, message())
	f.Add(sealed.Payload, sealed.Key, sealed.Type, sealed.Headers[seal.HeaderKey])
	f.Add([]byte{}, "", "", "a")
	f.Add(sealed.Payload[:12], sealed.Key, sealed.Type, "")
	f.Fuzz(func(t *testing.T, payload []byte, key, typ, keyID string) {
		m := sealed
		m.Payload, m.Key, m.Type = payload, key, typ
		m.Headers = map[string]string{seal.HeaderAlgorithm: seal.Algorithm, seal.HeaderKey: keyID}
		got, err := b.Open(t.Context(), m)
		same := bytes.Equal(payload, sealed.Payload) && key == sealed.Key && typ == sealed.Type && keyID == "a"
		if (err == nil) != same {
			t.Errorf("error %v, the same as was sealed: %v", err, same)
		}
		if err != nil && got.Payload != nil {
			t.Error("a payload comes with the error")
		}
	})
}

// FuzzParseKey: no text panics, and no error repeats it.
func FuzzParseKey(f *testing.F) {
	f.Add("2026-11:" + base64.StdEncoding.EncodeToString(secret(1)))
	f.Add("a:b")
	f.Fuzz(func(t *testing.T, text string) {
		k, err := seal.ParseKey(text)
		if err == nil && !strings.HasPrefix(text, k.ID()+":") {
			t.Errorf("%q has the id %q", text, k.ID())
		}
	})
}
