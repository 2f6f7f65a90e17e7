package promises

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/testserver"
)

// memberEnv is the environment variable with the memberConfig of a process of TestMembers.
const memberEnv = "POSTRIDER_PROMISES_MEMBER"

type memberConfig struct {
	Broker, URL, Topic, DSN string
	Name                    string // of the process
	Bare                    bool   // without an inbox, only the source
}

// membersTables has the records of the members and the broker's committed offsets. One
// sequence dates all rows; asked is its value before the Receive that returned the message.
const membersTables = `CREATE SEQUENCE clock;
CREATE TABLE member (name text PRIMARY KEY, works boolean NOT NULL DEFAULT false);
CREATE TABLE run (at bigint NOT NULL DEFAULT nextval('clock'), asked bigint NOT NULL DEFAULT 0, member text, origin text, key text, n integer);
CREATE TABLE committed (at bigint NOT NULL DEFAULT nextval('clock'), place text, upto bigint)`

// TestMembers: consumers of one name join, leave and are killed while keys are in flight.
// With the inbox every message has one effect, in the order of its key. Without it no
// message is skipped or steps ahead, and on Kafka no committed message is run again.
//
// Promises: O, E
func TestMembers(t *testing.T) {
	for name, shared := range map[string]func(*testing.T) *server{
		"nats":  func(t *testing.T) *server { t.Helper(); return natsServer(t, testserver.SharedNATS(t)) },
		"kafka": func(t *testing.T) *server { t.Helper(); return kafkaServer(t, testserver.SharedKafka(t)) },
	} {
		for _, bare := range []bool{false, true} {
			c := memberConfig{Broker: name, Topic: "members-inbox", Bare: bare}
			if bare {
				c.Topic = "members-bare"
			}
			t.Run(name+"/"+c.Topic, func(t *testing.T) {
				t.Parallel()
				b := shared(t)
				c.URL = b.URL
				newCompany(t, b, c).campaign()
			})
		}
	}
}

// company has the members of one name and the messages published to them.
type company struct {
	*testing.T
	b       *server
	s       *effectStore
	c       memberConfig
	members []*member // living ones
	made    int
	sent    int // messages per key
	upto    map[int32]int64
}

const membersKeys = 24 // several per partition

func newCompany(t *testing.T, b *server, c memberConfig) *company {
	t.Helper()
	b.make(t, c.Topic, 0)
	s := newEffects(t, pgPgx)
	if _, err := s.db.Exec(membersTables); err != nil {
		t.Fatal(err)
	}
	c.DSN = s.dsn
	return &company{T: t, b: b, s: s, c: c, upto: make(map[int32]int64)}
}

// campaign lets a member join, kills the busiest one and lets the next busiest leave, while
// messages are published.
func (o *company) campaign() {
	rounds := 1
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		rounds = 6
	}
	o.join()
	o.feed("the first member works", o.hasJoined(o.members[0]))
	for range rounds {
		for len(o.members) < 3 {
			o.join()
			o.feed("the new member has joined", o.hasJoined(o.members[len(o.members)-1]))
		}
		o.busy().kill(o.T)
		o.feed("messages from before the kill are done", o.doneUpTo(o.sent))
		o.busy().leave(o.T)
		o.feed("messages from before the leave are done", o.doneUpTo(o.sent))
	}
	until(o.T, 5*time.Minute, "everything is done", o.doneUpTo(o.sent))
	until(o.T, time.Minute, "everything is acknowledged", func() bool { return o.b.left(o.T, o.c.Topic, o.c.Topic) == 0 })
	for _, m := range o.members {
		m.leave(o.T)
	}
	o.judge()
}

// hasJoined reports whether a member has received messages or, on NATS, where one member
// receives all, has called Receive.
func (o *company) hasJoined(m *member) func() bool {
	condition := " AND works"
	if o.c.Broker == "nats" {
		condition = ""
	}
	return func() bool {
		return count(o.T, o.s.db, "SELECT count(*) FROM member WHERE name = '"+m.name+"'"+condition) == 1
	}
}

// doneUpTo reports whether the first n messages of every key have been run.
func (o *company) doneUpTo(n int) func() bool {
	return func() bool {
		return count(o.T, o.s.db, fmt.Sprintf("SELECT count(DISTINCT (key, n)) FROM run WHERE n < %d", n)) >= n*membersKeys
	}
}

// feed publishes until enough returns true, not much faster than the members consume.
func (o *company) feed(what string, enough func() bool) {
	o.Helper()
	until(o.T, 5*time.Minute, what, func() bool {
		if enough() {
			return true
		}
		o.look()
		if ahead := max(o.sent-40, 0); o.doneUpTo(ahead)() {
			o.b.publish(o.T, numbered(o.c.Topic, membersKeys, o.sent, o.sent+4)...)
			o.sent += 4
		}
		return false
	})
}

// look records the broker's committed offsets.
func (o *company) look() {
	o.Helper()
	if o.b.Committed == nil {
		return
	}
	committed, err := o.b.Committed(o.Context(), o.c.Topic, o.c.Topic)
	if err != nil {
		o.Fatal(err)
	}
	for partition, upto := range committed {
		if o.upto[partition] == upto {
			continue
		}
		o.upto[partition] = upto
		at := fmt.Sprint(o.c.Topic, "/", partition)
		if _, err := o.s.db.Exec("INSERT INTO committed (place, upto) VALUES ($1, $2)", at, upto); err != nil {
			o.Fatal(err)
		}
	}
}

// busy returns the living member that ran a message last.
func (o *company) busy() *member {
	o.Helper()
	var found *member
	o.feed("a member is busy", func() bool {
		var name string
		if o.s.db.QueryRow("SELECT member FROM run ORDER BY at DESC LIMIT 1").Scan(&name) != nil {
			return false
		}
		for i, m := range o.members {
			if m.name == name {
				found = m
				o.members = append(o.members[:i:i], o.members[i+1:]...)
				return true
			}
		}
		return false
	})
	return found
}

// judge checks the recorded runs.
func (o *company) judge() {
	o.Helper()
	const marked = `(SELECT *, coalesce(max(n) OVER w, -1) AS high FROM run
		WINDOW w AS (PARTITION BY key ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) r WHERE n`
	var ahead string
	err := o.s.db.QueryRow(`SELECT coalesce(string_agg(format('%s:%s at %s by %s behind %s', key, n, at, member, high), '; '), '')
		FROM (SELECT * FROM ` + marked + ` > high + 1 ORDER BY at LIMIT 20) r`).Scan(&ahead)
	if err != nil || ahead != "" {
		o.Errorf("run before their predecessors: %s, %v", ahead, err)
	}
	again := count(o.T, o.s.db, "SELECT count(*) FROM "+marked+" <= high")
	settled := count(o.T, o.s.db, `SELECT count(*) FROM run r WHERE EXISTS (SELECT 1 FROM committed c
		WHERE c.place = split_part(r.origin, '@', 1) AND c.at < r.asked AND c.upto > split_part(r.origin, '@', 2)::bigint)`)
	o.Logf("%d messages, %d members; run again: %d, of them committed: %d", o.sent*membersKeys, o.made, again, settled)
	if !o.c.Bare && again != 0 {
		o.Errorf("%d messages had a second effect", again)
	}
	if settled != 0 {
		o.Errorf("%d messages were run although they had been committed before the member's Receive", settled)
	}
	if o.b.Committed != nil && count(o.T, o.s.db, "SELECT count(*) FROM committed WHERE upto > 0") == 0 {
		o.Error("no commit was observed at the broker")
	}
}

// member is one process.
type member struct {
	name string
	cmd  *exec.Cmd
	in   io.Closer
	out  strings.Builder
	dead chan struct{} // closed when it has ended
}

func (o *company) join() {
	o.Helper()
	o.made++
	m := &member{name: fmt.Sprint("m", o.made), cmd: exec.Command(os.Args[0]), dead: make(chan struct{})}
	c := o.c
	c.Name = m.name
	config, err := json.Marshal(c)
	if err != nil {
		o.Fatal(err)
	}
	m.cmd.Env = append(os.Environ(), memberEnv+"="+string(config))
	m.cmd.Stdout, m.cmd.Stderr = &m.out, &m.out
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		o.Fatal(err)
	}
	if err := m.cmd.Start(); err != nil {
		o.Fatal(err)
	}
	go func() { _ = m.cmd.Wait(); close(m.dead) }()
	o.Cleanup(func() { _ = m.cmd.Process.Kill(); <-m.dead })
	o.members = append(o.members, m)
}

func (m *member) kill(t *testing.T) {
	t.Helper()
	if err := m.cmd.Process.Kill(); err != nil {
		t.Errorf("%s: %v: %s", m.name, err, &m.out)
	}
	<-m.dead
}

func (m *member) leave(t *testing.T) {
	t.Helper()
	_ = m.in.Close()
	select {
	case <-m.dead:
		if code := m.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("%s ended with %d: %s", m.name, code, &m.out)
		}
	case <-time.After(time.Minute):
		t.Errorf("%s did not leave within a minute", m.name)
	}
}

// beMember consumes until standard input ends, which also happens when the test dies.
func beMember(config string) error {
	var c memberConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	inner, closeSource, err := openSource(c.Broker, c.URL, c.Topic, c.Topic, kgo.SessionTimeout(10*time.Second))
	if err != nil {
		return err
	}
	defer closeSource()
	pool, err := pgxpool.New(ctx, c.DSN)
	if err != nil {
		return err
	}
	defer pool.Close()
	w := &witness{Source: inner, pool: pool, name: c.Name}
	if c.Bare {
		return w.runBare(ctx)
	}
	opts := quick
	opts.Concurrency = 6
	return runConsumer(ctx, pgPgx, c.DSN, w, &opts, []string{"order.placed"},
		func(ctx context.Context, do func(string, ...any) error, m postrider.Message) error {
			if err := do("INSERT INTO run (member, key, n) VALUES ($1, $2, $3::text::integer)", c.Name, m.Key, number(m)); err != nil {
				return err
			}
			pause(ctx, 2*time.Millisecond) // so that a kill finds handlers at work
			return ctx.Err()
		})
}

// number returns the message's number in its key, as set by numbered.
func number(m postrider.Message) string { return m.ID[len(m.ID)-6:] }

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// witness is a source that records its messages.
type witness struct {
	broker.Source
	pool  *pgxpool.Pool
	name  string
	asked int64 // the clock before the last Receive
	said  bool
	works bool
}

// Receive waits for a short time only, so that asked is hardly older than the messages.
func (w *witness) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	if !w.said {
		if _, err := w.pool.Exec(ctx, "INSERT INTO member VALUES ($1)", w.name); err != nil {
			return nil, err
		}
		w.said = true
	}
	for {
		if err := w.pool.QueryRow(ctx, "SELECT nextval('clock')").Scan(&w.asked); err != nil {
			return nil, err
		}
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		ds, err := w.Source.Receive(short, limit)
		over := short.Err() != nil && ctx.Err() == nil
		cancel()
		if err != nil && over {
			continue
		}
		if len(ds) > 0 && !w.works {
			if _, err := w.pool.Exec(ctx, "UPDATE member SET works = true WHERE name = $1", w.name); err != nil {
				return ds, err
			}
			w.works = true
		}
		return ds, err
	}
}

// runBare runs the source's messages, keys concurrently, and settles each message when it
// is done.
func (w *witness) runBare(ctx context.Context) error {
	for ctx.Err() == nil {
		ds, err := w.Receive(ctx, 20)
		if err != nil {
			pause(ctx, 50*time.Millisecond) // a broker that moves partitions may return an error
			continue
		}
		byKey := make(map[string][]broker.Delivery)
		for _, d := range ds {
			byKey[d.Message.Key] = append(byKey[d.Message.Key], d)
		}
		var wg sync.WaitGroup
		failed := make(chan error, len(byKey))
		for _, of := range byKey {
			wg.Go(func() { failed <- w.runKey(of) })
		}
		wg.Wait()
		for range byKey {
			if err := <-failed; err != nil {
				return err
			}
		}
	}
	return nil
}

// runKey runs the messages of one key. It continues when the process is asked to end.
func (w *witness) runKey(ds []broker.Delivery) error {
	ctx := context.Background()
	for _, d := range ds {
		m := d.Message
		_, err := w.pool.Exec(ctx, "INSERT INTO run (asked, member, origin, key, n) VALUES ($1, $2, $3, $4, $5::text::integer)", w.asked, w.name, d.Origin, m.Key, number(m))
		if err != nil {
			return err
		}
		pause(ctx, 2*time.Millisecond) // so that a kill interrupts work
		for w.Settle(ctx, []broker.Verdict{{Delivery: d, Ack: true}}) != nil {
			pause(ctx, 50*time.Millisecond)
		}
	}
	return nil
}
