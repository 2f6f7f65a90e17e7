package promises

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
)

// guarded is a broker that knows its users, of whom the relay is one. What it
// is told may reach it a little later.
type guarded struct {
	server

	wrong, forbidden string // what is said of a password and of a right

	file     string                                         // holds the password of the user "relay"
	open     func(t *testing.T) broker.Sink                 // as that user
	password func(t *testing.T, password string)            // of the user from now on, whose connections end
	allow    func(t *testing.T, topic string, allowed bool) // may the user publish?
}

// the passwords of the user, one after the other. None may be printed.
const first, second = "hunter2-canary", "hunter3-canary"

// TestRevoked takes from a relay at work its password and then its rights, and
// gives both back: two outages, said once each with the reason, no attempt
// burnt, and the relay continues by itself.
func TestRevoked(t *testing.T) {
	for name, start := range map[string]func(*testing.T, string) *guarded{
		"nats": guardedNATS, "redis": guardedRedis, "kafka": guardedKafka, "rabbitmq": guardedRabbitMQ, "webhook": guardedWebhook,
	} {
		if (name == "kafka" || name == "rabbitmq") && scale() == 1 {
			continue // in the matrix: they need long to start
		}
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "password")
			g := start(t, file)
			g.file = file
			r := newRig(t, "18")
			g.make(t, r.topic, 20_000)
			g.allow(t, r.topic, true)
			revoked(r, g)
		})
	}
}

func revoked(r *rig, g *guarded) {
	put(r.T, g.file, first)
	sink := &counted{Sink: g.open(r.T)}
	re, _ := r.relay(sink, nil)
	stop := r.writeOn(2)
	r.flows(re, 200)

	outage := func(reason string, begin, end func()) {
		down := r.brokerDown()
		begin()
		r.until(60*time.Second, "the relay says why the broker refuses it", func() bool { return r.said.with(reason) > 0 })
		r.triesOn(sink, 3)
		r.nothingParked()
		end()
		r.until(60*time.Second, "the relay goes on", func() bool { return r.brokerBack() > down && r.brokerBack() == r.brokerDown() })
		r.flows(re, 100)
		if n := r.said.with(reason); n > 2 { // twice: a call from before may answer behind one that goes through
			r.Errorf("the reason %q is said %d times:\n%s", reason, n, r.said)
		}
	}
	outage(g.wrong, func() { g.password(r.T, second) }, func() { put(r.T, g.file, second) })
	outage(g.forbidden, func() { g.allow(r.T, r.topic, false) }, func() { g.allow(r.T, r.topic, true) })

	stop()
	r.drained(30 * time.Second)
	r.atMost(r.check(g.read(r.T, r.topic)), sink.rounds(0))
	r.nothingParked()
	r.only(sink, broker.ClassOutage, broker.ClassUnknown)
	for _, secret := range []string{first, second} {
		if strings.Contains(r.said.String(), secret) {
			r.Errorf("the relay prints a password:\n%s", r.said)
		}
	}
}

// put replaces what a file holds in one step, as those who rotate secrets do.
func put(t *testing.T, path, text string) {
	t.Helper()
	next := path + ".next"
	err := os.WriteFile(next, []byte(text+"\n"), 0o600)
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		t.Fatal(err)
	}
}
