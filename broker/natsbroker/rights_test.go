package natsbroker_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/natsbroker"
)

// rights returns a configuration in which the user relay has these permissions.
func rights(publish, subscribe string) string {
	return fmt.Sprintf(`authorization { users = [ {user: admin, password: admin},
  {user: relay, password: %q, permissions: {publish: [%s], subscribe: [%s]}} ] }`, canary, publish, subscribe)
}

// TestAnswersThatWeMayNotHear: a user that may publish but not subscribe gets an error
// before anything is sent, because each try would store the messages again.
func TestAnswersThatWeMayNotHear(t *testing.T) {
	const publish, fix = `"ok.>", "$JS.API.>"`, "allow this user to subscribe to _INBOX.>"
	g := newGuarded(t, rights(publish, `"nothing"`))
	g.stream("admin:admin@")
	sink := g.open("relay:" + canary + "@")
	g.outage(sink, "ok.x", "PERMISSION", "", fix)
	if _, err := sink.Probe(ctxWithin(t, time.Minute), []string{"ok.x"}); !errors.Is(err, broker.ErrRefused) || !strings.Contains(err.Error(), fix) {
		t.Errorf("Probe: %v", err)
	}
	if n := g.stored(); n != 0 {
		t.Errorf("%d messages are stored of which nobody hears", n)
	}
	g.reload(rights(publish, `"_INBOX.>"`))
	g.becomes(sink, "ok.x", "")
	g.reload(rights(publish, `"nothing"`))
	g.becomes(sink, "ok.x", fix)
	g.reload(rights(publish, `"_INBOX.>"`))
	g.becomes(sink, "ok.x", "")
}

// TestWhatASourceMayNot: a source without the right to pull, receive or acknowledge
// reports it, and continues once it has the right. The client subscribes again only
// after it has reconnected.
//
// Promises: S
func TestWhatASourceMayNot(t *testing.T) {
	const ok, inbox = `"ok.>", "$JS.API.>", "$JS.ACK.>"`, `"_INBOX.>"`
	for name, c := range map[string][2]string{
		"make a consumer": {`"ok.>"`, inbox},
		"pull":            {`"ok.>", "$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.DURABLE.>", "$JS.API.CONSUMER.INFO.>", "$JS.ACK.>"`, inbox},
		"hear":            {ok, `"nothing"`},
		"acknowledge":     {`"ok.>", "$JS.API.>"`, inbox},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuarded(t, rights(c[0], c[1]))
			g.stream("admin:admin@")
			g.becomes(g.open("admin:admin@"), "ok.x", "")
			target, err := natsbroker.ParseURL("nats://relay:" + canary + "@" + g.host)
			if err != nil {
				t.Fatal(err)
			}
			nc, err := target.Connect()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			src, err := natsbroker.NewSource(nc, &natsbroker.SourceOptions{Stream: "S", Group: "c", AckWait: 3 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(src.Close)
			one := func() error {
				ds, err := src.Receive(ctxWithin(t, 30*time.Second), 1)
				if err != nil {
					return err
				}
				return src.Settle(t.Context(), []broker.Verdict{{Delivery: ds[0], Ack: true}})
			}
			if err := one(); err == nil || !strings.Contains(err.Error(), "allow this user to publish to $JS.API.CONSUMER.> and $JS.ACK.>, and to subscribe to _INBOX.>") {
				t.Errorf("without the right the answer is %v", err)
			}
			g.reload(rights(ok, inbox))
			if name == "hear" {
				if err := nc.ForceReconnect(); err != nil {
					t.Fatal(err)
				}
			}
			for end := time.Now().Add(time.Minute); ; {
				err := one()
				if err == nil {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("with the right the answer is %v", err)
				}
			}
		})
	}
}

// TestDeafOnce: a call tries to subscribe once, whatever the number of its messages:
// each try would wait for a server that hangs.
func TestDeafOnce(t *testing.T) {
	g := newGuarded(t, rights(`"ok.>"`, `"nothing"`))
	said := make(chan string, 64)
	nc, err := nats.Connect("nats://relay:"+canary+"@"+g.host, append(natsbroker.ClientOptions(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { said <- err.Error() }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	sink, err := natsbroker.NewSink(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	msgs := make([]postrider.Message, 10)
	for i := range msgs {
		msgs[i] = postrider.Message{ID: rand.Text(), Topic: "ok.x", Type: "t"}
	}
	errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs})
	if len(errs) != len(msgs) {
		t.Fatalf("%d of %d messages are answered: %v", len(errs), len(msgs), errs)
	}
	for i, err := range errs {
		if e := broker.Classify(err); err == nil || e.Class != broker.ClassOutage || e.Code != "PERMISSION" {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if err := nc.Publish("last", nil); err != nil { // the last refusal is the last error
		t.Fatal(err)
	}
	asked := 0
	for limit := time.After(time.Minute); ; {
		select {
		case text := <-said:
			if !strings.Contains(text, "ublish to") {
				asked++
				continue
			}
			if asked != 1 {
				t.Errorf("the server was asked %d times", asked)
			}
			return
		case <-limit:
			t.Fatal("the server does not say that we may not publish")
		}
	}
}

// stored returns the number of messages in the stream.
func (g *guarded) stored() uint64 {
	g.Helper()
	js, err := jetstream.New(connect(g.T, "nats://admin:admin@"+g.host))
	if err != nil {
		g.Fatal(err)
	}
	s, err := js.Stream(ctxWithin(g.T, time.Minute), "S")
	if err != nil {
		g.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}
