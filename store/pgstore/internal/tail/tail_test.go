package tail_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/migrate"
	"github.com/postrider/postrider/store/pgstore/internal/tail"
)

// box is an outbox with a publication, and a bell that somebody waits for all the time.
type box struct {
	*testing.T
	server *testserver.Postgres
	pool   *pgxpool.Pool
	bell   *tail.Bell
	schema string
	rings  atomic.Int64 // Waits that ended early
	leave  func()       // ends the waiting
}

// bound is for anything to happen.
const bound = 2 * time.Minute

// waits is serves with a bell.
func waits(t *testing.T, version string) *box {
	t.Helper()
	b := serves(t, version)
	b.wait()
	return b
}

// serves starts a server of its own, since these tests change its settings, with an outbox and
// its publication.
func serves(t *testing.T, version string) *box {
	t.Helper()
	b := &box{T: t, server: testserver.StartPostgres(t, version), schema: "box"}
	b.pool = b.connect("postgres")
	if _, err := migrate.New(db.New(b.pool, b.schema, "main", time.Second), 4).Migrate(t.Context(), ops.MigrateRequest{Tail: true}); err != nil {
		t.Fatal(err)
	}
	b.exec(`CREATE ROLE app LOGIN`)
	return b
}

func (b *box) connect(role string) *pgxpool.Pool {
	b.Helper()
	cfg, err := pgxpool.ParseConfig(b.server.URL)
	if err != nil {
		b.Fatal(err)
	}
	cfg.ConnConfig.User = role
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

func (b *box) wait() { b.waitOn(b.connect("app")) }

func (b *box) waitOn(pool *pgxpool.Pool) {
	b.bell = tail.New(db.New(pool, b.schema, "main", time.Second), tail.Log)
	b.bell.Limit(0, 0, 200*time.Millisecond)
	b.bell.Name("BOOT")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			start := time.Now()
			if err := b.bell.Wait(ctx, 5*time.Second); err == nil && time.Since(start) < 4*time.Second {
				b.rings.Add(1)
			}
		}
	}()
	b.leave = func() { cancel(); <-ended }
	b.Cleanup(b.leave)
}

func (b *box) exec(text string, args ...any) {
	b.Helper()
	if _, err := b.pool.Exec(b.Context(), text, args...); err != nil {
		b.Fatalf("%s: %v", text, err)
	}
}

func (b *box) count(text string, args ...any) (n int64) {
	b.Helper()
	if err := b.pool.QueryRow(b.Context(), text, args...).Scan(&n); err != nil {
		b.Fatalf("%s: %v", text, err)
	}
	return n
}

// until waits for a condition.
func (b *box) until(what string, holds func() bool) {
	b.Helper()
	for end := time.Now().Add(bound); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			said := "nobody waits in this process"
			if b.bell != nil {
				said = fmt.Sprintf("the bell says %+v", b.bell.State())
			}
			b.Fatalf("%s: not within %v; %s", what, bound, said)
		}
	}
}

func (b *box) on() {
	b.Helper()
	b.until("the log is read", func() bool { return b.bell.State().Using == tail.Log })
}

// off waits until the log is not read, for a reason with this word, and the server has no slot.
func (b *box) off(word string) store.Wake {
	b.Helper()
	var w store.Wake
	b.until("the log is off: "+word, func() bool {
		w = b.bell.State()
		return w.Using != tail.Log && strings.Contains(w.Why, word)
	})
	if w.Fix == "" {
		b.Errorf("%s: no fix in %+v", word, w)
	}
	b.until("no slot is left", func() bool { return b.slots() == 0 })
	return w
}

func (b *box) slots() int64 {
	b.Helper()
	return b.count(`SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'postrider_tail_%'`)
}

// rung writes a message, and wants it told.
func (b *box) rung() {
	b.Helper()
	before := b.rings.Load()
	b.exec(`INSERT INTO box.outbox (topic) VALUES ('t')`)
	b.until("a commit rings", func() bool { return b.rings.Load() > before })
}

func onEach(t *testing.T, run func(t *testing.T, version string)) {
	t.Helper()
	for _, v := range testserver.PostgresVersions() {
		t.Run("pg"+v, func(t *testing.T) { run(t, v) })
	}
}

// Whatever keeps the log from being read, or ends it, is named with its fix; the slot is gone,
// and the log is read again once it is repaired. No commit waits for the relay, no standby misses
// a slot, no WAL is held back beyond the limit, and what passes by itself needs nobody.
//
// Promises: S, A, G
func TestTheLogIsReadOnlyWhereItHarmsNobody(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		t.Parallel()
		b := waits(t, version)
		for _, stage := range []struct {
			name string
			run  func(*box)
		}{
			{"role", (*box).role},
			{"session", (*box).session},
			{"publication", (*box).publication},
			{"standbys", (*box).standbys},
			{"places", (*box).places},
			{"ended", (*box).ended},
			{"open transaction", (*box).openTransaction},
			{"large transactions", (*box).largeTransactions},
			{"shutdown", (*box).shutdown},
			{"busy", (*box).busy},
			{"left", (*box).left},
		} {
			start := time.Now()
			stage.run(b)
			t.Logf("%s: %v", stage.name, time.Since(start).Round(time.Millisecond))
		}
	})
}

// role: without REPLICATION the relay polls, or listens where writers notify.
func (b *box) role() {
	if w := b.off("may not read the log"); !strings.Contains(w.Fix, "REPLICATION") {
		b.Errorf("fix %q", w.Fix)
	}
	b.migrate(ops.MigrateRequest{Notify: ops.NotifyOn})
	b.until("it listens instead", func() bool { return b.bell.State().Using == tail.Listen })
	b.migrate(ops.MigrateRequest{Notify: ops.NotifyOff})
	b.exec(`ALTER ROLE app REPLICATION`)
	b.on()
	b.rung()
}

// session: the slot has the relay's name, and is no candidate for a synchronous standby, also
// after it confirmed a position.
func (b *box) session() {
	if n := b.count(`SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'postrider_tail_boot_%' AND temporary AND active`); n != 1 {
		b.Errorf("%d temporary slots named after the relay", n)
	}
	confirmed := `SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name LIKE 'postrider_tail_%'`
	before := b.count(confirmed)
	b.exec(`CREATE TABLE wal AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)`)
	b.until("a position is confirmed", func() bool { return b.count(confirmed) > before })
	b.until("it is withdrawn", func() bool {
		return b.count(`SELECT count(*) FROM pg_stat_replication WHERE flush_lsn IS NULL AND sync_state = 'async'`) == 1
	})
}

// publication: 15 ends the session, 18 would be silent for ever.
func (b *box) publication() {
	for _, sql := range []string{`DROP PUBLICATION box_tail`, `ALTER PUBLICATION box_tail DROP TABLE box.outbox`} {
		b.exec(sql)
		b.off("publication")
		b.migrate(ops.MigrateRequest{Tail: true})
		b.on()
		b.rung()
	}
}

// standbys: where the relay's session would be a standby, it ends; it releases no commit before.
func (b *box) standbys() {
	set := func(names string) {
		b.Helper()
		b.exec(fmt.Sprintf(`ALTER SYSTEM SET synchronous_standby_names = '%s'`, names))
		b.exec(`SELECT pg_reload_conf()`)
	}
	for _, names := range []string{"*", `FIRST 1 (other, "postrider tail")`} {
		set(names)
		var commits atomic.Int64
		writing, stop := context.WithCancel(b.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for writing.Err() == nil {
				if _, err := b.pool.Exec(b.Context(), `INSERT INTO box.outbox (topic) VALUES ('t')`); err != nil {
					b.Error(err)
					return
				}
				commits.Add(1)
			}
		}()
		b.until("a commit waits for a standby", func() bool {
			return b.count(`SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`) == 1
		})
		before := commits.Load()
		b.off("synchronous_standby_names")
		if commits.Load() != before {
			b.Error("the relay released a commit that waits for a standby")
		}
		stop()
		set("")
		<-ended
		b.on()
	}
}

// places: a standby finds two slots and three walsenders free.
func (b *box) places() {
	cfg, err := pgconn.ParseConfig(b.server.URL)
	if err != nil {
		b.Fatal(err)
	}
	cfg.RuntimeParams["replication"] = "true"
	var others []*pgconn.PgConn
	for i := range 20 - tail.SendersLeft { // one more than may be, beside ours
		if i == 20-tail.SendersLeft-1 {
			b.on()
		}
		other, err := pgconn.ConnectConfig(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		others = append(others, other)
	}
	b.off("walsenders are free")
	for _, other := range others {
		if err := other.Close(b.Context()); err != nil {
			b.Error(err)
		}
	}
	b.on()
	var held []string
	for i := range 20 - tail.SlotsLeft { // one more than may be, beside ours
		held = append(held, fmt.Sprintf("other_%d", i))
		if i == 20-tail.SlotsLeft-1 {
			b.on()
		}
		b.exec(`SELECT pg_create_physical_replication_slot($1)`, held[i])
	}
	b.off("slots are free")
	for _, name := range held {
		b.exec(`SELECT pg_drop_replication_slot($1)`, name)
	}
	b.on()
}

func (b *box) ended() {
	for range 3 {
		var slot string
		if err := b.pool.QueryRow(b.Context(), `SELECT slot_name, pg_terminate_backend(active_pid) FROM pg_replication_slots`).Scan(&slot, nil); err != nil {
			b.Fatal(err)
		}
		b.until("another session", func() bool {
			return b.count(`SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name <> $1`, slot) == 1
		})
		b.on()
		b.rung()
	}
}

// openTransaction: a slot waits for the transactions that run when it is made, and gives up; Wait
// ends at its limit meanwhile, so that the relay polls. A transaction that is open later holds back
// WAL, and ends the slot at the limit.
func (b *box) openTransaction() {
	b.bell.Limit(4<<20, 0, 0)
	tx, err := b.pool.Begin(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(b.Context(), `INSERT INTO box.outbox (topic) VALUES ('open')`); err != nil {
		b.Fatal(err)
	}
	b.exec(`INSERT INTO wal SELECT repeat('x', 1000) FROM generate_series(1, 10000)`)
	b.off("MiB of WAL")
	b.off("open transaction")
	if err := b.bell.Wait(b.Context(), time.Millisecond); err != nil {
		b.Error(err)
	}
	if err := tx.Commit(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.bell.Limit(1<<30, 0, 0)
	b.on()
	b.rung()
}

// largeTransactions: what does not fit the server's memory is streamed, and nothing spilled.
func (b *box) largeTransactions() {
	b.bell.Limit(0, 1e9, 0)
	b.exec(`ALTER SYSTEM SET logical_decoding_work_mem = '64kB'`)
	b.exec(`SELECT pg_reload_conf()`)
	b.exec(`INSERT INTO wal SELECT repeat('x', 200) FROM generate_series(1, 20000)`)
	before := b.rings.Load()
	b.exec(`INSERT INTO box.outbox (topic, payload) SELECT 't', repeat('x', 200)::bytea FROM generate_series(1, 20000)`)
	b.until("a large commit rings", func() bool { return b.rings.Load() > before })
	b.rung()
	if n := b.count(`SELECT coalesce(sum(spill_bytes), 0)::bigint FROM pg_stat_replication_slots WHERE slot_name LIKE 'postrider_tail_%'`); n != 0 {
		b.Errorf("%d bytes were spilled to disk", n)
	}
}

// shutdown: the server ends at once while its log is read, and may come back without it.
func (b *box) shutdown() {
	for _, level := range []string{"replica", "logical"} {
		b.exec(`ALTER SYSTEM SET wal_level = ` + level)
		if err := b.server.Restart(); err != nil {
			b.Fatal(err)
		}
		b.pool.Reset()
		if level == "replica" {
			b.off("wal_level is replica")
		}
	}
	b.on()
	b.rung()
}

func (b *box) busy() {
	b.bell.Limit(0, 50, 0)
	stop := time.Now().Add(bound)
	for w := b.bell.State(); !strings.HasPrefix(w.Why, "busy"); w = b.bell.State() {
		if time.Now().After(stop) {
			b.Fatalf("not busy: %+v", w)
		}
		b.exec(`DO $$ BEGIN FOR i IN 1..500 LOOP INSERT INTO box.outbox (topic) VALUES ('t'); COMMIT; END LOOP; END $$`)
	}
	if w := b.bell.State(); w.Fix != "" {
		b.Errorf("busy is trouble: %+v", w)
	}
	b.until("no slot is left, or again", func() bool { return b.slots() == 0 || b.bell.State().Using == tail.Log })
}

// left: whoever stops waiting leaves no slot.
func (b *box) left() {
	b.leave()
	b.until("no slot is left", func() bool { return b.slots() == 0 })
}

func (b *box) migrate(req ops.MigrateRequest) {
	b.Helper()
	if _, err := migrate.New(db.New(b.pool, b.schema, "main", time.Second), 4).Migrate(b.Context(), req); err != nil {
		b.Fatal(err)
	}
}
