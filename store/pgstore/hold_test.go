package pgstore_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// probe is a session of its own that reads, and what its reads cost.
type probe struct {
	*owner
	pool *pgxpool.Pool
}

func (d *db) probe() *probe {
	d.Helper()
	cfg := d.pool.Config()
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(d.Context(), cfg)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(pool.Close)
	o := &owner{db: d, store: pgstore.New(pool, &pgstore.Options{Schema: d.schema}), boot: "p", page: 100}
	o.lease()
	return &probe{owner: o, pool: pool}
}

// cost is how many index entries and blocks of the outbox n reads touch.
func (p *probe) cost(n int) (entries, blocks int64) {
	p.Helper()
	counted := func() (entries, blocks int64) {
		if _, err := p.pool.Exec(p.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
			p.Fatal(err)
		}
		if err := p.pool.QueryRow(p.Context(), `SELECT sum(u.idx_tup_read)::bigint, sum(io.idx_blks_hit + io.idx_blks_read)::bigint
			+ (SELECT heap_blks_hit + heap_blks_read FROM pg_statio_user_tables WHERE schemaname = $1 AND relname = 'outbox')
			FROM pg_stat_user_indexes u JOIN pg_statio_user_indexes io USING (indexrelid)
			WHERE u.schemaname = $1 AND u.relname = 'outbox'`, p.schema).Scan(&entries, &blocks); err != nil {
			p.Fatal(err)
		}
		return entries, blocks
	}
	e0, b0 := counted()
	for range n {
		p.step()
	}
	e1, b1 := counted()
	return e1 - e0, b1 - b0
}

// While one transaction stays open for as long as it
// likes, and another holds ten thousand rows that nobody may see, others' rows
// arrive at once, and a read costs a few blocks of each lane and no entry of
// what it has passed.
//
// Promises: L, O, S
func TestOpenTransactionsCostNothing(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		for range 5000 / 500 { // an index of more than one level
			d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', g::text, 'old' FROM generate_series(1, 500) g`)
		}
		p := d.probe()
		long, bulk := d.begin(), d.begin()
		d.put(long, "long 1")
		d.do(bulk, `INSERT INTO box.outbox (topic, key, type) SELECT 't', 'bulk', g::text FROM generate_series(1, 10000) g`)
		if got := p.drain(); len(got) != 5000 {
			t.Fatalf("%d delivered", len(got))
		}
		for i := range 300 { // 300 cursors later
			label := fmt.Sprint("other ", i)
			d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', $1)`, label)
			if i == 150 {
				d.put(long, "long 2")
			}
			if n := p.step(); n != 1 || p.seen[len(p.seen)-1] != label {
				t.Fatalf("a read after %q brought %d messages", label, n)
			}
		}
		const reads = 200
		entries, blocks := p.cost(reads)
		t.Logf("%d entries and %d blocks in %d reads of 4 lanes", entries, blocks, reads)
		if entries > reads*4 || blocks > reads*4*6 {
			t.Errorf("%d idle reads of 4 lanes touched %d index entries and %d blocks", reads, entries, blocks)
		}
		d.commit(long)
		p.want("long 1", "long 2")
		d.commit(bulk)
		if got := p.drain(); len(got) != 10000 || got[0] != "1" || got[9999] != "10000" {
			t.Errorf("%d stragglers", len(got))
		}
	})
}

// A million rows in one transaction: passed once, delivered once, in order.
//
// Promises: G
func TestMillionUncommittedRows(t *testing.T) {
	rows := 100_000
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		rows = 1_000_000
	}
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		p := d.probe()
		p.page = 5000
		bulk := d.begin()
		d.do(bulk, `INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k' || g % 4, g::text FROM generate_series(1, $1::int) g`, rows)
		entries, _ := p.cost(1)
		if entries > int64(rows) {
			t.Errorf("passing %d rows read %d entries", rows, entries)
		}
		if entries, _ = p.cost(20); entries > 80 {
			t.Errorf("20 polls behind %d uncommitted rows read %d entries", rows, entries)
		}
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'other', '0')`)
		p.want("0")
		d.commit(bulk)
		last, n := [4]int{}, 0
		for n < rows {
			from := len(p.seen)
			if got := p.step(); got == 0 || got > 4*p.page {
				t.Fatalf("a page of %d after %d of %d", got, n, rows)
			}
			for _, label := range p.seen[from:] {
				i := 0
				if _, err := fmt.Sscan(label, &i); err != nil || i <= last[i%4] {
					t.Fatalf("%q came after %d: %v", label, last[i%4], err)
				}
				last[i%4] = i
				n++
			}
		}
		p.want()
	})
}

// More subtransactions than the server lists in a snapshot, half of them undone.
func TestThousandsOfSavepoints(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		tx := d.begin()
		loop := `DO $$ BEGIN FOR i IN 1..3000 LOOP BEGIN
			INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', i::text);
			IF i % 2 = 0 THEN RAISE EXCEPTION 'undone'; END IF;
			EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$`
		for range 2 {
			d.do(tx, loop)
			d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'other', 'other')`)
			o.want("other")
		}
		d.commit(tx)
		got := o.drain()
		for i, label := range got {
			if label != fmt.Sprint(i%1500*2+1) {
				t.Fatalf("message %d is %q", i, label)
			}
		}
		if len(got) != 3000 {
			t.Errorf("%d delivered, want 3000", len(got))
		}
	})
}

// A prepared transaction outlives a crash of the server, and so does what the
// cursor knows of it.
//
// Promises: L
func TestPreparedTransactionOutlivesCrash(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		pg, d := lazy(t, version)
		o := d.owner("a")
		for _, name := range []string{"kept", "undone"} {
			tx := d.begin()
			d.put(tx, name)
			d.do(tx, `PREPARE TRANSACTION '`+name+`'`)
		}
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'before')`)
		o.want("before")
		d.crash(pg)
		o.lease()
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'after')`)
		o.want("after")
		d.exec(`ROLLBACK PREPARED 'undone'`)
		d.exec(`COMMIT PREPARED 'kept'`)
		o.want("kept")
	})
}

// A sequence that was set back gives out numbers far below what the cursors
// remember of running transactions, thousands of them.
func TestSequenceSetBackFar(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k', g::text FROM generate_series(1, 5000) g`)
		o.drain()
		open := d.begin()
		d.put(open, "open")
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', g::text, 'x' FROM generate_series(1, 2000) g`)
		o.drain() // every lane remembers the open transaction
		top := d.count(`SELECT max(seq) FROM box.outbox`)
		d.exec(`SELECT setval('box.outbox_seq', 5)`)
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'z', g::text FROM generate_series(1, 3000) g`)
		_, err := o.store.Read(t.Context(), o.reads())
		wantIs(t, err, store.ErrIdentity)
		if now := d.count(`SELECT last_value FROM box.outbox_seq`); now <= top {
			t.Errorf("the sequence was lifted to %d, below the row %d", now, top)
		}
		o.lease()
		if got := o.drain(); len(got) != 3000 || got[0] != "1" || got[2999] != "3000" {
			t.Errorf("%d of 3000 delivered", len(got))
		}
		d.commit(open)
		o.want("open")
	})
}

// Nobody looked while the sequence was set back and had overtaken the cursors
// again: nothing can be seen from the sequence. Adopting finds the rows.
func TestAdoptAfterUnseenSetBack(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', CASE WHEN g = 20 THEN 'z' ELSE 'k' END, g::text FROM generate_series(1, 20) g`)
		if got := o.drain(); len(got) != 20 {
			t.Fatalf("%d delivered", len(got))
		}
		d.exec(`SELECT setval('box.outbox_seq', 5)`)
		want := []string{}
		for i := range 30 {
			if i == 14 {
				d.exec(`SELECT nextval('box.outbox_seq')`) // 20 is taken
			}
			want = append(want, fmt.Sprint("again ", i))
			d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'z', $1)`, want[i])
		}
		_, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Adopt: true})
		wantIs(t, err, store.ErrUnusable) // beside a relay
		if _, err = o.store.Lease(t.Context(), store.LeaseRequest{BootID: o.boot, TTL: time.Minute, Leave: true}); err != nil {
			t.Fatal(err)
		}
		steps, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Adopt: true, DryRun: true})
		if err != nil || len(steps) != 1 || d.count(`SELECT reset_xid FROM box.outbox_info`) != 0 {
			t.Fatalf("dry run: %+v, %v", steps, err)
		}
		if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Adopt: true}); err != nil {
			t.Fatal(err)
		}
		_, err = o.store.Read(t.Context(), o.reads())
		wantIs(t, err, store.ErrIdentity)
		o.lease()
		if got := o.drain(); !slices.Equal(got, want) {
			t.Errorf("delivered %q, want %q", got, want)
		}
	})
}
