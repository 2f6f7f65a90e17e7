package promises

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
)

// guarded is a broker with users, one of them the relay. Changes of its users may take
// effect a little later.
type guarded struct {
	server

	wrong, forbidden string // log text for a wrong password and for a missing right

	file     string                                         // contains the password of the user "relay"
	open     func(t *testing.T) broker.Sink                 // opens a sink as that user
	password func(t *testing.T, password string)            // changes the password and ends the user's connections
	allow    func(t *testing.T, topic string, allowed bool) // grants or revokes the right to publish
}

// The first and the second password of the user. Neither may be printed.
const first, second = "hunter2-canary", "hunter3-canary"

// TestRevoked revokes the password and then the rights of a working relay, and restores
// both: two outages, each logged once with the reason, no attempt used, and the relay
// continues by itself.
func TestRevoked(t *testing.T) {
	for name, start := range map[string]func(*testing.T, string) *guarded{
		"nats": guardedNATS, "redis": guardedRedis, "kafka": guardedKafka, "rabbitmq": guardedRabbitMQ, "webhook": guardedWebhook,
	} {
		if (name == "kafka" || name == "rabbitmq") && scale() == 1 {
			continue // in the matrix: they start slowly
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
		r.until(60*time.Second, "the relay logs why the broker refuses it", func() bool { return r.said.with(reason) > 0 })
		r.triesOn(sink, 3)
		r.nothingParked()
		end()
		r.until(60*time.Second, "the relay continues", func() bool { return r.brokerBack() > down && r.brokerBack() == r.brokerDown() })
		r.flows(re, 100)
		if n := r.said.with(reason); n > 2 { // twice: an older call may end after a successful one
			r.Errorf("the reason %q is logged %d times:\n%s", reason, n, r.said)
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

// put replaces the content of a file atomically, as tools that rotate secrets do.
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
