package promises

import (
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// brokerDeletes deletes the topic under a working relay, and makes it again.
func brokerDeletes(r *rig, s *server) {
	sink := &counted{Sink: s.sink(r.T)}
	re, _ := r.relay(sink, nil)
	r.write(200)
	r.drained(20 * time.Second)
	before := s.read(r.T, r.topic)
	do(r.T, func() error { return s.Remove(r.Context(), r.topic) })
	r.write(200)
	r.until(30*time.Second, "the relay logs an unavailable destination", func() bool { return r.brokerDown() > 0 })
	r.triesOn(sink, 2)
	r.nothingParked()
	if n := re.Stats().Delivered; n != 200 {
		r.Errorf("%d messages count as delivered, want the 200 from before the topic was deleted", n)
	}
	s.make(r.T, r.topic, 20_000)
	r.drained(30 * time.Second)
	r.atMost(r.check(append(before, s.read(r.T, r.topic)...)), 1)
	r.nothingParked()
	r.oneLineEach(1, 0)
	r.only(sink, broker.ClassOutage, broker.ClassUnknown)
}

// brokerFull fills the topic for a while.
func brokerFull(r *rig, s *server) {
	sink := &counted{Sink: s.sink(r.T)}
	r.relay(sink, nil)
	r.write(200)
	r.drained(20 * time.Second)
	drain := under(r.T, s.Full, r.topic)
	r.write(200)
	r.triesOn(sink, 4)
	r.nothingParked()
	drain()
	r.drained(30 * time.Second)
	r.atMost(r.check(s.read(r.T, r.topic)), 0)
	r.nothingParked()
	r.only(sink, broker.ClassThrottled)
}

// brokerRefusesAll makes the broker reject every message: the brake must hold the
// destination before the backlog becomes dead letters.
func brokerRefusesAll(r *rig, s *server) {
	const backlog, brake = 2000, 20
	st := pgstore.New(r.pool, nil)
	sink := &counted{Sink: s.sink(r.T)}
	re, _ := r.relay(sink, nil)
	allow := under(r.T, s.Refuse, r.topic)
	r.exec(`INSERT INTO postrider.outbox (topic, key, type, payload, version)
		SELECT $1, 'b' || g, 'event', convert_to('b' || g || ':1', 'UTF8'), 1 FROM generate_series(1, $2::int) g`, r.topic, backlog)
	r.until(30*time.Second, "the brake holds the destination", func() bool { return len(re.Stats().Braked) == 1 })
	r.triesOn(sink, 3)
	parked := func() []ops.ParkedRecord {
		dead, err := st.Office().Admin.Parked(r.Context(), ops.ParkedQuery{State: store.Dead, Limit: backlog})
		if err != nil {
			r.Fatal(err)
		}
		return dead
	}
	allow()
	r.until(60*time.Second, "all others flow and the brake releases the destination", func() bool {
		return int(re.Stats().Delivered)+len(parked()) >= backlog && len(re.Stats().Braked) == 0
	})
	// A broker that breaks or recovers in parts (Kafka applies a topic's limit to one
	// partition after another) rejects some messages between accepted ones, and each
	// accepted one resets the brake. Calls end concurrently: the relay may see their
	// replies in another order than the sink.
	turns := int(sink.turns.Load())
	if n := len(parked()); n == 0 || n > brake*max(5, 2+turns) {
		r.Errorf("%d dead letters of %d; messages were acknowledged after rejections %d times", n, backlog, turns)
	}
	for _, d := range parked() {
		if _, err := st.Office().Admin.Request(r.Context(), store.Act{Kind: store.ActRetry, Seq: d.Seq, Actor: "test", Reason: "mended"}); err != nil {
			r.Fatal(err)
		}
	}
	r.until(30*time.Second, "the dead letters arrive", func() bool { return len(parked()) == 0 })
	r.drained(30 * time.Second)
	r.atMost(r.check(s.read(r.T, r.topic)), 0)
	r.only(sink, broker.ClassRejected)
}

// brokerPartitioned puts a network that fails in several ways between a relay and a
// working broker.
func brokerPartitioned(r *rig, s *server) {
	sink, proxy := s.through(r.T)
	opts := r.options()
	opts.DeliverTimeout = time.Second
	calls := &counted{Sink: sink}
	re, _ := r.relay(calls, opts)
	stop := r.writeOn(4)
	memory := uint64(0)
	faults := []func(){
		proxy.Mute, func() { proxy.Cut(5000) }, proxy.Freeze, func() { proxy.CutAnswer(500) }, proxy.Reset,
	}
	if scale() > 1 { // clients detect this fault by pings only
		faults = append(faults, proxy.Strand)
	}
	for i, begin := range faults {
		r.flows(re, 100)
		failed := calls.failed.Load()
		begin()
		if i < 4 { // the other faults end by themselves
			r.until(30*time.Second, "calls fail", func() bool { return calls.failed.Load() > failed })
		}
		if memory == 0 {
			memory = heap()
		}
		proxy.Restore()
	}
	r.flows(re, 100)
	if now := heap(); now > memory+8<<20 {
		r.Errorf("the heap grew from %d to %d bytes over %d network partitions", memory, now, len(faults))
	}
	stop()
	r.drained(60 * time.Second)
	r.atMost(r.check(s.read(r.T, r.topic)), calls.rounds(0))
	r.nothingParked()
	r.only(calls, s.faults()...)
}

// flows waits until n more messages are delivered.
func (r *rig) flows(re *relay.Relay, n int64) {
	r.Helper()
	from := re.Stats().Delivered
	r.until(60*time.Second, "messages flow", func() bool { return re.Stats().Delivered >= from+n })
}
