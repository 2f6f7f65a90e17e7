package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
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

// A server can give sessions of users without SUPER another character set than the one they asked for. Messages are
// read and parked as they were written.
//
// Promises: L
func TestTheCharacterSetIsTheStores(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		url := urlOf(t, server, db)
		for _, query := range []string{
			"CREATE USER IF NOT EXISTS plain@'%' IDENTIFIED BY 'secret'", "GRANT PROCESS ON *.* TO plain@'%'",
			"GRANT ALL ON " + url[strings.LastIndex(url, "/")+1:] + ".* TO plain@'%'", "SET GLOBAL init_connect = 'SET NAMES latin1'",
		} {
			if _, err := server.Query(t.Context(), "", query); err != nil {
				t.Fatal(err)
			}
		}
		defer func() {
			if _, err := db.ExecContext(context.WithoutCancel(t.Context()), "SET GLOBAL init_connect = ''"); err != nil {
				t.Error(err)
			}
		}()
		written := postrider.Message{Topic: "t", Key: "k", Type: "geliefert \U0001F69A", Headers: map[string]string{"a": "\U0001F69A \u00fc"}}
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := (writer{tx}).Enqueue(t.Context(), written); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		s := New(pool(t, strings.Replace(url, "root@", "plain:secret@", 1)), nil)
		g := lease(t, s, "a")
		b, err := s.Read(t.Context(), []store.LaneRead{{Lane: 0, MaxRecords: 10}})
		if err != nil || len(b[0].Messages) != 1 {
			t.Fatalf("%v, error %v", b, err)
		}
		m := b[0].Messages[0]
		st := store.Settlement{BootID: "a", Lane: 0, Epoch: g.Lanes[0].Epoch, Position: b[0].Position, Park: []store.Park{{Seq: b[0].Meta[0].Seq, Message: m, State: store.Dead}}}
		if lost, err := s.Settle(t.Context(), []store.Settlement{st}); err != nil || len(lost) > 0 {
			t.Fatalf("lost %v, error %v", lost, err)
		}
		parked, err := New(db, nil).Office().Admin.Parked(t.Context(), ops.ParkedQuery{})
		if err != nil || len(parked) != 1 {
			t.Fatalf("%d parked, error %v", len(parked), err)
		}
		for what, m := range map[string]postrider.Message{"read": m, "parked": parked[0].Message} {
			if m.Type != written.Type || !maps.Equal(m.Headers, written.Headers) {
				t.Errorf("%s: type %q, headers %q", what, m.Type, m.Headers)
			}
		}
	})
}

// A pool whose sessions would change texts, or never commit a settlement of one statement, is refused, and nothing
// is written.
func TestAPoolOfOtherSettingsIsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		for name, set := range map[string]struct{ value, found string }{
			"autocommit":               {"0", "OFF utf8mb4 utf8mb4 utf8mb4"},
			"character_set_client":     {"latin1", "ON latin1 utf8mb4 utf8mb4"},
			"character_set_connection": {"latin1", "ON utf8mb4 latin1 utf8mb4"},
			"character_set_results":    {"latin1", "ON utf8mb4 utf8mb4 latin1"},
		} {
			s := New(withParams(t, urlOf(t, server, db), map[string]string{name: set.value}), nil)
			_, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute})
			if !errors.Is(err, store.ErrUnusable) || !strings.Contains(err.Error(), set.found) || !strings.Contains(err.Error(), "OpenDB") {
				t.Errorf("%s: error %v", name, err)
			}
		}
		if alive, err := list[string](t.Context(), db, `SELECT boot_id FROM postrider_relay`); err != nil || len(alive) > 0 {
			t.Errorf("%v are alive, error %v", alive, err)
		}
	})
}
