package natsbroker_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/natsbroker"
)

// filled returns a sink, and a stream with n messages of one key and its name.
func filled(t *testing.T, nc *nats.Conn, n int) (js jetstream.JetStream, sink broker.Sink, name string) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if sink, err = natsbroker.NewSink(nc, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}}); err != nil {
		t.Fatal(err)
	}
	var msgs []postrider.Message
	for i := range n {
		msgs = append(msgs, postrider.Message{Topic: "s.x", Key: "k", Version: int64(i + 1)})
	}
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
		t.Fatal(errs)
	}
	return js, sink, "S"
}

// TestDurableOfAnOlderVersion: an existing consumer without a pin gets one.
func TestDurableOfAnOlderVersion(t *testing.T) {
	nc := connect(t, embedded(t))
	js, _, name := filled(t, nc, 3)
	_, err := js.CreateConsumer(t.Context(), name, jetstream.ConsumerConfig{
		Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Second, MaxAckPending: 1024,
	})
	if err != nil {
		t.Fatal(err)
	}
	src, err := natsbroker.NewSource(nc, &natsbroker.SourceOptions{Stream: name, Group: "c"})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ds, err := src.Receive(ctx, 10)
	if err != nil || len(ds) == 0 {
		t.Fatalf("%d deliveries, %v", len(ds), err)
	}
}

// TestAnOlderServerIsSaid: a server before 2.11 creates the consumer without its pin,
// and the source reports that.
func TestAnOlderServerIsSaid(t *testing.T) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	nc := connect(t, s.ClientURL())
	_, err = nc.Subscribe("$JS.API.CONSUMER.CREATE.>", func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"type":"io.nats.jetstream.api.v1.consumer_create_response","stream_name":"S","name":"c",` +
			`"config":{"durable_name":"c","ack_policy":"explicit"}}`))
	})
	if err != nil {
		t.Fatal(err)
	}
	src, err := natsbroker.NewSource(nc, &natsbroker.SourceOptions{Stream: "S", Group: "c"})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := src.Receive(ctx, 1); err == nil || !strings.Contains(err.Error(), "nats-server 2.11 or newer is needed") {
		t.Errorf("Receive: %v", err)
	}
}

// coupleAckWait is short enough to wait for, and longer than a busy machine
// delays a test's extensions.
const coupleAckWait = 5 * time.Second

// couple is a stream and two sources of one durable.
type couple struct {
	*testing.T
	js            jetstream.JetStream
	sink          broker.Sink
	first, second *natsbroker.Source
}

func newCouple(t *testing.T, messages int) *couple {
	t.Helper()
	nc := connect(t, embedded(t))
	js, sink, name := filled(t, nc, messages)
	open := func() *natsbroker.Source {
		src, err := natsbroker.NewSource(nc, &natsbroker.SourceOptions{Stream: name, Group: "c", AckWait: coupleAckWait})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(src.Close)
		return src
	}
	return &couple{T: t, js: js, sink: sink, first: open(), second: open()}
}

func (c *couple) receive(src *natsbroker.Source, wait time.Duration) []broker.Delivery {
	ctx, cancel := context.WithTimeout(c.Context(), wait)
	defer cancel()
	ds, _ := src.Receive(ctx, 100) // no message is a result too
	return ds
}

// state returns the server's state of the durable.
func (c *couple) state() *jetstream.ConsumerInfo {
	c.Helper()
	consumer, err := c.js.Consumer(c.Context(), "S", "c")
	if err != nil {
		c.Fatal(err)
	}
	return consumer.CachedInfo()
}

// settle acknowledges deliveries of the first source.
func (c *couple) settle(ds []broker.Delivery) {
	c.Helper()
	var vs []broker.Verdict
	for _, d := range ds {
		vs = append(vs, broker.Verdict{Delivery: d, Ack: true})
	}
	if err := c.first.Settle(c.Context(), vs); err != nil {
		c.Fatal(err)
	}
}

func (c *couple) publish(versions ...int64) {
	c.Helper()
	for _, v := range versions {
		if errs := c.sink.Deliver(c.Context(), broker.Batch{Messages: []postrider.Message{{Topic: "s.x", Key: "k", Version: v}}}); errs != nil {
			c.Fatal(errs)
		}
	}
}

// TestSecondSourceStandsBy: while one source receives, another source of the same
// durable gets nothing. When the first has stopped pulling, the second takes
// over, and holds newer messages back as long as the first works on older ones.
//
// Promises: O
func TestSecondSourceStandsBy(t *testing.T) {
	c := newCouple(t, 2)
	for n := 0; n < 2; { // nothing is unsettled when the second one comes
		ds := c.receive(c.first, time.Minute)
		if len(ds) == 0 {
			t.Fatal("the first source receives nothing")
		}
		c.settle(ds)
		n += len(ds)
	}
	if ds := c.receive(c.second, 300*time.Millisecond); len(ds) > 0 {
		t.Fatalf("the second source receives %s again", ds[0].Origin)
	}
	c.publish(3)
	held := c.receive(c.first, time.Minute)
	if len(held) != 1 {
		t.Fatalf("the first source receives %d messages", len(held))
	}
	c.publish(4, 5, 6)
	// The first one keeps its message alive and asks for nothing new.
	for end := time.Now().Add(coupleAckWait * 3 / 2); time.Now().Before(end); {
		if err := c.first.Extend(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		if ds := c.receive(c.second, 400*time.Millisecond); len(ds) > 0 {
			t.Fatalf("the second source passes on %s (version %d) while the first works on an older one", ds[0].Origin, ds[0].Message.Version)
		}
	}
	c.settle(held)
	next := held[len(held)-1].Message.Version + 1
	for next <= 6 {
		ds := c.receive(c.second, time.Minute)
		if len(ds) == 0 {
			t.Fatalf("version %d is not received", next)
		}
		for _, d := range ds {
			if d.Message.Version != next {
				t.Fatalf("version %d is received, the next is %d", d.Message.Version, next)
			}
			next++
		}
	}
}

// TestLateAcknowledgementsHideNothing: the first source, which was only slow, settles
// a message that the second source has received too. That message is settled then, the
// others of the first source are not: newer messages still wait for them.
//
// Promises: O
func TestLateAcknowledgementsHideNothing(t *testing.T) {
	c := newCouple(t, 2)
	var held []broker.Delivery
	for len(held) < 2 {
		ds := c.receive(c.first, time.Minute)
		if len(ds) == 0 {
			t.Fatal("the first source receives nothing")
		}
		held = append(held, ds...)
	}
	stream, err := c.js.Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	c.receive(c.second, 300*time.Millisecond) // it waits
	if err := stream.UnpinConsumer(t.Context(), "c", "postrider"); err != nil {
		t.Fatal(err)
	}
	work := func() { // on the second message: only the first one's time runs out
		if err := c.first.Extend(t.Context(), held[1:]); err != nil {
			t.Fatal(err)
		}
		for _, d := range c.receive(c.second, 300*time.Millisecond) {
			if d.Message.Version > 1 {
				t.Fatalf("the second source passes on version %d while the first works on version 2", d.Message.Version)
			}
		}
	}
	for limit := time.Now().Add(time.Minute); c.state().NumRedelivered == 0; work() {
		if time.Now().After(limit) {
			t.Fatal("the first message has not gone to the second source after a minute")
		}
	}
	c.publish(3)
	for limit := time.Now().Add(time.Minute); c.state().Delivered.Stream < 3; work() {
		if time.Now().After(limit) {
			t.Fatal("version 3 has not gone to the second source after a minute")
		}
	}
	c.settle(held[:1])
	for end := time.Now().Add(coupleAckWait / 2); time.Now().Before(end); { // it asks the server several times
		work()
	}
	c.settle(held[1:])
	for limit := time.Now().Add(time.Minute); ; {
		for _, d := range c.receive(c.second, time.Second) {
			if d.Message.Version == 3 {
				return
			}
		}
		if time.Now().After(limit) {
			t.Fatal("version 3 has not come a minute after the first source has settled all")
		}
	}
}

// TestSettleEndsWithoutAnAnswer: a server that receives the acknowledgement and
// dies never answers; Settle ends even if the caller's context has no deadline.
func TestSettleEndsWithoutAnAnswer(t *testing.T) {
	server := embedded(t)
	nc := connect(t, server)
	_, _, name := filled(t, nc, 1)
	proxy, url := proxied(t, server)
	src, err := natsbroker.NewSource(connect(t, url), &natsbroker.SourceOptions{Stream: name, Group: "c", AckWait: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	ds, err := src.Receive(t.Context(), 1)
	if err != nil || len(ds) != 1 {
		t.Fatalf("%d deliveries, %v", len(ds), err)
	}
	proxy.Mute()
	defer proxy.Restore()
	settled := make(chan error, 1)
	go func() { settled <- src.Settle(t.Context(), []broker.Verdict{{Delivery: ds[0], Ack: true}}) }()
	select {
	case err := <-settled:
		if err == nil {
			t.Error("settled, although no answer came")
		}
	case <-time.After(time.Minute):
		t.Error("Settle still waits for an answer after a minute")
	}
}

// TestNothingIsGivenUpByTheServer: the source removes a durable's limit of
// deliveries, after which the server would stop delivering a message and lose it.
func TestNothingIsGivenUpByTheServer(t *testing.T) {
	nc := connect(t, embedded(t))
	js, _, name := filled(t, nc, 1)
	_, err := js.CreateConsumer(t.Context(), name, jetstream.ConsumerConfig{
		Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Second, MaxAckPending: 1024, MaxDeliver: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	before := 0
	for life := range 4 { // each receives, and dies silently
		conn := connect(t, nc.ConnectedUrl())
		src, err := natsbroker.NewSource(conn, &natsbroker.SourceOptions{Stream: name, Group: "c", AckWait: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		ds, err := src.Receive(ctx, 1)
		cancel()
		if err != nil || len(ds) != 1 {
			t.Fatalf("life %d: %d deliveries, %v", life, len(ds), err)
		}
		if ds[0].Attempt <= before { // a slow machine lets the limit pass more than once
			t.Errorf("life %d: attempt %d behind %d", life, ds[0].Attempt, before)
		}
		before = ds[0].Attempt
		conn.Close()
	}
}

// TestMessagesThatLookLikeAStatus: a header Status and no payload make no answer of the
// server out of a message, which would be dropped at each delivery.
//
// Promises: L, S
func TestMessagesThatLookLikeAStatus(t *testing.T) {
	nc := connect(t, embedded(t))
	_, sink, name := filled(t, nc, 0)
	msgs := []postrider.Message{
		{Topic: "s.x", Key: "k", Version: 1},
		{Topic: "s.x", Key: "k", Version: 2, Headers: map[string]string{"Status": "paid"}},
		{Topic: "s.x", Key: "k", Version: 3, Headers: map[string]string{"Status": "409", "Description": "Consumer Deleted"}},
		{Topic: "s.x", Key: "k", Version: 4},
	}
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
		t.Fatal(errs)
	}
	src, err := natsbroker.NewSource(nc, &natsbroker.SourceOptions{Stream: name, Group: "c"})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var got []int64
	for len(got) < len(msgs) {
		ds, err := src.Receive(ctx, 10)
		if err != nil {
			t.Fatalf("versions %v, then %v", got, err)
		}
		for _, d := range ds {
			if got = append(got, d.Message.Version); !maps.Equal(d.Message.Headers, msgs[d.Message.Version-1].Headers) {
				t.Errorf("version %d has the headers %v", d.Message.Version, d.Message.Headers)
			}
		}
	}
	if !slices.Equal(got, []int64{1, 2, 3, 4}) {
		t.Errorf("versions %v", got)
	}
}
