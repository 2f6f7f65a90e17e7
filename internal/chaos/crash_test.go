package chaos

import (
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
)

// The lines that a relay may say about what does not work.
const (
	storeDown = "WARN no answer, backing off part=store"
	storeBack = "INFO works again part=store"
)

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
			r.pool.Reset() // its connections are those of the server before
		}
		r.bulk(20)
		r.drained(20 * time.Second)
		r.atMost(r.check(sink.arrived()), kills)
		r.nothingParked()
		if down, back := r.said.count(storeDown), r.said.count(storeBack); down != back || down > kills {
			t.Errorf("%d lines that the store is down, %d that it is back, after %d kills:\n%s", down, back, kills, r.said)
		}
	})
}

// onBrokers runs a test on all brokers, each started once for all tests of
// the function that calls it. They have nothing in common, and wait for most of
// the time.
func onBrokers(t *testing.T, run func(t *testing.T, s *server)) {
	t.Helper()
	for name, start := range map[string]func(*testing.T) *server{
		"nats": startNATS, "kafka": startKafka, "redis": startRedis, "rabbitmq": startRabbitMQ,
	} {
		if name == "rabbitmq" && scale() == 1 {
			continue // in the matrix: a node needs long to start again
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, start(t))
		})
	}
}

// TestBroker breaks one broker after the other in one way after the other.
func TestBroker(t *testing.T) {
	onBrokers(t, func(t *testing.T, s *server) {
		for _, test := range []struct {
			name string
			run  func(*rig, *server)
			long bool // on a slow broker in the matrix only
		}{
			{"killed", brokerKilled, false},
			{"frozen", brokerFrozen, false},
			{"never there", brokerNeverThere, false},
			{"refuses", brokerRefuses, false},
			{"deleted", brokerDeletes, true},
			{"full", brokerFull, true},
			{"refuses all", brokerRefusesAll, true},
			{"partitioned", brokerPartitioned, true},
		} {
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
	const down = "WARN no answer, backing off part="
	return r.said.count(down+"sink") + r.said.count(down+"destination")
}

func (r *rig) brokerBack() int {
	const back = "INFO works again part="
	return r.said.count(back+"sink") + r.said.count(back+"destination")
}

// oneLineEach checks that every change of the broker's state was said once.
func (r *rig) oneLineEach(incidents int) {
	r.Helper()
	r.until(soon, "the relay says that the broker is back", func() bool { return r.brokerDown() == r.brokerBack() })
	if n := r.brokerDown(); n != incidents {
		r.Errorf("%d lines that the broker is down for %d incidents:\n%s", n, incidents, r.said)
	}
}

func brokerKilled(r *rig, s *server) {
	re, _ := r.relay(s.sink(r.T), nil)
	for range s.kills {
		stop := r.writeOn(4)
		from := re.Stats().Delivered
		r.until(20*time.Second, "messages flow", func() bool { return re.Stats().Delivered > from+200 })
		down := r.brokerDown()
		do(r.T, s.kill)
		// A broker that is back before its client gives up is an outage that
		// nobody has to notice, so it stays away until somebody does.
		r.until(30*time.Second, "the relay says that the broker is down", func() bool { return r.brokerDown() > down })
		stop()
		do(r.T, s.restart)
		r.until(60*time.Second, "the relay meets the new broker", func() bool { return r.brokerDown() == r.brokerBack() })
	}
	r.drained(30 * time.Second)
	r.atMost(r.check(s.read(r.T, r.topic)), s.kills)
	r.nothingParked()
	r.oneLineEach(s.kills)
}

func brokerFrozen(r *rig, s *server) {
	sink := &counted{Sink: s.sink(r.T)}
	opts := r.options()
	opts.DeliverTimeout = time.Second
	re, _ := r.relay(sink, opts)
	stop := r.writeOn(4)
	r.until(20*time.Second, "messages flow", func() bool { return re.Stats().Delivered > 200 })
	do(r.T, s.freeze)
	failed := sink.failed.Load()
	// Long enough for calls of unknown fate and for more once that is known.
	r.until(20*time.Second, "the relay says that the broker is down", func() bool { return r.brokerDown() > 0 })
	tried := sink.failed.Load()
	r.until(20*time.Second, "calls time out again and again", func() bool { return sink.failed.Load() > tried+2 })
	do(r.T, s.thaw)
	stop()
	r.drained(30 * time.Second)
	// Each round of unanswered calls may be in the broker's log.
	rounds := int(sink.failed.Load()-failed)/lanes + 1
	r.atMost(r.check(s.read(r.T, r.topic)), rounds)
	r.nothingParked()
	r.oneLineEach(1)
}

// brokerNeverThere starts a relay whose broker comes later.
func brokerNeverThere(r *rig, s *server) {
	do(r.T, s.kill)
	sink := &counted{Sink: s.sink(r.T)}
	r.bulk(100)
	opts := r.options()
	opts.DeliverTimeout = time.Second
	if s.slow { // a call has to last until a node that has just started lets it in
		opts.DeliverTimeout = 5 * time.Second
	}
	r.relay(sink, opts)
	r.until(20*time.Second, "the relay has tried", func() bool { return sink.failed.Load() >= 1 })
	memory := heap()
	failed := sink.failed.Load()
	r.bulk(100)
	r.until(30*time.Second, "the relay tries on", func() bool { return sink.failed.Load() >= failed+2 && r.brokerDown() > 0 })
	if now := heap(); now > memory+4<<20 {
		r.Errorf("the heap grew from %d to %d bytes while the broker was away", memory, now)
	}
	do(r.T, s.restart)
	r.drained(60 * time.Second)
	r.atMost(r.check(s.read(r.T, r.topic)), 1)
	r.nothingParked()
	r.oneLineEach(1)
}
