package rabbitbroker_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// secured is a broker with TLS and a consumer timeout of 2 s.
type secured struct {
	*testserver.RabbitMQ
	ca  *testserver.CA
	dir string
}

func newSecured(t *testing.T, version string) *secured {
	t.Helper()
	dir := filepath.Join(os.TempDir(), "rabbitmq-tls-"+rand.Text()) // the server's user cannot read t.TempDir()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ca, err := testserver.NewCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.IssueFiles(dir, "server", "127.0.0.1")
	if err == nil {
		err = os.Chmod(key, 0o644) // the server's user reads it
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &secured{dir: dir, ca: ca, RabbitMQ: testserver.StartRabbitMQ(t, version, testserver.WithConfig(
		"ssl_options.cacertfile = "+ca.File, "ssl_options.certfile = "+cert, "ssl_options.keyfile = "+key,
		"ssl_options.verify = verify_peer", "ssl_options.fail_if_no_peer_cert = false",
		"consumer_timeout = 2000",
	))}
	// Channels check once a minute by default, and no configuration file has this setting.
	if err := s.Ctl(t.Context(), "eval", "application:set_env(rabbit, channel_tick_interval, 200)."); err != nil {
		t.Fatal(err)
	}
	return s
}

// url returns amqps://, who and the listener's address, with parameters.
func (s *secured) url(who string, params ...string) string {
	return "amqps://" + who + s.TLSAddr + "/?" + strings.Join(append(params, "tls-ca="+s.ca.File), "&")
}

// certificate returns the URL parameters of a client's certificate for a name.
func (s *secured) certificate(t *testing.T, name string) string {
	t.Helper()
	cert, key, err := s.ca.IssueFiles(s.dir, name)
	if err != nil {
		t.Fatal(err)
	}
	return "auth=certificate&tls-cert=" + cert + "&tls-key=" + key
}

// TestSecured runs the tests that need a server with TLS.
func TestSecured(t *testing.T) {
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			s := newSecured(t, version)
			t.Run("tls", func(t *testing.T) { overTLS(t, s) })
			t.Run("consumer timeout", func(t *testing.T) { consumerTimeout(t, s) })
		})
	}
}

// overTLS tests a private authority, and a certificate in place of a password, whose
// file is replaced while the sink runs.
func overTLS(t *testing.T, s *secured) {
	t.Helper()
	queue := declare(t, channel(t, s.URL), single())
	plain := s.url("guest:guest@")
	until(t, open(t, plain), batch(queue, 2, 1, 0), "with a password", accepted)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if ds, err := source(t, plain, queue).Receive(ctx, 2); err != nil || ds[0].Message.Version != 1 {
		t.Errorf("%d deliveries, %v", len(ds), err)
	}

	if e := answer(t, open(t, "amqps://guest:guest@"+s.TLSAddr), batch(queue, 1, 1, 2), 20*time.Second); e == nil ||
		e.Class != broker.ClassOutage || !strings.Contains(e.Error(), "unknown authority") {
		t.Errorf("the system's authorities only: %v", e)
	}
	if e := answer(t, open(t, s.url("guest:guest@", "tls-server-name=elsewhere")), batch(queue, 1, 1, 2), 20*time.Second); e == nil ||
		e.Class != broker.ClassOutage || !strings.Contains(e.Error(), "elsewhere") {
		t.Errorf("the certificate of another host: %v", e)
	}

	params := s.certificate(t, "relay") // no user of this name yet
	sink := open(t, s.url("", params))
	if e := answer(t, sink, batch(queue, 1, 1, 2), 20*time.Second); !is(broker.ClassOutage, "ACCESS_REFUSED")(e) ||
		!strings.Contains(e.Error(), "no user for our certificate") {
		t.Errorf("the certificate of nobody: %v", e)
	}
	for _, args := range [][]string{{"add_user", "relay", "unused"}, {"set_permissions", "relay", ".*", ".*", ".*"}} {
		if err := s.Ctl(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	until(t, sink, batch(queue, 2, 1, 2), "with a certificate", accepted)

	// The files now have the certificate of an unknown user: the next connection
	// is refused, and accepted again once they are restored.
	s.certificate(t, "stranger")
	for _, suffix := range []string{".crt", ".key"} {
		if err := os.Rename(filepath.Join(s.dir, "stranger"+suffix), filepath.Join(s.dir, "relay"+suffix)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Ctl(t.Context(), "close_all_user_connections", "relay", "test"); err != nil {
		t.Fatal(err)
	}
	until(t, sink, batch(queue, 1, 1, 4), "a stranger's certificate", is(broker.ClassOutage, "ACCESS_REFUSED"))
	s.certificate(t, "relay")
	until(t, sink, batch(queue, 1, 1, 4), "a new certificate", accepted)
}

// consumerTimeout tests that a source that holds a message too long loses its channel and
// receives all unsettled messages again in their order; verdicts on the old deliveries
// settle none of them.
func consumerTimeout(t *testing.T, s *secured) {
	t.Helper()
	queue := declare(t, channel(t, s.URL), single())
	until(t, open(t, s.URL), batch(queue, 6, 2, 0), "at first", accepted)
	src := source(t, s.URL, queue)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	held := take(ctx, t, src, 6)
	if err := src.Settle(ctx, verdicts(held[:1])); err != nil {
		t.Fatal(err)
	}
	for { // the handlers of the others work too long
		ds, err := src.Receive(ctx, 6)
		if err == nil {
			t.Fatalf("%d deliveries while all are held", len(ds))
		}
		if strings.Contains(err.Error(), "consumer_timeout") {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the channel is not lost: %v", err)
		}
	}
	again := take(ctx, t, src, 5)
	_ = src.Settle(ctx, verdicts(held)) // the handlers end
	for i, d := range again {
		if want := held[i+1].Message; d.Message.ID != want.ID || d.Attempt == 1 {
			t.Errorf("message %d of the new channel is version %d of %s, attempt %d; want version %d of %s again",
				i, d.Message.Version, d.Message.Key, d.Attempt, want.Version, want.Key)
		}
	}
	if n := unsettled(t, s.URL, queue, src); n != 5 {
		t.Errorf("%d messages are left after late verdicts, want 5", n)
	}
	src = source(t, s.URL, queue)
	if err := src.Settle(ctx, verdicts(take(ctx, t, src, 5))); err != nil {
		t.Fatal(err)
	}
	if n := unsettled(t, s.URL, queue, src); n != 0 {
		t.Errorf("%d messages are left after all were settled", n)
	}
}

// take receives n deliveries of one channel.
func take(ctx context.Context, t *testing.T, src *rabbitbroker.Source, n int) (ds []broker.Delivery) {
	t.Helper()
	for len(ds) < n {
		more, err := src.Receive(ctx, n-len(ds))
		switch {
		case ctx.Err() != nil:
			t.Fatalf("%d of %d deliveries, %v", len(ds), n, err)
		case err != nil: // the channel was lost on a busy machine: start from the beginning
			ds = nil
		}
		ds = append(ds, more...)
	}
	return ds
}

func verdicts(ds []broker.Delivery) []broker.Verdict {
	vs := make([]broker.Verdict, len(ds))
	for i, d := range ds {
		vs[i] = broker.Verdict{Delivery: d, Ack: true}
	}
	return vs
}

// unsettled closes the source and counts the messages that return to its queue.
func unsettled(t *testing.T, url, queue string, src *rabbitbroker.Source) int {
	t.Helper()
	src.Close()
	ch := channel(t, url)
	for end := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		if q.Consumers == 0 { // the broker has removed the consumer and returned its messages
			return q.Messages
		}
		if time.Now().After(end) {
			t.Fatal(fmt.Sprint("the source is closed and still consumes: ", q))
		}
	}
}
