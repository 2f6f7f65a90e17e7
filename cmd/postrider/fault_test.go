package main

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
)

func do(t *testing.T, act func() error) {
	t.Helper()
	if err := act(); err != nil {
		t.Fatal(err)
	}
}

// says waits until the relay has said text so often, and no more.
func (p *process) says(text string, n int) {
	p.t.Helper()
	until(p.t, fmt.Sprintf("%q is said %d times", text, n), p, func() bool { return p.said.count(text) >= n })
	if got := p.said.count(text); got != n {
		p.t.Errorf("%q is said %d times, want %d:\n%s", text, got, n, p.said)
	}
}

var listens = regexp.MustCompile(`address=(\S+)`)

// metrics returns what the relay's listener answers, "" while nothing listens.
func (p *process) metrics() string {
	address := listens.FindStringSubmatch(p.said.String())
	if address == nil {
		return ""
	}
	resp, err := http.Get("http://" + address[1] + "/metrics")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}

// A database that is away, at the start and in the middle, is said once and
// waited for; so is a broker. No attempt is burnt.
func TestOutagesAreSaidOnceAndWaitedFor(t *testing.T) {
	pg, server := testserver.StartPostgres(t, "18"), testserver.StartNATS(t)
	store := pg.DatabaseURL("postgres")
	mustCLI(t, "", "migrate", "--store", store, "--lanes", "8")
	s := newStream(t, server.URL, -1)
	sent := 0
	write := func(n int) {
		t.Helper()
		var lines strings.Builder
		for i := range n {
			lines.WriteString(s.message(fmt.Sprintf("k%d", i), 10))
		}
		mustCLI(t, lines.String(), "enqueue", "--store", store)
		sent += n
	}
	arrived := func(p *process) {
		t.Helper()
		until(t, "everything has arrived", p, func() bool { return statusOf(t, store).Pending == 0 })
	}
	const away, back = `msg="database unreachable" part=store`, `msg="database reachable again" part=store`
	const brokerAway, brokerBack = `msg="broker unreachable" broker=nats`, `msg="broker reachable again" broker=nats`

	write(20)
	do(t, pg.Stop)
	do(t, server.Stop)
	relay := launchRelay(t, store, server.URL)
	relay.says(away, 1)
	if strings.Count(relay.said.String(), "refused") > 1 {
		t.Errorf("one refusal is said more than once:\n%s", relay.said)
	}
	do(t, pg.Restart)
	relay.says(back, 1)
	relay.says(brokerAway, 1)
	do(t, server.Restart)
	relay.says(brokerBack, 1)
	arrived(relay)

	do(t, pg.Kill)
	relay.says(away, 2)
	do(t, pg.Restart)
	relay.says(back, 2)
	do(t, server.Kill)
	write(20)
	relay.says(brokerAway, 2)
	do(t, server.Restart)
	relay.says(brokerBack, 2)
	arrived(relay)
	if parked := statusOf(t, store).Parked; parked["retry"]+parked["dead"] != 0 {
		t.Errorf("parked %v: outages burnt attempts", parked)
	}
	if n := s.count(); n < sent {
		t.Errorf("%d of %d messages are at the broker", n, sent)
	}
	for _, unwanted := range []string{"goroutine ", "panic", "headers not supported"} {
		if relay.said.count(unwanted) > 0 {
			t.Errorf("the relay said %q:\n%s", unwanted, relay.said)
		}
	}
	relay.stop()
}

// The end does not wait for a broker that does not answer longer than --drain,
// and leaves what was under way to the next relay.
func TestSignals(t *testing.T) {
	server := testserver.StartNATS(t)
	store := outboxOn(t, testserver.SharedPostgres(t, "18"))
	s := newStream(t, server.URL, -1)
	stuck := func(drain string) *process {
		t.Helper()
		before := s.count()
		relay := launchRelay(t, store, server.URL, "--drain", drain, "--listen", "127.0.0.1:0")
		mustCLI(t, s.message("a", 10), "enqueue", "--store", store)
		until(t, "the relay works", relay, func() bool { return s.count() > before })
		do(t, server.Freeze)
		mustCLI(t, s.message("a", 10), "enqueue", "--store", store)
		until(t, "the relay waits for the broker", relay, func() bool {
			return strings.Contains(relay.metrics(), `postrider_deliveries_in_flight{pipe="main"} 1`)
		})
		return relay
	}

	relay := stuck("3s")
	begun := time.Now()
	relay.signal(syscall.SIGTERM)
	relay.signal(syscall.SIGTERM) // the same one, sent to the group as well
	if code := relay.ends(3 * time.Minute); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0:\n%s", code, relay.said)
	}
	t.Logf("ended %v after SIGTERM with a broker that does not answer", time.Since(begun).Round(time.Millisecond))
	do(t, server.Thaw)

	relay = stuck("10m")
	relay.signal(syscall.SIGTERM)
	relay.says("drain started", 1)
	until(t, "the second signal ends it", relay, func() bool {
		relay.signal(syscall.SIGTERM)
		select {
		case <-relay.done:
			return true
		default:
			return false
		}
	})
	if code := relay.ends(time.Second); code != 1 || relay.said.count("second signal: exiting at once") != 1 {
		t.Errorf("exit code %d after two signals, want 1 and one line:\n%s", code, relay.said)
	}
	do(t, server.Thaw)

	relay = launchRelay(t, store, server.URL)
	until(t, "everything has arrived", relay, func() bool { return statusOf(t, store).Pending == 0 })
	relay.stop()
	if n := s.count(); n < 4 {
		t.Errorf("%d messages at the broker, want all 4", n)
	}
}
