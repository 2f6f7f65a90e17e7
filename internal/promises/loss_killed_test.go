package promises

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/relay"
)

// The lines that a relay may log about faults.
const (
	storeDown = "WARN database unreachable part=store"
	storeBack = "INFO database reachable again part=store"
	lapsed    = "lease lapsed"
)

// Promises: L
func TestPostgresKilled(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		pg := testserver.StartPostgres(t, version)
		r := rigOn(t, pg.URL)
		sink := &memory{}
		r.relay(sink, nil)
		const kills = 3
		for range kills {
			stop := r.writeOn(4)
			from := sink.len()
			r.until(10*time.Second, "messages flow", func() bool { return sink.len() > from+200 })
			do(t, pg.Kill)
			stop()
			do(t, pg.Restart)
			r.pool.Reset() // its connections are to the previous server process
		}
		r.bulk(20)
		r.drained(20 * time.Second)
		r.atMost(r.check(sink.arrived()), kills)
		r.nothingParked()
		r.saysStore(1, kills) // two kills in quick succession may log one line
	})
}

// onBrokers runs a test on all brokers. It starts each once for all tests of the calling
// function.
func onBrokers(t *testing.T, run func(t *testing.T, s *server)) {
	t.Helper()
	for name, start := range map[string]func(*testing.T) *server{
		"nats": startNATS, "kafka": startKafka, "redis": startRedis, "rabbitmq": startRabbitMQ, "webhook": startWebhook,
	} {
		if name == "rabbitmq" && scale() == 1 {
			continue // in the matrix: a node restarts slowly
		}
		t.Run(name, func(t *testing.T) {
			run(t, start(t))
		})
	}
}

// scene breaks a broker in one way.
type scene struct {
	name string
	run  func(*rig, *server)
	long bool // on a slow broker in the matrix only
}

// scenes returns the scenes that a broker supports.
func (s *server) scenes() []scene {
	all := []scene{
		{"killed", brokerKilled, false},
		{"frozen", brokerFrozen, false},
		{"never there", brokerNeverThere, false},
		{"one constant key", brokerOneKey, false},
		{"refuses", brokerRefuses, false},
		{"deleted", brokerDeletes, true},
		{"partitioned", brokerPartitioned, true},
	}
	if s.Full != nil {
		all = append(all, scene{"full", brokerFull, true})
	}
	if s.Refuse != nil {
		all = append(all, scene{"refuses all", brokerRefusesAll, true})
	}
	return all
}

// TestBroker breaks each broker in each way. Under one constant key the order is total,
// through failures of messages and of the broker.
//
// Promises: L, O
func TestBroker(t *testing.T) {
	onBrokers(t, func(t *testing.T, s *server) {
		for _, test := range s.scenes() {
			if test.long && s.slow && scale() == 1 {
				continue // in the matrix
			}
			t.Run(test.name, func(t *testing.T) {
				r := newRig(t, "18")
				s.make(t, r.topic, 20_000)
				test.run(r, s)
			})
		}
	})
}

// brokerDown and brokerBack count the lines about the sink and its destinations.
func (r *rig) brokerDown() int {
	return r.said.count("WARN broker unreachable broker=") + r.said.count("WARN destination unavailable part=destination")
}

func (r *rig) brokerBack() int {
	return r.said.count("INFO broker reachable again broker=") + r.said.count("INFO destination available again part=destination")
}

// oneLineEach checks that every change of the broker's state was logged once. A NATS server that
// is stopped in an orderly way ends its streams before its connections: the destination may be
// unavailable first.
func (r *rig) oneLineEach(incidents, stops int) {
	r.Helper()
	r.until(soon, "the relay logs that the broker is reachable again", func() bool { return r.brokerDown() == r.brokerBack() })
	first := min(stops, r.said.with("error=outage NO_STREAM"))
	if n := r.brokerDown(); n < incidents || n > incidents+first+r.slips() {
		r.Errorf("%d lines about an unreachable broker for %d incidents:\n%s", n, incidents, r.said)
	}
}

func brokerKilled(r *rig, s *server) {
	sink := &counted{Sink: s.sink(r.T)}
	re, _ := r.relay(sink, nil)
	kills := s.kills
	if s.slow && scale() > 1 {
		kills++
	}
	for i := range kills {
		stop := r.writeOn(4)
		from := re.Stats().Delivered
		r.until(20*time.Second, "messages flow", func() bool { return re.Stats().Delivered > from+200 })
		down := r.brokerDown()
		if i%2 == 0 {
			do(r.T, s.Kill)
		} else { // an orderly stop, as for an update
			do(r.T, s.Stop)
		}
		// The relay need not notice a broker that returns before its client times out, so
		// the broker stays down until the relay notices.
		r.until(30*time.Second, "the relay logs an unreachable broker", func() bool { return r.brokerDown() > down })
		r.triesOn(sink, 1)
		stop()
		do(r.T, s.Restart)
		r.until(60*time.Second, "the relay meets the new broker", func() bool { return r.brokerDown() == r.brokerBack() })
	}
	r.drained(30 * time.Second)
	r.atMost(r.check(s.read(r.T, r.topic)), kills)
	r.nothingParked()
	r.oneLineEach(kills, kills/2)
	r.only(sink, s.faults()...)
}

func brokerFrozen(r *rig, s *server) {
	sink := &counted{Sink: s.sink(r.T)}
	opts := r.options()
	opts.DeliverTimeout = time.Second
	re, _ := r.relay(sink, opts)
	stop := r.writeOn(4)
	r.until(20*time.Second, "messages flow", func() bool { return re.Stats().Delivered > 200 })
	do(r.T, s.Freeze)
	frozen := time.Now()
	failed := sink.failed.Load()
	// Long enough for calls of unknown result, and for further calls after them.
	r.until(20*time.Second, "the relay logs an unreachable broker", func() bool { return r.brokerDown() > 0 })
	r.triesOn(sink, 3)
	if scale() > 1 { // as long as the pause of a migrated machine
		r.until(time.Minute, "half a minute has passed", func() bool { return time.Since(frozen) > 30*time.Second })
	}
	do(r.T, s.Thaw)
	stop()
	r.drained(30 * time.Second)
	r.atMost(r.check(s.read(r.T, r.topic)), sink.rounds(failed))
	r.nothingParked()
	r.oneLineEach(1, 0)
	r.only(sink, broker.ClassOutage, broker.ClassUnknown)
}

// faulty is a sink that fails some messages a few times before it sends them, while the
// broker works.
type faulty struct {
	broker.Sink
	mu    sync.Mutex
	tried map[string]int
}

// fails reports whether this attempt of the message fails.
func (f *faulty) fails(m *postrider.Message) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tried[m.ID]++
	return m.Version%40 == 0 && f.tried[m.ID] <= 2
}

func (f *faulty) Deliver(ctx context.Context, batch broker.Batch) []error {
	at := slices.IndexFunc(batch.Messages, func(m postrider.Message) bool { return f.fails(&m) })
	if at < 0 {
		return f.Sink.Deliver(ctx, batch)
	}
	errs := make([]error, len(batch.Messages))
	if at > 0 {
		part := batch
		part.Messages = batch.Messages[:at]
		copy(errs, f.Sink.Deliver(ctx, part))
	}
	errs[at] = broker.Failed(errors.New("not now"), "NOT_NOW", batch.Messages[at].Topic)
	for i := at + 1; i < len(errs); i++ { // all messages have one key
		errs[i] = broker.NotTried(errs[at])
	}
	return errs
}

// brokerOneKey sends all messages under one constant key, as total order requires: messages
// fail, wait behind each other and are tried again, and the broker freezes and dies. With
// several keys a lane would send the messages of other keys behind a failed one.
func brokerOneKey(r *rig, s *server) {
	r.keys = 1
	sink := &faulty{Sink: s.sink(r.T), tried: map[string]int{}}
	opts := r.options()
	opts.DeliverTimeout = time.Second
	opts.Retry = relay.Retry{Delays: []time.Duration{20 * time.Millisecond}, MaxAttempts: 1000}
	if s.slow { // a call must last until a starting node accepts connections
		opts.DeliverTimeout = 5 * time.Second
	}
	re, _ := r.relay(sink, opts)
	stop := r.writeOn(4)
	r.until(20*time.Second, "messages flow", func() bool { return re.Stats().Delivered > 100 })
	do(r.T, s.Freeze)
	r.until(30*time.Second, "the relay logs an unreachable broker", func() bool { return r.brokerDown() > 0 })
	do(r.T, s.Thaw)
	from := re.Stats().Delivered
	r.until(30*time.Second, "messages flow again", func() bool { return re.Stats().Delivered > from+100 })
	stop()
	r.drained(30 * time.Second)
	if re.Stats().Parked["waiting"] == 0 {
		r.Error("no message waited behind a failed one")
	}
	r.check(s.read(r.T, r.topic))
	r.nothingParked()
}

// brokerNeverThere starts a relay before its broker.
func brokerNeverThere(r *rig, s *server) {
	do(r.T, s.Stop)
	sink := &counted{Sink: s.sink(r.T)}
	r.bulk(100)
	opts := r.options()
	opts.DeliverTimeout = time.Second
	if s.slow { // a call must last until a starting node accepts connections
		opts.DeliverTimeout = 5 * time.Second
	}
	r.relay(sink, opts)
	r.until(20*time.Second, "the relay has tried", func() bool { return sink.failed.Load() >= 1 })
	r.bulk(100)
	r.triesOn(sink, 2)
	r.until(20*time.Second, "the relay logs an unreachable broker", func() bool { return r.brokerDown() > 0 })
	do(r.T, s.Restart)
	r.drained(60 * time.Second)
	r.atMost(r.check(s.read(r.T, r.topic)), 1)
	r.nothingParked()
	r.oneLineEach(1, 0)
	r.only(sink, broker.ClassOutage, broker.ClassUnknown)
}

// triesOn waits until n more calls have failed, and checks that the relay's memory grows
// neither with them nor with the messages written in the meantime.
func (r *rig) triesOn(sink *counted, n int64) {
	r.Helper()
	before, failed := heap(), sink.failed.Load()
	r.until(60*time.Second, "more calls fail", func() bool { return sink.failed.Load() >= failed+n })
	if now := heap(); now > before+4<<20 {
		r.Errorf("the heap grew from %d to %d bytes over %d failed calls", before, now, n)
	}
}

// only checks that a sink's results have no other class.
func (r *rig) only(sink *counted, classes ...broker.Class) {
	r.Helper()
	for c := range sink.classes {
		if broker.Class(c) == broker.ClassUnknown && r.slips() > 0 {
			continue // a call that timed out on a starved machine
		}
		if n := sink.classes[c].Load(); n > 0 && !slices.Contains(classes, broker.Class(c)) {
			r.Errorf("%d results are %v, want only %v", n, broker.Class(c), classes)
		}
	}
}
