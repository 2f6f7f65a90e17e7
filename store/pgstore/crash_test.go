package pgstore_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// lazy is a server that writes its log to disk at a commit and at no other time.
func lazy(t *testing.T, version string) (*testserver.Postgres, *db) {
	t.Helper()
	pg := testserver.StartPostgres(t, version, testserver.WithConfig("wal_writer_delay = 10s",
		"wal_writer_flush_after = 1GB", "checkpoint_timeout = 1h", "autovacuum = off"))
	d := &db{T: t, pool: newPool(t, pg.URL), schema: "box", lanes: 1}
	if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 1}); err != nil {
		t.Fatal(err)
	}
	return pg, d
}

// crash kills the server and starts it again.
func (d *db) crash(pg *testserver.Postgres) {
	d.Helper()
	if err := pg.Kill(); err != nil {
		d.Fatal(err)
	}
	if err := pg.Restart(); err != nil {
		d.Fatal(err)
	}
	d.pool.Reset()
}

// crashSession kills one session: the server ends all others, recovers as
// after a crash, and remains the same process.
func (d *db) crashSession(*testserver.Postgres) {
	d.Helper()
	const since = `SELECT pg_backend_pid(), pg_stat_get_bgwriter_stat_reset_time()::text`
	var pid, next int
	var before, now string
	if err := d.pool.QueryRow(d.Context(), since).Scan(&pid, &before); err != nil {
		d.Fatal(err)
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		d.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		d.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; d.pool.Reset() {
		if err = d.pool.QueryRow(d.Context(), since).Scan(&next, &now); err == nil && now != before {
			return
		}
		if time.Now().After(deadline) {
			d.Fatalf("the server does not come back: %v", err)
		}
	}
}

// A crash takes back numbers and transaction ids that were given
// out and not yet on disk. A position that was read before it and not settled
// may lie above rows that are written after it.
//
// Promises: L
func TestCrashTakesNumbersBack(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		for name, crash := range map[string]func(*db, *testserver.Postgres){"server": (*db).crash, "session": (*db).crashSession} {
			t.Run(name, func(t *testing.T) { crashTakesNumbersBack(t, version, crash) })
		}
	})
}

func crashTakesNumbersBack(t *testing.T, version string, crash func(*db, *testserver.Postgres)) {
	t.Helper()
	pg, d := lazy(t, version)
	o := d.owner("a")
	o.want()
	d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'first')`)
	open := d.begin() // numbers far above what the log on disk knows
	d.do(open, `INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k', 'never' FROM generate_series(1, 100)`)
	ahead, err := o.store.Read(t.Context(), o.reads())
	if err != nil || len(ahead) != 1 || len(ahead[0].Messages) != 1 {
		t.Fatalf("read %+v, %v", ahead, err)
	}
	before := d.count(`SELECT last_value FROM box.outbox_seq`)
	crash(d, pg)
	if now := d.count(`SELECT last_value FROM box.outbox_seq`); now >= before {
		t.Fatalf("the sequence stood at %d and stands at %d: the crash took nothing back", before, now)
	}
	for range 60 { // every one a transaction: ids above those that ran before
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k', 'second' FROM generate_series(1, 2)`)
	}
	reads := o.reads()
	reads[0].After, reads[0].MaxRecords = ahead[0].Position, 1000
	if again, err := o.store.Read(t.Context(), reads); !errors.Is(err, store.ErrIdentity) {
		t.Errorf("read on from a position of before the crash: %d batches, %v", len(again), err)
	}
	_, err = o.store.Settle(t.Context(), []store.Settlement{{
		BootID: "a", Lane: 0, Epoch: o.grant[0].Epoch,
		Position: ahead[0].Position, Delivered: 1,
	}})
	wantIs(t, err, store.ErrIdentity)
	o.lease()
	if got := o.drain(); len(got) != 121 {
		t.Errorf("%d delivered after the crash, want 121", len(got))
	}
}
