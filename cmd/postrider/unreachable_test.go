package main

import (
	"crypto/rand"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/testserver"
)

// readyz is the status of a relay's probe, 0 while it does not listen.
func readyz(p *process) int {
	status, _ := p.probe("/readyz")
	return status
}

// TestWrongBrokerAddressIsSeen: with an outbox that is empty a wrong address is
// reported once, and the relay lives and is not ready.
//
// Promises: S
func TestWrongBrokerAddressIsSeen(t *testing.T) {
	const at = "127.0.0.1:1"
	for _, broker := range []string{
		"nats://" + at, "kafka://" + at, "redis://" + at, "amqp://" + at, "sqs://key:secret@r?endpoint=http://" + at, "sns://key:secret@r?account=123456789012&endpoint=http://" + at,
		"pubsub://my-project?emulator=" + at, "https://" + at + "#unsigned=true&allow=127.0.0.1",
	} {
		t.Run(strings.SplitN(broker, ":", 2)[0], func(t *testing.T) {
			p := launch(t, "relay", "--listen", "127.0.0.1:0", "--store", fileOutbox(t), "--broker", broker)
			until(t, "the relay reports its broker", p, func() bool { return p.said.count("broker unreachable") > 0 })
			if code := readyz(p); code != http.StatusServiceUnavailable {
				t.Errorf("/readyz answers %d", code)
			}
			p.stop()
			if n := p.said.count("broker unreachable"); n != 1 {
				t.Errorf("reported %d times:\n%s", n, p.said)
			}
		})
	}
}

// TestBrokerThatComesLater: a relay that began before its broker becomes ready without
// a message, and stays so with a topic that is missing among others.
func TestBrokerThatComesLater(t *testing.T) {
	server := testserver.StartNATS(t)
	nc, err := nats.Connect(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	here, gone := "here"+rand.Text(), "gone"+rand.Text()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: here, Subjects: []string{here}}); err != nil {
		t.Fatal(err)
	}
	nc.Close()
	do(t, server.Stop)
	store := fileOutbox(t)
	p := launch(t, "relay", "--listen", "127.0.0.1:0", "--store", store, "--broker", server.URL)
	until(t, "the relay reports its broker", p, func() bool { return p.said.count("broker unreachable") == 1 })
	do(t, server.Restart)
	until(t, "the relay is ready", p, func() bool { return readyz(p) == http.StatusOK })
	if p.said.count("broker reachable again") != 1 {
		t.Errorf("its return is not reported once:\n%s", p.said)
	}
	p.stop()

	rules := filepath.Join(t.TempDir(), "p.yml")
	if err := os.WriteFile(rules, []byte("routes:\n  - {match: {topic: here}, topic: "+here+"}\n  - {match: {topic: gone}, topic: "+gone+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustCLI(t, `{"topic":"gone","key":"k","type":"t","payload":{}}`+"\n", "enqueue", "--store", store)
	p = launch(t, "relay", "--listen", "127.0.0.1:0", "--store", store, "--broker", server.URL, "-c", rules)
	until(t, "the message waits for its destination", p, func() bool { return p.said.count("destination "+gone) > 0 })
	until(t, "the relay is ready: the other topic is there", p, func() bool { return readyz(p) == http.StatusOK })
	p.stop()
}
