package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/inbox/inboxtest"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/inboxwork"
	"github.com/postrider/postrider/internal/testserver"
)

// TestInbox runs the suite of package inbox as consumers and applications open their
// databases: what the driver sends and counts, and what the session takes for an error,
// are settings of the application.
//
// Promises: O, E
func TestInbox(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		for name, set := range map[string]func(*mysql.Config){
			"consumer": func(c *mysql.Config) { c.InterpolateParams = true },
			"prepared": func(c *mysql.Config) {
				c.ClientFoundRows, c.ParseTime, c.Loc = true, true, time.FixedZone("far", 9*3600)
			},
			"lax": func(c *mysql.Config) {
				c.Params = map[string]string{"sql_mode": "'ANSI,NO_ENGINE_SUBSTITUTION'", "time_zone": "'+09:00'"}
			},
		} {
			t.Run(name, func(t *testing.T) {
				e, empty := newInbox(t, server, set)
				inboxtest.Run(t, func(t *testing.T) *inboxtest.Env {
					t.Helper()
					empty(t)
					return e
				})
			})
		}
	})
}

// applicationDB opens the database of a URL as an application does, at another address
// if there is one.
func applicationDB(t *testing.T, rawURL, addr string, set func(*mysql.Config)) *sql.DB {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	c := mysql.NewConfig()
	c.User, c.Net, c.Addr, c.DBName, c.Logger = u.User.Username(), "tcp", u.Host, strings.Trim(u.Path, "/"), &mysql.NopLogger{}
	if addr != "" {
		c.Addr = addr
	}
	set(c)
	connector, err := mysql.NewConnector(c)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// newInbox is an empty database with an inbox, whose transactions are as consumers have
// them, and how it becomes empty again.
func newInbox(t *testing.T, server *testserver.MySQL, set func(*mysql.Config)) (e *inboxtest.Env, empty func(t *testing.T)) {
	t.Helper()
	address := server.Database(t)
	db := applicationDB(t, address, "", set)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = inbox.New(dialect.MySQL, "any", nil).Migrate(t.Context(), tx)
	if err := errors.Join(err, tx.Commit()); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("CREATE TABLE effect (at BIGINT AUTO_INCREMENT PRIMARY KEY, name VARBINARY(512), n BIGINT)"); err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.New(strings.TrimSuffix(address[strings.Index(address, "@")+1:], address[strings.LastIndex(address, "/"):]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	line := applicationDB(t, address, proxy.Addr(), set)
	line.SetMaxIdleConns(-1) // a new connection each time: none is left from before the fault
	begin := func(db *sql.DB) func(context.Context) (inbox.Conn, error) {
		return func(ctx context.Context) (inbox.Conn, error) {
			tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
			return inbox.SQL(tx), err
		}
	}
	e = &inboxtest.Env{
		Dialect: dialect.MySQL, DB: db, Writers: true, Begin: begin(db),
		Once: func(ctx context.Context, in *inbox.Inbox, m postrider.Message, fn func(inbox.Conn) error) error {
			return in.Once(ctx, db, m, func(tx *sql.Tx) error { return fn(inbox.SQL(tx)) })
		},
		OnceBatch: func(ctx context.Context, in *inbox.Inbox, msgs []postrider.Message, fn func(inbox.Conn, []postrider.Message) error) error {
			return in.OnceBatch(ctx, db, msgs, func(tx *sql.Tx, fresh []postrider.Message) error { return fn(inbox.SQL(tx), fresh) })
		},
		Act: func(ctx context.Context, tx inbox.Conn, name string, n int64) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO effect (name, n) VALUES (?, ?)", name, n)
			return err
		},
		Acts: func(ctx context.Context) ([]string, error) {
			return list[string](ctx, db, "SELECT CONCAT(name, ' ', n) FROM effect ORDER BY at")
		},
		Age: func(ctx context.Context, d time.Duration) error {
			_, err := db.ExecContext(ctx, "UPDATE postrider_inbox SET processed_at = processed_at - ?", d.Microseconds())
			return err
		},
	}
	e.Touched = func(ctx context.Context, fn func(tx inbox.Conn) error) (rows int64, err error) {
		tx, err := e.Begin(ctx)
		if err != nil {
			return 0, err
		}
		defer tx.Rollback()
		before, err := rowsRead(ctx, tx)
		if err != nil {
			return 0, err
		}
		if err := fn(tx); err != nil {
			return 0, err
		}
		after, err := rowsRead(ctx, tx)
		return after - before, err
	}
	e.Line = &inboxtest.Line{Begin: begin(line), Cut: func() { proxy.Cut(0) }, Lose: func() { proxy.CutAnswer(1) }, Restore: proxy.Restore}
	return e, func(t *testing.T) {
		t.Helper()
		for _, table := range []string{"postrider_inbox", "postrider_inbox_attempt", "postrider_inbox_mark", "postrider_inbox_stash", "effect"} {
			if _, err := db.Exec("DELETE FROM " + table); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := db.Exec("TRUNCATE TABLE postrider_inbox_journal"); err != nil { // its rows stay for 7 days otherwise
			t.Fatal(err)
		}
	}
}

// rowsRead is how many rows the session has read in an index or behind one, of any table.
func rowsRead(ctx context.Context, tx inbox.Conn) (sum int64, err error) {
	for _, name := range []string{"Handler_read_next", "Handler_read_prev", "Handler_read_rnd_next"} {
		var (
			variable string
			n        int64
		)
		if err := tx.QueryRow(ctx, "SHOW SESSION STATUS LIKE '"+name+"'").Scan(&variable, &n); err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// TestAnInboxIsMadeByWhoeverMayAndFoundByOthers: a consumer that may create nothing sends
// Migrate at each start.
func TestAnInboxIsMadeByWhoeverMayAndFoundByOthers(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		address := server.Database(t)
		database := address[strings.LastIndex(address, "/")+1:]
		owner := pool(t, address)
		user := "consumer_" + database[2:]
		for _, text := range []string{
			"CREATE USER " + user + "@'127.0.0.1'", "GRANT SELECT, INSERT, UPDATE, DELETE ON " + database + ".* TO " + user + "@'127.0.0.1'",
		} {
			if _, err := owner.Exec(text); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { _, _ = owner.Exec("DROP USER " + user + "@'127.0.0.1'") })
		consumer := pool(t, strings.Replace(address, "root@", user+"@", 1))
		migrate := func(db *sql.DB) error {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			err = inbox.New(dialect.MySQL, "billing", nil).Migrate(t.Context(), tx)
			return errors.Join(err, tx.Commit())
		}
		if err := migrate(consumer); err == nil || !strings.Contains(err.Error(), "denied") {
			t.Fatalf("a user who may create nothing: %v", err)
		}
		for _, db := range []*sql.DB{owner, consumer, owner} {
			if err := migrate(db); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := owner.Exec("DROP TABLE postrider_inbox_stash"); err != nil {
			t.Fatal(err)
		}
		if err := migrate(consumer); err == nil {
			t.Error("a missing table was not found")
		}
		if err := migrate(owner); err != nil {
			t.Fatal(err)
		}
		version := 0
		tx, err := owner.BeginTx(t.Context(), nil)
		if err == nil {
			version, err = inboxwork.Version(t.Context(), inbox.SQL(tx), dialect.MySQL, "")
			err = errors.Join(err, tx.Rollback())
		}
		if err != nil || version != inbox.SchemaVersion {
			t.Errorf("the tables have version %d, %v", version, err)
		}
	})
}

// TestAHandlerThatHidesADeadlockIsNotAcknowledged: the server ends the whole transaction,
// and what the handler writes behind it stands by itself.
//
// Promises: E
func TestAHandlerThatHidesADeadlockIsNotAcknowledged(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		e, _ := newInbox(t, server, func(c *mysql.Config) { c.InterpolateParams = true })
		in := inbox.New(dialect.MySQL, "billing", nil)
		m := postrider.Message{ID: "a", Topic: "orders", Key: "k", Version: 1}
		// What a server does to the victim of a deadlock; a real one needs two that wait.
		err := e.Once(t.Context(), in, m, func(tx inbox.Conn) error {
			_, err := tx.ExecContext(t.Context(), "ROLLBACK")
			return err
		})
		if !errors.Is(err, inbox.ErrRolledBack) {
			t.Fatalf("Once: %v", err)
		}
		err = e.OnceBatch(t.Context(), in, []postrider.Message{m, {ID: "b", Topic: "orders"}}, func(tx inbox.Conn, _ []postrider.Message) error {
			_, err := tx.ExecContext(t.Context(), "ROLLBACK")
			return err
		})
		if !errors.Is(err, inbox.ErrRolledBack) {
			t.Fatalf("OnceBatch: %v", err)
		}
		acted := false
		if err := e.Once(t.Context(), in, m, func(inbox.Conn) error { acted = true; return nil }); err != nil || !acted {
			t.Errorf("the next delivery: acted %v, %v", acted, err)
		}
	})
}

// TestTheClaimOfAnotherProcessIsNotTakenForThatOfABatch: between the end of a transaction
// and the look behind its handler another process may process one of the messages. What
// its handler writes meanwhile stands by itself, also a table that it changes.
//
// Promises: E
func TestTheClaimOfAnotherProcessIsNotTakenForThatOfABatch(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		e, _ := newInbox(t, server, func(c *mysql.Config) { c.InterpolateParams = true })
		in, first, second := inbox.New(dialect.MySQL, "billing", nil), postrider.Message{ID: "a", Topic: "orders"}, postrider.Message{ID: "b", Topic: "orders"}
		err := e.OnceBatch(t.Context(), in, []postrider.Message{first, second}, func(tx inbox.Conn, _ []postrider.Message) error {
			if _, err := tx.ExecContext(t.Context(), "ROLLBACK"); err != nil {
				return err
			}
			return e.Once(t.Context(), in, first, func(inbox.Conn) error { return nil })
		})
		if !errors.Is(err, inbox.ErrRolledBack) {
			t.Fatalf("OnceBatch: %v", err)
		}
		fresh := 0
		count := func(_ inbox.Conn, msgs []postrider.Message) error { fresh += len(msgs); return nil }
		if err := e.OnceBatch(t.Context(), in, []postrider.Message{first, second}, count); err != nil || fresh != 1 {
			t.Errorf("the next delivery: %d messages are new, %v", fresh, err)
		}
		err = e.OnceBatch(t.Context(), in, []postrider.Message{{ID: "c", Topic: "orders"}, {ID: "d", Topic: "orders"}}, func(tx inbox.Conn, _ []postrider.Message) error {
			_, err := tx.ExecContext(t.Context(), "CREATE TABLE another (i INT)") // commits the claims
			return err
		})
		if err != nil {
			t.Errorf("a batch whose handler has made a table: %v", err)
		}
	})
}

// TestClaimsOfOneMicrosecond: two processes that retry together read the same time of the
// server's clock. Their claims differ all the same.
func TestClaimsOfOneMicrosecond(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		e, _ := newInbox(t, server, func(c *mysql.Config) {
			c.InterpolateParams = true
			c.Params = map[string]string{"timestamp": "1700000000.123456"} // of each session, for good
		})
		in, batch := inbox.New(dialect.MySQL, "billing", nil), []postrider.Message{{ID: "a", Topic: "orders"}, {ID: "b", Topic: "orders"}}
		err := e.OnceBatch(t.Context(), in, batch, func(tx inbox.Conn, _ []postrider.Message) error {
			if _, err := tx.ExecContext(t.Context(), "ROLLBACK"); err != nil {
				return err
			}
			return e.OnceBatch(t.Context(), in, batch, func(inbox.Conn, []postrider.Message) error { return nil })
		})
		if !errors.Is(err, inbox.ErrRolledBack) {
			t.Errorf("OnceBatch: %v", err)
		}
	})
}

// TestFewIDsAreFewRows: a consumer asks with each batch, whatever it has claimed before.
func TestFewIDsAreFewRows(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		e, _ := newInbox(t, server, func(c *mysql.Config) { c.InterpolateParams = true })
		in := inboxwork.New(dialect.MySQL, "billing", nil)
		var all []postrider.Message
		for n := range 3000 {
			all = append(all, postrider.Message{ID: fmt.Sprint("id-", n), Topic: "orders"})
		}
		if err := e.OnceBatch(t.Context(), in.Inbox, all, func(_ inbox.Conn, fresh []postrider.Message) error {
			if len(fresh) != len(all) {
				return fmt.Errorf("%d of %d are new", len(fresh), len(all))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := e.DB.(*sql.DB).Exec("ANALYZE TABLE postrider_inbox, postrider_inbox_attempt"); err != nil {
			t.Fatal(err)
		}
		n, err := e.Touched(t.Context(), func(tx inbox.Conn) error {
			_, tried := in.Tried(t.Context(), tx, all[100:110])
			done, err := in.Processed(t.Context(), tx, append(all[200:210:210], postrider.Message{ID: "another"}))
			if err == nil && (!done[0] || !done[9] || done[10]) {
				err = fmt.Errorf("processed: %v", done)
			}
			return errors.Join(tried, err)
		})
		if err != nil || n > 200 {
			t.Errorf("two looks for ten ids among 3,000 read %d rows, %v", n, err)
		}
	})
}
