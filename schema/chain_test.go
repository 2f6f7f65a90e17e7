package schema_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/schema"
)

// Three versions of one event: the amount was a number of units, then of cents, then
// got a currency.
type (
	v1 struct {
		Order string `json:"order"`
		Units int64  `json:"units"`
	}
	v2 struct {
		Order string `json:"order"`
		Cents int64  `json:"cents"`
	}
	v3 struct {
		Order    string `json:"order"`
		Cents    int64  `json:"cents"`
		Currency string `json:"currency"`
	}
)

func v1to2(e v1) (v2, error) {
	switch e.Order {
	case "drop":
		return v2{}, fmt.Errorf("a test order: %w", schema.ErrDrop)
	case "refuse":
		return v2{}, fmt.Errorf("refused: %w", schema.Reason("the order has no amount"))
	case "quote":
		return v2{}, fmt.Errorf("cannot read the secret %s", "4711")
	case "panic":
		panic("the secret 4711")
	}
	return v2{Order: e.Order, Cents: 100 * e.Units}, nil
}

func v2to3(e v2) (v3, error) {
	return v3{Order: e.Order, Cents: e.Cents, Currency: "EUR"}, nil
}

func three(o schema.Options) schema.Chain[v3] {
	return schema.Then(schema.Then(schema.BeginWith[v1](o), v1to2), v2to3)
}

func TestEveryVersionBecomesTheNewest(t *testing.T) {
	chain := three(schema.Options{})
	if chain.Err() != nil || chain.First() != 1 || chain.Last() != 3 {
		t.Fatalf("versions %d to %d: %v", chain.First(), chain.Last(), chain.Err())
	}
	later := schema.Then(schema.BeginWith[v2](schema.Options{First: 2, Unversioned: 3}), v2to3)
	for _, tc := range []struct {
		chain   schema.Chain[v3]
		version int32
		payload string
		want    v3
	}{
		{chain, 0, `{"order":"o","units":2}`, v3{"o", 200, "EUR"}},
		{chain, 1, `{"order":"o","units":2}`, v3{"o", 200, "EUR"}},
		{chain, 2, `{"order":"o","cents":2}`, v3{"o", 2, "EUR"}},
		{chain, 3, `{"order":"o","cents":2,"currency":"SEK"}`, v3{"o", 2, "SEK"}},
		{later, 0, `{"order":"o","cents":2,"currency":"SEK"}`, v3{"o", 2, "SEK"}},
		{later, 2, `{"order":"o","cents":2}`, v3{"o", 2, "EUR"}},
	} {
		if got, err := tc.chain.Decode(tc.version, []byte(tc.payload)); err != nil || got != tc.want {
			t.Errorf("version %d of %s: %+v, %v, want %+v", tc.version, tc.payload, got, err, tc.want)
		}
	}
}

// TestVersionsOutsideTheChainAreNotDecoded: the payload is not even looked at.
func TestVersionsOutsideTheChainAreNotDecoded(t *testing.T) {
	looked := 0
	chain := schema.Then(schema.BeginWith[v2](schema.Options{First: 2, Unmarshal: func([]byte, any) error { looked++; return nil }}), v2to3)
	for version, want := range map[int32]string{
		4: "SCHEMA_NEWER: message has schema version 4, this program decodes 2 to 3; deploy a program that decodes it",
		1: "SCHEMA_OLDER: message has schema version 1, this program decodes 2 to 3; add the old type and its upcaster to the chain",
	} {
		_, err := chain.Decode(version, []byte(`{}`))
		var bad *schema.VersionError
		if !errors.As(err, &bad) || err.Error() != want || bad.Newer() != (version > 3) {
			t.Errorf("version %d: %v, want %s", version, err, want)
		}
	}
	if looked > 0 {
		t.Errorf("%d payloads were decoded", looked)
	}
	one := schema.Begin[v1]()
	if _, err := one.Decode(2, nil); err == nil || !strings.Contains(err.Error(), "decodes 1 only") {
		t.Errorf("a chain of one: %v", err)
	}
}

func TestErrorsDoNotQuoteThePayload(t *testing.T) {
	chain := three(schema.Options{})
	for _, tc := range []struct {
		version       int32
		payload, want string
	}{
		{1, `{"order":"refuse"}`, "SCHEMA_UPCAST: upcast from schema version 1 to 2: the order has no amount"},
		{1, `{"order":"quote"}`, "SCHEMA_UPCAST: upcast from schema version 1 to 2: a *errors.errorString, whose text may quote the value"},
		{1, `{"order":"panic"}`, "SCHEMA_UPCAST: upcast from schema version 1 to 2: panicked with a string"},
		{3, `{"cents":"4711"}`, `SCHEMA_DECODE: decode the payload of schema version 3 as schema_test.v3: field "cents" at byte 15 is not of type int64`},
		{1, `{"units":4711`, "SCHEMA_DECODE: decode the payload of schema version 1 as schema_test.v1: invalid JSON at byte 13"},
	} {
		got, err := chain.Decode(tc.version, []byte(tc.payload))
		if err == nil || err.Error() != tc.want || got != (v3{}) {
			t.Errorf("%s: %+v, %v\nwant %s", tc.payload, got, err, tc.want)
		}
	}
	if _, err := chain.Decode(1, []byte(`{"order":"drop"}`)); err != schema.ErrDrop { //nolint:errorlint // its text must not say more
		t.Errorf("a dropped message: %v", err)
	}
	for _, coded := range []struct {
		err  interface{ ErrorCode() string }
		want string
	}{
		{&schema.VersionError{Version: 1, First: 2, Last: 2}, schema.CodeOlder},
		{&schema.VersionError{Version: 3, First: 2, Last: 2}, schema.CodeNewer},
		{&schema.DecodeError{}, schema.CodeDecode},
		{&schema.UpcastError{}, schema.CodeUpcast},
	} {
		if coded.err.ErrorCode() != coded.want {
			t.Errorf("%T has the code %s", coded.err, coded.err.ErrorCode())
		}
	}
}

func TestChainsThatCannotBeUsed(t *testing.T) {
	for want, err := range map[string]error{
		"the chain is empty":                              schema.Chain[v1]{}.Err(),
		"schema: the chain is empty: begin it":            schema.Then(schema.Chain[v1]{}, v1to2).Err(),
		"Options.First is -1":                             schema.BeginWith[v1](schema.Options{First: -1}).Err(),
		"Options.Unversioned is 1, and the chain begins":  schema.BeginWith[v1](schema.Options{First: 2, Unversioned: 1}).Err(),
		"Options.Unversioned is 4, and the chain ends":    three(schema.Options{Unversioned: 4}).Err(),
		"Options.Newer is 9: use schema.Retry":            schema.BeginWith[v1](schema.Options{Newer: 9}).Err(),
		"the upcaster from version 1 to 2 is nil":         schema.Then(schema.Begin[v1](), (func(v1) (v2, error))(nil)).Err(),
		"schema_test.v1 is the type of versions 1 and 3:": schema.Then(schema.Then(schema.Begin[v1](), v1to2), func(v2) (v1, error) { return v1{}, nil }).Err(),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := (schema.Chain[v1]{}).Decode(1, []byte("{}")); err == nil {
		t.Error("an empty chain decodes")
	}
}

// A chain that another one continues is not changed by it.
func TestChainsShareTheirBeginning(t *testing.T) {
	begin := schema.Then(schema.Begin[v1](), v1to2)
	one := schema.Then(begin, v2to3)
	type other struct{ Order string }
	two := schema.Then(begin, func(e v2) (other, error) { return other{e.Order}, nil })
	if err := errors.Join(begin.Err(), one.Err(), two.Err()); err != nil || begin.Last() != 2 {
		t.Fatal(begin.Last(), err)
	}
	got, err := two.Decode(1, []byte(`{"order":"o","units":1}`))
	if err != nil || got.Order != "o" {
		t.Error(got, err)
	}
}

// nothing is a decoder that costs nothing. A variable, so that the compiler cannot look inside.
var nothing = func([]byte, any) error { return nil }

// BenchmarkDecode: the difference of both is what the current version costs more than
// the decoder alone.
func BenchmarkDecode(b *testing.B) {
	payload := []byte(`{"order":"o-1","cents":200,"currency":"EUR"}`)
	decode := func(data []byte) (e v3, err error) { err = nothing(data, &e); return e, err }
	free := three(schema.Options{Unmarshal: nothing})
	chain := three(schema.Options{})
	for _, bench := range []struct {
		name string
		run  func() (v3, error)
	}{
		{"decoder alone", func() (v3, error) { return decode(payload) }},
		{"chain", func() (v3, error) { return free.Decode(3, payload) }},
		{"JSON alone", func() (e v3, err error) { err = json.Unmarshal(payload, &e); return e, err }},
		{"JSON in a chain", func() (v3, error) { return chain.Decode(3, payload) }},
		{"JSON two versions old", func() (v3, error) { return chain.Decode(1, payload) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := bench.run(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestTheCurrentVersionAllocatesNothingMore than its decoder does.
func TestTheCurrentVersionAllocatesNothingMore(t *testing.T) {
	payload := []byte(`{"order":"o-1","cents":200,"currency":"EUR"}`)
	chain := three(schema.Options{})
	alone := testing.AllocsPerRun(100, func() {
		var e v3
		_ = json.Unmarshal(payload, &e)
	})
	if got := testing.AllocsPerRun(100, func() { _, _ = chain.Decode(3, payload) }); got > alone {
		t.Errorf("%v allocations, the decoder alone has %v", got, alone)
	}
}
