package promises

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
)

const readPostgres = `SELECT id::text, topic, key, type, payload, content_type, headers::text, version, schema_version,
coalesce((extract(epoch from not_before) * 1000000)::bigint, 0) FROM postrider.outbox ORDER BY seq`

const readSQLite = `SELECT id, topic, key, type, payload, content_type, headers, version, schema_version,
coalesce(not_before, 0) FROM postrider_outbox ORDER BY seq`

func readBack(t *testing.T, db *sql.DB, query string) []postrider.Message {
	t.Helper()
	rows, err := db.Query(query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var out []postrider.Message
	for rows.Next() {
		var m postrider.Message
		var headers string
		var due int64
		if err := rows.Scan(&m.ID, &m.Topic, &m.Key, &m.Type, &m.Payload, &m.ContentType, &headers, &m.Version, &m.SchemaVersion, &due); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(headers), &m.Headers); err != nil {
			t.Fatal(err)
		}
		if due != 0 {
			m.NotBefore = time.UnixMicro(due).UTC()
		}
		out = append(out, m)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// awkward returns messages that a careless encoding would change.
func awkward() []postrider.Message {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	return []postrider.Message{
		{Topic: "t"},
		{
			Topic: `a,b{}"\`, Key: "NULL", Type: " x ", Payload: every, ContentType: "text/plain; charset=\"utf-8\"",
			Headers: map[string]string{"q": `"\,{}' é <&>`, "empty": ""}, Version: 1<<63 - 1, SchemaVersion: 1<<31 - 1,
		},
		{Topic: "ünï", Key: "'; DROP TABLE x; --", Type: "$1 ? :a @b", Payload: []byte(`\x00`), NotBefore: time.Date(2031, 5, 6, 7, 8, 9, 123456000, time.UTC)},
		{ID: "01890A5D-AC96-774B-BCCE-B302099A8057", Topic: "t", Key: "\t\n\r\u2028", Payload: []byte("\r\n")},
	}
}

func same(got, want postrider.Message) bool {
	return got.Topic == want.Topic && got.Key == want.Key && got.Type == want.Type && bytes.Equal(got.Payload, want.Payload) &&
		got.ContentType == want.ContentType && maps.Equal(got.Headers, want.Headers) && got.Version == want.Version &&
		got.SchemaVersion == want.SchemaVersion && got.NotBefore.Equal(want.NotBefore)
}

// check enqueues singly and in batches and reads the table back.
func check(t *testing.T, e enqueuer, read func() []postrider.Message) {
	t.Helper()
	ob := outbox.New(dialect.Postgres, nil)
	if e.name == "sqlite" {
		ob = outbox.New(dialect.SQLite, nil)
	}
	msgs := awkward()
	many := make([]postrider.Message, 10_001)
	for i := range many {
		many[i] = postrider.Message{Topic: "many", Key: fmt.Sprint(i)}
	}
	var ids []string
	err := e.do(t.Context(), func(tx outbox.Tx) error {
		for _, batch := range [][]postrider.Message{msgs[:1], msgs[1:2], msgs[2:3], msgs[3:4], many} {
			got, err := ob.EnqueueIDs(t.Context(), tx, batch...)
			if err != nil {
				return err
			}
			ids = append(ids, got...)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	msgs[3].ID = "" // the id of a message is unique
	err = e.do(t.Context(), func(tx outbox.Tx) error {
		got, err := ob.EnqueueIDs(t.Context(), tx, msgs...)
		ids = append(ids, got...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := append(append(append([]postrider.Message{}, msgs...), many...), msgs...)
	got := read()
	if len(got) != len(want) {
		t.Fatalf("%d rows, want %d", len(got), len(want))
	}
	for i := range want {
		if !same(got[i], want[i]) || got[i].ID != ids[i] {
			t.Fatalf("row %d\n got %+v\nwant %+v with the id %s", i, got[i], want[i], ids[i])
		}
	}
	if ids[3] != "01890a5d-ac96-774b-bcce-b302099a8057" {
		t.Errorf("the given id was read as %s", ids[3])
	}
}

// Promises: A
func TestEnqueueThroughEveryDriver(t *testing.T) {
	everyVersion(t, func(t *testing.T, url string) {
		db := openSQL(t, "pgx", url)
		for _, e := range enqueuers(t, url) {
			t.Run(e.name, func(t *testing.T) {
				if _, err := db.Exec("DELETE FROM postrider.outbox"); err != nil {
					t.Fatal(err)
				}
				check(t, e, func() []postrider.Message { return readBack(t, db, readPostgres) })
			})
		}
	})
	t.Run("sqlite", func(t *testing.T) {
		db, _ := sqlite(t)
		sqliteOutbox(t, db)
		check(t, enqueuer{"sqlite", throughSQL(db)}, func() []postrider.Message { return readBack(t, db, readSQLite) })
	})
}

// Promises: P
func TestRollbackLeavesNothing(t *testing.T) {
	url := postgres18(t)
	undone := errors.New("undone")
	for _, e := range enqueuers(t, url) {
		err := e.do(t.Context(), func(tx outbox.Tx) error {
			if err := outbox.New(dialect.Postgres, nil).Enqueue(t.Context(), tx, awkward()...); err != nil {
				return err
			}
			return undone
		})
		if !errors.Is(err, undone) {
			t.Fatalf("%s: %v", e.name, err)
		}
	}
	if got := readBack(t, openSQL(t, "pgx", url), readPostgres); len(got) != 0 {
		t.Errorf("%d rows after rollbacks", len(got))
	}
}

func postgres18(tb testing.TB) string {
	tb.Helper()
	return postgresDB(tb, "18")
}

// TestGORM: GORM returns an interface that may contain a pool instead of a transaction.
func TestGORM(t *testing.T) {
	url := postgres18(t)
	db, err := gorm.Open(postgres.Open(url), &gorm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if pool, err := db.DB(); err == nil {
		t.Cleanup(func() { _ = pool.Close() })
	}
	ob := outbox.New(dialect.Postgres, nil)
	ctx := context.Background()
	for name, g := range map[string]*gorm.DB{"pool": db, "prepared": db.Session(&gorm.Session{PrepareStmt: true})} {
		err = ob.Enqueue(ctx, outbox.Unchecked(g.Statement.ConnPool), postrider.Message{Topic: "t"})
		var nt *outbox.NotTxError
		if !errors.As(err, &nt) {
			t.Errorf("%s outside a transaction: got %v, want a *NotTxError", name, err)
		}
		err = g.Transaction(func(tx *gorm.DB) error {
			return ob.Enqueue(ctx, outbox.Unchecked(tx.Statement.ConnPool), postrider.Message{Topic: "t"})
		})
		if err != nil {
			t.Errorf("%s inside a transaction: %v", name, err)
		}
	}
	if got := readBack(t, openSQL(t, "pgx", url), readPostgres); len(got) != 2 {
		t.Errorf("%d rows, want 2", len(got))
	}
}
