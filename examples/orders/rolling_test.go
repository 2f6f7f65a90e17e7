package orders_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/examples/orders"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/schematest"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

func TestEvents(t *testing.T) { schematest.Run(t, orders.Events, "testdata/event") }

// TestRollingDeploy takes the shop and the warehouse from version 1 of their events to
// version 2, back and forward again, while orders come. Programs of both versions run
// at once, and each movement has what the shop wrote: no field lost, none invented. Dead letters
// of version 2 are applied after the deploy.
//
// Promises: E, S
func TestRollingDeploy(t *testing.T) {
	f := newFleet(t)
	oldShop := orders.NewShop(f.db, dialect.Postgres, &orders.Options{WriteV1: true})
	newShop := orders.NewShop(f.db, dialect.Postgres, nil)
	f.migrate(oldShop)

	endOld := f.start(f.oldWarehouse)
	f.place(oldShop, orders.Piece, 20)
	f.until("version 1 is applied by its own warehouse", func() bool { return f.movements() > 0 })

	endNew := f.start(f.newWarehouse) // both warehouses and both shops
	var both sync.WaitGroup
	both.Go(func() { f.place(oldShop, orders.Piece, 60) })
	both.Go(func() { f.place(newShop, "kg", 60) })
	f.until("the old warehouse has met version 2", func() bool { return f.refused() > 0 })
	both.Wait()
	endOld() // deployed

	f.place(newShop, "kg", 20)
	f.until("the new warehouse has applied version 2", func() bool { return f.count(`SELECT count(*) FROM movements WHERE unit = 'kg'`) > 0 })
	endNew() // rolled back, with the new shop still writing

	refused := f.refused()
	endOld = f.start(f.oldWarehouse)
	f.place(newShop, "kg", 20)
	f.place(oldShop, orders.Piece, 20)
	f.until("the old warehouse meets version 2 alone", func() bool { return f.refused() > refused })
	endOld()

	endNew = f.start(f.newWarehouse) // and forward again
	f.until("every event has its movement", func() bool { return f.movements() >= len(f.written) })
	endNew()
	f.check()

	// An old warehouse that gives up at once: the dead letters keep bytes and version, and the
	// new warehouse applies them.
	endOld = f.start(func(ctx context.Context) error { return f.old(ctx, 1) })
	f.place(newShop, "kg", 5)
	box := inbox.New(dialect.Postgres, orders.Consumer, nil)
	var dead []inbox.DeadLetter
	f.until("version 2 is dead", func() bool {
		var err error
		if dead, err = box.DeadLetters(t.Context(), f.db, "", 100); err != nil {
			t.Fatal(err)
		}
		return len(dead) == 3*5
	})
	endOld()
	sent := map[string]string{}
	for _, e := range f.bus.Log(orders.Topic) {
		sent[e.Message.ID] = string(e.Message.Payload)
	}
	for _, d := range dead {
		if d.Message.SchemaVersion != 2 || string(d.Message.Payload) != sent[d.Message.ID] || !strings.HasPrefix(d.Cause, schema.CodeNewer) {
			t.Errorf("dead letter %+v", d)
		}
		if err := f.revive(box, d.Message.ID); err != nil {
			t.Fatal(err)
		}
	}
	endNew = f.start(f.newWarehouse)
	f.until("every dead letter has its movement", func() bool { return f.movements() >= len(f.written) })
	endNew()
	f.check()
}

func (f *fleet) revive(box *inbox.Inbox, id string) error {
	tx, err := f.db.BeginTx(f.Context(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	return errors.Join(box.Revive(f.Context(), inbox.SQL(tx), id), tx.Commit())
}

// fleet is all that runs, and what its shops have written.
type fleet struct {
	*testing.T
	db  *sql.DB
	bus *membroker.Broker
	log buffer // of the old warehouse

	mu      sync.Mutex
	orders  int
	written map[string]string // by ref: order, step, sku, amount, unit
}

// buffer is a log that is read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
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
	f := &fleet{T: t, db: db, bus: membroker.New(nil), written: make(map[string]string)}
	st := pgstore.New(pool, nil)
	if _, err := st.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
		t.Fatal(err)
	}
	end := f.start(relay.New(st, f.bus.Sink(), nil).Run)
	t.Cleanup(end)
	return f
}

func (f *fleet) migrate(shop *orders.Shop) {
	house := orders.NewWarehouse(f.db, dialect.Postgres, "", slog.New(slog.DiscardHandler))
	for _, migrate := range []func(context.Context) error{shop.Migrate, house.Migrate, shop.Migrate, house.Migrate} { // twice: the column is there
		if err := migrate(f.Context()); err != nil {
			f.Fatal(err)
		}
	}
}

// start runs a program until end is called.
func (f *fleet) start(run func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.Error(err)
		}
	})
}

func (f *fleet) newWarehouse(ctx context.Context) error {
	src := f.bus.Source(orders.Consumer, orders.Topic)
	defer src.Close()
	return orders.NewWarehouse(f.db, dialect.Postgres, "", slog.New(slog.DiscardHandler)).Run(ctx, src)
}

func (f *fleet) oldWarehouse(ctx context.Context) error { return f.old(ctx, 0) }

// old is the program as it was: it knows version 1 and no units.
func (f *fleet) old(ctx context.Context, attempts int) error {
	src := f.bus.Source(orders.Consumer, orders.Topic)
	defer src.Close()
	c := consumer.New(src, consumer.SQL(f.db, dialect.Postgres), &consumer.Options{
		Name: orders.Consumer, MaxAttempts: attempts, BackoffMin: 200 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&f.log, nil)),
	})
	for _, step := range []string{orders.Placed, orders.Paid, orders.Shipped} {
		consumer.HandleChain(c, step, schema.Begin[orders.EventV1](), func(ctx context.Context, tx *sql.Tx, e orders.EventV1) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO movements (ref, order_id, step, sku, qty) VALUES ($1, $2, $3, $4, $5)`,
				e.Ref, e.Order, e.Step, e.SKU, e.Qty)
			return err
		})
	}
	return c.Run(ctx)
}

// place takes n orders through their three steps.
func (f *fleet) place(shop *orders.Shop, unit string, n int) {
	for range n {
		f.mu.Lock()
		f.orders++
		amount := f.orders
		f.mu.Unlock()
		id := fmt.Sprintf("o-%d", amount)
		placed := orders.Event{Order: id, Ref: id + "/" + orders.Placed, SKU: "sku-" + id, Quantity: orders.Quantity{Amount: amount, Unit: unit}}
		err := errors.Join(
			shop.Place(f.Context(), placed),
			shop.Pay(f.Context(), orders.Event{Order: id, Ref: id + "/" + orders.Paid}, false),
			shop.Ship(f.Context(), orders.Event{Order: id, Ref: id + "/" + orders.Shipped}),
		)
		if err != nil {
			f.Error(err)
		}
		f.mu.Lock()
		for _, step := range []string{orders.Placed, orders.Paid, orders.Shipped} {
			f.written[id+"/"+step] = fmt.Sprint(id, step, placed.SKU, amount, unit)
		}
		f.mu.Unlock()
	}
}

func (f *fleet) until(what string, done func() bool) {
	f.Helper()
	for end := time.Now().Add(5 * time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			f.Fatalf("waited five minutes until %s: %d of %d movements", what, f.movements(), len(f.written))
		}
	}
}

func (f *fleet) count(query string) (n int) {
	f.Helper()
	if err := f.db.QueryRow(query).Scan(&n); err != nil {
		f.Fatal(err)
	}
	return n
}

func (f *fleet) movements() int { return f.count("SELECT count(*) FROM movements") }

// refused is how often the old warehouse was given a message of version 2.
func (f *fleet) refused() int {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	return strings.Count(f.log.b.String(), schema.CodeNewer)
}

// check compares what was applied with what was written.
func (f *fleet) check() {
	rows, err := f.db.Query(`SELECT ref, order_id, step, sku, qty, unit FROM movements`)
	if err != nil {
		f.Fatal(err)
	}
	defer rows.Close()
	applied, twice := make(map[string]string), 0
	for rows.Next() {
		var ref, id, step, sku, unit string
		var amount int
		if err := rows.Scan(&ref, &id, &step, &sku, &amount, &unit); err != nil {
			f.Fatal(err)
		}
		if applied[ref] != "" {
			twice++
		}
		applied[ref] = fmt.Sprint(id, step, sku, amount, unit)
	}
	if err := rows.Err(); err != nil {
		f.Fatal(err)
	}
	if twice > 0 || !maps.Equal(applied, f.written) {
		f.Errorf("%d movements for %d events, %d twice", len(applied), len(f.written), twice)
		for ref, want := range f.written {
			if applied[ref] != want {
				f.Errorf("%s: applied %q, written %q", ref, applied[ref], want)
			}
		}
	}
	dead, err := inbox.New(dialect.Postgres, orders.Consumer, nil).DeadLetters(f.Context(), f.db, "", 10)
	if err != nil || len(dead) > 0 {
		f.Errorf("dead letters: %+v, %v", dead, err)
	}
	versions := map[int32]int{}
	for _, e := range f.bus.Log(orders.Topic) {
		versions[e.Message.SchemaVersion]++
	}
	if versions[1] != 3*100 || versions[2] != len(f.written)-3*100 {
		f.Errorf("messages by version: %v, want 300 of version 1 and %d of version 2", versions, len(f.written)-3*100)
	}
	f.Logf("%d events (%d of version 1, %d of version 2), %d movements, %d refusals by the old warehouse, 0 lost", len(f.written), versions[1], versions[2], len(applied), f.refused())
}
