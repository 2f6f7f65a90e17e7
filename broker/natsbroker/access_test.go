package natsbroker_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/internal/testserver"
)

const canary = "hunter2-canary"

// guarded is a server with a configuration file, which may demand credentials.
type guarded struct {
	*testing.T
	server *server.Server
	dir    string
	host   string
}

func newGuarded(t *testing.T, config string) *guarded {
	t.Helper()
	g := &guarded{T: t, dir: t.TempDir()}
	g.config(config)
	opts, err := server.ProcessConfigFile(filepath.Join(g.dir, "nats.conf"))
	if err != nil {
		t.Fatal(err)
	}
	opts.NoLog, opts.NoSigs = true, true
	if g.server, err = server.NewServer(opts); err != nil {
		t.Fatal(err)
	}
	g.server.Start()
	t.Cleanup(func() { g.server.Shutdown(); g.server.WaitForShutdown() })
	if !g.server.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server is not ready")
	}
	_, g.host, _ = strings.Cut(g.server.ClientURL(), "://")
	return g
}

func (g *guarded) config(text string) {
	g.Helper()
	if !strings.Contains(text, "operator:") {
		text += "\njetstream { store_dir: \"" + g.dir + "/js\" }"
	}
	g.file("nats.conf", "listen: \"127.0.0.1:-1\"\n"+text+"\n")
}

func (g *guarded) reload(text string) {
	g.Helper()
	g.config(text)
	if err := g.server.Reload(); err != nil {
		g.Fatal(err)
	}
}

func (g *guarded) file(name, text string) string {
	g.Helper()
	path := filepath.Join(g.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		g.Fatal(err)
	}
	return path
}

// open opens a sink for nats://who and the server's address, with parameters.
func (g *guarded) open(who string, params ...string) *natsbroker.Sink {
	g.Helper()
	sink, err := natsbroker.Open("nats://"+who+g.host+"/?"+strings.Join(params, "&"), nil)
	if err != nil {
		g.Fatal(err)
	}
	g.Cleanup(sink.Close)
	return sink
}

// becomes delivers until the answer contains want, or nil if want is empty.
func (g *guarded) becomes(sink broker.Sink, topic, want string) *broker.Error {
	g.Helper()
	ctx, cancel := context.WithTimeout(g.Context(), time.Minute)
	defer cancel()
	for {
		errs := sink.Deliver(ctx, broker.Batch{Messages: []postrider.Message{{Topic: topic, Key: "k", Type: "t"}}})
		var err *broker.Error
		if errs != nil {
			err = broker.Classify(errs[0])
			if strings.Contains(err.Error(), "hunter") {
				g.Errorf("the error repeats the password: %v", err)
			}
		}
		switch {
		case want == "" && err == nil, want != "" && err != nil && strings.Contains(err.Error(), want):
			return err
		case ctx.Err() != nil:
			g.Fatalf("want %q, the answer is %v", want, err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (g *guarded) outage(sink broker.Sink, topic, code, destination, want string) {
	g.Helper()
	if err := g.becomes(sink, topic, want); err.Class != broker.ClassOutage || err.Code != code || err.Destination != destination {
		g.Errorf("want an outage %s at %q, got %v", code, destination, err)
	}
}

// stream makes a stream of ok.> and no.> as the user who.
func (g *guarded) stream(who string, params ...string) {
	g.Helper()
	target, err := natsbroker.ParseURL("nats://" + who + g.host + "/?" + strings.Join(params, "&"))
	if err != nil {
		g.Fatal(err)
	}
	nc, err := target.Connect()
	if err != nil {
		g.Fatal(err)
	}
	defer nc.Close()
	for end := time.Now().Add(time.Minute); !nc.IsConnected(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			g.Fatal(nc.LastError())
		}
	}
	js, err := jetstream.New(nc)
	if err != nil {
		g.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(g.Context(), time.Minute)
	defer cancel()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"ok.>", "no.>"}}); err != nil {
		g.Fatal(err)
	}
}

func users(password string, publish ...string) string {
	quoted := `"` + strings.Join(append(publish, "$JS.API.>"), `", "`) + `"`
	return fmt.Sprintf(`authorization { users = [ {user: admin, password: admin},
  {user: relay, password: %q, permissions: {publish: [%s], subscribe: ["_INBOX.>"]}} ] }`, password, quoted)
}

// TestWhoWeAre: a user's password and rights change. The sink keeps its connection,
// reports what is wrong and continues by itself.
//
// Promises: C
func TestWhoWeAre(t *testing.T) {
	g := newGuarded(t, users(canary, "ok.>"))
	g.stream("admin:admin@")
	file := g.file("password", canary+"\n")
	sink := g.open("relay@", "password-file="+file)
	g.becomes(sink, "ok.x", "")
	t.Setenv("POSTRIDER_TEST_PASSWORD", canary)
	g.becomes(g.open("relay@", "password-env=POSTRIDER_TEST_PASSWORD"), "ok.x", "")
	const fix = "check user, password, token, creds or nkey"
	g.outage(g.open("relay:hunter3@"), "ok.x", "", "", fix)

	g.outage(sink, "no.x", "PERMISSION", "no.x", "allow this user to publish to it")
	g.becomes(sink, "ok.x", "")
	g.reload(users(canary, "ok.>", "no.>"))
	g.becomes(sink, "no.x", "")

	g.reload(users("hunter4", "ok.>", "no.>"))
	g.outage(sink, "ok.x", "", "", fix) // the client keeps trying, and does not stop after the second failure
	if _, err := sink.Probe(ctxWithin(t, time.Second), []string{"ok.x"}); err == nil || !strings.Contains(err.Error(), fix) {
		t.Errorf("Probe: %v", err)
	}
	for range 20 {
		g.becomes(sink, "ok.x", fix)
		<-time.After(50 * time.Millisecond)
	}
	g.file("password", "hunter4\n")
	g.becomes(sink, "ok.x", "")
}

func ctxWithin(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// TestKeysAndTokens: an nkey, a token and a creds file.
func TestKeysAndTokens(t *testing.T) {
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	public, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("nkey", func(t *testing.T) {
		g := newGuarded(t, fmt.Sprintf("authorization { users = [ {nkey: %s} ] }", public))
		file := g.file("relay.nk", string(seed))
		g.stream("", "nkey="+file)
		g.becomes(g.open("", "nkey="+file), "ok.x", "")
	})
	t.Run("token", func(t *testing.T) {
		g := newGuarded(t, "authorization { token: "+canary+" }")
		file := g.file("token", canary)
		g.stream("", "token-file="+file)
		g.becomes(g.open("", "token-file="+file), "ok.x", "")
		g.becomes(g.open(canary+"@"), "ok.x", "")
		g.outage(g.open("hunter3@"), "ok.x", "", "", "check user, password, token")
	})
	t.Run("creds", func(t *testing.T) {
		operator, account := key(t, nkeys.CreateOperator), key(t, nkeys.CreateAccount)
		ac := jwt.NewAccountClaims(account.public)
		ac.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1}
		accountJWT, err := ac.Encode(operator.pair)
		if err != nil {
			t.Fatal(err)
		}
		operatorJWT, err := jwt.NewOperatorClaims(operator.public).Encode(operator.pair)
		if err != nil {
			t.Fatal(err)
		}
		g := newGuarded(t, fmt.Sprintf("operator: %q\nresolver: MEMORY\nresolver_preload: { %s: %q }", operatorJWT, account.public, accountJWT))
		userJWT, err := jwt.NewUserClaims(public).Encode(account.pair)
		if err != nil {
			t.Fatal(err)
		}
		text, err := jwt.FormatUserConfig(userJWT, seed)
		if err != nil {
			t.Fatal(err)
		}
		file := g.file("relay.creds", string(text))
		g.outage(g.open("", "creds="+file), "ok.x", "NO_STREAM", "ok.x", "no stream takes the subject") // there is no JetStream
		text[len(text)/4] ^= 1
		g.outage(g.open("", "creds="+g.file("other.creds", string(text))), "ok.x", "", "", "not connected")
	})
	for params, want := range map[string]string{
		"nkey=/not/there": "no such file", "creds=/not/there": "no such file",
		"creds=" + (&guarded{T: t, dir: t.TempDir()}).file("bad", canary): "no valid credentials or seed",
		"nkey=" + (&guarded{T: t, dir: t.TempDir()}).file("bad", canary):  "no valid credentials or seed",
		"token-file=/not/there": "no such file", "password-env=POSTRIDER_NOT_SET": "POSTRIDER_NOT_SET",
	} {
		if _, err := natsbroker.Open("nats://h/?"+params, nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: %v", params, err)
		}
	}
	t.Setenv("POSTRIDER_TEST_TOKEN", canary)
	if _, err := natsbroker.Open("nats://u:p@h/?token-env=POSTRIDER_TEST_TOKEN", nil); err == nil || !strings.Contains(err.Error(), "conflicting credentials") {
		t.Errorf("two identities: %v", err)
	}
}

type keyPair struct {
	pair   nkeys.KeyPair
	public string
}

func key(t *testing.T, create func() (nkeys.KeyPair, error)) keyPair {
	t.Helper()
	pair, err := create()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return keyPair{pair, public}
}

// TestCertificates: a private authority, and a certificate in place of a password.
func TestCertificates(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	ca, err := testserver.NewCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := testserver.NewCA(other)
	if err != nil {
		t.Fatal(err)
	}
	cert, certKey, err := ca.IssueFiles(dir, "server", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	mine, mineKey, err := ca.IssueFiles(dir, "relay")
	if err != nil {
		t.Fatal(err)
	}
	g := newGuarded(t, fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }", cert, certKey, ca.File))
	full := []string{"tls-ca=" + ca.File, "tls-cert=" + mine, "tls-key=" + mineKey}
	g.stream("", full...)
	g.becomes(g.open("", full...), "ok.x", "")
	for name, params := range map[string][]string{
		"another authority": append([]string{"tls-ca=" + stranger.File}, full[1:]...),
		"no certificate":    full[:1],
		"another name":      append([]string{"tls-server-name=elsewhere"}, full...),
	} {
		if err := g.becomes(g.open("", params...), "ok.x", "outage"); err.Class != broker.ClassOutage {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The files are read again for each connection: a sink that is refused with a
	// stranger's certificate connects once they contain the right one.
	if _, _, err := stranger.IssueFiles(dir, "relay"); err != nil {
		t.Fatal(err)
	}
	sink := g.open("", full...)
	if err := g.becomes(sink, "ok.x", "outage"); err.Class != broker.ClassOutage {
		t.Errorf("a stranger's certificate: %v", err)
	}
	if _, _, err := ca.IssueFiles(dir, "relay"); err != nil {
		t.Fatal(err)
	}
	g.becomes(sink, "ok.x", "")
}

// TestFullStream: a full stream with discard: new makes the relay wait.
func TestFullStream(t *testing.T) {
	nc := connect(t, embedded(t))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	sink, err := natsbroker.NewSink(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]jetstream.StreamConfig{
		"messages": {MaxMsgs: 1}, "bytes": {MaxBytes: 200}, "subject": {MaxMsgsPerSubject: 1, DiscardNewPerSubject: true},
	} {
		c.Name, c.Subjects, c.Discard = name, []string{name + ".>"}, jetstream.DiscardNew
		stream, err := js.CreateStream(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		send := func(n int) *broker.Error {
			for range n {
				if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{{Topic: name + ".x", Key: "k", Type: "t"}}}); errs != nil {
					return broker.Classify(errs[0])
				}
			}
			return nil
		}
		if err := send(5); err == nil || err.Class != broker.ClassThrottled || err.Destination != name+".x" {
			t.Errorf("%s: full, the answer is %v", name, err)
		}
		if err := stream.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := send(1); err != nil {
			t.Errorf("%s: room again, the answer is %v", name, err)
		}
	}
}

// TestProbeAndAdvice: a setting that keeps messages out of a stream is an error; a
// setting that may lose them later is advice.
func TestProbeAndAdvice(t *testing.T) {
	nc := connect(t, embedded(t))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	sink, err := natsbroker.NewSink(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]jetstream.StreamConfig{
		"good": {}, "mute": {NoAck: true}, "old": {MaxMsgs: 5}, "ram": {Storage: jetstream.MemoryStorage},
		"short": {Duplicates: time.Second}, "small": {MaxMsgSize: 1000}, "new": {MaxMsgs: 5, Discard: jetstream.DiscardNew},
	} {
		c.Name, c.Subjects = name, []string{name}
		if _, err := js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	topics := []string{"good", "mute", "nowhere", "old", "ram", "short", "small", "new"}
	missing, err := sink.Probe(t.Context(), topics)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"", "nats stream edit mute --ack", "nats stream add", "", "", "", "", ""} {
		if got := fmt.Sprint(missing[i]); want == "" && missing[i] != nil || !strings.Contains(got, want) {
			t.Errorf("Probe of %s: %v", topics[i], missing[i])
		}
	}
	advice, err := sink.Advise(t.Context(), topics)
	if err != nil {
		t.Fatal(err)
	}
	said := make(map[string]string)
	for _, a := range advice {
		if a.Why == "" || a.Fix == "" {
			t.Errorf("no reason or remedy: %+v", a)
		}
		said[a.Topic] += a.What + "; "
	}
	for topic, want := range map[string]string{
		"old": "oldest messages", "ram": "memory", "short": "1s only", "small": "1000 bytes", "good": "one replica",
	} {
		if !strings.Contains(said[topic], want) {
			t.Errorf("%s: %q, want %q", topic, said[topic], want)
		}
	}
	if strings.Contains(said["new"], "oldest") || strings.Count(said["good"], ";") != 1 {
		t.Errorf("advice where none is due: %q", said)
	}
}
