package pgstore_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
)

// Promises: O
func TestOppositeCommitOrder(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		a, b := d.begin(), d.begin()
		d.put(a, "a")
		d.put(b, "b")
		d.commit(b)
		o.want("b")
		d.commit(a)
		o.want("a")
		o.want()
	})
}

// Promises: O
func TestEarlyIDLateNumber(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		early := d.begin()
		d.do(early, `SELECT pg_current_xact_id()`)
		b := d.begin()
		d.put(b, "b")
		d.commit(b)
		o.want("b")
		d.put(early, "early")
		d.commit(early)
		o.want("early")
	})
}

func TestLongTransactionStopsNobody(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		long := d.begin()
		d.put(long, "long")
		for i := range 50 {
			tx := d.begin()
			d.put(tx, fmt.Sprint(i))
			d.commit(tx)
			o.want(fmt.Sprint(i))
		}
		d.commit(long)
		o.want("long")
	})
}

func TestUncommittedBulkIsPassedOnce(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		bulk := d.begin()
		d.do(bulk, `INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k', g::text FROM generate_series(1, 20000) g`)
		o.want()
		for _, b := range o.read() {
			if !bytes.Equal(b.Position, o.grant[b.Lane].Position) {
				t.Errorf("lane %d: an idle read moved the position", b.Lane)
			}
		}
		var pos int64
		if err := d.pool.QueryRow(t.Context(), d.sql(`SELECT min(pos) FROM box.lane_cursor`)).Scan(&pos); err != nil || pos < 20000 {
			t.Errorf("cursor at %d, %v: every poll scans the bulk again", pos, err)
		}
		d.commit(bulk)
		if got := o.drain(); len(got) != 20000 || got[0] != "1" || got[19999] != "20000" {
			t.Errorf("%d stragglers delivered", len(got))
		}
	})
}

func TestStragglersComeInPages(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		bulk := d.begin()
		d.do(bulk, `INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k', g::text FROM generate_series(1, 5000) g`)
		o.drain()
		d.commit(bulk)
		after := d.begin()
		d.put(after, "after")
		d.commit(after)
		pages := 0
		for len(o.seen) < 5001 && pages < 1000 {
			if n := o.step(); n > o.page {
				t.Fatalf("a page of %d records, %d were asked for", n, o.page)
			}
			if pages++; pages == 20 { // a new owner continues where this one stopped
				o.lease()
				if got := d.state("Sent"); got < 1500 || got > 2500 {
					t.Errorf("%d Sent in the view after %d stragglers", got, len(o.seen))
				}
			}
		}
		for i, label := range o.seen[:5000] {
			if label != fmt.Sprint(i+1) {
				t.Fatalf("straggler %d is %q", i+1, label)
			}
		}
		if o.seen[5000] != "after" {
			t.Errorf("the later message came as %q", o.seen[5000])
		}
	})
}

func TestSavepointLoop(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		tx := d.begin()
		d.put(tx, "0")
		for i := 1; i <= 200; i++ {
			d.do(tx, `SAVEPOINT s`)
			d.put(tx, fmt.Sprint(i))
			if i%2 == 0 {
				d.do(tx, `ROLLBACK TO s`)
			} else {
				d.do(tx, `RELEASE s`)
			}
			if i%50 == 0 {
				o.want()
			}
		}
		d.commit(tx)
		if got := o.drain(); len(got) != 101 {
			t.Errorf("%d delivered, want 101", len(got))
		}
	})
}

func TestPreparedTransaction(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		tx := d.begin()
		d.put(tx, "prepared")
		d.do(tx, `PREPARE TRANSACTION '`+d.schema+`'`)
		other := d.begin()
		d.put(other, "other")
		d.commit(other)
		o.want("other")
		d.exec(`COMMIT PREPARED '` + d.schema + `'`)
		o.want("prepared")
	})
}

// Ids at or above a snapshot's xmax may be running and have drawn low numbers.
//
// Promises: L
func TestIDsAboveXmax(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		low, high := d.begin(), d.begin()
		d.put(low, "low")   // xid x
		d.put(high, "high") // xid x+1, a higher number
		// Nothing above completed: xmax may be x, and both ids lie in [xmax, U).
		o.want()
		d.commit(high)
		o.want("high")
		d.commit(low)
		o.want("low")
	})
}

func TestIdentityChange(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		tx := d.begin()
		d.put(tx, "a")
		d.commit(tx)
		batches := o.read()
		d.exec(`UPDATE box.outbox_info SET restore_epoch = restore_epoch + 1`)
		_, err := o.store.Read(t.Context(), o.reads())
		wantIs(t, err, store.ErrIdentity)
		for _, b := range batches {
			_, err = o.store.Settle(t.Context(), []store.Settlement{{
				BootID: "a", Lane: b.Lane,
				Epoch: o.grant[b.Lane].Epoch, Position: b.Position, Delivered: 1,
			}})
			wantIs(t, err, store.ErrIdentity)
		}
		o.lease()
		o.want("a")
	})
}

func TestSequenceSetBack(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		for i := range 20 {
			tx := d.begin()
			d.put(tx, fmt.Sprint(i))
			d.commit(tx)
		}
		if got := o.drain(); len(got) != 20 {
			t.Fatalf("%d delivered", len(got))
		}
		// The numbers from 5 on are given out again, to another key's lane.
		d.exec(`SELECT setval('box.outbox_seq', 5)`)
		open := d.begin()
		d.do(open, `INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'z', 'open')`)
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'z', 'below')`)
		_, err := o.store.Read(t.Context(), o.reads())
		wantIs(t, err, store.ErrIdentity)
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'z', 'above')`)
		o.lease()
		o.want("below", "above")
		d.commit(open)
		o.want("open")
		var seq int64
		if err := d.pool.QueryRow(t.Context(), d.sql(`SELECT max(seq) FROM box.outbox`)).Scan(&seq); err != nil || seq <= 20 {
			t.Errorf("the sequence still gives out %d, %v", seq, err)
		}
	})
}

func TestZombieSettlesAndParksNothing(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		tx := d.begin()
		d.put(tx, "a")
		d.commit(tx)
		batches := o.read()
		d.exec(`UPDATE box.relay SET alive_until = clock_timestamp() - interval '1 second'`)
		heir := d.owner("b")
		if len(heir.grant) != 4 {
			t.Fatalf("the heir holds %d lanes", len(heir.grant))
		}
		for _, b := range batches {
			st := store.Settlement{BootID: "a", Lane: b.Lane, Epoch: o.grant[b.Lane].Epoch, Position: b.Position}
			for i, m := range b.Messages {
				st.Park = append(st.Park, store.Park{Seq: b.Meta[i].Seq, Message: m, State: store.Dead, Captures: true})
			}
			lost, err := o.store.Settle(t.Context(), []store.Settlement{st})
			if err != nil || len(lost) != 1 {
				t.Errorf("zombie settled lane %d: lost %v, %v", b.Lane, lost, err)
			}
		}
		if n := d.count(`SELECT count(*) FROM box.parked`); n != 0 {
			t.Errorf("zombie parked %d", n)
		}
		heir.want("a")
		// Back from the dead: the lanes are the heir's.
		o.lease()
		if len(o.grant) != 0 {
			t.Errorf("zombie was granted %d lanes", len(o.grant))
		}
	})
}

func TestLostCommitAnswer(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		tx := d.begin()
		d.put(tx, "a")
		d.commit(tx)
		batches := o.read()
		var settle []store.Settlement
		for _, b := range batches {
			settle = append(settle, store.Settlement{
				BootID: "a", Lane: b.Lane, Epoch: o.grant[b.Lane].Epoch,
				Position: b.Position, Delivered: len(b.Messages),
			})
		}
		for range 3 { // the answer of the first two was lost
			lost, err := o.store.Settle(t.Context(), settle)
			if err != nil || len(lost) > 0 {
				t.Fatalf("repeat: lost %v, %v", lost, err)
			}
		}
		if n := d.count(`SELECT sum(delivered) FROM box.lane_cursor`); n != 1 {
			t.Errorf("delivered counts %d, want 1", n)
		}
	})
}

// Many settles: progress stays small, and the outbox has no dead tuples.
//
// Promises: G
func TestProgressIsPruned(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		busy := d.begin() // makes every settle refer to a set of running transactions
		d.do(busy, `SELECT pg_current_xact_id()`)
		for i := range 200 {
			tx := d.begin()
			d.put(tx, fmt.Sprint(i))
			d.commit(tx)
			o.step()
		}
		if n := d.count(`SELECT count(*) FROM box.progress`); n > 4*110 {
			t.Errorf("%d progress rows of 4 lanes", n)
		}
		if n := d.count(`SELECT count(*) FROM box.progress g WHERE running IS NOT NULL
			AND NOT EXISTS (SELECT 1 FROM box.running r WHERE r.id = g.running)`); n != 0 {
			t.Errorf("%d progress rows refer to a set that is gone", n)
		}
	})
}

// COPY fills the defaults as INSERT does; what it writes keeps its order and
// its place among what others commit meanwhile.
func TestCopy(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		bulk := d.begin()
		var rows [][]any
		var want []string
		for i := range 300 {
			label := fmt.Sprint("copied ", i)
			rows, want = append(rows, []any{"t", "k", label, []byte(label)}), append(want, label)
		}
		table := pgx.Identifier{d.schema, "outbox"}
		n, err := bulk.CopyFrom(t.Context(), table, []string{"topic", "key", "type", "payload"}, pgx.CopyFromRows(rows))
		if err != nil || n != 300 {
			t.Fatalf("copied %d rows, %v", n, err)
		}
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'other', 'other')`)
		o.want("other")
		d.commit(bulk)
		o.want(want...)
	})
}
