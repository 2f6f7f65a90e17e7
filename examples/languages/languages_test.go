package languages

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// language is how the programs of a language are run: in dir, with args behind
// the command of each.
type language struct {
	dir              string
	writer, consumer []string
	database         string
}

// TestLanguages: each language places orders and makes one invoice of each
// order, two consumers at once, each of which has every message twice.
//
// Promises: E
func TestLanguages(t *testing.T) {
	address := testserver.SharedPostgres(t, testserver.PostgresVersions()[0]).Database(t)
	db, err := sql.Open("pgx", address)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	bus := shop(t, db, address)
	written := 0
	for name, find := range map[string]func(testing.TB, string) language{"typescript": typescript, "python": python, "java": java} {
		t.Run(name, func(t *testing.T) {
			l := find(t, address)
			orders := []string{name + "-1", name + "-2", name + "-3"}
			l.run(t, "", slices.Concat(l.writer, orders)...)
			written += len(orders)
			lines := ""
			for _, e := range delivered(t, bus, written) {
				m := &e.Message
				lines += strings.Repeat(strings.Join([]string{m.ID, m.Topic, m.Type, m.Key, string(m.Payload)}, "\t")+"\n", 2)
			}
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() {
					if out := l.run(t, lines, l.consumer...); strings.Count(out, "ack ") != strings.Count(lines, "\n") {
						t.Errorf("acknowledged: %s", out)
					}
				})
			}
			both.Wait()
			var invoices, distinct, placed int
			err := db.QueryRow(`SELECT count(*), count(DISTINCT order_id), (SELECT count(*) FROM orders WHERE id LIKE $2)
				FROM invoice WHERE consumer = $1`, "billing-"+name, name+"-%").Scan(&invoices, &distinct, &placed)
			if err != nil || placed != len(orders) || invoices != written || distinct != written {
				t.Errorf("%d orders placed, %d invoices of %d orders, %v; want %d, %d of %d", placed, invoices, distinct, err, len(orders), written, written)
			}
		})
	}
}

// shop makes the tables and starts a relay.
func shop(t *testing.T, db *sql.DB, address string) *membroker.Broker {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	st, bus := pgstore.New(pool, nil), membroker.New(nil)
	_, err = st.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{})
	tx, begin := db.Begin()
	if err := errors.Join(err, begin); err != nil {
		t.Fatal(err)
	}
	// Nothing forbids a second invoice: it must be seen.
	_, err = tx.Exec("CREATE TABLE orders (id text PRIMARY KEY, item text NOT NULL); CREATE TABLE invoice (consumer text NOT NULL, order_id text NOT NULL)")
	if err := errors.Join(err, inbox.New(dialect.Postgres, "billing", nil).Migrate(t.Context(), tx), tx.Commit()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- relay.New(st, bus.Sink(), nil).Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the relay: %v", err)
		}
	})
	return bus
}

// delivered waits until the relay has brought n messages.
func delivered(t *testing.T, bus *membroker.Broker, n int) []membroker.Entry {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(5 * time.Minute); ; {
		if got := bus.Log("orders"); len(got) >= n {
			return got
		}
		select {
		case <-limit:
			t.Fatalf("%d of %d messages were delivered", len(bus.Log("orders")), n)
		case <-tick.C:
		}
	}
}

// run runs a program, which must succeed, and returns what it printed.
func (l *language) run(tb testing.TB, input string, command ...string) string {
	tb.Helper()
	p := testserver.Program{Dir: l.dir, Env: []string{"DATABASE_URL=" + l.database}, Command: command}
	out, err := p.Run(tb.Context(), input)
	if err != nil {
		tb.Error(err)
	}
	return out
}

func typescript(tb testing.TB, address string) language {
	tb.Helper()
	node, libs := testserver.NodeModules(tb, "typescript")
	dir := tb.TempDir()
	files, err := filepath.Glob("typescript/*")
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range files {
		if fi, err := os.Stat(f); err == nil && !fi.IsDir() {
			if err := testserver.CopyFile(f, dir); err != nil {
				tb.Fatal(err)
			}
		}
	}
	if err := os.Symlink(filepath.Join(libs, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		tb.Fatal(err)
	}
	l := language{dir: dir, writer: []string{node, "dist/writer.js"}, consumer: []string{node, "dist/consumer.js"}, database: address}
	l.run(tb, "", node, "node_modules/typescript/bin/tsc")
	return l
}

func python(tb testing.TB, address string) language {
	tb.Helper()
	bin := testserver.PythonVenv(tb, "python")
	return language{dir: "python", writer: []string{bin, "-B", "writer.py"}, consumer: []string{bin, "-B", "consumer.py"}, database: address}
}

func java(tb testing.TB, address string) language {
	tb.Helper()
	command := testserver.Java(tb, "java")
	u, err := url.Parse(address)
	if err != nil {
		tb.Fatal(err)
	}
	q := u.Query()
	q.Set("user", u.User.Username())
	return language{
		dir: "java", writer: append(slices.Clone(command), "Writer.java"), consumer: append(slices.Clone(command), "Consumer.java"),
		database: "jdbc:postgresql://" + u.Host + u.Path + "?" + q.Encode(),
	}
}
