package mysqlstore

import (
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/store"
	boxdb "github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// TestPagesShrinkOnTheServersTimeout: a page that the server does not finish in time is
// requested again with fewer records, down to one. Pages grow again when they are in time.
//
// Promises: S
func TestPagesShrinkOnTheServersTimeout(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		url := server.Database(t)
		db, locker := pool(t, url), pool(t, url)
		s := New(db, nil)
		if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 1}); err != nil {
			t.Fatal(err)
		}
		version, err := list[string](t.Context(), db, `SELECT VERSION()`)
		if err != nil {
			t.Fatal(err)
		}
		g, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		const messages = 40
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for range messages {
			if err := outbox.New(dialect.MySQL, nil).Enqueue(t.Context(), tx, postrider.Message{Topic: "orders", Type: "placed", Payload: make([]byte, 100)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		db.SetMaxOpenConns(1) // the time limit is that of its only session
		conn, err := locker.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		run := func(text string) {
			t.Helper()
			if _, err := conn.ExecContext(t.Context(), text); err != nil {
				t.Fatal(err)
			}
		}
		limit := func(on bool) {
			t.Helper()
			text := map[bool]string{true: "SET SESSION max_execution_time = 50", false: "SET SESSION max_execution_time = 0"}[on]
			if strings.Contains(version[0], "MariaDB") {
				text = map[bool]string{true: "SET SESSION max_statement_time = 0.05", false: "SET SESSION max_statement_time = 0"}[on]
			}
			if _, err := db.ExecContext(t.Context(), text); err != nil {
				t.Fatal(err)
			}
		}
		at := g.Lanes[0].Position
		read := func() (store.Batch, error) {
			all, err := s.Read(t.Context(), []store.LaneRead{{Lane: g.Lanes[0].Lane, Epoch: g.Lanes[0].Epoch, After: at, MaxRecords: 256, MaxBytes: 4 << 20}})
			if err != nil {
				return store.Batch{}, err
			}
			return all[0], nil
		}
		limit(true)
		run("LOCK TABLES postrider_outbox WRITE")
		for range 8 {
			if _, err := read(); !boxdb.TimedOut(err) {
				t.Fatalf("a read that the server ends: %v", err)
			}
		}
		run("UNLOCK TABLES")
		limit(false)
		var sizes []int
		for got := 0; got < messages; {
			b, err := read()
			if err != nil {
				t.Fatal(err)
			}
			if len(b.Messages) > 0 {
				sizes = append(sizes, len(b.Messages))
			}
			got, at = got+len(b.Messages), b.Position
		}
		if sizes[0] != 1 || sizes[len(sizes)-1] == 1 {
			t.Errorf("pages have %d records; want 1 at first and more later", sizes)
		}
	})
}
