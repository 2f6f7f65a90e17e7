package pgstore_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// seen is a row of the view messages, without what the message itself says.
type seen struct {
	State, Parked, WaitsFor string
	Attempts                int
	Failed, Tried, Next     bool // the times are there
	Class, Code, Error      string
	Owner                   string
	Sent                    bool
}

// view returns the rows of the view by type.
func (d *db) view() map[string]seen {
	d.Helper()
	rows, err := d.pool.Query(d.Context(), d.sql(`SELECT type, state, coalesce(parked, ''), coalesce(waits_for, ''), coalesce(attempts, -1), first_failed IS NOT NULL,
		last_attempt IS NOT NULL, next_attempt IS NOT NULL, coalesce(error_class, ''), coalesce(error_code, ''), coalesce(error, ''),
		coalesce(lock_owner, ''), sent_at IS NOT NULL, (lock_owner IS NULL) = (locked_until IS NULL) FROM box.messages WHERE pipe = 'main'`))
	if err != nil {
		d.Fatal(err)
	}
	defer rows.Close()
	all := map[string]seen{}
	for rows.Next() {
		var s seen
		var label string
		var both bool
		if err := rows.Scan(&label, &s.State, &s.Parked, &s.WaitsFor, &s.Attempts, &s.Failed, &s.Tried, &s.Next, &s.Class, &s.Code, &s.Error, &s.Owner, &s.Sent, &both); err != nil {
			d.Fatal(err)
		}
		if _, twice := all[label]; twice {
			d.Errorf("%s is in the view twice", label)
		}
		if !both {
			d.Errorf("%s has a lock owner or a time of it alone", label)
		}
		all[label] = s
	}
	if err := rows.Err(); err != nil {
		d.Fatal(err)
	}
	return all
}

func (d *db) wantView(when string, want map[string]seen) {
	d.Helper()
	got := d.view()
	for label, w := range want {
		if got[label] != w {
			d.Errorf("%s, %s:\n got %+v\nwant %+v", when, label, got[label], w)
		}
	}
	if len(got) != len(want) {
		d.Errorf("%s: %d messages in the view, want %d: %v", when, len(got), len(want), got)
	}
	d.wantStates(when)
}

// wantStates compares the counts with what the view has.
func (d *db) wantStates(when string) {
	d.Helper()
	if n := d.count(`SELECT count(*) FROM box.states WHERE pipe = 'main' AND exact`); n != 5 {
		d.Errorf("%s: %d of 5 states are exact", when, n)
	}
	if n := d.count(`SELECT count(*) FROM box.states s WHERE pipe = 'main' AND state <> 'Sent'
		AND messages <> (SELECT count(*) FROM box.messages m WHERE m.pipe = s.pipe AND m.state = s.state)`); n != 0 {
		d.Errorf("%s: %d states have another count than the view", when, n)
	}
}

// Each column of the view in each state, also when retention has removed the rows.
//
// Promises: Q
func TestViewOfEachState(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		late := d.begin()
		d.put(late, "late")
		parks := map[string]store.Park{
			"retry":     {State: store.Retry, Captures: true, DueIn: time.Hour, Attempts: 2, Class: "failed", Code: "FULL", Error: "queue full"},
			"waiting":   {State: store.Waiting},
			"scheduled": {State: store.Scheduled, DueIn: time.Hour},
			"dead":      {State: store.Dead, Attempts: 5, Class: "rejected", Code: "TOO_LARGE", Error: "too large"},
		}
		for _, label := range []string{"retry", "waiting", "scheduled", "dead", "sent"} {
			d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', $1)`, label)
		}
		var retried int64
		for _, b := range o.read() {
			st := store.Settlement{BootID: "a", Lane: b.Lane, Epoch: o.grant[b.Lane].Epoch, Position: b.Position, Delivered: 1}
			for i, m := range b.Messages {
				if p, ok := parks[m.Type]; ok {
					p.Seq, p.Message = b.Meta[i].Seq, m
					st.Park = append(st.Park, p)
				}
				if m.Type == "retry" {
					retried = b.Meta[i].Seq
				}
			}
			if lost, err := o.store.Settle(t.Context(), []store.Settlement{st}); err != nil || len(lost) > 0 {
				t.Fatal(lost, err)
			}
		}
		d.commit(late)
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'new')`)
		want := map[string]seen{
			"late":      {State: "InProgress", Owner: "a"},
			"new":       {State: "InProgress", Owner: "a"},
			"sent":      {State: "Sent", Attempts: -1, Sent: true},
			"retry":     {State: "Failed", Parked: "retry", WaitsFor: "its next attempt", Attempts: 2, Failed: true, Tried: true, Next: true, Class: "failed", Code: "FULL", Error: "queue full", Owner: "a"},
			"waiting":   {State: "Pending", Parked: "waiting", WaitsFor: fmt.Sprintf("message %d of its key, which is retry", retried), Owner: "a"},
			"scheduled": {State: "Pending", Parked: "scheduled", WaitsFor: "its time", Next: true, Owner: "a"},
			"dead":      {State: "DeadLetter", Parked: "dead", WaitsFor: "a person: dead retry or dead discard", Attempts: 5, Failed: true, Tried: true, Class: "rejected", Code: "TOO_LARGE", Error: "too large"},
		}
		d.wantView("as they are", want)
		change := func(label, state, waitsFor, owner string) {
			w := want[label]
			w.State, w.WaitsFor, w.Owner = state, waitsFor, owner
			want[label] = w
		}
		d.exec(`DELETE FROM box.outbox WHERE type IN ('retry', 'waiting', 'scheduled', 'dead', 'sent')`)
		delete(want, "sent")
		d.wantView("without their rows", want)

		held := []store.Held{{Destination: "t", Since: time.Now(), Code: "UNKNOWN_TOPIC", Error: "no such topic"}}
		o.beat(func(req *store.LeaseRequest) { req.Report.Held = held })
		for _, label := range []string{"late", "new"} {
			change(label, "Pending", "the destination t: UNKNOWN_TOPIC: no such topic", "a")
		}
		change("retry", "Failed", "the destination t: UNKNOWN_TOPIC: no such topic", "a")
		d.wantView("with a destination held", want)
		held[0].Destination = ""
		o.beat(func(req *store.LeaseRequest) { req.Report.Held = held })
		for _, label := range []string{"late", "new", "retry"} {
			change(label, want[label].State, "the broker: UNKNOWN_TOPIC: no such topic", "a")
		}
		d.wantView("with the broker held", want)
		o.beat(func(*store.LeaseRequest) {})
		d.exec(`UPDATE box.pipe SET paused = true`)
		for _, label := range []string{"late", "new", "retry"} {
			change(label, want[label].State, "a person: the pipe is paused", "a")
		}
		d.wantView("with the pipe paused", want)
		d.exec(`UPDATE box.pipe SET paused = false`)
		o.beat(func(req *store.LeaseRequest) { req.Leave = true })
		for _, label := range []string{"late", "new", "retry"} {
			change(label, want[label].State, "a relay: none holds the lane", "")
		}
		change("waiting", "Pending", want["waiting"].WaitsFor, "")
		change("scheduled", "Pending", "its time", "")
		d.wantView("with nobody alive", want)
	})
}

// No more messages of a lane are in progress than its relay may have in its hands.
func TestInProgressIsWithinReach(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k', g::text FROM generate_series(1, 30) g`)
		o.beat(func(req *store.LeaseRequest) { req.Report.Reach = 10 })
		if a, b := d.state("InProgress"), d.state("Pending"); a != 10 || b != 20 {
			t.Errorf("%d in progress, %d pending; the relay takes 10 of 30", a, b)
		}
		d.wantStates("with a reach of 10")
	})
}

func (o *owner) sentAt(label string) (at *time.Time) {
	o.Helper()
	if err := o.pool.QueryRow(o.Context(), o.sql(`SELECT sent_at FROM box.messages WHERE type = $1`), label).Scan(&at); err != nil {
		o.Fatal(err)
	}
	return at
}

// A time that was shown stays: exact while the hour lasts, within a minute after it, and
// NULL where nobody knows.
func TestWhenItWasSent(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		late := d.begin()
		d.put(late, "late")
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'first')`)
		o.want("first")
		before := *o.sentAt("first")
		d.commit(late)
		o.want("late")
		if at := o.sentAt("late"); at == nil || !at.After(before) {
			t.Errorf("late was sent at %v, first at %v", at, before)
		}
		lateAt := *o.sentAt("late")
		for i := range 200 { // the progress rows of both are pruned
			d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', $1)`, fmt.Sprint(i))
			o.want(fmt.Sprint(i))
		}
		if n := d.count(`SELECT count(*) FROM box.settlement`); n == 0 {
			t.Fatal("nothing was pruned")
		}
		for label, want := range map[string]time.Time{"first": before, "late": lateAt} {
			if at := o.sentAt(label); at == nil || !at.Equal(want) {
				t.Errorf("%s was sent at %v, and after pruning at %v", label, want, at)
			}
		}
		if n := d.count(`SELECT count(*) FROM box.messages WHERE state = 'Sent' AND sent_at IS NULL`); n != 0 {
			t.Errorf("%d of 202 have no time", n)
		}
		if n := d.count(`SELECT count(*) FROM (SELECT sent_at < lag(sent_at) OVER (ORDER BY seq) AS back FROM box.messages WHERE type <> 'late') x WHERE back`); n != 0 {
			t.Errorf("%d were sent before the message before them", n)
		}
		// The hour is over: what the minutes tell stays, and no guess is made beside it.
		d.exec(`DELETE FROM box.settlement`)
		if at := o.sentAt("first"); at != nil {
			t.Errorf("the only minute is from before: first was sent at %v", at)
		}
		o.beat(func(req *store.LeaseRequest) { req.Leave = true })
		for label, want := range map[string]time.Time{"first": before, "late": lateAt} {
			if at := o.sentAt(label); at == nil || at.Before(want) || at.Sub(want) > time.Minute {
				t.Errorf("%s was sent at %v, by the minutes at %v", label, want, at)
			}
		}
		if n := d.count(`SELECT count(*) FROM box.minute`); n != 2 {
			t.Errorf("%d minutes are noted, want the first and the last", n)
		}
	})
}

// A clock that was ahead for a while leaves times of the future. The minutes continue at
// the time that it is, else retention would wait until those have come.
func TestMinutesAfterAClockThatWasAhead(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'first')`)
		o.want("first")
		o.beat(func(req *store.LeaseRequest) { req.Leave = true })
		d.exec(`UPDATE box.minute SET at = at + interval '60 days'`)
		d.exec(`UPDATE box.progress SET settled_at = settled_at + interval '60 days'`)
		ahead := d.count(`SELECT count(*) FROM box.minute`)
		next := d.owner("b")
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'second')`)
		next.want("second")
		next.beat(func(req *store.LeaseRequest) { req.Leave = true })
		if n := d.count(`SELECT count(*) FROM box.minute WHERE at <= clock_timestamp()`); ahead == 0 || n == 0 {
			t.Errorf("%d minutes are of the future, %d were noted since the clock was set right", ahead, n)
		}
	})
}

// What was sent before the upgrade has no time, the states are what they were, and the
// way back leaves the view of the version before.
func TestViewAfterUpgrade(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := empty(t, version, 4)
		m := d.store("main").Office().Migrator
		migrate := func(target int) {
			t.Helper()
			if _, err := m.Migrate(t.Context(), ops.MigrateRequest{Target: target}); err != nil {
				t.Fatal(err)
			}
		}
		migrate(11)
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'old'), ('t', 'k', 'dead')`)
		d.exec(`INSERT INTO box.progress (pipe, lane, n, pos, low, next_xid, delivered, owner)
			SELECT 'main', lane, 1, max(seq), 0, pg_current_xact_id()::text::bigint, 1, '' FROM box.outbox GROUP BY lane`)
		d.exec(`INSERT INTO box.parked (pipe, lane, seq, state, captures, due_at, created_at, version, schema_version, id, topic, key, type, content_type, headers, payload)
			SELECT 'main', lane, seq, 'dead', true, now(), created_at, 0, 0, id, topic, key, type, '', '{}', '' FROM box.outbox WHERE type = 'dead'`)
		migrate(0)
		o := d.owner("a")
		o.want()
		if got := d.view(); got["old"].State != "Sent" || got["old"].Sent || got["dead"].State != "DeadLetter" {
			t.Errorf("after the upgrade: %+v", got)
		}
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'new')`)
		o.want("new")
		if got := d.view(); !got["new"].Sent || got["old"].Sent {
			t.Errorf("after the first settlement: %+v", got)
		}
		migrate(11)
		if n := d.count(`SELECT count(*) FROM box.messages WHERE state = 'Sent' AND sent_by IS NOT NULL`); n != 2 {
			t.Errorf("%d Sent after the way back, want 2", n)
		}
		migrate(0)
		if got := d.view(); !slices.Equal([]string{got["old"].State, got["new"].State, got["dead"].State}, strings.Fields("Sent Sent DeadLetter")) {
			t.Errorf("after the second upgrade: %+v", got)
		}
	})
}

// What is noted of settlements dates a message only where it proves when that one was sent.
func TestANoteDatesWhatItProves(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 1)
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			d.exec(`INSERT INTO box.outbox (topic, key, type, created_at) VALUES ('t', 'k', $1, '2026-01-01Z')`, name)
		}
		note := func(query string) {
			t.Helper()
			for _, name := range []string{"a", "b", "c", "d", "e"} {
				query = strings.ReplaceAll(query, "{"+name+"}", fmt.Sprintf("(SELECT seq FROM box.outbox WHERE type = '%s')", name))
				query = strings.ReplaceAll(query, "["+name+"]", fmt.Sprintf("(SELECT int8multirange(int8range(xid::text::bigint, xid::text::bigint + 1)) FROM box.outbox WHERE type = '%s')", name))
			}
			d.exec(regexp.MustCompile(`@(\d+)`).ReplaceAllString(query, "timestamptz '2026-01-01Z' + interval '$1 s'"))
		}
		note(`DELETE FROM box.progress`)
		note(`INSERT INTO box.progress (pipe, lane, n, pos, low, next_xid, delivered, settled_at, mark, draining, drain_seq, owner)
			SELECT 'main', 0, x.n, x.pos, 0, 1, 0, x.at, x.mark, x.draining, 0, '' FROM (VALUES
			(10, {c}, @10, 1, NULL::int8multirange),
			(11, {d}, @11, 0, NULL), -- nothing was settled
			(12, {d}, @12, 1, [d]),  -- d was running when the cursor passed it
			(13, {e}, @13, 1, NULL)) AS x(n, pos, at, mark, draining)`)
		// a may have been sent before the first of these.
		note(`INSERT INTO box.settlement (pipe, lane, last, n, until, pos, at, running) VALUES ('main', 0, {b}, 9, @6, ARRAY[{a}, {b}], ARRAY[@5, @6], ARRAY[NULL, NULL]::bigint[])`)
		note(`UPDATE box.outbox SET created_at = @22 WHERE type = 'a'`)
		note(`DELETE FROM box.minute`)
		note(`INSERT INTO box.minute (pipe, at, pos, late) VALUES
			('main', @20, ARRAY[{c}], '{}'), -- the first one: what it covers was sent at any time before
			('main', @21, ARRAY[{c}], '{}'), -- before a was enqueued
			('main', @23, ARRAY[{c}], [a]),  -- while a was running
			('main', @24, ARRAY[{c}], '{}')`)
		for name, want := range map[string]int{"a": 24, "b": 6, "c": 21, "d": 13, "e": 13} {
			if n := d.count(fmt.Sprintf(`SELECT coalesce(extract(epoch FROM sent_at - timestamptz '2026-01-01Z'), -1)::bigint FROM box.messages WHERE state = 'Sent' AND type = '%s'`, name)); n != int64(want) {
				t.Errorf("%s was sent after %d s, want %d", name, n, want)
			}
		}
	})
}

// The lag is that of a message that was passed while its transaction was running, where it is the oldest.
func TestLagOfAStraggler(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 1)
		d.exec(`INSERT INTO box.outbox (topic, key, type, created_at) VALUES ('t', 'k', 'late', now() - interval '2 hours')`)
		d.exec(`INSERT INTO box.outbox (topic, key, type, created_at) VALUES ('t', 'k', 'ahead', now() - interval '1 hour')`)
		d.exec(`INSERT INTO box.running (id, xids) SELECT 1, int8multirange(int8range(xid::text::bigint, xid::text::bigint + 1)) FROM box.outbox WHERE type = 'late'`)
		d.exec(`INSERT INTO box.progress (pipe, lane, n, pos, low, next_xid, delivered, mark, running, owner)
			SELECT 'main', 0, 1, seq, 0, pg_current_xact_id()::text::bigint, 0, 1, 1, '' FROM box.outbox WHERE type = 'late'`)
		st, err := d.store("main").Office().Admin.Status(t.Context())
		if err != nil || st.Pending != 2 || st.Lag < 2*time.Hour || st.LagCapped {
			t.Errorf("status: %+v, error %v", st, err)
		}
	})
}
