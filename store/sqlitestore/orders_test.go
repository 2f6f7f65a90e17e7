package sqlitestore

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// owner is a relay in slow motion.
type owner struct {
	*carrier
	s    *Store
	boot string
	g    store.Grant
	page int // records of one read
}

func newOwner(t *testing.T, pool *sql.DB, boot string, opts *Options) *owner {
	t.Helper()
	o := &owner{carrier: carry(t, pool), s: New(pool, opts), boot: boot, page: 10_000}
	o.s.box.Now = func() time.Time { return time.Now().Add(time.Duration(o.moved.Load())) }
	o.lease()
	return o
}

func (o *owner) lease() {
	o.Helper()
	g, err := o.s.Lease(o.Context(), store.LeaseRequest{BootID: o.boot, Instance: o.boot, TTL: time.Hour})
	if err != nil {
		o.Fatal(err)
	}
	o.g = g
}

// put enqueues messages of a key, each with a type that names it.
func (o *owner) put(key string, names ...string) {
	o.Helper()
	for _, name := range names {
		o.exec(`INSERT INTO postrider_outbox (topic, key, type) VALUES ('t', ?, ?)`, key, name)
	}
}

// step reads every lane once and settles what it read.
func (o *owner) step() (read []string) {
	o.Helper()
	for i := range o.g.Lanes {
		l := &o.g.Lanes[i]
		b, err := o.s.Read(o.Context(), []store.LaneRead{{Lane: l.Lane, Epoch: l.Epoch, MaxRecords: o.page}})
		if err != nil {
			o.Fatal(err)
		}
		for _, m := range b[0].Messages {
			read = append(read, m.Type)
		}
		o.done(l.Lane, store.Settlement{Position: b[0].Position, Delivered: len(b[0].Messages)})
	}
	return read
}

func (o *owner) done(lane store.Lane, st store.Settlement) {
	o.Helper()
	l := &o.g.Lanes[slices.IndexFunc(o.g.Lanes, func(l store.LaneGrant) bool { return l.Lane == lane })]
	st.BootID, st.Lane, st.Epoch = o.boot, lane, l.Epoch
	for range 2 { // repeated, as after a lost answer
		if lost, err := o.s.Settle(o.Context(), []store.Settlement{st}); err != nil || len(lost) > 0 {
			o.Fatalf("lost %v, error %v", lost, err)
		}
	}
	l.Epoch++
}

// execute carries out what the lease names.
func (o *owner) execute() {
	o.Helper()
	o.lease()
	for _, r := range o.g.Requests {
		o.done(r.Lane, store.Settlement{Requests: []int64{r.ID}})
	}
}

// due is what is due of all lanes, each with its state and generation.
func (o *owner) due() (found []string) {
	o.Helper()
	o.eachDue(func(_ store.Lane, b store.Batch) {
		for i, m := range b.Messages {
			found = append(found, fmt.Sprintf("%s %s %d", m.Type, b.Meta[i].State, b.Meta[i].Generation))
		}
	})
	return found
}

func (o *owner) eachDue(fn func(store.Lane, store.Batch)) {
	o.Helper()
	for _, l := range o.g.Lanes {
		b, err := o.s.Read(o.Context(), []store.LaneRead{{Lane: l.Lane, Epoch: l.Epoch, Parked: true, MaxRecords: 10_000}})
		if err != nil {
			o.Fatal(err)
		}
		fn(l.Lane, b[0])
	}
}

// send delivers what is due, which then leaves the parked table.
func (o *owner) send() (sent []string) {
	o.Helper()
	o.eachDue(func(lane store.Lane, b store.Batch) {
		var seqs []int64
		for i, m := range b.Messages {
			seqs, sent = append(seqs, b.Meta[i].Seq), append(sent, m.Type)
		}
		if len(seqs) > 0 {
			o.done(lane, store.Settlement{Delivered: len(seqs), Unpark: seqs})
		}
	})
	return sent
}

// dead fills a lane with dead letters.
func (o *owner) dead(n int, lane store.Lane, key string) {
	o.Helper()
	o.exec(`INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, class, code, error, last_attempt, id, topic, key, type, payload, content_type, headers, version, schema_version, created_at)
		WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < ?)
		SELECT 'main', (SELECT coalesce(max(seq), 0) FROM postrider_parked) + i, ?, 'dead', ? <> '', 0, 5, 'rejected', 'c1', 'too large', 0, lower(hex(randomblob(16))), 't', ?, 'x', x'', '', '{"a": "1"}', 0, 0, 0 FROM r`,
		n, lane, key, key)
}

func (o *owner) order(order ops.Order) (int64, ops.OrderPlan) {
	o.Helper()
	order.Actor, order.Reason = "ann", "test"
	id, plan, err := o.s.Office().Orders.Order(o.Context(), order)
	if err != nil {
		o.Fatal(err)
	}
	return id, plan
}

func (o *owner) wantState(when string, id, moved int64, done bool) {
	o.Helper()
	st, err := o.s.Office().Orders.OrderState(o.Context(), id)
	if err != nil || st.Moved != moved || st.Done != done {
		o.Fatalf("%s: %+v, %v, want %d moved, done %v", when, st, err, moved, done)
	}
}

func want(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// Each page is one settlement, so an order over many records holds up no writer for long, and
// continues with its next owner where it was.
func TestOrdersMoveDeadLetters(t *testing.T) {
	pool, _ := newOutbox(t, 2)
	o := newOwner(t, pool, "a", nil)
	o.dead(1200, 0, "")
	id, plan := o.order(ops.Order{Kind: store.ActDiscard, Match: ops.Match{All: true}})
	if plan.Records != 1200 {
		t.Fatalf("plan %+v", plan)
	}
	for _, moved := range []int64{500, 1000, 1200} {
		o.execute()
		o.wantState("a page later", id, moved, moved == 1200)
		o.boot += "b" // killed: the next owner continues
		o.exec(`UPDATE postrider_relay SET alive_until = 0`)
	}
	if n := o.number(`SELECT count(*) FROM postrider_parked`); n != 0 {
		t.Errorf("%d are left", n)
	}
	o.dead(1, 0, "k")
	o.dead(2, 1, "j")
	retry := ops.Order{
		Kind: store.ActRetry, Match: ops.Match{Key: "k", Class: "rejected", Code: "c1", Topic: "t", Error: "large", Type: "x"},
		Edit: ops.Edit{Topic: "u", SetHeaders: map[string]string{"b": "2"}, UnsetHeaders: []string{"a"}},
	}
	id, plan = o.order(retry)
	if plan.Records != 1 || len(plan.Lanes) != 1 || plan.Lanes[0].Lane != 0 {
		t.Fatalf("plan %+v", plan)
	}
	o.wantState("before the owner has seen it", id, 0, false)
	o.execute()
	o.wantState("carried out", id, 1, true)
	want(t, "due", o.due(), "x retry 1")
	found, err := o.s.Office().Admin.Parked(t.Context(), ops.ParkedQuery{Key: "k"})
	if err != nil || len(found) != 1 || found[0].Message.Topic != "u" || len(found[0].Message.Headers) != 1 || found[0].Message.Headers["b"] != "2" || found[0].Attempts != 0 || !found[0].Captures {
		t.Errorf("after the edit: %+v, %v", found, err)
	}
	skip, _ := o.order(ops.Order{Kind: store.ActSkip, Match: ops.Match{Key: "j"}})
	o.execute()
	o.wantState("skipped", skip, 2, true)
	if n := o.number(`SELECT count(*) FROM postrider_parked WHERE state = 'dead' AND NOT captures`); n != 2 {
		t.Errorf("%d are skipped", n)
	}
	all, err := o.s.Office().Journal.Entries(t.Context(), ops.JournalQuery{ID: id})
	if err != nil || len(all) != 2 || all[1].ID != id || all[0].Ask != id || all[0].Act != "retry" || all[0].Count == nil || *all[0].Count != 1 {
		t.Errorf("journal %+v, %v", all, err)
	}
	const target = `{"Edit":{"SetHeaders":{"b":"2"},"Topic":"u","UnsetHeaders":["a"]},"Match":{"Class":"rejected","Code":"c1","Error":"large","Key":"k","Topic":"t","Type":"x"}}`
	if got := string(all[1].Target); got != target {
		t.Errorf("the journal tells of the order %s, want %s", got, target)
	}
	o.dead(1, 0, "k2")
	zero := store.Lane(0)
	id, _ = o.order(ops.Order{Kind: store.ActSkip, Match: ops.Match{Lane: &zero, Key: "k2"}})
	if all, err = o.s.Office().Journal.Entries(t.Context(), ops.JournalQuery{ID: id}); err != nil || len(all) != 1 || string(all[0].Target) != `{"Match":{"Key":"k2","Lane":0}}` {
		t.Errorf("the journal tells of the order %+v, %v", all, err)
	}
	_, _, err = o.s.Office().Orders.Order(t.Context(), ops.Order{Kind: store.ActRetry, Match: ops.Match{Key: "k"}, Actor: "ann", Reason: "again"})
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("nothing to retry: %v", err)
	}
	_, err = New(pool, &Options{Pipe: "nobody"}).Office().Orders.PlanOrder(t.Context(), retryAll())
	if !errors.Is(err, store.ErrNoPipe) {
		t.Errorf("a pipe that does not exist: %v", err)
	}
}

func retryAll() ops.Order {
	return ops.Order{Kind: store.ActRetry, Match: ops.Match{All: true}, Actor: "ann", Reason: "test"}
}

// A settlement may have pages of many lanes. Of all open pages an instance is told of a few, and
// in the end of each.
func TestFewPagesAtATime(t *testing.T) {
	const lanes = 16
	pool, _ := newOutbox(t, lanes)
	o := newOwner(t, pool, "a", nil)
	for lane := range store.Lane(lanes) {
		o.dead(1, lane, "")
	}
	one, err := o.s.Office().Admin.Request(t.Context(), store.Act{Kind: store.ActPause, Key: "k", Actor: "ann", Reason: "test"})
	if err != nil {
		t.Fatal(err)
	}
	id, _ := o.order(retryAll())
	o.lease()
	if len(o.g.Requests) != 5 || o.g.Requests[0].ID != one {
		t.Errorf("told of %d requests, want the pause and 4 pages: %+v", len(o.g.Requests), o.g.Requests)
	}
	for range lanes / 4 {
		o.execute()
	}
	o.wantState("in the end", id, lanes, true)
}

func TestAnOrderKeepsItsRateAndIsCancelled(t *testing.T) {
	pool, _ := newOutbox(t, 2)
	o := newOwner(t, pool, "a", nil)
	o.dead(50, 0, "")
	o.dead(50, 1, "")
	id, _ := o.order(ops.Order{Kind: store.ActRetry, Match: ops.Match{Type: "x"}, Rate: 5})
	o.moved.Store(int64(time.Minute)) // of which 2 s count
	o.lease()
	var both []store.Settlement // lanes that are settled in one call share the rate
	for _, r := range o.g.Requests {
		both = append(both, store.Settlement{BootID: "a", Lane: r.Lane, Epoch: o.g.Lanes[r.Lane].Epoch, Requests: []int64{r.ID}})
	}
	if lost, err := o.s.Settle(t.Context(), both); err != nil || len(lost) > 0 || len(both) != 2 {
		t.Fatalf("%d lanes, lost %v, error %v", len(both), lost, err)
	}
	o.wantState("two lanes in one call", id, 10, false)
	if err := o.s.Office().Orders.CancelOrder(t.Context(), id, "bob", "wrong ones"); err != nil {
		t.Fatal(err)
	}
	o.moved.Store(int64(2 * time.Minute))
	o.execute()
	o.wantState("cancelled", id, 10, true)
	if err := o.s.Office().Orders.CancelOrder(t.Context(), id, "bob", "again"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("cancelled twice: %v", err)
	}
}

// A rate is kept whatever its size: 0.09 times 1/0.09 is a little less than 1 record.
//
// Promises: S
func TestAnOrderEndsAtAnyRate(t *testing.T) {
	pool, _ := newOutbox(t, 1)
	for i, rate := range []float64{0.09, 1.0 / 93, 17.0 / 60, 0.4, 0.7} {
		o := newOwner(t, pool, "a", nil)
		o.dead(1, 0, "")
		id, _ := o.order(ops.Order{Kind: store.ActDiscard, Match: ops.Match{Type: "x"}, Rate: rate})
		o.moved.Store(int64(i+1) * int64(time.Hour))
		o.execute()
		if st, err := o.s.Office().Orders.OrderState(t.Context(), id); err != nil || st.Moved != 1 {
			t.Errorf("after an hour at %v records a second: %+v, %v", rate, st, err)
		}
	}
}

// An owner that was fenced carries out nothing.
func TestAnOrderIsTheOwners(t *testing.T) {
	pool, _ := newOutbox(t, 1)
	o := newOwner(t, pool, "a", nil)
	o.dead(10, 0, "")
	id, _ := o.order(ops.Order{Kind: store.ActDiscard, Match: ops.Match{All: true}})
	o.lease()
	if len(o.g.Requests) != 1 || o.g.Requests[0].Kind != store.ActDiscard {
		t.Fatalf("requests %+v", o.g.Requests)
	}
	zombie := store.Settlement{BootID: "a", Lane: 0, Epoch: o.g.Lanes[0].Epoch, Requests: []int64{o.g.Requests[0].ID}}
	o.exec(`UPDATE postrider_relay SET alive_until = 0`)
	next := newOwner(t, pool, "b", nil)
	if lost, err := o.s.Settle(t.Context(), []store.Settlement{zombie}); err != nil || len(lost) != 1 {
		t.Errorf("the zombie lost %v, error %v", lost, err)
	}
	next.wantState("after the zombie", id, 0, false)
	next.execute()
	next.wantState("after the owner", id, 10, true)
	if n := next.number(`SELECT count(*) FROM postrider_journal WHERE result = 'done'`); n != 1 {
		t.Errorf("%d entries of what was done", n)
	}
}

// A replay sends what is settled once more, with its id and a new generation, and what was
// live when it was asked for goes first.
//
// Promises: O
func TestReplayGoesBehindWhatIsLive(t *testing.T) {
	pool, _ := newOutbox(t, 1)
	o := newOwner(t, pool, "a", nil)
	o.put("k", "a", "b", "c")
	want(t, "read", o.step(), "a", "b", "c")
	o.put("k", "live", "too")
	id, plan := o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Key: "k"}})
	if plan.Records != 3 {
		t.Fatalf("plan %+v", plan)
	}
	o.execute()
	o.wantState("before what is live is settled", id, 0, false)
	o.page = 1
	want(t, "the first live message", o.step(), "live")
	o.execute()
	o.wantState("before the last live message is settled", id, 0, false)
	want(t, "the rest", o.step(), "too")
	o.execute()
	o.wantState("behind what is live", id, 3, true)
	want(t, "due", o.due(), "a scheduled 1", "b scheduled 1", "c scheduled 1")
	want(t, "sent again", o.send(), "a", "b", "c")
	o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Type: "b"}})
	o.execute()
	want(t, "a second replay has the next generation", o.due(), "b scheduled 2")
	o.send()
	// Nothing overtakes a dead head, unless it is told so.
	o.put("k", "blocked")
	b, err := o.s.Read(t.Context(), []store.LaneRead{{Lane: 0, Epoch: o.g.Lanes[0].Epoch, MaxRecords: 10}})
	if err != nil || len(b[0].Messages) != 1 {
		t.Fatalf("batch %+v, %v", b, err)
	}
	o.done(0, store.Settlement{Position: b[0].Position, Park: []store.Park{{Seq: b[0].Meta[0].Seq, Message: b[0].Messages[0], State: store.Dead, Captures: true, Class: "rejected"}}})
	o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Type: "a"}})
	o.execute()
	want(t, "due behind a dead head", o.due())
	o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Type: "b"}, Overtake: true})
	o.execute()
	want(t, "what overtakes", o.send(), "b")
}

// A page of a replay waits for what was committed before it was taken up.
//
// Promises: O
func TestThePagesOfAReplay(t *testing.T) {
	pool, _ := newOutbox(t, 1)
	o := newOwner(t, pool, "a", nil)
	o.exec(`INSERT INTO postrider_outbox (topic, key, type) WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 600) SELECT 't', 'k', 'old' FROM r`)
	o.step()
	id, _ := o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Type: "old"}})
	o.put("k", "meanwhile")
	o.execute()
	o.wantState("the first page, beside what came later", id, 500, false)
	o.execute()
	o.wantState("the second page waits for what came during the first", id, 500, false)
	want(t, "live", o.step(), "meanwhile")
	o.execute()
	o.wantState("the second page", id, 600, true)
	if again := o.send(); len(again) != 600 {
		t.Errorf("%d are sent again, want 600", len(again))
	}
}

// Large payloads make a page shorter: it is one transaction that copies them.
func TestAPageOfAReplayIsBoundedInBytes(t *testing.T) {
	pool, _ := newOutbox(t, 1)
	o := newOwner(t, pool, "a", nil)
	o.exec(`INSERT INTO postrider_outbox (topic, key, payload) WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 5) SELECT 't', 'k', zeroblob(3000000) FROM r`)
	o.step()
	id, _ := o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{All: true}})
	for _, moved := range []int64{2, 4, 5} {
		o.execute()
		o.wantState("a page later", id, moved, moved == 5)
	}
}

// A message that an order discards is shown as sent, without a time.
func TestAnOrderDiscardsWithoutATime(t *testing.T) {
	pool, _ := newOutbox(t, 1)
	o := newOwner(t, pool, "a", nil)
	o.put("k", "sent", "dead")
	b, err := o.s.Read(t.Context(), []store.LaneRead{{Lane: 0, Epoch: o.g.Lanes[0].Epoch, MaxRecords: 10}})
	if err != nil || len(b[0].Messages) != 2 {
		t.Fatalf("batch %+v, %v", b, err)
	}
	o.done(0, store.Settlement{Position: b[0].Position, Delivered: 1, Park: []store.Park{{Seq: b[0].Meta[1].Seq, Message: b[0].Messages[1], State: store.Dead, Class: "rejected"}}})
	o.order(ops.Order{Kind: store.ActDiscard, Match: ops.Match{All: true}})
	o.execute()
	rows, err := o.view(t.Context())
	if err != nil || len(rows) != 2 || rows[0].SentAt.IsZero() || rows[1].State != ops.ViewSent || !rows[1].SentAt.IsZero() {
		t.Errorf("the view shows %+v, %v", rows, err)
	}
}
