package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/consumer/metrics"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/testserver"
)

// night is an outbox, its relay and a broker in which one thing after another goes wrong.
type night struct {
	*testing.T
	db     *sql.DB
	tables string // begins their names
	d      dialect.Dialect
	server *testserver.NATS
	store  string
	relay  *process
	good   *stream
}

// fault is what everybody is to be told of one message while something is wrong.
type fault struct {
	name, key    string
	state, waits string // as the view has them; waits is a pattern
	since        bool   // a time stands beside the reason
	status       string // a pattern for status -o json
	check        string // of the doctor
	doctor       string // a pattern for what it finds and how to repair it
	do           string // a pattern for the command of message show
	keyDo        string // and that of key show; "": the same
	metric       string // a pattern
}

// enqueue writes one message with the name of the fault as its type.
func (n *night) enqueue(name, topic, key string, size int, more string) {
	n.Helper()
	line := fmt.Sprintf(`{"topic":%q,"key":%q,"type":%q,"payload_text":%q%s}`, topic, key, name, strings.Repeat("x", size), more)
	mustCLI(n.T, line+"\n", "enqueue", "--store", n.store)
}

// row is what SQL tells of the message of a fault.
func (n *night) row(name string) (id, state, waits string, lane string) {
	n.Helper()
	err := n.db.QueryRowContext(n.Context(), fmt.Sprintf(`SELECT m.id, m.state, coalesce(m.waits_for, ''), m.lane FROM %smessages m
		WHERE m.pipe = 'main' AND m.type = '%s' ORDER BY m.seq DESC LIMIT 1`, n.tables, name)).Scan(&id, &state, &waits, &lane)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		n.Fatal(err)
	}
	return id, state, waits, lane
}

// asked returns the answer of a command in JSON, whatever it exits with.
func (n *night) asked(into any, args ...string) string {
	n.Helper()
	got := cli(n.T, nil, "", append(args, "--store", n.store, "-o", "json")...)
	if err := json.Unmarshal([]byte(got.out), into); err != nil {
		n.Fatalf("%v: %v\n%s%s", args, err, got.out, got.err)
	}
	return got.out
}

// findings are what the doctor says of one check.
func (n *night) findings(check string, more ...string) string {
	n.Helper()
	var d admin.Diagnosis
	n.asked(&d, append([]string{"doctor", "--only", check}, more...)...)
	var all []string
	for _, f := range d.Findings {
		all = append(all, f.Check+": "+f.What+"; "+f.Why+"; "+f.Fix)
	}
	return strings.Join(all, "\n")
}

// told waits until everybody gives the same true answer about the message of the fault,
// and returns the commands that repair it.
func (n *night) told(f fault) (do string) {
	n.Helper()
	begun := time.Now()
	var wrong []string
	var life answer.Life
	var key answer.Key
	until(n.T, "the answers about "+f.name, n.relay, func() bool {
		wrong = wrong[:0]
		want := func(who, pattern, got string) {
			if !regexp.MustCompile("(?s)" + pattern).MatchString(got) {
				wrong = append(wrong, fmt.Sprintf("%s: %q does not match %q", who, got, pattern))
			}
		}
		id, state, waits, lane := n.row(f.name)
		want("SQL", "^"+f.state+"$", state)
		want("SQL", "^"+f.waits+"$", waits)
		if len(wrong) > 0 { // the others are asked when it is there
			return n.late(begun, wrong)
		}
		n.asked(&life, "message", "show", id)
		n.asked(&key, "key", "show", f.key)
		want("message show", "^"+f.state+"$", life.State)
		want("message show", f.do, life.Do)
		want("key show", cmp.Or(f.keyDo, f.do), key.Do)
		if life.WaitsFor != waits || f.since && life.WaitsSince.IsZero() || fmt.Sprint(life.Lane) != lane {
			wrong = append(wrong, fmt.Sprintf("message show: %q since %v in lane %d, SQL: %q in lane %s", life.WaitsFor, life.WaitsSince, life.Lane, waits, lane))
		}
		if key.WaitsFor == "" || key.Head == nil && key.WaitsFor != waits {
			wrong = append(wrong, fmt.Sprintf("key show: %q, SQL: %q", key.WaitsFor, waits))
		}
		var status answer.Status
		text := n.asked(&status, "status")
		want("status", f.status, text)
		if f.state != "DeadLetter" {
			if l := status.Lanes[life.Lane]; l.Pending == 0 || l.LagSeconds == 0 && status.LagSeconds == 0 {
				wrong = append(wrong, fmt.Sprintf("status: the lane has %+v", l))
			}
		}
		want("doctor", f.doctor, n.findings(f.check))
		want("metrics", f.metric, strings.Join(series.FindAllString(n.relay.metrics(), -1), "\n"))
		return n.late(begun, wrong)
	})
	n.Logf("%s: all answers agree %v after they were asked first\n%s%s", f.name, time.Since(begun).Round(10*time.Millisecond),
		mustCLI(n.T, "", "message", "show", life.ID, "--store", n.store), mustCLI(n.T, "", "key", "show", f.key, "--store", n.store))
	return life.Do
}

// late prints what is wrong when the time is nearly over.
func (n *night) late(begun time.Time, wrong []string) bool {
	if len(wrong) > 0 && time.Since(begun) > 165*time.Second {
		n.Errorf("still wrong:\n%s", strings.Join(wrong, "\n"))
	}
	return len(wrong) == 0
}

// over waits until the message of the fault is sent.
func (n *night) over(name string) {
	n.Helper()
	until(n.T, name+" is sent", n.relay, func() bool {
		_, state, _, _ := n.row(name)
		return state == "Sent"
	})
}

// repair runs a command that an answer has given.
func (n *night) repair(command string) {
	n.Helper()
	args := append(split(command)[1:], "--store", n.store, "--actor", "test")
	mustCLI(n.T, "", args...)
}

// series are those that tell of what is stuck.
var series = regexp.MustCompile(`postrider_(down|lag_seconds|pending_messages|parked_messages|consumer_retrying_messages|consumer_gaps)(\{[^}]*\})? \S+`)

// TestTheNight: whatever goes wrong, SQL, status, doctor, message show, key show and the
// metrics tell the same about what is stuck, since when, why, who holds it and what to
// type, and the command that they name repairs it.
//
// Promises: S, Q
func TestTheNight(t *testing.T) {
	nightOn(t, "postgres-18", func(t *testing.T) string { t.Helper(); return outboxOn(t, testserver.SharedPostgres(t, "18")) })
	nightOn(t, "sqlite", func(t *testing.T) string {
		t.Helper()
		url := "sqlite:" + filepath.Join(t.TempDir(), "night.db")
		mustCLI(t, "", "migrate", "--store", url, "--lanes", "8")
		return url
	})
	for _, version := range testserver.MySQLVersions() {
		nightOn(t, version, func(t *testing.T) string {
			t.Helper()
			url := testserver.SharedMySQL(t, version).Database(t)
			mustCLI(t, "", "migrate", "--store", url, "--lanes", "8")
			return url
		})
	}
}

// nightOn plays it beside the other stores.
func nightOn(t *testing.T, name string, outbox func(*testing.T) string) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		n := &night{T: t, server: testserver.StartNATS(t), tables: "postrider_", store: outbox(t)}
		var err error
		if n.db, n.d, err = open.SQL(n.store, 8); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { do(t, n.db.Close) })
		if n.d == dialect.Postgres {
			n.tables = "postrider."
		}
		n.good = newStream(t, n.server.URL, 1000)
		n.relay = launch(t, "relay", "--store", n.store, "--broker", n.server.URL, "--listen", "127.0.0.1:0", "--status-every", "1s", "--log-level", "info")
		n.enqueue("first", n.good.topic, "first", 10, "")
		n.over("first")

		n.unknownTopic()
		n.refusedPayload()
		n.fullDisk()
		n.pausedLane()
		n.deadBroker()
		n.consumers()
		for _, name := range []string{"unknown-topic", "refused-payload", "captured-key", "full-disk"} {
			n.over(name)
		}
		n.relay.stop()
	})
}

func (n *night) unknownTopic() {
	n.enqueue("unknown-topic", "nowhere", "unknown", 10, "")
	n.told(fault{
		name: "unknown-topic", key: "unknown", state: "(Pending|Failed)", waits: "the destination nowhere: .*", since: true,
		status: `"waits_for":"the destination nowhere: `, check: "relays", doctor: "sends nothing to the destination nowhere: ", do: "^postrider doctor --only relays$",
		metric: `postrider_down\{[^}]*part="destination \w+"[^}]*\} 1`,
	})
	if _, err := n.good.js.CreateOrUpdateStream(n.Context(), jetstream.StreamConfig{Name: "nowhere", Subjects: []string{"nowhere"}}); err != nil {
		n.Fatal(err)
	}
}

func (n *night) refusedPayload() {
	n.enqueue("refused-payload", n.good.topic, "captured", 4000, "")
	do := n.told(fault{
		name: "refused-payload", key: "captured", state: "DeadLetter", waits: "a person: dead retry or dead discard", since: true,
		status: `"dead":1`, check: "parked", doctor: "1 message is dead.*postrider dead retry", do: "^postrider dead retry [0-9]+ --reason WHY$",
		metric: `postrider_parked_messages\{[^}]*state="dead"[^}]*\} 1`,
	})
	n.enqueue("captured-key", n.good.topic, "captured", 10, "")
	n.told(fault{
		name: "captured-key", key: "captured", state: "Pending", waits: "message [0-9]+ of its key, which is dead", since: true,
		status: `"waiting":1`, check: "parked", doctor: "1 key is blocked by dead letters, with 1 message", do: "^postrider message show ", keyDo: "^postrider dead retry [0-9]+ --reason WHY$",
		metric: `postrider_parked_messages\{[^}]*state="waiting"[^}]*\} 1`,
	})
	n.good.limit(-1)
	n.repair(do)
}

// fullDisk has a stream that answers as one whose storage is used up.
func (n *night) fullDisk() {
	limit := func(messages int64) {
		n.Helper()
		_, err := n.good.js.CreateOrUpdateStream(n.Context(), jetstream.StreamConfig{Name: "full", Subjects: []string{"full"}, MaxMsgs: messages, Discard: jetstream.DiscardNew})
		if err != nil {
			n.Fatal(err)
		}
	}
	limit(1)
	n.enqueue("room", "full", "full", 10, "")
	n.over("room")
	n.enqueue("full-disk", "full", "full", 10, "")
	n.told(fault{
		name: "full-disk", key: "full", state: "(Pending|Failed)", waits: "the destination full: .*maximum messages.*", since: true,
		status: `"waits_for":"the destination full: `, check: "relays", doctor: "sends nothing to the destination full: ", do: "^postrider doctor --only relays$",
		metric: `postrider_down\{[^}]*part="destination \w+"[^}]*\} 1`,
	})
	limit(10)
}

func (n *night) pausedLane() {
	_, _, _, lane := n.row("first")
	mustCLI(n.T, "", "pause", "--lane", lane, "--store", n.store, "--reason", "test", "--actor", "test")
	n.enqueue("paused-lane", n.good.topic, "first", 10, "")
	do := n.told(fault{
		name: "paused-lane", key: "first", state: "Pending", waits: "a person: the lane is paused", since: true,
		status: `"paused_parts":\[\{"lane":` + lane, check: "pipes", doctor: "(?i)paused.*postrider resume", do: "^postrider resume --lane " + lane + " --reason WHY$",
		metric: `postrider_pending_messages\{[^}]*\} [1-9]`,
	})
	n.repair(do)
	n.over("paused-lane")
}

func (n *night) deadBroker() {
	do(n.T, n.server.Kill)
	n.enqueue("dead-broker", n.good.topic, "dead", 10, "")
	n.told(fault{
		name: "dead-broker", key: "dead", state: "Pending", waits: "the broker: .*", since: true,
		status: `"waits_for":"the broker: `, check: "relays", doctor: "sends nothing to the broker: ", do: "^postrider doctor --only relays$",
		metric: `postrider_down\{[^}]*part="[^"]+"[^}]*\} 1`,
	})
	do(n.T, n.server.Restart)
	n.over("dead-broker")
}

// consumers has a handler that hangs, and a version that never comes.
func (n *night) consumers() {
	source, err := natsbroker.OpenSource(n.server.URL, &natsbroker.SourceOptions{Stream: n.good.topic, Group: "billing"})
	if err != nil {
		n.Fatal(err)
	}
	defer source.Close()
	release := make(chan struct{})
	c := consumer.New(source, consumer.SQL(n.db, n.d), &consumer.Options{
		Name: "billing", HandlerTimeout: 200 * time.Millisecond, BackoffMin: time.Minute, UnknownType: consumer.Skip,
		Order: func(string) inbox.Order { return inbox.AnyOrder },
	})
	c.HandleMessage("hanging-handler", func(ctx context.Context, _ *sql.Tx, _ postrider.Message) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	n.serve(c)
	n.enqueue("hanging-handler", n.good.topic, "hangs", 10, "")
	n.over("hanging-handler")
	id, _, _, _ := n.row("hanging-handler")
	n.toldOf(c, "billing", unfinished{
		id: id, state: "retry", waits: "its next attempt", table: "SELECT message_id FROM " + n.tables + "inbox_attempt WHERE consumer = 'billing' AND state = 'retry' AND last_error <> ''",
		doctor: "billing tries 1 message again.*postrider dead list --all --consumer billing", metric: `postrider_consumer_retrying_messages\{consumer="billing"\} 1`, status: `"retrying":1`,
	})
	close(release)

	gaps, err := natsbroker.OpenSource(n.server.URL, &natsbroker.SourceOptions{Stream: n.good.topic, Group: "shipping"})
	if err != nil {
		n.Fatal(err)
	}
	defer gaps.Close()
	g := consumer.New(gaps, consumer.SQL(n.db, n.d), &consumer.Options{
		Name: "shipping", UnknownType: consumer.Skip,
		Order: func(string) inbox.Order { return inbox.Contiguous },
	})
	g.HandleMessage("gap", func(context.Context, *sql.Tx, postrider.Message) error { return nil })
	n.serve(g)
	n.enqueue("gap", n.good.topic, "gap", 10, `,"version":3`)
	n.over("gap")
	id, _, _, _ = n.row("gap")
	n.toldOf(g, "shipping", unfinished{
		id: id, state: "waiting", waits: "versions 1 to 2 of its key", table: "SELECT message_id FROM " + n.tables + "inbox_stash WHERE consumer = 'shipping'",
		doctor: "shipping: 1 key waits for missing versions.*postrider guard set", metric: `postrider_consumer_gaps\{consumer="shipping"\} 1`, status: `"gaps":1`,
	})
	n.repair("postrider guard set --consumer shipping --topic " + n.good.topic + " --key gap --version 2 --reason WHY")
	until(n.T, "the stashed message has its effect", nil, func() bool { return n.known(id, "shipping").Claim == "applied" })
}

// serve runs a consumer until the test ends.
func (n *night) serve(c *consumer.Consumer[*sql.Tx]) {
	n.Helper()
	if err := c.Migrate(n.Context()); err != nil {
		n.Fatal(err)
	}
	ctx, cancel := context.WithCancel(n.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	n.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			n.Error(err)
		}
	})
}

// unfinished is what everybody is to be told of a message that a consumer has not finished.
type unfinished struct {
	id, state, waits string
	table            string // a query for the ids
	doctor           string // patterns
	metric, status   string
}

func (n *night) known(id, name string) *answer.Effect {
	n.Helper()
	var life answer.Life
	n.asked(&life, "message", "show", id, "--consumer", name)
	return life.Consumer
}

func (n *night) toldOf(c *consumer.Consumer[*sql.Tx], name string, u unfinished) {
	n.Helper()
	begun := time.Now()
	var wrong []string
	handler := metrics.Handler(c)
	until(n.T, "the answers about "+name, n.relay, func() bool {
		wrong = wrong[:0]
		want := func(who, pattern, got string) {
			if !regexp.MustCompile("(?s)" + pattern).MatchString(got) {
				wrong = append(wrong, fmt.Sprintf("%s: %q does not match %q", who, got, pattern))
			}
		}
		var id string
		if err := n.db.QueryRowContext(n.Context(), u.table).Scan(&id); err != nil || id != u.id {
			wrong = append(wrong, fmt.Sprintf("SQL: %q, error %v", id, err))
			return n.late(begun, wrong) // the others are asked when it is there
		}
		var listed []answer.Unfinished
		n.asked(&listed, "dead", "list", "--all", "--consumer", name)
		if !slices.ContainsFunc(listed, func(l answer.Unfinished) bool {
			return l.ID == u.id && l.State == u.state && l.WaitsFor == u.waits && (l.State != "retry" || l.Attempts > 0 && l.Error != "" && !l.NextAttempt.IsZero())
		}) {
			wrong = append(wrong, fmt.Sprintf("dead list: %+v", listed))
		}
		if k := n.known(u.id, name); k.State != "retry" && k.Stashed == 0 {
			wrong = append(wrong, fmt.Sprintf("message show: %+v", k))
		}
		var all []answer.Consumer
		want("status", u.status, n.asked(&all, "status", "--consumer", name))
		want("doctor", u.doctor, n.findings("consumer-retrying,consumer-gaps", "--consumer", name))
		page := httptest.NewRecorder()
		handler.ServeHTTP(page, httptest.NewRequestWithContext(n.Context(), "GET", "/metrics", nil))
		want("metrics", u.metric, strings.Join(series.FindAllString(page.Body.String(), -1), "\n"))
		return n.late(begun, wrong)
	})
	n.Logf("consumer %s: all answers agree %v after they were asked first\n%s", name, time.Since(begun).Round(10*time.Millisecond),
		mustCLI(n.T, "", "dead", "list", "--all", "--consumer", name, "--store", n.store))
}
