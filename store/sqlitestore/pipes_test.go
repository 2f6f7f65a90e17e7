package sqlitestore

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// The filter in SQL decides as the contract's, also about what JSON or a pattern could mistake.
func TestFiltersInSQL(t *testing.T) {
	pool, _ := newOutbox(t, 1)
	c := carry(t, pool)
	var all []postrider.Message
	for i, v := range []string{"", "a", "a*", "a.b", "A.b", "é", "éa", "e\u0301", "a\"b", `a\b`, "a'b", "%", "_", "<a>", "a "} {
		m := postrider.Message{Topic: "t" + v, Key: v, Type: v, Headers: map[string]string{"region": v, `q"\<`: "1", fmt.Sprint("n", i%3): "x"}}
		all = append(all, m)
	}
	all = append(all, postrider.Message{Topic: "t"})
	tx, err := pool.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.New(dialect.SQLite, nil).Enqueue(t.Context(), tx, all...); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	var filters []store.Filter
	for _, p := range []string{"", "*", "a", "a*", "a.*", "é*", "e*", "a\"*", `a\b`, "%*", "_", "<*", "a ", "t*", "t"} {
		if p != "" {
			filters = append(filters, store.Filter{Topics: []string{p}})
		}
		filters = append(filters, store.Filter{Keys: []string{p}}, store.Filter{Types: []string{p, "éa"}}, store.Filter{Headers: map[string]string{"region": p}}, store.Filter{Topics: []string{"ta*", "t"}, Keys: []string{p}})
	}
	filters = append(filters, store.Filter{}, store.Filter{Headers: map[string]string{`q"\<`: "1", "n1": "x"}}, store.Filter{Headers: map[string]string{"none": ""}})
	for i, f := range filters {
		if err := f.Validate(); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("p", i)
		made, err := c.Office().Pipes.AddPipe(t.Context(), ops.AddPipe{Name: name, From: ops.FromBeginning, Filter: f, Actor: "ann"})
		if err != nil || made.Filter.String() != f.String() {
			t.Fatalf("made %+v, %v", made, err)
		}
		var wanted []int64
		for n := range all {
			if f.Match(&all[n]) {
				wanted = append(wanted, int64(n+1))
			}
		}
		b, err := New(pool, &Options{Pipe: name}).Read(t.Context(), []store.LaneRead{{MaxRecords: 100}})
		if err != nil {
			t.Fatal(err)
		}
		var read []int64
		for _, m := range b[0].Meta {
			read = append(read, m.Seq)
		}
		viewed, err := db.List[int64](t.Context(), pool, `SELECT seq FROM postrider_messages WHERE pipe = ? ORDER BY seq`, name)
		if err != nil {
			t.Fatal(err)
		}
		st, err := New(pool, &Options{Pipe: name}).Office().Admin.Status(t.Context())
		if err != nil || !slices.Equal(read, wanted) || !slices.Equal(viewed, wanted) || st.Pending != int64(len(wanted)) {
			t.Errorf("%s: read %v, in the view %v, pending %d, want %v; %v", f, read, viewed, st.Pending, wanted, err)
		}
	}
}

// Of a header that stands twice in a row of plain SQL, the last value counts, as for who receives the message.
//
// Promises: C
func TestAHeaderThatStandsTwice(t *testing.T) {
	pool, _ := newOutbox(t, 1)
	c := carry(t, pool)
	c.exec(`INSERT INTO postrider_outbox (topic, headers) VALUES ('t', '{"x":"1","x":"2"}'), ('t', '{"x":"2","x":"1"}'), ('t', '{}')`)
	if _, err := c.Office().Pipes.AddPipe(t.Context(), ops.AddPipe{Name: "one", From: ops.FromBeginning, Filter: store.Filter{Headers: map[string]string{"x": "1"}}, Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	read, err := New(pool, &Options{Pipe: "one"}).Read(t.Context(), []store.LaneRead{{MaxRecords: 10}})
	if err != nil || len(read[0].Meta) != 1 || read[0].Meta[0].Seq != 2 {
		t.Errorf("read %+v, error %v, want number 2", read, err)
	}
}

// A lane without messages does not hold its pipe behind.
func TestAQuietLaneIsNotBehind(t *testing.T) {
	pool, _ := newOutbox(t, 4)
	o := newOwner(t, pool, "a", nil)
	o.put("k", "a", "b", "c")
	o.step()
	all, err := o.s.Office().Pipes.Pipes(t.Context())
	if err != nil || len(all) != 1 || all[0].Behind != 0 {
		t.Errorf("pipes %+v, error %v", all, err)
	}
}

// A page that has nothing for the pipe moves its position by a bounded number of rows.
func TestAFilterThatPassesNothing(t *testing.T) {
	pool, _ := newOutbox(t, 1)
	c := carry(t, pool)
	const rows, page = 20_000, 16_384
	c.exec(`INSERT INTO postrider_outbox (topic) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) SELECT 't' FROM n`, rows)
	if _, err := c.Office().Pipes.AddPipe(t.Context(), ops.AddPipe{Name: "none", From: ops.FromBeginning, Filter: store.Filter{Topics: []string{"u"}}, Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	s := New(pool, &Options{Pipe: "none"})
	var at store.Position
	for _, end := range []int64{page, rows, rows} {
		b, err := s.Read(t.Context(), []store.LaneRead{{After: at, MaxRecords: 10}})
		if err != nil {
			t.Fatal(err)
		}
		if pos, err := decode(b[0].Position); err != nil || pos != end || b[0].More != (end == page) || len(b[0].Messages) > 0 {
			t.Errorf("at %d, more %v, %d messages, want %d; %v", pos, b[0].More, len(b[0].Messages), end, err)
		}
		at = b[0].Position
	}
}

func TestPipesBeginPauseAndEnd(t *testing.T) {
	pool, _ := newOutbox(t, 2)
	main := newOwner(t, pool, "a", nil)
	main.put("k", "before", "gone")
	main.step()
	pipes := main.s.Office().Pipes
	add := func(req ops.AddPipe) {
		t.Helper()
		req.Actor, req.Reason = "ann", "test"
		if _, err := pipes.AddPipe(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	eu := ops.AddPipe{Name: "eu", Filter: store.Filter{Types: []string{"paid", "re*"}}}
	add(eu)
	if _, err := pipes.AddPipe(t.Context(), eu); !errors.Is(err, ops.ErrPipeExists) {
		t.Errorf("made twice: %v", err)
	}
	if _, err := pipes.AddPipe(t.Context(), ops.AddPipe{Name: "-x", Actor: "ann"}); !errors.Is(err, store.ErrUnusable) {
		t.Errorf("an invalid name: %v", err)
	}
	add(ops.AddPipe{Name: "all", From: ops.FromBeginning})
	main.exec(`UPDATE postrider_outbox SET created_at = created_at - 60000000 WHERE type = 'before'`)
	add(ops.AddPipe{Name: "since", From: ops.FromTime, Time: time.Now().Add(-30 * time.Second)})
	add(ops.AddPipe{Name: "later", From: ops.FromTime, Time: time.Now().Add(time.Hour)})
	main.put("k", "paid", "paid ", "refund", "other")
	read := func(pipe string) []string {
		t.Helper()
		o := newOwner(t, pool, pipe, &Options{Pipe: pipe})
		all := o.step()
		slices.Sort(all)
		return all
	}
	want(t, "filtered", read("eu"), "paid", "refund")
	want(t, "from the beginning", read("all"), "before", "gone", "other", "paid", "paid ", "refund")
	want(t, "from a time", read("since"), "gone", "other", "paid", "paid ", "refund")
	want(t, "from a time to come", read("later"), "other", "paid", "paid ", "refund")
	// A replay of the pipe has its messages alone.
	o := newOwner(t, pool, "eu", &Options{Pipe: "eu"})
	if _, plan := o.order(ops.Order{Kind: store.ActReplay, Match: ops.Match{All: true}}); plan.Records != 2 {
		t.Errorf("replayed %+v, want 2", plan)
	}
	o.execute()
	want(t, "replayed", o.send(), "paid", "refund")
	var id string
	if err := pool.QueryRow(`SELECT id FROM postrider_outbox WHERE type = 'other'`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	if life, err := o.s.Office().Finder.Message(t.Context(), ops.MessageQuery{ID: id}); err != nil || !life.Excluded {
		t.Errorf("a message that the filter leaves out: %+v, %v", life, err)
	}

	if err := pipes.PausePipe(t.Context(), ops.PausePipe{Name: "eu", Actor: "ann", Reason: "night"}); err != nil {
		t.Fatal(err)
	}
	if err := pipes.PausePipe(t.Context(), ops.PausePipe{Name: "nobody", Actor: "ann"}); !errors.Is(err, store.ErrNoPipe) {
		t.Errorf("a pause of no pipe: %v", err)
	}
	main.put("k", "refund")
	if o.lease(); !o.g.Paused {
		t.Error("the lease does not know the pause")
	}
	if n := main.number(`SELECT count(*) FROM postrider_messages WHERE pipe = 'eu' AND state = 'Pending' AND waits_for = 'a person: the pipe is paused'`); n != 1 {
		t.Errorf("the view shows %d messages that wait for the pause, want 1", n)
	}
	key, err := o.s.Office().Finder.Key(t.Context(), "k")
	if what, since := key.WaitsFor(); err != nil || what != ops.WaitsPipe || time.Since(since) > time.Hour {
		t.Errorf("the key waits for %q since %v, %v", what, since, err)
	}
	st, err := o.s.Office().Admin.Status(t.Context())
	if err != nil || !st.Paused {
		t.Errorf("status %+v, %v", st, err)
	}
	list, err := pipes.Pipes(t.Context())
	if i := slices.IndexFunc(list, func(p ops.Pipe) bool { return p.Name == "eu" }); err != nil || len(list) != 5 || !list[i].Paused || list[i].PausedBy != "ann" || list[i].PausedFor != "night" || list[i].Relays != 1 || list[i].Behind < 1 {
		t.Errorf("pipes %+v, %v", list, err)
	}

	var forfeit *ops.ForfeitError
	if _, err := pipes.RemovePipe(t.Context(), ops.RemovePipe{Name: "eu", Actor: "ann", Reason: "test"}); !errors.As(err, &forfeit) || forfeit.Pending != 1 {
		t.Errorf("removed with a message pending: %v", err)
	}
	if gone, err := pipes.RemovePipe(t.Context(), ops.RemovePipe{Name: "eu", Forfeit: 1, Actor: "ann", Reason: "test"}); err != nil || gone.Pending != 1 {
		t.Errorf("removed %+v, %v", gone, err)
	}
	if _, err := pipes.RemovePipe(t.Context(), ops.RemovePipe{Name: "eu", Actor: "ann", Reason: "test"}); !errors.Is(err, store.ErrNoPipe) {
		t.Errorf("removed twice: %v", err)
	}
	if _, err := o.s.Lease(t.Context(), store.LeaseRequest{BootID: "eu", TTL: time.Minute}); !errors.Is(err, store.ErrNoPipe) {
		t.Errorf("a lease of a removed pipe: %v", err)
	}
	eu.Filter = store.Filter{}
	add(eu)
	for _, epoch := range []int64{o.g.Lanes[0].Epoch, o.g.Lanes[0].Epoch + 1} {
		lost, err := o.s.Settle(t.Context(), []store.Settlement{{BootID: "eu", Lane: 0, Epoch: epoch, Position: encode(1000)}})
		if err != nil || len(lost) != 1 {
			t.Errorf("a relay of the pipe that was removed settled in one of its name: lost %v, %v", lost, err)
		}
	}
	old := o.g.Lanes[0].Epoch
	if o.lease(); o.g.Lanes[0].Epoch <= old { // a settlement of before may still be under way
		t.Errorf("the epochs of the new pipe begin at %d, those of the removed one had come to %d", o.g.Lanes[0].Epoch, old)
	}
	want(t, "acts on pipes", entries(t, main.s, ops.JournalQuery{Pipe: "eu", Act: "pipe remove"}), "ann pipe remove  done 1 test")
}

// What a pipe has yet to read stays, whatever its filter lets pass.
//
// Promises: L
func TestRetentionWaitsForEachPipe(t *testing.T) {
	pool, _ := newOutbox(t, 1)
	main := newOwner(t, pool, "a", nil)
	if _, err := main.s.Office().Pipes.AddPipe(t.Context(), ops.AddPipe{Name: "eu", Filter: store.Filter{Types: []string{"x"}}, Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	main.put("k", "x", "y")
	main.step()
	main.moved.Store(int64(time.Hour))
	if done := main.prune(ops.PruneRequest{OlderThan: time.Minute}); done.Rows != 0 {
		t.Errorf("%d rows removed that a pipe has yet to read", done.Rows)
	}
	newOwner(t, pool, "b", &Options{Pipe: "eu"}).step()
	main.moved.Store(int64(2 * time.Hour))
	if done := main.prune(ops.PruneRequest{OlderThan: time.Minute}); done.Rows != 2 {
		t.Errorf("%d rows removed, want 2", done.Rows)
	}
}

// Stopped destinations last and are told to each relay of the pipe.
func TestStopsLast(t *testing.T) {
	pool, s := newOutbox(t, 1)
	for i, step := range []struct {
		req     store.SetStop
		changed bool
		stopped []string
	}{
		{store.SetStop{Destination: "hook", Actor: "ann", Reason: "r"}, true, []string{"hook"}},
		{store.SetStop{Destination: "hook", Actor: "ann", Reason: "r"}, false, []string{"hook"}},
		{store.SetStop{Destination: "hook ", Resume: true, Actor: "ann", Reason: "r"}, false, []string{"hook"}},
		{store.SetStop{Destination: "hook", Resume: true, Actor: "ann", Reason: "r"}, true, nil},
	} {
		changed, err := s.Info().SetStop(t.Context(), step.req)
		g := newOwner(t, pool, "a", nil).g
		stops, serr := s.Office().Stops.Stops(t.Context())
		if err != nil || serr != nil || changed != step.changed || !slices.Equal(g.Stopped, step.stopped) || len(stops) != len(step.stopped) {
			t.Errorf("step %d: changed %v, stopped %q, %+v, errors %v, %v", i, changed, g.Stopped, stops, err, serr)
		}
	}
	if _, err := New(pool, &Options{Pipe: "nobody"}).Info().SetStop(t.Context(), store.SetStop{Destination: "h", Actor: "a"}); !errors.Is(err, store.ErrNoPipe) {
		t.Errorf("a pipe that does not exist: %v", err)
	}
	want(t, "the journal", entries(t, s, ops.JournalQuery{}), "ann endpoint stop  done - r", "ann endpoint resume  done - r")
}
