package pgstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// repeatable opens the outbox with sessions of which a transaction sees one
// snapshot from its first statement on, as a database's or a role's default may say.
func (d *db) repeatable() *pgstore.Store {
	d.Helper()
	cfg := d.pool.Config()
	cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	pool, err := pgxpool.NewWithConfig(d.Context(), cfg)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(pool.Close)
	return pgstore.New(pool, &pgstore.Options{Schema: d.schema, Pipe: "main", Lanes: d.lanes})
}

// A batch that has waited for a pipe looks anew, whatever the sessions' default:
// a snapshot older than the lock shows no pipe, and the pipe's rows would go.
//
// Promises: L
func TestRetentionLooksAfterItsLock(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.insert(50)
		o.drain()
		d.look(o.store, ops.AuditRequest{})
		s := d.repeatable()
		tx := d.begin()
		d.do(tx, `LOCK TABLE box.pipe IN EXCLUSIVE MODE`)
		d.do(tx, `INSERT INTO box.pipe (name) VALUES ('late')`)
		done := make(chan error, 1)
		go func() {
			_, err := s.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "r"})
			done <- err
		}()
		d.awaitLock("pipe")
		d.commit(tx)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if d.rows() != 50 {
			t.Errorf("%d rows left: the pipe was to have 50", d.rows())
		}
	})
}

// A topic becomes strict behind its writers: what they commit while it waits for
// them counts, whatever the sessions' default.
//
// Promises: O
func TestStrictCountsWhatItWaitedFor(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		s := d.repeatable()
		tx := d.begin()
		d.do(tx, `INSERT INTO box.outbox (topic, key, version) VALUES ('t', 'k', 41)`)
		done := make(chan error, 1)
		go func() {
			_, err := s.Office().Strict.SetStrict(t.Context(), ops.StrictRequest{Topic: "t", Strict: true, Actor: "ann"})
			done <- err
		}()
		d.awaitLock("outbox")
		d.commit(tx)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		d.exec(`INSERT INTO box.outbox (topic, key) VALUES ('t', 'k')`)
		d.wantVersions("t", "k", "41 42")
	})
}

// A migration that has waited for another one sees what that one made.
func TestMigrationLooksAfterItsLock(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := empty(t, version, 4)
		s := d.repeatable()
		tx := d.begin() // as a migration that is under way
		d.do(tx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, "postrider migrate "+d.schema)
		done := make(chan error, 1)
		go func() {
			_, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{})
			done <- err
		}()
		d.awaitAdvisory()
		text, err := s.Office().Migrator.SQL(0, pgstore.Version)
		if err != nil {
			t.Fatal(err)
		}
		text = strings.NewReplacer("BEGIN;\n", "", "COMMIT;\n", "").Replace(text)
		if _, err := tx.Conn().PgConn().Exec(t.Context(), text).ReadAll(); err != nil {
			t.Fatal(err)
		}
		d.commit(tx)
		if err := <-done; err != nil {
			t.Errorf("the one that waited: %v", err)
		}
	})
}

// awaitAdvisory returns when somebody waits for an advisory lock of this outbox.
func (d *db) awaitAdvisory() {
	d.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if d.count(`SELECT count(*) FROM pg_locks l WHERE l.locktype = 'advisory' AND NOT l.granted
			AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended('postrider migrate `+d.schema+`', 0)`) > 0 {
			return
		}
	}
	d.Fatal("nobody waits for the migration")
}
