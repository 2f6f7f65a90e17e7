package promises

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
)

// carrier is an outbox that two programs work on in turn: an older one and today's.
type carrier struct {
	*testing.T
	store, topic  string
	nats          *server
	before, today string
	reads         string         // the program that prints the status
	written       map[string]int // per key
	kills         int
	said          []*lines // the output of each relay
}

func newCarrier(t *testing.T, store string) *carrier {
	t.Helper()
	c := &carrier{
		T: t, store: store, topic: "orders", nats: startNATS(t),
		before: built(t, before, "./cmd/postrider"), today: filepath.Join(t.TempDir(), "postrider"), written: map[string]int{},
	}
	c.reads = c.before
	c.nats.make(t, c.topic, 4<<10)
	if out, err := exec.Command("go", "build", "-o", c.today, "github.com/postrider/postrider/cmd/postrider").CombinedOutput(); err != nil {
		t.Fatalf("build today's program: %v\n%s", err, out)
	}
	return c
}

// tool runs a command of a program and returns its output.
func (c *carrier) tool(program, stdin string, args ...string) string {
	c.Helper()
	var out, problem bytes.Buffer
	cmd := exec.Command(program, append(args, "--store", c.store)...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.TempDir(), strings.NewReader(stdin), &out, &problem
	if err := cmd.Run(); err != nil {
		c.Fatalf("%s %v: %v\n%s%s", filepath.Base(program), args, err, out.String(), problem.String())
	}
	return out.String()
}

func (c *carrier) wants(output, text string) {
	c.Helper()
	if !strings.Contains(output, text) {
		c.Errorf("%q is missing in:\n%s", text, output)
	}
}

// write commits n messages over the keys k0 to k7.
func (c *carrier) write(program string, n int) {
	c.Helper()
	var lines strings.Builder
	for i := range n {
		lines.WriteString(c.line("k"+strconv.Itoa(i%8), ""))
	}
	c.tool(program, lines.String(), "enqueue")
}

// line returns the next message of a key.
func (c *carrier) line(key, padding string) string {
	c.written[key]++
	return fmt.Sprintf(`{"topic":%q,"key":%q,"type":"placed","payload_text":"%s:%d:%s"}`+"\n", c.topic, key, key, c.written[key], padding)
}

// relay runs a program's relay; the returned function ends it with a signal.
func (c *carrier) relay(program string, to *server, args ...string) (end func(syscall.Signal)) {
	c.Helper()
	said := &lines{}
	c.said = append(c.said, said)
	cmd := exec.Command(program, append([]string{
		"relay", "--listen", "", "--store", c.store, "--broker", to.URL + "?dedup=off", "--window", strconv.Itoa(window), "--drain", "15s",
	}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.TempDir(), said, said
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	var once sync.Once
	end = func(sig syscall.Signal) {
		once.Do(func() {
			if sig == syscall.SIGKILL {
				c.kills++
			}
			_ = cmd.Process.Signal(sig)
			err := cmd.Wait()
			var ended *exec.ExitError
			if err != nil && !(sig == syscall.SIGKILL && errors.As(err, &ended)) {
				c.Errorf("%s: %v\n%s", filepath.Base(program), err, said)
			}
		})
	}
	c.Cleanup(func() { end(syscall.SIGKILL) })
	return end
}

// status is the output of a program's status.
type status struct {
	Pending   int64
	Parked    map[string]int64
	Delivered int64
	Instances []struct {
		Alive bool
		Lanes int
	}
	Holds []struct{ Key string } `json:"paused_parts"`
}

func (c *carrier) status(args ...string) (s status) {
	c.Helper()
	if err := json.Unmarshal([]byte(c.tool(c.reads, "", append([]string{"status", "-o", "json"}, args...)...)), &s); err != nil {
		c.Fatal(err)
	}
	return s
}

func (c *carrier) until(what string, done func() bool) {
	c.Helper()
	end := time.Now().Add(5 * time.Minute)
	for !done() {
		if time.Now().After(end) {
			c.Fatalf("not within 5 minutes: %s: %+v", what, c.status())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// moved waits until the relays have delivered every message except parked ones.
func (c *carrier) moved(args ...string) {
	c.Helper()
	c.until("everything is delivered", func() bool {
		s := c.status(args...)
		return s.Pending == s.Parked["waiting"]
	})
}

// sharing waits until n relays have lanes.
func (c *carrier) sharing(n int) {
	c.Helper()
	c.until(fmt.Sprintf("%d relays share the lanes", n), func() bool {
		have := 0
		for _, i := range c.status().Instances {
			if i.Alive && i.Lanes > 0 {
				have++
			}
		}
		return have == n
	})
}

// check reads a broker's stream: each key must have arrived complete and in order, except
// for the versions in left. It returns the repetitions of each key.
func (c *carrier) check(from *server, left ...string) (repeated map[string]int) {
	c.Helper()
	repeated = map[string]int{}
	seen := map[string]int{}
	for _, payload := range from.read(c.T, c.topic) {
		f := strings.SplitN(payload, ":", 3)
		n, err := strconv.Atoi(f[1])
		if err != nil {
			c.Fatal(err)
		}
		next := seen[f[0]] + 1
		for slices.Contains(left, f[0]+":"+strconv.Itoa(next)) {
			next++
		}
		switch {
		case n > next:
			c.Errorf("%s:%d arrived before version %d", f[0], n, next)
		case n < next:
			repeated[f[0]]++
		default:
			seen[f[0]] = n
		}
	}
	for key, n := range c.written {
		if seen[key] != n {
			c.Errorf("%s arrived up to %d of %d", key, seen[key], n)
		}
	}
	return repeated
}

// arrived returns the number of messages at the broker.
func (c *carrier) arrived() int {
	c.Helper()
	n, err := c.nats.Count(c.Context(), c.topic)
	if err != nil {
		c.Fatal(err)
	}
	return n
}

// halfWay lets the older program make the outbox and do half of the work: one key waits
// behind a dead letter, one is paused, and the relay is killed.
func (c *carrier) halfWay() {
	c.Helper()
	c.write(c.before, 80)
	c.tool(c.before, c.line("dead", "")+c.line("dead", strings.Repeat("x", 8<<10))+c.line("dead", ""), "enqueue")
	end := c.relay(c.before, c.nats)
	c.until("the older relay has a dead letter and a key that waits behind it", func() bool {
		s := c.status()
		return s.Parked["dead"] == 1 && s.Parked["waiting"] == 1 && s.Pending == 1
	})
	end(syscall.SIGTERM)
	for half := false; !half; { // until the kill comes before the last message
		c.write(c.before, 5000)
		sent := c.arrived()
		end = c.relay(c.before, c.nats)
		c.until("the older relay has sent more", func() bool { return c.arrived() > sent+500 })
		end(syscall.SIGKILL)
		half = c.status().Pending > lanes*window
	}
	c.Logf("the older relay was killed with %d messages pending", c.status().Pending)
}

// TestTheOutboxOfAnOlderProgram: the whole program of an older commit makes an outbox,
// relays half of it and is killed. Today's program continues: no message is lost, no key
// is out of order, and dead letters, acts, orders and settings are kept. On PostgreSQL both
// programs then run beside each other and end in turn, with a rollback in between. On
// SQLite the older program refuses the newer schema.
//
// Promises: L, O, D
func TestTheOutboxOfAnOlderProgram(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		versions := testserver.NewestPostgres()
		c := newCarrier(t, testserver.SharedPostgres(t, versions[len(versions)-1]).Database(t))
		audit := startNATS(t)
		audit.make(t, c.topic, 4<<10)
		c.tool(c.before, "", "migrate", "--lanes", strconv.Itoa(lanes))
		c.tool(c.before, "", "strict", "add", c.topic)
		c.tool(c.before, "", "pipe", "add", "audit", "--from", "now", "--key", "k*")
		c.tool(c.before, "", "pipe", "pause", "audit", "--reason", "before")
		c.halfWay()
		c.tool(c.before, "", "pause", "--key", "k0", "--reason", "before", "--wait", "1m")
		c.tool(c.before, "", "replay", "--key", "k1", "--versions", "1-3", "--reason", "before", "--yes", "--wait", "0")

		c.migrate()
		c.wants(c.tool(c.today, "", "strict", "list"), c.topic)
		c.wants(c.tool(c.today, "", "journal"), "before")
		if s := c.status(); s.Parked["dead"] != 1 || len(s.Holds) != 1 || s.Holds[0].Key != "k0" {
			t.Errorf("today's status: %+v, want the dead letter and the paused key", s)
		}
		endToday := c.relay(c.today, c.nats)
		c.moved()
		c.tool(c.today, "", "resume", "--key", "k0", "--reason", "today", "--wait", "1m")
		c.moved()
		c.sideBySide(endToday)

		c.tool(c.today, "", "pipe", "resume", "audit")
		c.relay(c.today, audit, "--pipe", "audit")
		c.moved("--pipe", "audit")
		c.tool(c.today, "", "audit", "--full")
		repeated := c.check(c.nats, "dead:2")
		if n := repeated["k1"]; n < 3 {
			t.Errorf("%d messages of k1 arrived twice, want the 3 of the older program's replay", n)
		}
		c.atMost(repeated)
		delete(c.written, "dead")
		if repeated := c.check(audit); len(repeated) > 0 {
			t.Errorf("the pipe audit repeated %v", repeated)
		}
	})
	t.Run("sqlite", func(t *testing.T) {
		c := newCarrier(t, "sqlite:"+filepath.Join(t.TempDir(), "outbox.db"))
		c.tool(c.before, "", "migrate", "--lanes", strconv.Itoa(lanes))
		c.halfWay()
		c.migrate()
		if s := c.status(); s.Parked["dead"] != 1 || s.Parked["waiting"] != 1 {
			t.Errorf("today's status: %+v, want the dead letter and the key that waits behind it", s)
		}
		endToday := c.relay(c.today, c.nats)
		c.moved()
		c.refuses()
		c.write(c.today, 1000)
		endToday(syscall.SIGTERM)
		c.write(c.today, 1000)
		c.relay(c.today, c.nats)
		c.moved()
		c.discard()
		c.atMost(c.check(c.nats, "dead:2"))
	})
}

// refuses checks that the older program exits at once and names the remedy.
func (c *carrier) refuses() {
	c.Helper()
	out, err := exec.Command(c.before, "relay", "--listen", "", "--store", c.store, "--broker", c.nats.URL).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "newer than the 1 this program knows: upgrade the program") {
		c.Errorf("the older relay exited with %v and printed %s; want it to refuse the schema", err, out)
	}
}

// migrate runs the first step of an upgrade.
func (c *carrier) migrate() {
	c.Helper()
	c.Log(c.tool(c.today, "", "migrate"))
	c.reads = c.today
}

// sideBySide rolls back and forth: both relays, only the older one, both, only today's.
func (c *carrier) sideBySide(endToday func(syscall.Signal)) {
	c.Helper()
	endBefore := c.relay(c.before, c.nats)
	c.sharing(2)
	c.write(c.today, 1000)
	endToday(syscall.SIGTERM)
	c.write(c.before, 1000)
	c.moved()
	c.relay(c.today, c.nats)
	c.sharing(2)
	c.write(c.before, 1000)
	endBefore(syscall.SIGTERM)
	c.write(c.today, 1000)
	c.moved()
	c.discard()
}

// discard discards the dead letter.
func (c *carrier) discard() {
	c.Helper()
	var dead []struct{ Seq string }
	list := c.tool(c.today, "", "dead", "list", "-o", "json")
	if err := json.Unmarshal([]byte(list), &dead); err != nil || len(dead) != 1 {
		c.Fatalf("dead letters: %v, %s", err, list)
	}
	c.tool(c.today, "", "dead", "discard", dead[0].Seq, "--reason", "today", "--wait", "1m")
	c.until("nothing is parked", func() bool { s := c.status(); return s.Pending == 0 && s.Parked["dead"] == 0 })
}

// atMost allows a window per lane for each kill and for each lease that lapsed on a busy
// machine, and the three replayed messages.
func (c *carrier) atMost(repeated map[string]int) {
	c.Helper()
	n, incidents := 0, c.kills
	for _, r := range repeated {
		n += r
	}
	for _, said := range c.said {
		incidents += strings.Count(said.String(), lapsed) + strings.Count(said.String(), "database unreachable")
	}
	if bound := incidents*lanes*window + 3; n > bound {
		c.Errorf("%d messages arrived twice, want at most %d for %d incidents", n, bound, incidents)
	}
	c.Logf("%v, repeated %v in %d incidents", c.written, repeated, incidents)
}
