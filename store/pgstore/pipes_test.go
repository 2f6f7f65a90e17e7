package pgstore_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// reader is an owner of another pipe.
func (d *db) reader(pipe string) *owner {
	d.Helper()
	o := &owner{db: d, store: pgstore.New(d.pool, &pgstore.Options{Schema: d.schema, Pipe: pipe}), boot: "boot " + pipe, page: 10}
	o.lease()
	return o
}

func (d *db) add(req ops.AddPipe) ops.Pipe {
	d.Helper()
	p, err := d.store("main").Office().Pipes.AddPipe(d.Context(), req)
	if err != nil {
		d.Fatal(err)
	}
	return p
}

func TestPipeFromNowBeginningAndTime(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type, created_at) VALUES ('t', 'k', 'a', now() - interval '2 hours'),
			('t', 'k', 'b', now() - interval '1 hour'), ('t', 'k', 'odd clock', now() - interval '3 hours')`)
		open := d.begin()
		d.put(open, "open")
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'c')`)
		d.add(ops.AddPipe{Actor: "ann", Name: "now"})
		d.add(ops.AddPipe{Actor: "ann", Name: "all", From: ops.FromBeginning})
		d.add(ops.AddPipe{Actor: "ann", Name: "since", From: ops.FromTime, Time: time.Now().Add(-90 * time.Minute)})
		d.add(ops.AddPipe{Actor: "ann", Name: "later", From: ops.FromTime, Time: time.Now().Add(time.Minute)})
		now, all, since, later := d.reader("now"), d.reader("all"), d.reader("since"), d.reader("later")
		now.want()
		all.want("a", "b", "odd clock", "c")
		since.want("b", "odd clock", "c")
		d.commit(open)
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'd')`)
		now.want("open", "d")
		all.want("open", "d")
		since.want("open", "d")
		later.want("open", "d")
		o.want("a", "b", "odd clock", "open", "c", "d")
	})
}

func TestPipesAreListed(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		f := store.Filter{Topics: []string{"orders.*", `100%_\`}, Types: []string{""}, Keys: []string{"eu-*"}, Headers: map[string]string{"region": "eu"}}
		if p := d.add(ops.AddPipe{Actor: "ann", Name: "audit", Filter: f}); p.Filter.String() != f.String() || p.CreatedAt.IsZero() {
			t.Errorf("added %+v", p)
		}
		s := d.store("main")
		_, err := s.Office().Pipes.AddPipe(t.Context(), ops.AddPipe{Actor: "ann", Name: "audit"})
		wantIs(t, err, ops.ErrPipeExists)
		for _, name := range []string{"", "a b", "-x", `x"`} {
			_, err := s.Office().Pipes.AddPipe(t.Context(), ops.AddPipe{Actor: "ann", Name: name})
			wantIs(t, err, store.ErrUnusable)
		}
		_, err = s.Office().Pipes.AddPipe(t.Context(), ops.AddPipe{Actor: "ann", Name: "x", Filter: store.Filter{Topics: []string{"a*b"}}})
		wantIs(t, err, store.ErrFilter)
		if err := s.Office().Pipes.PausePipe(t.Context(), ops.PausePipe{Actor: "ann", Name: "audit", Reason: "broker moves"}); err != nil {
			t.Fatal(err)
		}
		d.exec(`INSERT INTO box.outbox (topic, key) SELECT 't', 'k' FROM generate_series(1, 3)`)
		pipes, err := s.Office().Pipes.Pipes(t.Context())
		if err != nil || len(pipes) != 2 {
			t.Fatalf("pipes %+v, %v", pipes, err)
		}
		a, m := pipes[0], pipes[1]
		if a.Name != "audit" || !a.Paused || a.PausedBy != "ann" || a.PausedFor != "broker moves" || a.PausedAt.IsZero() ||
			a.Filter.String() != f.String() || a.Relays != 0 || a.Behind != 3 {
			t.Errorf("paused pipe %+v", a)
		}
		if m.Name != "main" || m.Paused || m.Relays != 1 || m.Behind != 3 {
			t.Errorf("first pipe %+v", m)
		}
		wantIs(t, s.Office().Pipes.PausePipe(t.Context(), ops.PausePipe{Actor: "ann", Name: "nobody"}), store.ErrNoPipe)
	})
}

func TestPauseComesWithTheLease(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		lease := func() bool {
			g, err := o.store.Lease(t.Context(), store.LeaseRequest{BootID: o.boot, TTL: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			return g.Paused
		}
		if lease() {
			t.Error("paused before anybody asked")
		}
		for _, resume := range []bool{false, true} {
			if err := o.store.Office().Pipes.PausePipe(t.Context(), ops.PausePipe{Actor: "ann", Name: "main", Resume: resume}); err != nil {
				t.Fatal(err)
			}
			if lease() == resume {
				t.Errorf("after resume=%v the lease says paused=%v", resume, !resume)
			}
		}
	})
}

func TestRemovePipe(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		s := d.store("main")
		d.add(ops.AddPipe{Actor: "ann", Name: "audit", From: ops.FromBeginning, Filter: store.Filter{Types: []string{"x*"}}})
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'x1'), ('t', 'k', 'x2'), ('t', 'k', 'y')`)
		late := d.begin()
		d.put(late, "x late")
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'x3')`)
		audit := d.reader("audit")
		audit.want("x1", "x2", "x3")
		d.commit(late)
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'x4'), ('t', 'k', 'y')`)
		d.exec(`INSERT INTO box.parked (pipe, lane, seq, state, captures, due_at, created_at, version, schema_version, id,
			topic, key, type, content_type, headers, payload)
			VALUES ('audit', 0, 1, 'dead', true, now(), now(), 0, 0, gen_random_uuid(), 't', 'k', 'x', '', '{}', '')`)
		_, err := s.Office().Pipes.RemovePipe(t.Context(), ops.RemovePipe{Actor: "ann", Name: "audit", Forfeit: 2})
		var forfeit *ops.ForfeitError
		if !errors.As(err, &forfeit) || forfeit.Pending != 2 || forfeit.Parked != 1 {
			t.Fatalf("got %v", err)
		}
		if n := d.count(`SELECT count(*) FROM box.progress WHERE pipe = 'audit'`); n == 0 {
			t.Error("a refused removal removed progress")
		}
		gone, err := s.Office().Pipes.RemovePipe(t.Context(), ops.RemovePipe{Actor: "ann", Name: "audit", Forfeit: 3})
		if err != nil || gone.Pending != 2 || gone.Parked != 1 {
			t.Fatalf("removed %+v, %v", gone, err)
		}
		for _, table := range []string{"progress", "parked", "request", "relay"} {
			if n := d.count(`SELECT count(*) FROM box.` + table + ` WHERE pipe = 'audit'`); n != 0 {
				t.Errorf("%d rows are left in %s", n, table)
			}
		}
		_, err = s.Office().Pipes.RemovePipe(t.Context(), ops.RemovePipe{Actor: "ann", Name: "audit"})
		wantIs(t, err, store.ErrNoPipe)
		o.want("x1", "x2", "y", "x late", "x3", "x4", "y")
		journal, err := s.Office().Journal.Entries(t.Context(), ops.JournalQuery{Pipe: "audit"})
		if err != nil || len(journal) != 2 || journal[0].Act != "pipe remove" || *journal[0].Count != 3 || journal[1].Act != "pipe add" {
			t.Errorf("journal %+v, %v", journal, err)
		}
	})
}

// A relay that lives on after its pipe was removed is told, cannot settle, and
// does not take a pipe of the same name for its own.
func TestRemovedUnderALiveRelay(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		s := d.store("main")
		d.add(ops.AddPipe{Actor: "ann", Name: "audit", From: ops.FromBeginning})
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'a')`)
		audit := d.reader("audit")
		batches := audit.read()
		if _, err := s.Office().Pipes.RemovePipe(t.Context(), ops.RemovePipe{Actor: "ann", Name: "audit", Forfeit: 1}); err != nil {
			t.Fatal(err)
		}
		b := batches[slices.IndexFunc(batches, func(b store.Batch) bool { return len(b.Messages) > 0 })]
		st := store.Settlement{BootID: audit.boot, Lane: b.Lane, Epoch: audit.grant[b.Lane].Epoch, Position: b.Position, Delivered: 1}
		if lost, err := audit.store.Settle(t.Context(), []store.Settlement{st}); err != nil || len(lost) != 1 {
			t.Errorf("a settlement of the removed pipe: lost %v, %v", lost, err)
		}
		lease := store.LeaseRequest{BootID: audit.boot, TTL: time.Minute}
		for range 2 {
			_, err := audit.store.Lease(t.Context(), lease)
			wantIs(t, err, store.ErrNoPipe)
			wantIs(t, err, store.ErrUnusable)
			d.add(ops.AddPipe{Actor: "ann", Name: "audit" + time.Now().Format("150405.000000")}) // another act in between
		}
		if n := d.count(`SELECT count(*) FROM box.relay WHERE pipe = 'audit'`); n != 0 {
			t.Errorf("%d heartbeats for a pipe that is gone", n)
		}
		d.add(ops.AddPipe{Actor: "ann", Name: "audit", From: ops.FromBeginning})
		_, err := audit.store.Lease(t.Context(), lease)
		wantIs(t, err, store.ErrNoPipe)
		d.reader("audit").want("a")
	})
}

// A settlement that is refused removes nothing of the lane. Its number is above those of a pipe that was
// made anew meanwhile, whose owner would have the lane for ever and send nothing.
//
// Promises: D, S
func TestARefusedSettlementPrunesNothing(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.add(ops.AddPipe{Actor: "ann", Name: "audit", From: ops.FromBeginning})
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'a')`)
		old := d.reader("audit")
		old.want("a")
		lane := o.laneOf(d.count(`SELECT max(seq) FROM box.outbox`))
		for old.grant[lane].Epoch < 96 { // the next settlement prunes
			old.settle(lane, store.Settlement{})
		}
		pipes := d.store("main").Office().Pipes
		if _, err := pipes.RemovePipe(t.Context(), ops.RemovePipe{Actor: "ann", Name: "audit"}); err != nil {
			t.Fatal(err)
		}
		d.add(ops.AddPipe{Actor: "ann", Name: "audit", From: ops.FromBeginning})
		next := &owner{db: d, store: pgstore.New(d.pool, &pgstore.Options{Schema: d.schema, Pipe: "audit"}), boot: "next", page: 10}
		next.lease()
		next.want("a")
		state := func() string {
			return d.text(`SELECT jsonb_build_array((SELECT jsonb_agg(c ORDER BY c.lane) FROM box.lane_cursor c WHERE c.pipe = 'audit'),
				(SELECT count(*) FROM box.progress WHERE pipe = 'audit'))::text`)
		}
		before := state()
		st := store.Settlement{BootID: old.boot, Lane: lane, Epoch: old.grant[lane].Epoch}
		if lost, err := old.store.Settle(t.Context(), []store.Settlement{st}); err != nil || len(lost) != 1 {
			t.Errorf("a settlement of the removed pipe: lost %v, %v", lost, err)
		}
		if after := state(); after != before {
			t.Errorf("it changed the pipe that was made anew:\n%s\n%s", before, after)
		}
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'b')`)
		next.want("b")
	})
}

// The next instance in the same process takes a pipe that was made anew for what
// it is: with the new filter, and from where it begins.
func TestPipeMadeAnewIsTheNextInstances(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		none := ops.AddPipe{Actor: "ann", Name: "audit", From: ops.FromBeginning, Filter: store.Filter{Types: []string{"none"}}}
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'a')`)
		d.add(none)
		audit := d.reader("audit")
		audit.want()
		if _, err := d.store("main").Office().Pipes.RemovePipe(t.Context(), ops.RemovePipe{Actor: "ann", Name: "audit", Forfeit: 1}); err != nil {
			t.Fatal(err)
		}
		for _, boot := range []string{audit.boot, "next"} {
			_, err := audit.store.Lease(t.Context(), store.LeaseRequest{BootID: boot, TTL: time.Minute})
			wantIs(t, err, store.ErrNoPipe)
		}
		d.add(ops.AddPipe{Actor: "ann", Name: "audit", From: ops.FromBeginning})
		_, err := audit.store.Lease(t.Context(), store.LeaseRequest{BootID: audit.boot, TTL: time.Minute})
		wantIs(t, err, store.ErrNoPipe)
		d.exec(`DELETE FROM box.relay`) // those that were refused have a share of the lanes until their time ends
		audit.boot = "after"
		audit.lease()
		audit.want("a")
	})
}

func TestUnknownPipeIsRefused(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		s := pgstore.New(d.pool, &pgstore.Options{Schema: d.schema, Pipe: "typo"})
		_, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "x", TTL: time.Minute})
		wantIs(t, err, store.ErrNoPipe)
		_, err = s.Read(t.Context(), []store.LaneRead{{Lane: 0, MaxRecords: 1}})
		if err == nil {
			t.Error("a pipe that does not exist was read")
		}
		if n := d.count(`SELECT count(*) FROM box.pipe`); n != 1 {
			t.Errorf("%d pipes", n)
		}
	})
}
