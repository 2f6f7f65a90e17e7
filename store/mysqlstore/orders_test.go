package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// owner is a relay in slow motion.
type owner struct {
	*testing.T
	db   *sql.DB
	s    *Store
	boot string
	g    store.Grant
	page int // records of one read
}

func newOwner(t *testing.T, db *sql.DB, boot string) *owner {
	t.Helper()
	o := &owner{T: t, db: db, s: New(db, nil), boot: boot, page: 10_000}
	o.lease()
	return o
}

func (o *owner) lease() {
	o.Helper()
	o.g = lease(o.T, o.s, o.boot)
}

// minute lets a minute end for the times of settlements, and leases.
func (o *owner) minute() {
	o.Helper()
	o.exec(`UPDATE postrider_times SET at = at - 60000000`)
	o.s.beats.Forget()
	o.lease()
}

func (o *owner) exec(query string, args ...any) {
	o.Helper()
	if _, err := o.db.ExecContext(o.Context(), query, args...); err != nil {
		o.Fatal(err)
	}
}

func (o *owner) count(query string, args ...any) (n int64) {
	o.Helper()
	if err := o.db.QueryRowContext(o.Context(), query, args...).Scan(&n); err != nil {
		o.Fatal(err)
	}
	return n
}

// put enqueues messages of a key, each with a type that names it.
func (o *owner) put(key string, names ...string) {
	o.Helper()
	for _, name := range names {
		o.exec("INSERT INTO postrider_outbox (topic, `key`, type) VALUES ('t', ?, ?)", key, name)
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
		o.settle(l.Lane, store.Settlement{Position: b[0].Position, Delivered: len(b[0].Messages)})
	}
	return read
}

func (o *owner) settle(lane store.Lane, st store.Settlement) {
	o.Helper()
	l := &o.g.Lanes[slices.IndexFunc(o.g.Lanes, func(l store.LaneGrant) bool { return l.Lane == lane })]
	st.BootID, st.Lane, st.Epoch = o.boot, lane, l.Epoch
	if lost, err := o.s.Settle(o.Context(), []store.Settlement{st}); err != nil || len(lost) > 0 {
		o.Fatalf("lost %v, error %v", lost, err)
	}
	l.Epoch++
}

// execute carries out what the lease names, each twice.
func (o *owner) execute() {
	o.Helper()
	o.lease()
	for _, r := range o.g.Requests {
		l := slices.IndexFunc(o.g.Lanes, func(l store.LaneGrant) bool { return l.Lane == r.Lane })
		st := store.Settlement{BootID: o.boot, Lane: r.Lane, Epoch: o.g.Lanes[l].Epoch, Requests: []int64{r.ID}}
		for range 2 { // repeated, as after a lost answer
			if lost, err := o.s.Settle(o.Context(), []store.Settlement{st}); err != nil || len(lost) > 0 {
				o.Fatalf("lost %v, error %v", lost, err)
			}
		}
		o.g.Lanes[l].Epoch++
	}
}

// due is what is due of all lanes, each with its state and generation.
func (o *owner) due() (found []string) {
	o.Helper()
	o.eachDue(func(lane store.Lane, b store.Batch) {
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
			o.settle(lane, store.Settlement{Delivered: len(seqs), Unpark: seqs})
		}
	})
	return sent
}

// dead fills a lane with dead letters.
func (o *owner) dead(n int, lane store.Lane, key string) {
	o.Helper()
	o.exec("INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, class, code, error, last_attempt, id, topic, `key`, type, payload, content_type, headers, version, schema_version, created_at)"+
		` WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 50)
		SELECT 'main', (SELECT COALESCE(MAX(seq), 0) FROM postrider_parked) + (a.i - 1) * 50 + b.i, ?, 'dead', ? <> '', 0, 5, 'rejected', 'c1', 'too large', 0, UUID(), 't', ?, 'x', '', '', '{"a": "1"}', 0, 0, 0
		FROM r AS a JOIN r AS b WHERE (a.i - 1) * 50 + b.i <= ?`, lane, key, []byte(key), n)
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

func TestOrdersMoveDeadLetters(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 2)
		o := newOwner(t, db, "a")
		o.dead(2500, 0, "")
		id, plan := o.order(ops.Order{Kind: store.ActDiscard, Match: ops.Match{All: true}})
		if plan.Records != 2500 {
			t.Fatalf("plan %+v", plan)
		}
		for _, want := range []int64{1000, 2000, 2500} {
			o.execute()
			o.wantState("a page later", id, want, want == 2500)
		}
		if n := o.count(`SELECT COUNT(*) FROM postrider_parked`); n != 0 {
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
		if n := o.count(`SELECT COUNT(*) FROM postrider_parked WHERE state = 'dead' AND NOT captures`); n != 2 {
			t.Errorf("%d are skipped", n)
		}
		all, err := o.s.Office().Journal.Entries(t.Context(), ops.JournalQuery{ID: id})
		if err != nil || len(all) != 2 || all[1].ID != id || all[0].Ask != id || all[0].Act != "retry" || all[0].Count == nil || *all[0].Count != 1 {
			t.Errorf("journal %+v, %v", all, err)
		}
		_, _, err = o.s.Office().Orders.Order(t.Context(), ops.Order{Kind: store.ActRetry, Match: ops.Match{Key: "k"}, Actor: "ann", Reason: "again"})
		if !errors.Is(err, store.ErrNotFound) {
			t.Errorf("nothing to retry: %v", err)
		}
	})
}

func TestAnOrderKeepsItsRateAndIsCancelled(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		o := newOwner(t, newOutbox(t, server, 2), "a")
		o.dead(50, 0, "")
		o.dead(50, 1, "")
		id, _ := o.order(ops.Order{Kind: store.ActRetry, Match: ops.Match{Type: "x"}, Rate: 5})
		o.exec(`UPDATE postrider_act SET created_at = created_at - 60000000`)
		o.execute()
		st, err := o.s.Office().Orders.OrderState(t.Context(), id)
		if err != nil || st.Moved < 10 || st.Moved > 20 || st.Done { // of a minute 2 s count, and the test may be slow
			t.Errorf("%+v, %v", st, err)
		}
		// Lanes that are settled in one call share the rate.
		o.exec(`UPDATE postrider_act SET ran_at = ran_at - 60000000`)
		o.lease()
		var both []store.Settlement
		for _, r := range o.g.Requests {
			both = append(both, store.Settlement{BootID: "a", Lane: r.Lane, Epoch: o.g.Lanes[r.Lane].Epoch, Requests: []int64{r.ID}})
		}
		if lost, err := o.s.Settle(t.Context(), both); err != nil || len(lost) > 0 {
			t.Fatalf("lost %v, error %v", lost, err)
		}
		before := st.Moved
		if st, err = o.s.Office().Orders.OrderState(t.Context(), id); err != nil || len(both) != 2 || st.Moved != before+10 {
			t.Errorf("two lanes in one call: %+v, %v, want 10 more than %d", st, err, before)
		}
		if err := o.s.Office().Orders.CancelOrder(t.Context(), id, "bob", "wrong ones"); err != nil {
			t.Fatal(err)
		}
		o.exec(`UPDATE postrider_act SET ran_at = ran_at - 60000000`)
		o.execute()
		o.wantState("cancelled", id, st.Moved, true)
		if err := o.s.Office().Orders.CancelOrder(t.Context(), id, "bob", "again"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("cancelled twice: %v", err)
		}
	})
}

// A rate is kept whatever its size: 0.09 times 1/0.09 is a little less than 1 record.
//
// Promises: S
func TestAnOrderEndsAtAnyRate(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		o := newOwner(t, newOutbox(t, server, 1), "a")
		for _, rate := range []float64{0.09, 17.0 / 60, 0.4} {
			o.dead(1, 0, "")
			id, _ := o.order(ops.Order{Kind: store.ActDiscard, Match: ops.Match{Type: "x"}, Rate: rate})
			o.exec(`UPDATE postrider_act SET created_at = created_at - 3600000000`)
			o.execute()
			if st, err := o.s.Office().Orders.OrderState(t.Context(), id); err != nil || st.Moved != 1 {
				t.Errorf("after an hour at %v records a second: %+v, %v", rate, st, err)
			}
		}
	})
}

// Two relays, one of them fenced, and one of the owner's old settlements do nothing.
func TestAnOrderIsTheOwners(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		o := newOwner(t, db, "a")
		o.dead(10, 0, "")
		id, _ := o.order(ops.Order{Kind: store.ActDiscard, Match: ops.Match{All: true}})
		o.lease()
		if len(o.g.Requests) != 1 || o.g.Requests[0].Kind != store.ActDiscard {
			t.Fatalf("requests %+v", o.g.Requests)
		}
		zombie := store.Settlement{BootID: "a", Lane: 0, Epoch: o.g.Lanes[0].Epoch, Requests: []int64{o.g.Requests[0].ID}}
		o.exec(`UPDATE postrider_relay SET alive_until = 0`) // killed between the order and its execution
		next := newOwner(t, db, "b")
		// Both at once: the fence decides.
		var lost []store.Lane
		var err error
		var both sync.WaitGroup
		both.Go(func() { lost, err = o.s.Settle(context.WithoutCancel(t.Context()), []store.Settlement{zombie}) })
		next.execute()
		both.Wait()
		if err != nil || len(lost) != 1 {
			t.Errorf("the zombie lost %v, error %v", lost, err)
		}
		next.wantState("after the owner", id, 10, true)
		if n := next.count(`SELECT COUNT(*) FROM postrider_journal WHERE result = 'done'`); n != 1 {
			t.Errorf("%d entries of what was done", n)
		}
	})
}

// A replay sends what is settled once more, with its id and a new generation, and what was
// live when it was asked for goes first, also what is committed late.
//
// Promises: O
func TestReplayGoesBehindWhatIsLive(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		o := newOwner(t, db, "a")
		late, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		const insert = "INSERT INTO postrider_outbox (topic, `key`, type) VALUES ('t', 'k', 'late')"
		if _, err := late.ExecContext(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
		o.put("k", "a", "b", "c")
		want(t, "read", o.step(), "a", "b", "c")
		if err := late.Commit(); err != nil {
			t.Fatal(err)
		}
		o.put("k", "live")
		id, plan := o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Key: "k"}})
		if plan.Records != 3 {
			t.Fatalf("plan %+v", plan)
		}
		o.execute()
		o.wantState("before what is live is settled", id, 0, false)
		o.page = 1
		want(t, "the straggler alone", o.step(), "late")
		o.execute()
		o.wantState("before the last live message is settled", id, 0, false)
		o.page = 100
		want(t, "the rest", o.step(), "live")
		o.execute()
		o.wantState("behind what is live", id, 3, true)
		want(t, "due", o.due(), "a scheduled 1", "b scheduled 1", "c scheduled 1")
		want(t, "sent again", o.send(), "a", "b", "c")
		o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Type: "b"}})
		o.execute()
		want(t, "a second replay has the next generation", o.due(), "b scheduled 2")
		// Nothing overtakes a dead head, unless it is told so.
		o.send()
		o.exec(`UPDATE postrider_parked SET seq = seq`)
		o.put("k", "blocked")
		b, err := o.s.Read(t.Context(), []store.LaneRead{{Lane: 0, Epoch: o.g.Lanes[0].Epoch, MaxRecords: 10}})
		if err != nil || len(b[0].Messages) != 1 {
			t.Fatalf("batch %+v, %v", b, err)
		}
		o.settle(0, store.Settlement{Position: b[0].Position, Park: []store.Park{{Seq: b[0].Meta[0].Seq, Message: b[0].Messages[0], State: store.Dead, Captures: true, Class: "rejected"}}})
		o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Type: "a"}})
		o.execute()
		want(t, "due behind a dead head", o.due())
		o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Type: "b"}, Overtake: true})
		o.execute()
		want(t, "what overtakes", o.send(), "b")
	})
}

// A page of a replay waits for what was committed before it was taken up.
//
// Promises: O
func TestThePagesOfAReplay(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		o := newOwner(t, newOutbox(t, server, 1), "a")
		o.exec("INSERT INTO postrider_outbox (topic, `key`, type) WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 50) SELECT 't', 'k', 'old' FROM r AS a JOIN r AS b WHERE a.i <= 22")
		o.step()
		id, _ := o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{Type: "old"}})
		o.put("k", "meanwhile")
		o.execute()
		o.wantState("the first page, beside what came later", id, 1000, false)
		o.execute()
		o.wantState("the second page waits for what came during the first", id, 1000, false)
		want(t, "live", o.step(), "meanwhile")
		o.execute()
		o.wantState("the second page", id, 1100, true)
		if again := o.send(); len(again) != 1100 {
			t.Errorf("%d are sent again, want 1100", len(again))
		}
	})
}

func TestPipesHaveFiltersAndPauses(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 2)
		main := newOwner(t, db, "a")
		main.put("k", "before", "gone")
		main.step()
		pipes := main.s.Office().Pipes
		filter := store.Filter{Topics: []string{"t*"}, Types: []string{"paid", "re*"}, Headers: map[string]string{"region": "eu"}}
		made, err := pipes.AddPipe(t.Context(), ops.AddPipe{Name: "eu", Filter: filter, Actor: "ann", Reason: "test"})
		if err != nil || made.Name != "eu" || made.Filter.String() != filter.String() || made.CreatedAt.IsZero() {
			t.Fatalf("made %+v, %v", made, err)
		}
		if _, err := pipes.AddPipe(t.Context(), ops.AddPipe{Name: "eu", Actor: "ann", Reason: "test"}); !errors.Is(err, ops.ErrPipeExists) {
			t.Errorf("made twice: %v", err)
		}
		if _, err := pipes.AddPipe(t.Context(), ops.AddPipe{Name: "all", From: ops.FromBeginning, Actor: "ann", Reason: "test"}); err != nil {
			t.Fatal(err)
		}
		var since int64
		if err := db.QueryRowContext(t.Context(), `SELECT MAX(created_at) FROM postrider_outbox`).Scan(&since); err != nil {
			t.Fatal(err)
		}
		if _, err := pipes.AddPipe(t.Context(), ops.AddPipe{Name: "since", From: ops.FromTime, Time: time.UnixMicro(since), Actor: "ann", Reason: "test"}); err != nil {
			t.Fatal(err)
		}
		for i, typ := range []string{"paid", "paid ", "Paid", "refund", "other"} {
			main.exec("INSERT INTO postrider_outbox (topic, `key`, type, headers) VALUES ('t', ?, ?, ?)", fmt.Sprint(i), typ, `{"region": "eu"}`)
		}
		main.exec("INSERT INTO postrider_outbox (topic, `key`, type, headers) VALUES ('t', 'k', 'paid', '{\"region\": \"us\"}')")
		read := func(pipe string) []string {
			t.Helper()
			o := &owner{T: t, db: db, s: New(db, &Options{Pipe: pipe}), boot: pipe, page: 1}
			o.lease()
			var all []string
			for range 10 {
				all = append(all, o.step()...)
			}
			slices.Sort(all)
			return all
		}
		st, err := New(db, &Options{Pipe: "eu"}).Office().Admin.Status(t.Context())
		if err != nil || st.Pending != 2 {
			t.Errorf("pending %d, %v, want the 2 that pass", st.Pending, err)
		}
		want(t, "filtered", read("eu"), "paid", "refund")
		if got := read("all"); len(got) != 8 {
			t.Errorf("from the beginning: %q", got)
		}
		if got := read("since"); len(got) != 7 || !slices.Contains(got, "gone") || slices.Contains(got, "before") {
			t.Errorf("from a time: %q", got)
		}
		if err := pipes.PausePipe(t.Context(), ops.PausePipe{Name: "eu", Actor: "ann", Reason: "night"}); err != nil {
			t.Fatal(err)
		}
		if g := lease(t, New(db, &Options{Pipe: "eu"}), "eu"); !g.Paused {
			t.Error("the lease does not know the pause")
		}
		list, err := pipes.Pipes(t.Context())
		if err != nil || len(list) != 4 || !list[1].Paused || list[1].PausedBy != "ann" || list[1].PausedFor != "night" {
			t.Errorf("pipes %+v, %v", list, err)
		}
		var forfeit *ops.ForfeitError
		main.put("k", "refund")
		main.exec(`UPDATE postrider_outbox SET headers = '{"region": "eu"}' WHERE type = 'refund'`)
		if _, err := pipes.RemovePipe(t.Context(), ops.RemovePipe{Name: "eu", Actor: "ann", Reason: "test"}); !errors.As(err, &forfeit) || forfeit.Pending != 1 {
			t.Errorf("removed with a message pending: %v", err)
		}
		zombie := New(db, &Options{Pipe: "eu"})
		g := lease(t, zombie, "eu")
		if gone, err := pipes.RemovePipe(t.Context(), ops.RemovePipe{Name: "eu", Forfeit: 1, Actor: "ann", Reason: "test"}); err != nil || gone.Pending != 1 {
			t.Errorf("removed %+v, %v", gone, err)
		}
		if _, err := zombie.Lease(t.Context(), store.LeaseRequest{BootID: "eu", TTL: time.Minute}); !errors.Is(err, store.ErrNoPipe) {
			t.Errorf("a lease of a removed pipe: %v", err)
		}
		if _, err := pipes.AddPipe(t.Context(), ops.AddPipe{Name: "eu", Actor: "ann", Reason: "test"}); err != nil {
			t.Fatal(err)
		}
		lost, err := zombie.Settle(t.Context(), []store.Settlement{{BootID: "eu", Lane: 0, Epoch: g.Lanes[0].Epoch, Position: g.Lanes[0].Position}})
		if err != nil || len(lost) != 1 {
			t.Errorf("a relay of the pipe that was removed settled in one of its name: lost %v, %v", lost, err)
		}
	})
}

// Stopped destinations last and are told to each relay of the pipe.
func TestStopsLast(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		s := New(db, nil)
		for i, step := range []struct {
			req     store.SetStop
			changed bool
			stopped []string
		}{
			{store.SetStop{Destination: "hook ", Actor: "ann", Reason: "r"}, true, []string{"hook "}},
			{store.SetStop{Destination: "hook ", Actor: "ann", Reason: "r"}, false, []string{"hook "}},
			{store.SetStop{Destination: "hook", Resume: true, Actor: "ann", Reason: "r"}, false, []string{"hook "}},
			{store.SetStop{Destination: "hook ", Resume: true, Actor: "ann", Reason: "r"}, true, nil},
		} {
			changed, err := s.Info().SetStop(t.Context(), step.req)
			g := lease(t, New(db, nil), "a")
			if err != nil || changed != step.changed || !slices.Equal(g.Stopped, step.stopped) {
				t.Errorf("step %d: changed %v, stopped %q, error %v", i, changed, g.Stopped, err)
			}
		}
		if _, err := New(db, &Options{Pipe: "nobody"}).Info().SetStop(t.Context(), store.SetStop{Destination: "h", Actor: "a"}); !errors.Is(err, store.ErrNoPipe) {
			t.Errorf("a pipe that does not exist: %v", err)
		}
	})
}
