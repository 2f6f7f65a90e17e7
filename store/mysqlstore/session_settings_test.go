package mysqlstore

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
)

// withParams returns a pool to the database of a URL whose sessions have other settings.
func withParams(t *testing.T, url string, params map[string]string) *sql.DB {
	t.Helper()
	cfg, _, err := config(url)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range params {
		cfg.Params[name] = value
	}
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(c)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// urlOf returns the URL of the database of a pool.
func urlOf(t *testing.T, server *testserver.MySQL, db *sql.DB) string {
	t.Helper()
	name, err := list[string](t.Context(), db, `SELECT DATABASE()`)
	if err != nil {
		t.Fatal(err)
	}
	return server.DatabaseURL(name[0])
}

// The mode ANSI hides the counter of the outbox. A healthy outbox is not taken for one whose numbers
// began again: its adoption would send all retained messages again.
//
// Promises: D
func TestAHiddenCounterIsNoReset(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		modes := []string{"ANSI"}
		if strings.HasPrefix(server.Version, "mariadb") {
			modes = append(modes, "ORACLE", "NO_TABLE_OPTIONS")
		}
		for _, mode := range modes {
			s := New(db, nil)
			if _, err := db.ExecContext(t.Context(), insert); err != nil {
				t.Fatal(err)
			}
			g := lease(t, s, "a")
			if got := carry(t, s, "a", &g); len(got) != 1 {
				t.Fatalf("read %v", got)
			}
			other := New(withParams(t, urlOf(t, server, db), map[string]string{"sql_mode": "'" + mode + "'"}), nil)
			_, err := other.Lease(t.Context(), store.LeaseRequest{BootID: "b", TTL: time.Minute})
			if !errors.Is(err, store.ErrUnusable) || !strings.Contains(err.Error(), "sql_mode") {
				t.Errorf("%s: error %v", mode, err)
			}
			if noted, err := list[string](t.Context(), db, `SELECT kind FROM postrider_alarm`); err != nil || len(noted) > 0 {
				t.Fatalf("%s: alarms %v were noted, error %v", mode, noted, err)
			}
		}
		// A pool of OpenDB sets the mode itself.
		before, err := server.Query(t.Context(), "", "SELECT @@GLOBAL.sql_mode")
		if err != nil {
			t.Fatal(err)
		}
		mode := func(value string) {
			if _, err := server.Query(t.Context(), "", "SET GLOBAL sql_mode = '"+value+"'"); err != nil {
				t.Error(err)
			}
		}
		mode("ANSI")
		defer mode(before[0][0])
		s := New(pool(t, urlOf(t, server, db)), nil)
		if _, err := db.ExecContext(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
		g := lease(t, s, "a")
		if got := carry(t, s, "a", &g); len(got) != 1 {
			t.Fatalf("read %v", got)
		}
		lease(t, s, "a")
	})
}
