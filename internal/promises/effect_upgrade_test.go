package promises

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/ops"
)

// olderInbox makes the tables and functions of version 1, with a claim, a stashed message
// and a dead letter.
func olderInbox(t *testing.T, db *sql.DB, d dialect.Dialect) *inboxwork.Inbox {
	t.Helper()
	text, err := os.ReadFile("testdata/inbox1." + d.String() + ".sql")
	if err != nil {
		t.Fatal(err)
	}
	in := inboxwork.New(d, "billing", nil)
	rows := strings.NewReplacer("{inbox}", strings.TrimSuffix(attemptTable(in, db), "_attempt"), "{stash}", table(in, db, "stash"), "{attempt}", attemptTable(in, db), "{now}", map[bool]string{true: "now()", false: "1"}[d == dialect.Postgres]).Replace(
		`INSERT INTO {inbox} (consumer, message_id, topic, type, processed_at) VALUES ('billing', 'done', 't', 'x', {now}), ('billing', 'waits', 't', 'x', {now}), ('billing', 'dead', 't', 'x', {now});
INSERT INTO {stash} (consumer, message_id, topic, key, type, origin, needs, version, schema_version, payload, content_type, headers, stashed_at)
VALUES ('billing', 'waits', 't', 'k', 'x', '', 0, 1, 0, '', '', '{}', {now});
INSERT INTO {attempt} (consumer, message_id, topic, key, type, origin, attempts, state, next_at, updated_at, payload, content_type, headers, version, schema_version)
VALUES ('billing', 'dead', 't', 'l', 'x', '', 3, 'dead', {now}, {now}, '', '', '{}', 1, 0);`)
	for _, text := range []string{"DROP SCHEMA IF EXISTS postrider CASCADE", string(text), rows} {
		if d == dialect.SQLite && strings.HasPrefix(text, "DROP") {
			continue
		}
		if _, err := db.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	return in
}

func wantOutcome(t *testing.T, db *sql.DB, in *inboxwork.Inbox, id string, want inbox.Outcome) {
	t.Helper()
	inTx(t, db, func(tx inbox.Conn) error {
		c, err := in.Lookup(t.Context(), tx, id)
		if err == nil && (c == nil || c.Outcome != want) {
			t.Errorf("message %s: %+v, want %s", id, c, want)
		}
		return err
	})
}

// TestInboxUpgrade: concurrent migrations bring tables of version 1 to the newest version.
// The tables keep their rows, and work that was begun there continues.
//
// Promises: E
func TestInboxUpgrade(t *testing.T) {
	each := func(t *testing.T, db *sql.DB, d dialect.Dialect) {
		in := olderInbox(t, db, d)
		boxes := admin.Inboxes{DB: db, Dialect: d}
		wantTables(t, boxes, ops.Critical, "version 1")
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := boxes.Migrate(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		wantTables(t, boxes, ops.OK, "")
		indexes := map[dialect.Dialect]string{dialect.Postgres: `SELECT count(*) FROM pg_indexes WHERE indexname = 'inbox_stash_needs'`, dialect.SQLite: `SELECT count(*) FROM sqlite_master WHERE name = 'postrider_inbox_stash_needs'`}
		if count(t, db, indexes[d]) != 1 {
			t.Error("the index by need is missing")
		}
		wantOutcome(t, db, in, "done", inbox.Applied)
		inTx(t, db, func(tx inbox.Conn) error {
			if fresh, err := in.Claim(t.Context(), tx, postrider.Message{ID: "done", Topic: "t"}); err != nil || fresh {
				t.Errorf("claimed again: %v, %v", fresh, err)
			}
			if err := in.Discard(t.Context(), tx, "dead"); err != nil {
				return err
			}
			n, _, err := in.Unstash(t.Context(), tx, "t", "k", 10, func(inboxwork.Stashed) error { return nil })
			if n != 1 {
				t.Errorf("%d stashed messages were applied, want 1", n)
			}
			return err
		})
		wantOutcome(t, db, in, "dead", inbox.Discarded)
		wantOutcome(t, db, in, "waits", inbox.Applied)
		// A program of the previous version beside it.
		if _, err := db.Exec("INSERT INTO " + strings.TrimSuffix(attemptTable(in, db), "_attempt") + " (consumer, message_id, topic, type, processed_at) SELECT 'billing', 'old', '', '', processed_at FROM " + strings.TrimSuffix(attemptTable(in, db), "_attempt") + " LIMIT 1"); err != nil {
			t.Fatal(err)
		}
		wantOutcome(t, db, in, "old", inbox.Applied)
	}
	everyVersion(t, func(t *testing.T, url string) { each(t, openSQL(t, "pgx", url), dialect.Postgres) })
	t.Run("sqlite", func(t *testing.T) {
		db, _ := sqlite(t)
		each(t, db, dialect.SQLite)
	})
}

// wantTables requires the doctor's finding about the tables.
func wantTables(t *testing.T, boxes admin.Inboxes, want ops.Severity, what string) {
	t.Helper()
	found, err := boxes.Doctor().Examine(t.Context(), ops.ExamineRequest{Only: []string{"consumer-tables"}})
	if err != nil || len(found) != 1 || found[0].Severity != want || !strings.Contains(found[0].What, what) {
		t.Errorf("the doctor reports %+v, %v; want severity %v and %q", found, err, want, what)
	}
}

// TestInboxUpgradeOfFunctions: functions of an older version are replaced and keep their
// grants, functions of a newer one stay, and a working consumer is not disturbed.
//
// Promises: E
func TestInboxUpgradeOfFunctions(t *testing.T) {
	versions := testserver.PostgresVersions()
	url := testserver.SharedPostgres(t, versions[len(versions)-1]).Database(t)
	db := openSQL(t, "pgx", url)
	in := olderInbox(t, db, dialect.Postgres)
	body := func() (text string) {
		if err := db.QueryRow(`SELECT prosrc FROM pg_proc WHERE oid = 'postrider.claim(text,text,text,text)'::regprocedure`).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	exec := func(text string) {
		t.Helper()
		if _, err := db.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	exec(`REVOKE EXECUTE ON FUNCTION postrider.claim FROM PUBLIC`)
	old := body()
	busy, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Rollback()
	if _, err := busy.Exec(`SELECT postrider.claim('billing', 'at work')`); err != nil {
		t.Fatal(err)
	}
	var again *inbox.RetryableError
	if err := migrateOnce(t.Context(), db, in); !errors.As(err, &again) || body() != old {
		t.Errorf("migrate beside a working consumer: %v; want a retryable error", err)
	}
	if err := busy.Commit(); err != nil {
		t.Fatal(err)
	}
	migrate(t, db, in.Inbox)
	if body() == old || !strings.Contains(body(), "status") {
		t.Error("claim() was not replaced")
	}
	if n := count(t, db, `SELECT count(*) FROM pg_proc p, aclexplode(p.proacl) a WHERE p.oid = 'postrider.claim(text,text,text,text)'::regprocedure AND a.grantee = 0`); n != 0 {
		t.Error("PUBLIC may call claim() again")
	}
	exec(`UPDATE postrider.inbox_schema SET version = version + 1`)
	exec(`CREATE OR REPLACE FUNCTION postrider.claim(consumer text, id text, topic text DEFAULT '', type text DEFAULT '') RETURNS boolean LANGUAGE sql AS 'SELECT true'`)
	newer := body()
	migrate(t, db, in.Inbox)
	if body() != newer {
		t.Error("the function of a newer version was replaced by an older one")
	}
}

// migrateOnce tries once to migrate.
func migrateOnce(ctx context.Context, db *sql.DB, in *inboxwork.Inbox) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := in.Migrate(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}
