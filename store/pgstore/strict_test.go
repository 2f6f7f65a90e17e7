package pgstore_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// strict makes topics strict.
func (d *db) strict(topics ...string) {
	d.Helper()
	for _, topic := range topics {
		changed, err := d.store("main").Office().Strict.SetStrict(d.Context(), ops.StrictRequest{Topic: topic, Strict: true, Actor: "ann"})
		if err != nil || !changed {
			d.Fatalf("make %q strict: %v, %v", topic, changed, err)
		}
	}
}

// versions are those of a key by number, as text.
func (d *db) versions(topic, key string) string {
	d.Helper()
	var list string
	err := d.pool.QueryRow(d.Context(), d.sql(`SELECT coalesce(string_agg(version::text, ' ' ORDER BY seq), '')
		FROM box.outbox WHERE topic = $1 AND key = $2`), topic, key).Scan(&list)
	if err != nil {
		d.Fatal(err)
	}
	return list
}

func (d *db) wantVersions(topic, key, want string) {
	d.Helper()
	if got := d.versions(topic, key); got != want {
		d.Errorf("versions of %s/%s are %q, want %q", topic, key, got, want)
	}
}

func (d *db) triggers() int64 {
	return d.count(`SELECT count(*) FROM pg_trigger WHERE tgrelid = 'box.outbox'::regclass AND NOT tgisinternal`)
}

// refusal is the error of a statement that the database must refuse.
func (d *db) refusal(text string, args ...any) *pgconn.PgError {
	d.Helper()
	_, err := d.pool.Exec(d.Context(), d.sql(text), args...)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		d.Fatalf("%s: got %v, want a refusal", text, err)
	}
	return pg
}

func TestStrictKeysAreNumberedForEveryWriter(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		if n := d.triggers(); n != 0 {
			t.Errorf("an outbox without strict topics has %d triggers", n)
		}
		d.strict("o'rders", "bills")
		d.exec(`INSERT INTO box.outbox (topic, key) VALUES ('o''rders', 'a'), ('o''rders', 'b'), ('o''rders', 'a'), ('plain', 'a'), ('bills', 'a'), ('o''rders', '')`)
		if _, err := d.pool.CopyFrom(t.Context(), pgx.Identifier{d.schema, "outbox"}, []string{"topic", "key"},
			pgx.CopyFromRows([][]any{{"o'rders", "a"}, {"o'rders", "b"}, {"plain", "a"}})); err != nil {
			t.Fatal(err)
		}
		tx := d.begin()
		ob := outbox.New(dialect.Postgres, &outbox.Options{Schema: d.schema, LockKeys: true})
		m := postrider.Message{Topic: "o'rders", Key: "a"}
		if err := ob.Enqueue(t.Context(), outbox.Pgx(tx), m, postrider.Message{Topic: "plain", Key: "a", Version: 7}, m); err != nil {
			t.Fatal(err)
		}
		if err := ob.Enqueue(t.Context(), outbox.Pgx(tx), m); err != nil {
			t.Fatal(err)
		}
		d.commit(tx)
		d.wantVersions("o'rders", "a", "1 2 3 4 5 6")
		d.wantVersions("o'rders", "b", "1 2")
		d.wantVersions("bills", "a", "1")
		d.wantVersions("plain", "a", "0 0 7")
		d.wantVersions("o'rders", "", "0")
		if n := d.count(`SELECT count(*) FROM box.key_version`); n != 3 {
			t.Errorf("%d keys are counted, want 3", n)
		}
	})
}

func TestStrictVersionsLeaveNoHoles(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		d.strict("t")
		for _, end := range []string{"COMMIT", "ROLLBACK", "COMMIT", "prepared", "COMMIT"} {
			tx := d.begin()
			d.put(tx, "x")
			d.do(tx, `SAVEPOINT a`)
			d.put(tx, "undone")
			d.do(tx, `ROLLBACK TO a`)
			d.put(tx, "y")
			if end == "prepared" {
				d.do(tx, `PREPARE TRANSACTION '`+d.schema+`'`)
				d.exec(`ROLLBACK PREPARED '` + d.schema + `'`)
				continue
			}
			d.do(tx, end)
		}
		d.wantVersions("t", "k", "1 2 3 4 5 6")
	})
}

// A number drawn before the key was free is drawn again, so that numbers and
// versions agree; the transaction had its id before both.
//
// Promises: O
func TestStrictNumberIsDrawnUnderTheLock(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.strict("t")
		first, second := d.begin(), d.begin()
		d.put(first, "first")
		waits := make(chan error, 1)
		go func() { // draws its number and waits
			_, err := second.Exec(t.Context(), d.sql(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'second')`))
			waits <- err
		}()
		d.waitUntil(`SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'
			AND pid = ` + fmt.Sprint(second.Conn().PgConn().PID()))
		d.put(first, "more") // a number above the waiting one
		o.want()
		d.commit(first)
		if err := <-waits; err != nil {
			t.Fatal(err)
		}
		o.want("first", "more")
		d.commit(second)
		o.want("second")
		d.wantVersions("t", "k", "1 2 3")
	})
}

// waitUntil polls a condition of the database.
func (d *db) waitUntil(condition string) {
	d.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		var ok bool
		if err := d.pool.QueryRow(d.Context(), d.sql(condition)).Scan(&ok); err != nil {
			d.Fatal(err)
		}
		if ok {
			return
		}
		if time.Now().After(deadline) {
			d.Fatalf("never came true: %s", condition)
		}
	}
}

func TestStrictRefusals(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		d.strict("t")
		d.exec(`INSERT INTO box.outbox (topic, key, version) VALUES ('t', 'secret', 1)`)
		pg := d.refusal(`INSERT INTO box.outbox (topic, key, version) VALUES ('t', 'secret', 3)`)
		if pg.ConstraintName != "strict_version_is_the_next" || !strings.Contains(pg.Message, "which is 2") || pg.Hint == "" {
			t.Errorf("%v, constraint %q, hint %q", pg, pg.ConstraintName, pg.Hint)
		}
		if strings.Contains(fmt.Sprint(pg.Message, pg.Detail, pg.Hint), "secret") {
			t.Errorf("the error names the key: %v", pg)
		}
		pg = d.refusal(`INSERT INTO box.outbox (topic, key, not_before) VALUES ('t', 'k', now())`)
		if pg.ConstraintName != "strict_messages_are_not_scheduled" {
			t.Errorf("%v, constraint %q", pg, pg.ConstraintName)
		}
		d.exec(`INSERT INTO box.outbox (topic, key, version) VALUES ('t', 'secret', 2)`)
		if _, err := d.store("main").Office().Strict.SetStrict(t.Context(), ops.StrictRequest{Topic: "", Strict: true, Actor: "ann"}); !errors.Is(err, postrider.ErrInvalid) {
			t.Errorf("an empty topic: %v", err)
		}
	})
}

// What was numbered by hand, or strictly before, continues.
func TestStrictGoesOnFromWhatIsThere(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		d.exec(`INSERT INTO box.outbox (topic, key, version) VALUES ('t', 'a', 8), ('t', 'a', 9), ('t', 'b', 0), ('u', 'a', 70)`)
		d.strict("t")
		insert := func(versions ...int) {
			for _, v := range versions {
				d.exec(`INSERT INTO box.outbox (topic, key, version) VALUES ('t', 'a', $1)`, v)
			}
		}
		d.exec(`INSERT INTO box.outbox (topic, key) VALUES ('t', 'a'), ('t', 'b')`)
		s := d.store("main")
		if changed, err := s.Office().Strict.SetStrict(t.Context(), ops.StrictRequest{Topic: "t", Strict: true, Actor: "ann"}); err != nil || changed {
			t.Errorf("again: %v, %v", changed, err)
		}
		if topics, err := s.Office().Strict.StrictTopics(t.Context()); err != nil || len(topics) != 1 || topics[0].Topic != "t" || time.Since(topics[0].Since) > time.Minute {
			t.Errorf("strict topics %v, %v", topics, err)
		}
		if changed, err := s.Office().Strict.SetStrict(t.Context(), ops.StrictRequest{Topic: "t", Actor: "bob", Reason: "why not"}); err != nil || !changed {
			t.Errorf("remove: %v, %v", changed, err)
		}
		if changed, err := s.Office().Strict.SetStrict(t.Context(), ops.StrictRequest{Topic: "t", Actor: "bob", Reason: "why not"}); err != nil || changed {
			t.Errorf("remove again: %v, %v", changed, err)
		}
		if n := d.triggers(); n != 0 {
			t.Errorf("%d triggers without a strict topic", n)
		}
		insert(11, 12)
		d.strict("t")
		if got := strings.Join(d.entries(), "; "); got != "ann strict add  done -; bob strict remove  done - why not; ann strict add  done -" {
			t.Errorf("the journal says %q", got)
		}
		insert(0)
		d.wantVersions("t", "a", "8 9 10 11 12 13")
		d.wantVersions("t", "b", "0 1")
	})
}

// A transaction that wrote before the topic was strict is waited for, briefly;
// writers are held up no longer than that.
func TestStrictWaitsForWriters(t *testing.T) {
	trap(t, func(d *db, _ *owner) {
		open := d.begin()
		d.do(open, `INSERT INTO box.outbox (topic, key, version) VALUES ('t', 'k', 5)`)
		_, err := d.store("main").Office().Strict.SetStrict(t.Context(), ops.StrictRequest{Topic: "t", Strict: true, Actor: "ann"})
		var busy *ops.BusyError
		if !errors.As(err, &busy) || busy.PID != int(open.Conn().PgConn().PID()) {
			t.Errorf("got %v, want a *BusyError that names the session", err)
		}
		if n := d.triggers() + d.count(`SELECT count(*) FROM box.strict_topic`); n != 0 {
			t.Error("a refused change has changed something")
		}
		d.commit(open)
		d.strict("t")
		d.exec(`INSERT INTO box.outbox (topic, key) VALUES ('t', 'k')`)
		d.wantVersions("t", "k", "5 6")
	})
}

// A writer of the table alone may write into strict topics, and no more.
func TestStrictNeedsNoRightOfTheWriter(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		d.strict("t")
		role := strings.ToLower(d.schema) + "_writer"
		d.role(role)
		d.exec(`REVOKE ALL ON ALL TABLES IN SCHEMA "` + d.schema + `" FROM ` + role)
		d.exec(`GRANT INSERT (topic, key, type, version) ON box.outbox TO ` + role)
		pool := d.as(role)
		if _, err := pool.Exec(t.Context(), d.sql(`SET search_path = pg_temp; INSERT INTO box.outbox (topic, key) VALUES ('t', 'k')`)); err != nil {
			t.Fatal(err)
		}
		d.wantVersions("t", "k", "1")
		_, err := pgstore.New(pool, &pgstore.Options{Schema: d.schema}).Office().Strict.SetStrict(t.Context(), ops.StrictRequest{Topic: "u", Strict: true, Actor: "ann"})
		wantIs(t, err, store.ErrUnusable)
	})
}

// Two transactions that write keys in opposite order deadlock, which the server
// ends; with LockKeys they do not.
func TestLockKeysAvoidsDeadlocks(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		d.strict("t")
		ob := outbox.New(dialect.Postgres, &outbox.Options{Schema: d.schema, LockKeys: true})
		keys := []string{"a", "b", "c", "d"}
		failed := make(chan error, 8)
		for range cap(failed) {
			go func() {
				mine := slices.Clone(keys)
				var err error
				for i := 0; i < 25 && err == nil; i++ {
					err = pgx.BeginFunc(t.Context(), d.pool, func(tx pgx.Tx) error {
						msgs := make([]postrider.Message, 0, 2*len(mine))
						for range 2 {
							for _, key := range mine {
								msgs = append(msgs, postrider.Message{Topic: "t", Key: key})
							}
						}
						return ob.Enqueue(t.Context(), outbox.Pgx(tx), msgs...)
					})
					slices.Reverse(mine)
				}
				failed <- err
			}()
		}
		for range cap(failed) {
			if err := <-failed; err != nil {
				t.Errorf("a writer of several keys: %v", err)
			}
		}
		want := int64(25 * 2 * cap(failed))
		if n := d.count(`SELECT min(version) FROM box.key_version`); n != want {
			t.Errorf("the last version is %d, want %d", n, want)
		}
	})
}

// A strict topic stays strict in an outbox that is converted to partitions, and
// keys continue over the end of one. A writer that waited for a key meanwhile is told
// to repeat: its number belongs to the partition before.
func TestStrictKeysInPartitions(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.strict("t")
		tx := d.begin()
		d.put(tx, "a")
		d.commit(tx)
		d.convert()
		d.tend(ops.TendRequest{OlderThan: keep})
		first, second := d.begin(), d.begin()
		d.put(first, "b")
		waits := make(chan error, 1)
		go func() {
			_, err := second.Exec(t.Context(), d.sql(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'c')`))
			waits <- err
		}()
		d.waitUntil(`SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'
			AND pid = ` + fmt.Sprint(second.Conn().PgConn().PID()))
		d.exec(`SELECT setval('box.outbox_seq', box.partition_size() * (1 + last_value / box.partition_size())) FROM box.outbox_seq`)
		d.put(first, "d")
		d.commit(first)
		var pg *pgconn.PgError
		if err := <-waits; !errors.As(err, &pg) || pg.Code != "40001" || pg.Hint == "" {
			t.Fatalf("the writer that waited over the end of its partition: %v", err)
		}
		tx = d.begin()
		d.put(tx, "c")
		d.commit(tx)
		o.want("a", "b", "d", "c")
		d.wantVersions("t", "k", "1 2 3 4")
		s := d.store("main")
		d.strict("u")
		for _, topic := range []string{"t", "u"} {
			if changed, err := s.Office().Strict.SetStrict(t.Context(), ops.StrictRequest{Topic: topic, Actor: "ann"}); err != nil || !changed {
				t.Errorf("remove %s: %v, %v", topic, changed, err)
			}
		}
		if n := d.triggers(); n != 0 {
			t.Errorf("%d triggers are left", n)
		}
	})
}
