package pgstore_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// park inserts a message of a key, passes it and sets it aside.
func (o *owner) park(key, label string, state store.State) store.Park {
	o.Helper()
	var lane store.Lane
	p := store.Park{
		State: state, Captures: key != "" && (state == store.Retry || state == store.Dead), DueIn: time.Hour, Attempts: 3, Class: "rejected", Code: "c1",
		Message: postrider.Message{Topic: "t", Key: key, Type: label, Headers: map[string]string{"a": "1"}},
	}
	if state == store.Waiting {
		p.DueIn = 0
	}
	err := o.pool.QueryRow(o.Context(), o.sql(`INSERT INTO box.outbox (topic, key, type, headers) VALUES ('t', $1, $2, '{"a": "1"}') RETURNING seq, lane, id::text`),
		key, label).Scan(&p.Seq, &lane, &p.Message.ID)
	if err != nil {
		o.Fatal(err)
	}
	o.drain()
	o.settle(lane, store.Settlement{Park: []store.Park{p}})
	return p
}

// settle settles one lane.
func (o *owner) settle(lane store.Lane, s store.Settlement) {
	o.Helper()
	s.BootID, s.Lane, s.Epoch = o.boot, lane, o.grant[lane].Epoch
	lost, err := o.store.Settle(o.Context(), []store.Settlement{s})
	if err != nil || len(lost) > 0 {
		o.Fatalf("settle: lost %v, %v", lost, err)
	}
	o.grant[lane].Epoch++
}

// execute carries out every act that waits, as the owner of the lanes.
func (o *owner) execute() {
	o.Helper()
	g, err := o.store.Lease(o.Context(), store.LeaseRequest{BootID: o.boot, Instance: o.boot, TTL: time.Minute})
	if err != nil {
		o.Fatal(err)
	}
	for _, r := range g.Requests {
		o.settle(r.Lane, store.Settlement{Requests: []int64{r.ID}})
	}
}

// entries are the journal in short, the oldest entry first.
func (d *db) entries() []string {
	d.Helper()
	found, err := d.store("main").Office().Journal.Entries(d.Context(), ops.JournalQuery{})
	if err != nil {
		d.Fatal(err)
	}
	var said []string
	for _, e := range found {
		count := "-"
		if e.Count != nil {
			count = fmt.Sprint(*e.Count)
		}
		said = append(said, strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s %s", e.Actor, e.Act, e.Key, e.Result, count, e.Reason)))
	}
	slices.Reverse(said)
	return said
}

// Every act on a record is in the journal, when it is asked for and when it is
// carried out, with who, when, what and why.
//
// Promises: C
func TestJournalOfRecords(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		first, second := o.park("k", "a", store.Dead), o.park("j", "b", store.Dead)
		for _, act := range []store.Act{
			{Kind: store.ActRetry, Seq: first.Seq, Actor: "ann", Reason: "mended"},
			{Kind: store.ActDiscard, Seq: second.Seq, Actor: "bob", Reason: "nobody wants it"},
			{Kind: store.ActDiscard, Seq: second.Seq, Actor: "ann"},
		} {
			if _, err := o.store.Office().Admin.Request(t.Context(), act); err != nil {
				t.Fatal(err)
			}
		}
		o.execute()
		want := []string{
			"ann retry k asked - mended", "bob discard j asked - nobody wants it", "ann discard j asked -",
			"ann retry k done 1 mended", "bob discard j done 1 nobody wants it", "ann discard  gone 0",
		}
		if got := d.entries(); !slices.Equal(got, want) {
			t.Errorf("the journal says\n%q, want\n%q", got, want)
		}
		of, err := o.store.Office().Journal.Entries(t.Context(), ops.JournalQuery{ID: 2})
		if err != nil || len(of) != 2 || of[0].Ask != 2 || of[1].ID != 2 || of[0].Seq != second.Seq || of[0].Lane == nil || time.Since(of[0].At).Abs() > time.Hour {
			t.Errorf("entry 2 and what came of it: %+v, %v", of, err)
		}
		if n := d.count(`SELECT sum(discarded) * 100 + sum(replayed) * 10 + max(generation) FROM box.repair`); n != 101 {
			t.Errorf("discarded, replayed, generation: %03d", n)
		}
	})
}

// Promises: C
func TestJournalIsAppendOnly(t *testing.T) {
	trap(t, func(d *db, _ *owner) {
		d.exec(`INSERT INTO box.audit (actor, act) VALUES ('ann', 'young'), ('ann', 'old')`)
		d.exec(`ALTER TABLE box.audit DISABLE TRIGGER audit_rows`)
		d.exec(`UPDATE box.audit SET at = at - interval '8 days' WHERE act = 'old'`)
		d.exec(`ALTER TABLE box.audit ENABLE TRIGGER audit_rows`)
		for _, text := range []string{`UPDATE box.audit SET reason = 'x'`, `DELETE FROM box.audit WHERE act = 'young'`, `TRUNCATE box.audit`} {
			if _, err := d.pool.Exec(t.Context(), d.sql(text)); err == nil || !strings.Contains(err.Error(), "append-only") {
				t.Errorf("%s: %v", text, err)
			}
		}
		if _, err := d.pool.Exec(t.Context(), d.sql(`INSERT INTO box.audit (actor, act) VALUES ('', 'nobody')`)); err == nil {
			t.Error("an act without an actor was recorded")
		}
		d.exec(`DELETE FROM box.audit WHERE act = 'old'`)
	})
}

// Every act of a person leaves a row in the journal, in whatever part of the store
// it is kept, and none is without who did it.
//
// Promises: C
func TestEveryActIsInTheJournal(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		s, ctx := o.store, t.Context()
		request := func(act store.Act) error {
			act.Actor, act.Reason = "ann", "test"
			_, err := s.Office().Admin.Request(ctx, act)
			return err
		}
		order := func(kind store.ActKind, key string) error {
			_, _, err := s.Office().Orders.Order(ctx, ops.Order{Kind: kind, Match: ops.Match{Key: key}, Actor: "ann", Reason: "test"})
			return err
		}
		for _, c := range []struct {
			act, result string
			do          func() error
		}{
			{"retry", "done", func() error { return request(store.Act{Kind: store.ActRetry, Seq: o.park("a", "x", store.Dead).Seq}) }},
			{"discard", "done", func() error { return request(store.Act{Kind: store.ActDiscard, Seq: o.park("b", "x", store.Dead).Seq}) }},
			{"pause", "done", func() error { return request(store.Act{Kind: store.ActPause, Key: "c"}) }},
			{"resume", "done", func() error { return request(store.Act{Kind: store.ActResume, Key: "c"}) }},
			{"pause", "done", func() error { return request(store.Act{Kind: store.ActPause, Lane: 2}) }},
			{"resume", "done", func() error { return request(store.Act{Kind: store.ActResume, Lane: 2}) }},
			{"retry", "done", func() error { o.park("d", "x", store.Dead); return order(store.ActRetry, "d") }},
			{"discard", "done", func() error { o.park("e", "x", store.Dead); return order(store.ActDiscard, "e") }},
			{"skip", "done", func() error { o.park("f", "x", store.Dead); return order(store.ActSkip, "f") }},
			{"replay", "done", func() error {
				d.exec(`INSERT INTO box.outbox (topic, key) VALUES ('t', 'g')`)
				o.drain()
				return order(store.ActReplay, "g")
			}},
			{"cancel", "", func() error {
				d.dead(1, 0)
				id, _ := o.order(ops.Order{Kind: store.ActDiscard, Match: ops.Match{Type: "x"}})
				return s.Office().Orders.CancelOrder(ctx, id, "ann", "test")
			}},
			{"pipe add", "", func() error {
				_, err := s.Office().Pipes.AddPipe(ctx, ops.AddPipe{Name: "p", Actor: "ann", Reason: "test"})
				return err
			}},
			{"pipe pause", "", func() error {
				return s.Office().Pipes.PausePipe(ctx, ops.PausePipe{Name: "p", Actor: "ann", Reason: "test"})
			}},
			{"pipe resume", "", func() error {
				return s.Office().Pipes.PausePipe(ctx, ops.PausePipe{Name: "p", Resume: true, Actor: "ann", Reason: "test"})
			}},
			{"pipe remove", "", func() error {
				_, err := s.Office().Pipes.RemovePipe(ctx, ops.RemovePipe{Name: "p", Actor: "ann", Reason: "test"})
				return err
			}},
			{"strict add", "", func() error {
				_, err := s.Office().Strict.SetStrict(ctx, ops.StrictRequest{Topic: "s", Strict: true, Actor: "ann", Reason: "test"})
				return err
			}},
			{"strict remove", "", func() error {
				_, err := s.Office().Strict.SetStrict(ctx, ops.StrictRequest{Topic: "s", Actor: "ann", Reason: "test"})
				return err
			}},
			{"erase", "", func() error {
				_, err := s.Office().Eraser.Erase(ctx, ops.EraseRequest{EraseQuery: ops.EraseQuery{Key: "b"}, Actor: "ann", Reason: "test"}, 10)
				return err
			}},
			{"adopt", "", func() error {
				_, err := o.store.Lease(ctx, store.LeaseRequest{BootID: o.boot, TTL: time.Minute, Leave: true})
				if err == nil {
					d.exec(`UPDATE box.outbox_info SET reset_xid = 9223372036854775807`) // a lift broke off
					_, err = s.Office().Migrator.Migrate(ctx, ops.MigrateRequest{Adopt: true, Actor: "ann"})
				}
				o.lease()
				return err
			}},
		} {
			var before int64
			if last, err := s.Office().Journal.Entries(ctx, ops.JournalQuery{Limit: 1}); err != nil {
				t.Fatal(err)
			} else if len(last) > 0 {
				before = last[0].ID
			}
			if err := c.do(); err != nil {
				t.Fatalf("%s: %v", c.act, err)
			}
			o.execute()
			var results []string
			found, err := s.Office().Journal.Entries(ctx, ops.JournalQuery{Act: c.act, Actor: "ann"})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range found {
				if e.ID > before {
					results = append(results, e.Result)
				}
			}
			want := []string{"done"}
			if c.result != "" {
				want = []string{c.result, "asked"}
			}
			if !slices.Equal(results, want) {
				t.Errorf("%s: entries %q, want %q", c.act, results, want)
			}
		}
	})
}

// What a person prunes is in the journal: when it begins, and how much it was. A sweep
// that removes nothing and a runner that works by itself leave no entry.
//
// Promises: C
func TestJournalOfPrune(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		office := o.store.Office()
		sweep := func(actor string, limit int) (rows int64) {
			k, err := admin.NewKeeper(office, &admin.KeeperOptions{Batch: limit, Rate: 1_000_000, Take: true, Actor: actor, Reason: "full disk"})
			if err != nil {
				t.Fatal(err)
			}
			done, err := k.Sweep(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := k.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			return done.Rows
		}
		for _, c := range []struct {
			actor string
			limit int
			want  []string
		}{
			{"", 1000, nil},
			{"ann", 2, []string{"ann prune  asked - full disk", "ann prune  done 100 full disk"}},
			{"bob", 10_000, []string{"bob prune  done 100 full disk"}},
		} {
			before := len(d.entries())
			d.insert(100)
			o.drain()
			if n := sweep(c.actor, c.limit); n != 100 {
				t.Fatalf("%d rows were removed, want 100", n)
			}
			sweep(c.actor, c.limit)
			if got := d.entries()[before:]; !slices.Equal(got, c.want) {
				t.Errorf("the journal says %q, want %q", got, c.want)
			}
		}
		found, err := office.Journal.Entries(t.Context(), ops.JournalQuery{Actor: "ann"})
		if err != nil || len(found) != 2 || found[0].Ask != found[1].ID || string(found[0].Target) != `{"older_than": "0s"}` {
			t.Errorf("%+v, %v", found, err)
		}
	})
}

// A settlement that is repeated while the first one is under way carries a request out
// once.
func TestJournalOfARace(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		for range 20 {
			p := o.park("k", "a", store.Dead)
			if _, err := o.store.Office().Admin.Request(t.Context(), store.Act{Kind: store.ActDiscard, Seq: p.Seq, Actor: "ann", Reason: "race"}); err != nil {
				t.Fatal(err)
			}
			g, err := o.store.Lease(t.Context(), store.LeaseRequest{BootID: o.boot, Instance: o.boot, TTL: time.Minute})
			if err != nil || len(g.Requests) != 1 {
				t.Fatalf("requests %v, %v", g.Requests, err)
			}
			r := g.Requests[0]
			epoch := o.grant[r.Lane].Epoch
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					_, err := d.store("main").Settle(t.Context(), []store.Settlement{{BootID: o.boot, Lane: r.Lane, Epoch: epoch, Requests: []int64{r.ID}}})
					if err != nil && !errors.Is(err, store.ErrIdentity) {
						t.Log(err)
					}
				})
			}
			wg.Wait()
			o.grant[r.Lane].Epoch++
		}
		if n := d.count(`SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM box.audit WHERE ask IS NOT NULL GROUP BY ask) x`); n != 1 {
			t.Errorf("a request has %d entries of its end, want 1", n)
		}
	})
}

// What changes nothing is written into the journal too, with all that an entry has, and not
// without the person or the reason.
func TestRecord(t *testing.T) {
	trap(t, func(_ *db, o *owner) {
		office := o.store.Office()
		for _, bad := range []ops.JournalEntry{{Act: "read payload", Reason: "r"}, {Actor: "ann", Reason: "r"}, {Actor: "ann", Act: "read payload", Reason: " "}} {
			if _, err := office.Records.Record(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "give all three") {
				t.Errorf("%+v: %v", bad, err)
			}
		}
		id, err := office.Records.Record(t.Context(), ops.JournalEntry{Actor: "ann", Act: "read payload", Pipe: "other", Seq: 7, Reason: "a customer asks"})
		if err != nil {
			t.Fatal(err)
		}
		found, err := office.Journal.Entries(t.Context(), ops.JournalQuery{Act: "read payload"})
		if err != nil || len(found) != 1 {
			t.Fatalf("%+v, %v", found, err)
		}
		if e := found[0]; e.ID != id || e.Actor != "ann" || e.Pipe != "main" || e.Seq != 7 || e.Reason != "a customer asks" || e.Ask != 0 || e.At.IsZero() {
			t.Errorf("the entry is %+v", e)
		}
	})
}
