package orders_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/examples/orders"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
	"github.com/postrider/postrider/store/sqlitestore"
)

// From an HTTP request to the stock, through outbox, relay, broker and inbox.
func TestOrdersReachTheStock(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		db, err := sqlitestore.OpenDB(filepath.Join(t.TempDir(), "shop.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		st := sqlitestore.New(db, nil)
		travel(t, db, dialect.SQLite, st, st.Office().Migrator)
	})
	t.Run("mysql", func(t *testing.T) {
		db, err := mysqlstore.OpenDB(testserver.SharedMySQL(t, testserver.MariaDB10).Database(t), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		st := mysqlstore.New(db, nil)
		travel(t, db, dialect.MySQL, st, st.Office().Migrator)
	})
	t.Run("postgres", func(t *testing.T) {
		url := testserver.SharedPostgres(t, "18").Database(t)
		db, err := sql.Open("pgx", url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		pool, err := pgxpool.New(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		st := pgstore.New(pool, nil)
		travel(t, db, dialect.Postgres, st, st.Office().Migrator)
	})
}

func travel(t *testing.T, db *sql.DB, d dialect.Dialect, st store.Store, m ops.Migrator) { //nolint:thelper // the body of its tests, whose lines should show
	if _, err := m.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	shop, house := orders.NewShop(db, d, nil), orders.NewWarehouse(db, d, "", log)
	for _, migrate := range []func(context.Context) error{shop.Migrate, house.Migrate} {
		if err := migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	api := httptest.NewServer(shop.Handler(log))
	defer api.Close()
	bus := membroker.New(nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- relay.New(st, bus.Sink(), nil).Run(ctx) }()
	go func() { ended <- house.Run(ctx, bus.Source(orders.Consumer, orders.Topic)) }()

	const n = 10
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { order(t, api.URL, fmt.Sprintf("o-%d", i)) })
	}
	wg.Wait()
	count := func(query string) (n int) {
		t.Helper()
		if err := db.QueryRow(query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for end := time.Now().Add(5 * time.Minute); count("SELECT coalesce(sum(moves), 0) FROM stock") < 3*n; {
		if time.Now().After(end) {
			t.Fatalf("%d of %d movements have reached the stock", count("SELECT count(*) FROM movements"), 3*n)
		}
		time.Sleep(20 * time.Millisecond)
	}
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	for query, want := range map[string]int{
		"SELECT count(*) FROM movements":                                      3 * n,
		"SELECT count(DISTINCT ref) FROM movements":                           3 * n,
		"SELECT count(*) FROM movements WHERE ref LIKE '%declined%'":          0,
		"SELECT reserved FROM stock WHERE sku = 'book'":                       0,
		"SELECT sold FROM stock WHERE sku = 'book'":                           2 * n,
		"SELECT count(*) FROM orders WHERE paid <> '' AND shipped <> ''":      n,
		"SELECT count(*) FROM orders WHERE id = '' OR qty < 1 OR placed = ''": 0,
	} {
		if got := count(query); got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
	if got := bus.Len(orders.Topic); got != 3*n {
		t.Errorf("%d messages published, want %d", got, 3*n)
	}
}

// order takes one order through its steps, and tries what must not work.
func order(t *testing.T, url, id string) {
	t.Helper()
	for _, step := range []struct {
		path, body string
		want       int
	}{
		{"/orders", "no JSON", http.StatusBadRequest},
		{"/orders", `{}`, http.StatusBadRequest},
		{"/orders", `{"order":"ID","ref":"ID/placed","sku":"book","qty":-1}`, http.StatusBadRequest},
		{"/orders", `{"order":"ID","ref":"ID/placed","sku":"book","qty":2}`, http.StatusNoContent},
		{"/orders", `{"order":"ID","ref":"ID/again","sku":"book","qty":2}`, http.StatusConflict},
		{"/orders/ID/ship", `{"ref":"ID/early"}`, http.StatusConflict},
		{"/orders/ID/pay", `{}`, http.StatusBadRequest},
		{"/orders/ID/pay", `{"ref":"ID/declined","declined":true}`, http.StatusPaymentRequired},
		{"/orders/ID/pay", `{"ref":"ID/paid"}`, http.StatusNoContent},
		{"/orders/ID/pay", `{"ref":"ID/paid-again"}`, http.StatusConflict},
		{"/orders/ID/ship", `{"ref":"ID/shipped"}`, http.StatusNoContent},
		{"/orders/ID/ship", `{"ref":"ID/shipped-again"}`, http.StatusConflict},
		{"/orders/nobody/pay", `{"ref":"ID/nobody"}`, http.StatusConflict},
	} {
		path, body := strings.ReplaceAll(step.path, "ID", id), strings.ReplaceAll(step.body, "ID", id)
		resp, err := http.Post(url+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		_ = resp.Body.Close()
		if resp.StatusCode != step.want {
			t.Errorf("POST %s %s: %s, want %d", path, body, resp.Status, step.want)
		}
	}
}
