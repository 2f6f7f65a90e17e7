package pgstore_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// order stores an order of ann.
func (o *owner) order(order ops.Order) (int64, ops.OrderPlan) {
	o.Helper()
	order.Actor, order.Reason = "ann", "test"
	id, plan, err := o.store.Office().Orders.Order(o.Context(), order)
	if err != nil {
		o.Fatal(err)
	}
	return id, plan
}

func (o *owner) wantState(when string, id, moved int64, done bool) {
	o.Helper()
	st, err := o.store.Office().Orders.OrderState(o.Context(), id)
	if err != nil || st.Moved != moved || st.Done != done {
		o.Fatalf("%s: %+v, %v, want %d moved, done %v", when, st, err, moved, done)
	}
}

// due is what is due of all lanes, each with its state and generation.
func (o *owner) due() []string {
	o.Helper()
	var found []string
	for lane, g := range o.grant {
		b, err := o.store.Read(o.Context(), []store.LaneRead{{Lane: lane, Epoch: g.Epoch, Parked: true, MaxRecords: 10_000}})
		if err != nil {
			o.Fatal(err)
		}
		for i, m := range b[0].Messages {
			found = append(found, fmt.Sprintf("%s %s %d", m.Type, b[0].Meta[i].State, b[0].Meta[i].Generation))
		}
	}
	return found
}

// send delivers what is due, which then leaves the parked table.
func (o *owner) send() []string {
	o.Helper()
	var sent []string
	for lane, g := range o.grant {
		b, err := o.store.Read(o.Context(), []store.LaneRead{{Lane: lane, Epoch: g.Epoch, Parked: true, MaxRecords: 10_000}})
		if err != nil {
			o.Fatal(err)
		}
		var seqs []int64
		for i, m := range b[0].Messages {
			seqs, sent = append(seqs, b[0].Meta[i].Seq), append(sent, m.Type)
		}
		if len(seqs) > 0 {
			o.settle(lane, store.Settlement{Delivered: len(seqs), Unpark: seqs})
		}
	}
	return sent
}

func wantLabels(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// A retry by filter takes what fits and nothing else, changes topic and headers,
// and counts before it does.
func TestRetryByFilterAndEdit(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		first := o.park("k", "a", store.Dead)
		o.park("k", "b", store.Waiting)
		o.park("j", "c", store.Dead)
		retry := ops.Order{
			Kind: store.ActRetry, Match: ops.Match{Key: "k", Class: "rejected", Code: "c1", Topic: "t"},
			Edit: ops.Edit{Topic: "u", SetHeaders: map[string]string{"b": "2"}, UnsetHeaders: []string{"a"}}, Actor: "ann", Reason: "r",
		}
		plan, err := o.store.Office().Orders.PlanOrder(t.Context(), retry)
		if err != nil || plan.Records != 1 || len(plan.Lanes) != 1 || plan.Lanes[0].First != first.Seq {
			t.Fatalf("plan %+v, %v", plan, err)
		}
		if len(d.entries()) != 0 {
			t.Errorf("to count is in the journal: %q", d.entries())
		}
		id, _ := o.order(retry)
		o.wantState("before the owner has seen it", id, 0, false)
		o.execute()
		o.wantState("carried out", id, 1, true)
		wantLabels(t, "due", o.due(), "a retry 1", "b waiting 0")
		found, err := o.store.Office().Admin.Parked(t.Context(), ops.ParkedQuery{Key: "k", Limit: 1})
		if err != nil || len(found) != 1 || found[0].Message.Topic != "u" || len(found[0].Message.Headers) != 1 || found[0].Message.Headers["b"] != "2" || found[0].Attempts != 0 || !found[0].Captures {
			t.Errorf("after the edit: %+v, %v", found, err)
		}
		wantLabels(t, "journal", d.entries(), "ann retry k asked 1 test", "ann retry  done 1 test")
		_, _, err = o.store.Office().Orders.Order(t.Context(), ops.Order{Kind: store.ActRetry, Match: ops.Match{Key: "k"}, Actor: "ann", Reason: "again"})
		wantIs(t, err, store.ErrNotFound)
	})
}

// dead fills one lane with dead letters without a key.
func (d *db) dead(n int, lane store.Lane) {
	d.Helper()
	d.exec(`INSERT INTO box.parked (pipe, lane, seq, state, captures, due_at, created_at, version, schema_version, id, topic, key, type, content_type, headers, payload)
		SELECT 'main', $2, g, 'dead', false, now(), now(), 0, 0, box.uuid_v7(), 't', '', 'x', '', '{}', '' FROM generate_series(1, $1) g`, n, lane)
}

// Thousands of records are moved in pages, one in each settlement, by every lane
// for itself, and never twice.
func TestOrderInPages(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.dead(2500, 0)
		id, plan := o.order(ops.Order{Kind: store.ActDiscard, Match: ops.Match{All: true}})
		if plan.Records != 2500 {
			t.Fatalf("plan %+v", plan)
		}
		for _, want := range []int64{1000, 2000, 2500} {
			o.execute()
			o.wantState("a page later", id, want, want == 2500)
		}
		o.execute()
		if n := d.count(`SELECT count(*) FROM box.parked`); n != 0 {
			t.Errorf("%d are left", n)
		}
		if n := d.count(`SELECT sum(discarded) FROM box.repair`); n != 2500 {
			t.Errorf("%d are counted", n)
		}
		wantLabels(t, "journal", d.entries(), "ann discard  asked 2500 test", "ann discard  done 2500 test")
	})
}

func TestOrderRateAndCancel(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.dead(100, 0)
		d.exec(`UPDATE box.parked SET lane = 1 WHERE seq > 50`)
		id, _ := o.order(ops.Order{Kind: store.ActRetry, Match: ops.Match{Type: "x"}, Rate: 5})
		d.exec(`UPDATE box.request SET created_at = created_at - interval '1 minute'`)
		o.execute()
		o.execute()
		st, err := o.store.Office().Orders.OrderState(t.Context(), id)
		if err != nil || st.Moved < 10 || st.Moved > 15 || st.Done { // of a minute 2 s count, and the test is slow
			t.Errorf("%+v, %v", st, err)
		}
		if err := o.store.Office().Orders.CancelOrder(t.Context(), id, "bob", "wrong ones"); err != nil {
			t.Fatal(err)
		}
		d.exec(`UPDATE box.request SET ran_at = ran_at - interval '1 minute'`)
		o.execute()
		o.wantState("cancelled", id, st.Moved, true)
		wantIs(t, o.store.Office().Orders.CancelOrder(t.Context(), id, "bob", "again"), store.ErrNotFound)
		wantLabels(t, "journal", d.entries(), "ann retry  asked 100 test", fmt.Sprintf("bob cancel  done %d wrong ones", st.Moved))
	})
}

// A rate is kept whatever its size: 0.09 times 1/0.09 is a little less than 1 record.
//
// Promises: S
func TestOrderEndsAtAnyRate(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		for _, rate := range []float64{0.09, 17.0 / 60, 0.4} {
			d.dead(1, 0)
			id, _ := o.order(ops.Order{Kind: store.ActDiscard, Match: ops.Match{Type: "x"}, Rate: rate})
			d.exec(`UPDATE box.request SET created_at = created_at - interval '1 hour'`)
			o.execute()
			if st, err := o.store.Office().Orders.OrderState(t.Context(), id); err != nil || st.Moved != 1 {
				t.Errorf("after an hour at %v records a second: %+v, %v", rate, st, err)
			}
		}
	})
}

// Cancelling an order waits for the page that is being executed, and counts it.
func TestCancelCountsThePageItWaitedFor(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.dead(100, 0)
		id, _ := o.order(ops.Order{Kind: store.ActRetry, Match: ops.Match{All: true}, Rate: 1})
		page := d.begin()
		d.do(page, `UPDATE box.request SET moved = 7`)
		pid := int(page.Conn().PgConn().PID())
		cancelled := make(chan error, 1)
		go func() { cancelled <- o.store.Office().Orders.CancelOrder(d.Context(), id, "bob", "wrong ones") }()
		d.await("the end of the order waits", `SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pg_blocking_pids(pid) @> ARRAY[$1::integer])`, pid)
		d.commit(page)
		if err := <-cancelled; err != nil {
			t.Fatal(err)
		}
		wantLabels(t, "journal", d.entries(), "ann retry  asked 100 test", "bob cancel  done 7 wrong ones")
	})
}

// A rate counts from the beginning of a page to that of the next: else an order is
// slower by what its pages take.
func TestOrderRateCountsWhatAPageTakes(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k', 'y' FROM generate_series(1, 100)`)
		o.drain()
		d.dead(100, 0)
		// What a page asks of each record notes when it was asked.
		d.exec(`CREATE TABLE box.asked (at timestamptz NOT NULL DEFAULT clock_timestamp())`)
		for _, f := range []string{
			`headers_fit(h jsonb)`, `passes(topics text[], types text[], keys text[], wanted jsonb, topic text, type text, key text, headers jsonb)`,
		} {
			d.exec(`CREATE OR REPLACE FUNCTION box.` + f + ` RETURNS boolean LANGUAGE plpgsql VOLATILE AS
				$$BEGIN INSERT INTO box.asked DEFAULT VALUES; RETURN true; END$$`)
		}
		for _, order := range []ops.Order{
			{Kind: store.ActRetry, Match: ops.Match{Type: "x"}, Edit: ops.Edit{Topic: "u"}, Rate: 5},
			{Kind: store.ActReplay, Match: ops.Match{Type: "y"}, Rate: 5},
		} {
			id, _ := o.order(order)
			d.exec(`UPDATE box.request SET created_at = created_at - interval '1 minute'`)
			d.exec(`TRUNCATE box.asked`)
			o.execute()
			o.wantState(string(order.Kind), id, 10, false) // of a minute 2 s count
			if n := d.count(`SELECT count(*) FROM box.asked WHERE at < (SELECT max(ran_at) FROM box.request WHERE ask = ` + fmt.Sprint(id) + `)`); n > 0 {
				t.Errorf("%s: the rate counts from behind %d looks of the page", order.Kind, n)
			}
			if n := d.count(`SELECT count(*) FROM box.asked`); n < 10 {
				t.Errorf("%s: %d looks were noted", order.Kind, n)
			}
			if err := o.store.Office().Orders.CancelOrder(t.Context(), id, "bob", "seen"); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Skip lets a key continue behind its dead head, which stays as an announced gap.
//
// Promises: S
func TestSkipFreesTheKey(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		o.park("k", "a", store.Dead)
		d.exec(`UPDATE box.parked SET version = 7`)
		o.park("k", "b", store.Waiting)
		wantLabels(t, "due behind the dead head", o.due())
		id, _ := o.order(ops.Order{Kind: store.ActSkip, Match: ops.Match{Key: "k"}})
		o.execute()
		o.wantState("skipped", id, 1, true)
		wantLabels(t, "due", o.due(), "b waiting 0")
		g, err := o.store.Lease(t.Context(), store.LeaseRequest{BootID: o.boot, Instance: o.boot, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		var gaps []store.Gap
		for _, l := range g.Lanes {
			gaps = append(gaps, l.Parked.Gaps...)
		}
		if !slices.Equal(gaps, []store.Gap{{Key: "k", First: 7, Last: 7}}) {
			t.Errorf("gaps %+v", gaps)
		}
		wantLabels(t, "journal", d.entries(), "ann skip k asked 1 test", "ann skip  done 1 test")
	})
}

// A replay sends what is settled once more, with its id and a new generation; what
// was live when it was asked for, read or not, committed early or late, goes first.
//
// Promises: O
func TestReplayGoesBehindWhatIsLive(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		late := d.begin()
		d.put(late, "late") // running when the reader passes it
		for _, label := range []string{"a", "b", "c"} {
			d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', $1)`, label)
		}
		o.want("a", "b", "c")
		d.commit(late)
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'live')`)
		id, plan := o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Key: "k"}})
		if plan.Records != 3 {
			t.Fatalf("plan %+v", plan)
		}
		o.execute()
		o.wantState("before what is live is settled", id, 0, false)
		o.page = 1
		o.step() // the straggler alone
		o.execute()
		o.wantState("before the last live message is settled", id, 0, false)
		o.page = 100
		o.want("live")
		o.execute()
		o.wantState("behind what is live", id, 3, true)
		o.execute()
		wantLabels(t, "due", o.due(), "a scheduled 1", "b scheduled 1", "c scheduled 1")
		wantLabels(t, "sent again", o.send(), "a", "b", "c")
		if n := d.count(`SELECT sum(replayed) FROM box.repair`); n != 3 {
			t.Errorf("%d are counted", n)
		}
		o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Type: "b"}})
		_, again := o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Key: "k"}})
		if again.Records != 5 {
			t.Errorf("plan %+v", again)
		}
		o.execute()
		got := o.due()
		slices.Sort(got)
		wantLabels(t, "due of two replays", got, "a scheduled 3", "b scheduled 2", "c scheduled 3", "late scheduled 3", "live scheduled 3")
	})
}

// A replay of versions sends these and no others, also of several keys, and no
// message without a version.
func TestReplayOfVersions(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		for _, v := range []int64{1, 2, 3, 4, 0} {
			d.exec(`INSERT INTO box.outbox (topic, key, type, version) VALUES ('t', 'k', CASE $1::bigint WHEN 0 THEN 'none' ELSE 'v' || $1::bigint END, $1)`, v)
		}
		o.want("v1", "v2", "v3", "v4", "none")
		for want, v := range map[int64]ops.Versions{1: {First: 4}, 2: {First: 2, Last: 3}, 0: {First: 5, Last: 9}} {
			plan, err := o.store.Office().Orders.PlanOrder(t.Context(), ops.Order{Kind: store.ActReplay, Match: ops.Match{Key: "k", Versions: v}, Actor: "ann", Reason: "r"})
			if err != nil || plan.Records != want {
				t.Errorf("%+v: plan %+v, %v; want %d", v, plan, err, want)
			}
		}
		o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Versions: ops.Versions{First: 2, Last: 3}}})
		o.execute()
		wantLabels(t, "sent again", o.send(), "v2", "v3")
	})
}

// A replay's page waits for the messages that were committed when it was taken up. It
// does not wait for later ones, or a busy key would never be replayed: those continue
// meanwhile, and are sent once. The next page is taken up when the one before is
// handed over, and waits for the messages committed until then.
//
// Promises: O
func TestReplayBesideWhatCommitsMeanwhile(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k', 'old' FROM generate_series(1, 1100)`)
		o.drain()
		insert := func(label string) {
			d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', $1)`, label)
		}
		open := d.begin()
		d.put(open, "open")
		insert("before")
		id, _ := o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Type: "old"}})
		insert("meanwhile")
		o.execute()
		o.wantState("before what was committed is settled", id, 0, false)
		o.page = 1
		o.step()
		o.execute()
		o.wantState("the first page, beside what came later", id, 1000, false)
		d.commit(open)
		insert("later")
		o.execute()
		o.wantState("the second page waits for what was committed late", id, 1000, false)
		o.step() // the straggler alone
		o.execute()
		o.wantState("the second page waits for what came during the first", id, 1000, false)
		o.page = 100
		o.want("meanwhile", "later")
		o.execute()
		o.wantState("the second page", id, 1100, true)
		insert("behind")
		o.want("behind")
		if again := o.send(); len(again) != 1100 {
			t.Errorf("%d are sent again, want 1100", len(again))
		}
		if n := d.count(`SELECT count(*) FROM box.messages WHERE state <> 'Sent'`); n != 0 {
			t.Errorf("%d messages are not Sent", n)
		}
	})
}

// single is the same outbox by one connection, whose statistics are those of the session.
func (d *db) single() *db {
	d.Helper()
	conf := d.pool.Config()
	conf.MaxConns = 1
	one := *d
	var err error
	if one.pool, err = pgxpool.NewWithConfig(d.Context(), conf); err != nil {
		d.Fatal(err)
	}
	d.Cleanup(one.pool.Close)
	return &one
}

// looked is how many entries of the indexes of some tables were read so far.
func (d *db) looked(tables ...string) (n int64) {
	d.Helper()
	d.exec(`SELECT pg_stat_force_next_flush()`)
	d.exec(`SELECT pg_stat_clear_snapshot()`)
	for _, table := range tables {
		n += d.count(`SELECT coalesce(sum(idx_tup_read), 0)::bigint FROM pg_stat_user_indexes WHERE relid = 'box.` + table + `'::regclass`)
	}
	return n
}

// A page of a replay looks at its own records and not at all that is there or
// was replayed before it, also while the planner knows nothing of the tables: else
// settlements of its lane run into their timeout.
func TestPageOfAReplayLooksAtItself(t *testing.T) {
	trap(t, func(d *db, _ *owner) {
		const rows, pages = 12_000, 4
		for _, table := range []string{"outbox", "parked", "progress"} {
			d.exec(`ALTER TABLE box.` + table + ` SET (autovacuum_enabled = off)`)
		}
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k', 'x' FROM generate_series(1, $1::int)`, rows)
		one := d.single()
		o := one.owner("a")
		o.page = 1000
		o.drain()
		id, _ := o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{All: true}})
		fetched := func() int64 { return one.looked("outbox", "parked") }
		before := fetched()
		for range pages {
			o.execute()
		}
		o.wantState("a few pages later", id, pages*1000, false)
		if n := fetched() - before; n < pages*1000 || n > pages*100_000 {
			t.Errorf("%d index entries were read for %d records", n, pages*1000)
		}
	})
}

// What a relay must know of a lane costs the same whatever is parked in it, or was
// until a moment ago: else lanes with hundreds of thousands of dead letters take
// longer to take over than a lease has.
//
// Promises: G
func TestViewOfALaneLooksAtLittle(t *testing.T) {
	trap(t, func(d *db, _ *owner) {
		const dead, asked = 60_000, 10_000
		d.exec(`ALTER TABLE box.parked SET (autovacuum_enabled = off)`)
		d.dead(dead, 1)
		d = d.single()
		look := func(when string) {
			before := d.looked("parked")
			g, err := d.store("main").Lease(t.Context(), store.LeaseRequest{BootID: "a", Instance: "a", TTL: time.Minute, CountParked: asked})
			if err != nil || len(g.Lanes) != 4 || g.Lanes[1].Parked.Records != asked {
				t.Fatalf("%s: %+v, %v, want %d records counted", when, g.Lanes, err, asked)
			}
			if n := d.looked("parked") - before; n < asked || n > asked+1000 {
				t.Errorf("%s: %d index entries were read, want hardly more than %d", when, n, asked)
			}
		}
		look("many dead letters")
		d.exec(`DELETE FROM box.parked WHERE seq <= $1`, dead/2)
		look("many have gone")
	})
}

// No message overtakes its key's queue, unless the order allows it.
//
// Promises: O
func TestReplayOfABlockedKey(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'a'), ('t', 'k', 'b')`)
		o.want("a", "b")
		o.park("k", "c", store.Dead)
		o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Type: "a"}})
		o.execute()
		wantLabels(t, "due behind a dead head", o.due())
		o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Type: "b"}, Overtake: true})
		o.execute()
		wantLabels(t, "due of what overtakes", o.send(), "b")
		o.order(ops.Order{Kind: store.ActSkip, Match: ops.Match{Key: "k"}})
		o.execute()
		wantLabels(t, "due when the key is free", o.send(), "a")
	})
}

// Only the owner carries an order out: not a zombie, not a relay of the version before.
func TestOrderIsTheOwners(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.dead(10, 0)
		id, _ := o.order(ops.Order{Kind: store.ActDiscard, Match: ops.Match{All: true}})
		g, err := o.store.Lease(t.Context(), store.LeaseRequest{BootID: o.boot, Instance: o.boot, TTL: time.Minute})
		if err != nil || len(g.Requests) != 1 || g.Requests[0].Kind != store.ActDiscard {
			t.Fatalf("requests %+v, %v", g.Requests, err)
		}
		zombie := store.Settlement{BootID: o.boot, Lane: 0, Epoch: o.grant[0].Epoch, Requests: []int64{g.Requests[0].ID}}
		o.settle(0, store.Settlement{})
		lost, err := o.store.Settle(t.Context(), []store.Settlement{zombie})
		if err != nil || len(lost) != 1 {
			t.Fatalf("lost %v, %v", lost, err)
		}
		// What the version before does with a kind that it does not know.
		d.exec(`UPDATE box.request SET done_at = clock_timestamp(), result = 'gone' WHERE kind NOT IN ('retry', 'discard')`)
		o.wantState("after a zombie and an old relay", id, 0, false)
		o.execute()
		o.wantState("after the owner", id, 10, true)
	})
}

func TestOrdersAreRefused(t *testing.T) {
	d := empty(t, "18", 4)
	for want, order := range map[string]ops.Order{
		"unknown action \"pause\"": {Kind: store.ActPause, Match: ops.Match{All: true}, Actor: "a", Reason: "r"},
		"missing actor":            {Kind: store.ActRetry, Match: ops.Match{All: true}, Reason: "r"},
		"missing reason":           {Kind: store.ActRetry, Match: ops.Match{All: true}, Actor: "a", Reason: " "},
		"no records selected":      {Kind: store.ActRetry, Actor: "a", Reason: "r"},
		"leave one out":            {Kind: store.ActRetry, Match: ops.Match{All: true, Key: "k"}, Actor: "a", Reason: "r"},
		"have no error":            {Kind: store.ActReplay, Match: ops.Match{Class: "failed"}, Actor: "a", Reason: "r"},
		"can overtake":             {Kind: store.ActRetry, Match: ops.Match{All: true}, Overtake: true, Actor: "a", Reason: "r"},
		"can change":               {Kind: store.ActDiscard, Match: ops.Match{All: true}, Edit: ops.Edit{Topic: "t"}, Actor: "a", Reason: "r"},
		"rate is":                  {Kind: store.ActRetry, Match: ops.Match{All: true}, Rate: -1, Actor: "a", Reason: "r"},
		"versions 3 to 2":          {Kind: store.ActReplay, Match: ops.Match{Versions: ops.Versions{First: 3, Last: 2}}, Actor: "a", Reason: "r"},
		"canonical text":           {Kind: store.ActRetry, Match: ops.Match{IDs: []string{"x"}}, Actor: "a", Reason: "r"},
		"reserved prefix":          {Kind: store.ActRetry, Match: ops.Match{All: true}, Edit: ops.Edit{SetHeaders: map[string]string{"postrider-id": "x"}}, Actor: "a", Reason: "r"},
	} {
		_, _, err := d.store("main").Office().Orders.Order(t.Context(), order)
		if !errors.Is(err, ops.ErrInvalidOrder) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", order, err, want)
		}
	}
}

// An act on one record is told beside more pages of orders than a lane tells: it may be
// what they wait for.
//
// Promises: S
func TestAnActIsToldBesideManyPages(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'a')`)
		o.want("a")
		o.park("k", "b", store.Dead)
		for range 101 {
			o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Type: "a"}})
		}
		act := d.request(t)
		g := mustLease(t, o.store, store.LeaseRequest{BootID: o.boot, TTL: time.Minute})
		if !slices.ContainsFunc(g.Requests, func(r store.Request) bool { return r.ID == act }) {
			t.Errorf("the act %d is not among the %d requests that are told", act, len(g.Requests))
		}
	})
}

// A page of a replay is bound in bytes: its settlement, which copies the payloads, has a few seconds, and
// the engine repeats it as it is. Nothing is passed over where a page ends early.
//
// Promises: S
func TestAPageOfAReplayIsBoundInBytes(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		const rows, bytes = 40, `SELECT coalesce(sum(octet_length(payload)), 0)::bigint FROM box.parked`
		d.exec(`INSERT INTO box.outbox (topic, key, type, payload) SELECT 't', 'k', g::text, decode(repeat('00', 1 << 20), 'hex') FROM generate_series(1, $1::int) g`, rows)
		o.drain()
		id, plan := o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{All: true}})
		if plan.Records != rows {
			t.Fatalf("plan %+v", plan)
		}
		for pages, done := 0, false; !done; pages++ {
			before := d.count(bytes)
			o.execute()
			if n := d.count(bytes) - before; n > 16<<20 {
				t.Errorf("page %d moved %d bytes, want at most 16 MiB", pages+1, n)
			}
			st, err := o.store.Office().Orders.OrderState(t.Context(), id)
			if err != nil || pages == rows {
				t.Fatalf("after %d pages: %+v, error %v", pages, st, err)
			}
			done = st.Done
		}
		o.wantState("in the end", id, rows, true)
		if n := d.count(`SELECT count(DISTINCT type) FROM box.parked`); n != rows {
			t.Errorf("%d of %d messages are replayed", n, rows)
		}
	})
}
