package pubsubbroker_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/api/option"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/keychain/latetest"
	"github.com/postrider/postrider/broker/pubsubbroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/faultproxy"
)

// answers is a reactor that answers a method's requests with errors.
type answers struct {
	mu  sync.Mutex
	say func(req any) error // nil: as the fake does
	got []any
}

func (a *answers) React(req any) (handled bool, ret any, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.got = append(a.got, req)
	if a.say != nil {
		err = a.say(req)
	}
	return err != nil, nil, err
}

// publishes are the payloads of each request to publish.
func (a *answers) publishes() (all [][]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, req := range a.got {
		var payloads []string
		for _, m := range req.(*pubsubpb.PublishRequest).GetMessages() {
			payloads = append(payloads, string(m.GetData()))
		}
		all = append(all, payloads)
	}
	return all
}

func reacting(t *testing.T, method string, say func(req any) error) (*server, *answers) {
	t.Helper()
	a := &answers{say: say}
	return fake(t, pstest.ServerReactorOption{FuncName: method, Reactor: a}), a
}

func messages(keys string) (msgs []postrider.Message) {
	for i, key := range strings.Split(keys, "") {
		msgs = append(msgs, postrider.Message{ID: fmt.Sprintf("01890a5d-ac96-774b-8cce-%012x", i), Topic: "orders", Key: strings.Trim(key, "-"), Payload: []byte(key + string(rune('0'+i)))})
	}
	return msgs
}

// TestAnswers: what each answer of the service means.
func TestAnswers(t *testing.T) {
	t.Parallel()
	busy, err := status.New(codes.ResourceExhausted, "quota").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(7 * time.Second)})
	must(t, err)
	for _, c := range []struct {
		answer error
		class  broker.Class
		code   string
		says   string
	}{
		{status.Error(codes.NotFound, "gone"), broker.ClassOutage, "NOT_FOUND", "gcloud pubsub topics create orders"},
		{status.Error(codes.PermissionDenied, "no"), broker.ClassOutage, "ACCESS_DENIED", "pubsub.topics.publish"},
		{status.Error(codes.Unauthenticated, "who"), broker.ClassOutage, "CREDENTIALS", "GOOGLE_APPLICATION_CREDENTIALS"},
		{busy.Err(), broker.ClassThrottled, "THROTTLED", "quota"},
		{status.Error(codes.InvalidArgument, "bad"), broker.ClassRejected, "INVALID_ARGUMENT", "bad"},
		{status.Error(codes.InvalidArgument, "Invalid resource name given (name=projects/Shop/topics/orders)."), broker.ClassOutage, "INVALID_ARGUMENT", "projects/Shop"},
		{status.Error(codes.FailedPrecondition, "key"), broker.ClassOutage, "FAILED_PRECONDITION", "key"},
		{status.Error(codes.Unavailable, "later"), broker.ClassUnknown, "", "later"},
		{status.Error(codes.Unavailable, `connection error: desc = "error reading from server: EOF"`), broker.ClassUnknown, "", "EOF"},
		{status.Error(codes.Unavailable, `connection error: desc = "keepalive ping failed to receive ACK within timeout"`), broker.ClassUnknown, "", "keepalive"},
		{status.Error(codes.Unavailable, `closing transport due to: connection error: desc = "error reading from server: EOF", received prior goaway: code: NO_ERROR`), broker.ClassUnknown, "", "goaway"},
		{status.Error(codes.Unavailable, `last connection error: connection error: desc = "transport: Error while dialing: refused"`), broker.ClassOutage, "", "cannot be reached"},
		{status.Error(codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: EOF"`), broker.ClassOutage, "", "cannot be reached"},
		{status.Error(codes.Unavailable, "name resolver error: produced zero addresses"), broker.ClassOutage, "", "cannot be reached"},
		{status.Error(codes.Internal, "broken"), broker.ClassUnknown, "", "broken"},
		{status.Error(codes.Aborted, "again"), broker.ClassUnknown, "", "again"},
	} {
		s, a := reacting(t, "Publish", func(any) error { return c.answer })
		sink := open(t, s.addr, nil)
		e := broker.Classify(sink.Deliver(t.Context(), broker.Batch{Messages: messages("a")})[0])
		if e.Class != c.class || e.Code != c.code || !strings.Contains(e.Error(), c.says) {
			t.Errorf("%v: class %v, code %s: %v", c.answer, e.Class, e.Code, e)
		}
		if c.class == broker.ClassThrottled && e.RetryAfter != 7*time.Second {
			t.Errorf("throttled for %v", e.RetryAfter)
		}
		if n := len(a.publishes()); n != 1 { // the client's own retries are off
			t.Errorf("%v: %d requests", c.answer, n)
		}
	}
}

// TestLostConnection: a request whose connection ends before its answer may be stored; one
// that never had a connection is not.
//
// Promises: L
func TestLostConnection(t *testing.T) {
	t.Parallel()
	s, a := reacting(t, "Publish", nil)
	proxy, through := proxied(t, s.addr)
	a.mu.Lock()
	a.say = func(any) error {
		proxy.Cut(0)
		return status.Error(codes.Unavailable, "never read")
	}
	a.mu.Unlock()
	deliver := func(addr string) *broker.Error {
		return broker.Classify(open(t, addr, nil).Deliver(t.Context(), broker.Batch{Messages: messages("a")})[0])
	}
	if e := deliver(through); e.Class != broker.ClassUnknown || len(a.publishes()) == 0 {
		t.Errorf("connection lost after %d requests: class %v: %v", len(a.publishes()), e.Class, e)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the listener is closed
			}
			_, _ = io.ReadFull(c, make([]byte, 33)) // the client's preface and settings
			_ = c.Close()                           // before the server's
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	if e := deliver(l.Addr().String()); e.Class != broker.ClassOutage {
		t.Errorf("no preface: class %v: %v", e.Class, e)
	}
}

// TestRequestsOfAKey: the messages of a key travel together; behind a request that
// failed nothing of its key is sent, and the other keys continue.
//
// Promises: L, O
func TestRequestsOfAKey(t *testing.T) {
	t.Parallel()
	s, a := reacting(t, "Publish", func(req any) error {
		for _, m := range req.(*pubsubpb.PublishRequest).GetMessages() {
			if m.GetOrderingKey() == "b" {
				return status.Error(codes.Unavailable, "later")
			}
		}
		return nil
	})
	must(t, s.create(t.Context(), "orders"))
	sink := open(t, s.addr, nil)
	msgs := messages("abab-a-")
	errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs})
	for i, m := range msgs {
		if failed := errs[i] != nil; failed != (m.Key == "b") {
			t.Errorf("message %d of key %q: %v", i, m.Key, errs[i])
		}
	}
	got := a.publishes()
	slices.SortFunc(got, slices.Compare)
	want := [][]string{{"-4", "-6"}, {"a0", "a2", "a5"}, {"b1", "b3"}}
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("requests %v, want %v", got, want)
	}
}

// TestRefusedRequest: a request that is refused for what it holds is repeated message by
// message, up to the bad one.
//
// Promises: O
func TestRefusedRequest(t *testing.T) {
	t.Parallel()
	s, a := reacting(t, "Publish", func(req any) error {
		for _, m := range req.(*pubsubpb.PublishRequest).GetMessages() {
			if string(m.GetData()) == "a1" {
				return status.Error(codes.InvalidArgument, "bad")
			}
		}
		return nil
	})
	must(t, s.create(t.Context(), "orders"))
	sink := open(t, s.addr, nil)
	errs := sink.Deliver(t.Context(), broker.Batch{Messages: messages("aaa")})
	if errs == nil || errs[0] != nil || broker.Classify(errs[1]).Class != broker.ClassRejected || !errors.Is(errs[2], broker.ErrNotTried) {
		t.Errorf("answers %v", errs)
	}
	if got := a.publishes(); len(got) != 3 || !slices.Equal(got[2], []string{"a1"}) {
		t.Errorf("requests %v", got)
	}
}

// TestExactlyOnceAnswers: of an acknowledgement's ids the service takes some, refuses
// some for ever and some for now. Only the last are an error, and are settled again.
func TestExactlyOnceAnswers(t *testing.T) {
	t.Parallel()
	var (
		mu    sync.Mutex
		calls int
	)
	s, _ := reacting(t, "Acknowledge", func(req any) error {
		mu.Lock()
		defer mu.Unlock()
		ids := req.(*pubsubpb.AcknowledgeRequest).GetAckIds()
		if calls++; calls > 1 || len(ids) != 2 {
			return nil
		}
		st, err := status.New(codes.FailedPrecondition, "some").WithDetails(&errdetails.ErrorInfo{Metadata: map[string]string{
			ids[0]: "PERMANENT_FAILURE_INVALID_ACK_ID", ids[1]: "TRANSIENT_FAILURE_UNORDERED_ACK_ID",
		}})
		if err != nil {
			return err
		}
		return st.Err()
	})
	must(t, s.create(t.Context(), "orders"))
	must(t, s.subscribe(t.Context(), "orders", "shipping"))
	sink := open(t, s.addr, nil)
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: messages("ab")}); errs != nil {
		t.Fatal(errs)
	}
	from := source(t, s, "shipping")
	ds := receive(t, from, 2)
	for len(ds) < 2 {
		ds = append(ds, receive(t, from, 2)...)
	}
	verdicts := []broker.Verdict{{Delivery: ds[0], Ack: true}, {Delivery: ds[1], Ack: true}}
	if err := from.Settle(t.Context(), verdicts); err == nil {
		t.Error("a transient failure is no error")
	}
	must(t, from.Settle(t.Context(), verdicts))
	mu.Lock()
	defer mu.Unlock()
	if calls != 2 {
		t.Errorf("%d requests", calls)
	}
}

func source(t *testing.T, s *server, sub string) *pubsubbroker.Source {
	t.Helper()
	src, err := pubsubbroker.OpenSource(address(s.addr), &pubsubbroker.SourceOptions{Subscription: sub, Timeout: 5 * time.Second})
	must(t, err)
	t.Cleanup(src.Close)
	return src
}

func receive(t *testing.T, s *pubsubbroker.Source, limit int) []broker.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ds, err := s.Receive(ctx, limit)
	must(t, err)
	return ds
}

// TestExtend: a message whose deadline is extended, and what waits behind it, is nobody
// else's when the deadline before is over. One that is not extended is.
func TestExtend(t *testing.T) {
	t.Parallel()
	s := fake(t)
	must(t, s.create(t.Context(), "orders"))
	must(t, s.subscribe(t.Context(), "orders", "shipping"))
	sink := open(t, s.addr, nil)
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: messages("ab")}); errs != nil {
		t.Fatal(errs)
	}
	from := source(t, s, "shipping") // a minute
	ds := receive(t, from, 2)
	for len(ds) < 2 {
		ds = append(ds, receive(t, from, 2)...)
	}
	kept := slices.IndexFunc(ds, func(d broker.Delivery) bool { return d.Message.Key == "a" })
	now := time.Now()
	s.fake.SetTimeNowFunc(func() time.Time { return now.Add(40 * time.Second) })
	must(t, from.Extend(t.Context(), ds[kept:kept+1]))
	s.fake.SetTimeNowFunc(func() time.Time { return now.Add(80 * time.Second) })
	if other := receive(t, source(t, s, "shipping"), 2); len(other) != 1 || other[0].Message.Key != "b" {
		t.Errorf("received %v", other)
	}
}

// TestManyHeaders: headers beyond what Pub/Sub takes as attributes travel together, and
// arrive.
func TestManyHeaders(t *testing.T) {
	t.Parallel()
	s := fake(t)
	must(t, s.create(t.Context(), "orders"))
	must(t, s.subscribe(t.Context(), "orders", "shipping"))
	m := messages("a")[0]
	m.Headers = map[string]string{"google-like": "x", "long": strings.Repeat("ü", 3000), "bytes": "\xff\x00", strings.Repeat("n", 300): "name"}
	for i := range 120 {
		m.Headers["h"+strings.Repeat("i", i)] = "v"
	}
	sink := open(t, s.addr, nil)
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}}); errs != nil {
		t.Fatal(errs)
	}
	d := receive(t, source(t, s, "shipping"), 1)[0]
	if d.Err != nil || len(d.Message.Headers) != len(m.Headers) {
		t.Errorf("%d headers, want %d: %v", len(d.Message.Headers), len(m.Headers), d.Err)
	}
	for name, value := range m.Headers {
		if name != "bytes" && d.Message.Headers[name] != value { // JSON has no such bytes
			t.Errorf("header %.20s is %.20q, want %.20q", name, d.Message.Headers[name], value)
		}
	}
}

// TestEmptyRaw: a message of which nothing travels is sent with a mark, which the source
// takes off again.
func TestEmptyRaw(t *testing.T) {
	t.Parallel()
	s := fake(t)
	must(t, s.create(t.Context(), "orders"))
	must(t, s.subscribe(t.Context(), "orders", "shipping"))
	sink := open(t, s.addr, &pubsubbroker.SinkOptions{Route: func(m *postrider.Message) (envelope.Route, error) {
		return envelope.Route{Topic: m.Topic, Key: m.Key, Format: envelope.Raw}, nil
	}})
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{{ID: "1", Topic: "orders", Key: "a"}}}); errs != nil {
		t.Fatal(errs)
	}
	if d := receive(t, source(t, s, "shipping"), 1)[0]; d.Err != nil || d.Message.Key != "a" || len(d.Message.Payload) > 0 || len(d.Message.Headers) > 0 {
		t.Errorf("received %+v, %v", d.Message, d.Err)
	}
}

// TestURL: what a URL says wrong is an error that does not repeat it.
func TestURL(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"pubsub://":                            "a host is missing",
		"pubsub://a,b":                         "one project",
		"pubsub://u:hunter2@p":                 "GOOGLE_APPLICATION_CREDENTIALS",
		"pubsub://p?emulator=hunter2":          "emulator must be HOST:PORT",
		"pubsub://p?emulator=a:1&endpoint=b:1": "use endpoint or emulator",
		"pubsub://p?window=0":                  "window must be a number",
		"pubsub://p?deadline=1s":               "deadline must be a duration",
		"pubsub://p?tls=true":                  "TLS is always on",
	} {
		_, err := pubsubbroker.ParseURL(url)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", url, err, says)
		}
	}
	if _, err := pubsubbroker.Open("pubsub://p?deadline=30s", nil); err == nil || !strings.Contains(err.Error(), `"deadline"`) {
		t.Errorf("a sink takes a deadline: %v", err)
	}
}

// TestProject: a project that Pub/Sub would refuse for its shape is an error of opening.
func TestProject(t *testing.T) {
	t.Parallel()
	for name, valid := range map[string]bool{
		"my-project": true, "shop-1": true, "123456789012": true, "example.com:my-project": true,
		"shop": false, "My-Project": false, "my_project": false, "1-project": false, "my-project-": false, "projects/my-project": false, strings.Repeat("p", 31): false,
	} {
		target := pubsubbroker.Target{Emulator: "127.0.0.1:1"}
		pub, err := pubsub.NewTopicAdminClient(t.Context(), target.ClientOptions()...)
		must(t, err)
		sub, err := pubsub.NewSubscriptionAdminClient(t.Context(), target.ClientOptions()...)
		must(t, err)
		sink, sinkErr := pubsubbroker.NewSink(pub, &pubsubbroker.SinkOptions{Project: name})
		source, sourceErr := pubsubbroker.NewSource(sub, &pubsubbroker.SourceOptions{Project: name, Subscription: "shipping"})
		for _, err := range []error{sinkErr, sourceErr} {
			if (err == nil) != valid || err != nil && !strings.Contains(err.Error(), name) {
				t.Errorf("project %q: %v", name, err)
			}
		}
		if sinkErr == nil {
			sink.Close()
		}
		if sourceErr == nil {
			source.Close()
		}
		_, _ = pub.Close(), sub.Close()
	}
	if _, err := pubsubbroker.Open("pubsub://shop?emulator=127.0.0.1:1", nil); err == nil {
		t.Error("a short project is accepted")
	}
}

// failing are credentials whose tokens cannot be fetched.
type failing struct{ err error }

func (f failing) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return nil, f.err
}

func (failing) RequireTransportSecurity() bool { return false }

// TestTokens: an access token that cannot be fetched for now is an outage that passes.
// Credentials that are missing or revoked need a person.
func TestTokens(t *testing.T) {
	t.Parallel()
	s, a := reacting(t, "Publish", nil)
	target := pubsubbroker.Target{Emulator: s.addr}
	for text, code := range map[string]string{
		"auth: cannot fetch token: 503 Response: backend error":                       "",
		"credentials: cannot fetch token: dial tcp 169.254.169.254:80: i/o timeout":   "",
		`auth: cannot fetch token: 400 Response: {"error":"invalid_grant"}`:           "CREDENTIALS",
		"credentials: could not find default credentials. See x for more information": "CREDENTIALS",
	} {
		creds := option.WithGRPCDialOption(grpc.WithPerRPCCredentials(failing{errors.New(text)}))
		client, err := pubsub.NewTopicAdminClient(t.Context(), append(target.ClientOptions(), creds)...)
		must(t, err)
		sink, err := pubsubbroker.NewSink(client, &pubsubbroker.SinkOptions{Project: project})
		must(t, err)
		e := broker.Classify(sink.Deliver(t.Context(), broker.Batch{Messages: messages("a")})[0])
		if e.Class != broker.ClassOutage || e.Code != code || !strings.Contains(e.Error(), text) {
			t.Errorf("%s: class %v, code %q: %v", text, e.Class, e.Code, e)
		}
		if err := sink.Ping(t.Context()); err == nil || errors.Is(err, broker.ErrRefused) != (code != "") {
			t.Errorf("%s: ping: %v", text, err)
		}
		sink.Close()
		_ = client.Close()
	}
	if n := len(a.publishes()); n != 0 {
		t.Errorf("%d requests without a token", n)
	}
}

// TestEmulatorHost: without a parameter of the URL the service's variable names the
// emulator, for sinks and for sources.
func TestEmulatorHost(t *testing.T) {
	s, a := reacting(t, "Publish", nil)
	must(t, s.create(t.Context(), "orders"))
	must(t, s.subscribe(t.Context(), "orders", "shipping"))
	t.Setenv("PUBSUB_EMULATOR_HOST", s.addr)
	sink, err := pubsubbroker.Open("pubsub://"+project, nil)
	must(t, err)
	t.Cleanup(sink.Close)
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: messages("a")}); errs != nil || len(a.publishes()) != 1 {
		t.Errorf("%v, %d requests", errs, len(a.publishes()))
	}
	from, err := pubsubbroker.OpenSource("pubsub://"+project, &pubsubbroker.SourceOptions{Subscription: "shipping"})
	must(t, err)
	t.Cleanup(from.Close)
	if ds, err := from.Receive(t.Context(), 1); err != nil || len(ds) != 1 {
		t.Errorf("received %v, %v", ds, err)
	}
}

// TestEndpoint: a regional endpoint is dialed at its address, by TLS, with its name. It
// conflicts with the variable that names an emulator.
func TestEndpoint(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	account, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "relay@" + project + ".iam.gserviceaccount.com", "token_uri": "https://oauth2.googleapis.com/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "private_key_id": "1", "project_id": project,
	})
	must(t, err)
	file := filepath.Join(t.TempDir(), "account.json")
	must(t, os.WriteFile(file, account, 0o600))
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	t.Setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")
	if _, err := pubsubbroker.Open("pubsub://"+project+"?endpoint=localhost:1", nil); err == nil || !strings.Contains(err.Error(), "unset the variable") {
		t.Errorf("an endpoint beside an emulator: %v", err)
	}
	t.Setenv("PUBSUB_EMULATOR_HOST", "")
	l, err := net.Listen("tcp", "localhost:0")
	must(t, err)
	names := make(chan string, 10)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = tls.Server(conn, &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) { //nolint:gosec // it accepts nobody
				names <- hello.ServerName
				return nil, errors.New("no certificate")
			}}).HandshakeContext(t.Context())
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	sink, err := pubsubbroker.Open("pubsub://"+project+"?endpoint=localhost:"+port, nil)
	must(t, err)
	t.Cleanup(sink.Close)
	e := broker.Classify(sink.Deliver(t.Context(), broker.Batch{Messages: messages("a")})[0])
	if name := <-names; name != "localhost" || e.Class != broker.ClassOutage {
		t.Errorf("dialed %q: class %v: %v", name, e.Class, e)
	}
}

// TestLateRequests: a call that gets no room for a request in the first half of its time
// begins none in the second. What it did not send counts as not tried.
func TestLateRequests(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}), make(chan struct{})
	s, a := reacting(t, "Publish", func(any) error {
		close(asked)
		<-answer
		return nil
	})
	must(t, s.create(t.Context(), "orders"))
	sink, err := pubsubbroker.Open("pubsub://"+project+"?window=1&emulator="+s.addr, nil)
	must(t, err)
	t.Cleanup(sink.Close)
	latetest.Run(t, latetest.Service{Sink: sink, Asked: asked, Answer: answer, Sent: func() int { return len(a.publishes()) }}, messages("a"), messages("bbc-"))
}

// TestRejectedToken: after a request whose credentials were rejected the next one has a
// client of its own, which looks for credentials again.
func TestRejectedToken(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(*pubsubbroker.Sink, *pubsubbroker.Source) error{
		"Publish": func(sink *pubsubbroker.Sink, _ *pubsubbroker.Source) error {
			return errors.Join(sink.Deliver(t.Context(), broker.Batch{Messages: messages("a")})...)
		},
		"GetTopic": func(sink *pubsubbroker.Sink, _ *pubsubbroker.Source) error { return sink.Ping(t.Context()) },
		"Pull": func(_ *pubsubbroker.Sink, from *pubsubbroker.Source) error {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // a pull without an answer ends after 80 s
			defer cancel()
			_, err := from.Receive(ctx, 1)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expired := true
			s, _ := reacting(t, name, func(any) error {
				if expired {
					expired = false
					return status.Error(codes.Unauthenticated, "token expired")
				}
				return nil
			})
			must(t, s.create(t.Context(), "orders"))
			must(t, s.subscribe(t.Context(), "orders", "shipping"))
			proxy, err := faultproxy.New(s.addr)
			must(t, err)
			t.Cleanup(func() { proxy.Close() })
			sink := open(t, proxy.Addr(), &pubsubbroker.SinkOptions{Timeout: 20 * time.Second})
			from, err := pubsubbroker.OpenSource("pubsub://"+project+"?emulator="+proxy.Addr(), &pubsubbroker.SourceOptions{Subscription: "shipping", Timeout: 20 * time.Second})
			must(t, err)
			t.Cleanup(from.Close)
			if err := ask(sink, from); err == nil || !strings.Contains(err.Error(), "token expired") {
				t.Fatalf("the first request: %v", err)
			}
			if errs := open(t, s.addr, nil).Deliver(t.Context(), broker.Batch{Messages: messages("b")}); errs != nil {
				t.Fatal(errs)
			}
			proxy.Strand() // a request on the connection before gets no answer
			if err := ask(sink, from); err != nil {
				t.Errorf("the next request: %v", err)
			}
		})
	}
}

// TestAdvice: a topic without subscriptions is advised on, beside topics that are missing
// or have a name that the service refuses.
func TestAdvice(t *testing.T) {
	t.Parallel()
	s, _ := reacting(t, "ListTopicSubscriptions", func(req any) error {
		switch topic := req.(*pubsubpb.ListTopicSubscriptionsRequest).GetTopic(); topic {
		case topicPath("goog-orders"):
			return status.Error(codes.InvalidArgument, "Invalid resource name given")
		case topicPath("nowhere"):
			return status.Error(codes.NotFound, "Topic not found")
		}
		return nil
	})
	must(t, s.create(t.Context(), "orders"))
	must(t, s.create(t.Context(), "invoices"))
	must(t, s.subscribe(t.Context(), "invoices", "billing"))
	all, err := open(t, s.addr, nil).Info().Advise(t.Context(), []string{"goog-orders", "nowhere", "invoices", "orders"})
	if err != nil || len(all) != 1 || all[0].Topic != "orders" || !strings.Contains(all[0].Fix, "--topic orders") {
		t.Errorf("advice %+v, %v", all, err)
	}
}
