package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
	"github.com/postrider/postrider/store/sqlitestore/internal/migrate"
	"github.com/postrider/postrider/store/storetest"
)

func (e *env) view(ctx context.Context) ([]ops.ViewRow, error) {
	rows, err := e.db.QueryContext(ctx, `SELECT `+ops.ViewColumns+` FROM postrider_messages WHERE pipe = 'main' ORDER BY seq`) //nolint:rowserrcheck // ScanView checks it
	if err != nil {
		return nil, err
	}
	return storetest.ScanView(rows, db.Moment)
}

// carrier settles messages of an outbox at times that the test chooses.
type carrier struct {
	*testing.T
	*env
}

func carry(t *testing.T, pool *sql.DB) *carrier {
	t.Helper()
	return &carrier{t, &env{db: pool}}
}

func (c *carrier) exec(query string, args ...any) {
	c.Helper()
	if _, err := c.db.ExecContext(c.Context(), query, args...); err != nil {
		c.Fatal(err)
	}
}

func (c *carrier) number(query string) (n int64) {
	c.Helper()
	if err := c.db.QueryRowContext(c.Context(), query).Scan(&n); err != nil {
		c.Fatal(err)
	}
	return n
}

// settle settles up to limit messages of a lane.
func (c *carrier) settle(lane store.Lane, limit int) {
	c.Helper()
	s := c.open()
	g, err := s.Lease(c.Context(), store.LeaseRequest{BootID: "a", Instance: "a", TTL: time.Minute})
	if err != nil {
		c.Fatal(err)
	}
	b, err := s.Read(c.Context(), []store.LaneRead{{Lane: lane, After: g.Lanes[lane].Position, MaxRecords: limit}})
	if err != nil {
		c.Fatal(err)
	}
	st := store.Settlement{BootID: "a", Lane: lane, Epoch: g.Lanes[lane].Epoch, Position: b[0].Position, Delivered: len(b[0].Messages)}
	if lost, err := s.Settle(c.Context(), []store.Settlement{st}); err != nil || len(lost) > 0 {
		c.Fatal(lost, err)
	}
}

func (c *carrier) prune(req ops.PruneRequest) ops.Pruned {
	c.Helper()
	req.Runner = "a"
	done, err := c.Office().Retention.Prune(c.Context(), req)
	if err != nil {
		c.Fatal(err)
	}
	return done
}

// What was settled before the upgrade has no time in the view, and goes by age when the
// last settlement of its lane is old. The way back leaves the view of the version before.
//
// Promises: G
func TestUpgradeToTheView(t *testing.T) {
	pool := openFile(t, filepath.Join(t.TempDir(), "shop.db"))
	c := carry(t, pool)
	migrator := New(pool, nil).Office().Migrator
	if _, err := migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 1, Target: 4}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		c.exec(plainInsert)
	}
	c.exec(`DELETE FROM postrider_outbox WHERE seq = 1`)
	c.exec(`UPDATE postrider_progress SET pos = 3, delivered = 3, settled_at = ?`, time.Now().UnixMicro())
	if _, err := migrator.Migrate(t.Context(), ops.MigrateRequest{}); err != nil {
		t.Fatal(err)
	}
	if n := c.number(`SELECT removed FROM postrider_retention`); n != 1 {
		t.Errorf("%d rows counted as removed, want 1", n)
	}
	c.moved.Store(int64(2 * time.Minute))
	c.settle(0, 10)
	if n := c.number(`SELECT count(*) FROM postrider_messages WHERE state = 'Sent' AND seq <= 3 AND sent_at IS NULL`); n != 2 {
		t.Errorf("%d of 2 messages from before the upgrade have no time", n)
	}
	if n := c.number(`SELECT count(*) FROM postrider_messages WHERE state = 'Sent' AND seq > 3 AND sent_at >= created_at`); n != 2 {
		t.Errorf("%d of 2 messages sent since then have a time", n)
	}
	if done := c.prune(ops.PruneRequest{OlderThan: 3 * time.Minute}); done.Rows != 0 {
		t.Errorf("%d rows removed two minutes after the upgrade", done.Rows)
	}
	c.moved.Store(int64(4 * time.Minute))
	if done := c.prune(ops.PruneRequest{OlderThan: 3 * time.Minute}); done.Rows != 2 {
		t.Errorf("%d rows removed, want those of before the upgrade", done.Rows)
	}
	if _, err := migrator.Migrate(t.Context(), ops.MigrateRequest{Target: 4}); err != nil {
		t.Fatal(err)
	}
	if n := c.number(`SELECT count(*) FROM postrider_messages WHERE state = 'Sent' AND locked_by IS NULL OR class IS NOT NULL`); n > 2 {
		t.Errorf("the view of version 4 has %d rows", n)
	}
}

// The lanes' times take a row a minute at most, tell the minute of each message, and go
// with the messages.
func TestWhenItWasSent(t *testing.T) {
	pool, _ := newOutbox(t, 1)
	c := carry(t, pool)
	start := time.Now().Truncate(time.Minute).Add(time.Minute)
	at := func(d time.Duration) { c.moved.Store(int64(time.Until(start.Add(d)))) }
	for i, d := range []time.Duration{0, 10 * time.Second, 20 * time.Second, 2 * time.Minute, 2*time.Minute + 30*time.Second, 5 * time.Minute} {
		c.exec(`INSERT INTO postrider_outbox (topic, key, type) VALUES ('t', 'k', ?)`, i)
		at(d)
		c.settle(0, 10)
	}
	if n := c.number(`SELECT count(*) FROM postrider_settled`); n != 2 {
		t.Errorf("%d rows of times for two minutes that are over", n)
	}
	rows, err := c.view(t.Context())
	if err != nil || len(rows) != 6 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for i, want := range []time.Duration{0, 0, 0, 2 * time.Minute, 2 * time.Minute, 5 * time.Minute} {
		if got := rows[i].SentAt.Sub(start); got != want {
			t.Errorf("message %d was sent %v after the start, want %v", i, got, want)
		}
	}
	if done := c.prune(ops.PruneRequest{}); done.Rows != 6 {
		t.Errorf("%d rows removed of 6", done.Rows)
	}
	if n := c.number(`SELECT count(*) FROM postrider_settled`); n != 0 {
		t.Errorf("%d rows of times are left of messages that are gone", n)
	}
}

// A message of the future, by the writer's clock, does not keep itself or those behind it.
func TestRetentionOfAMessageFromTheFuture(t *testing.T) {
	pool, _ := newOutbox(t, 1)
	c := carry(t, pool)
	c.exec(`INSERT INTO postrider_outbox (topic, key, created_at) VALUES ('t', 'k', ?)`, time.Now().AddDate(100, 0, 0).UnixMicro())
	c.exec(plainInsert)
	c.settle(0, 10)
	c.moved.Store(int64(2 * time.Hour))
	if done := c.prune(ops.PruneRequest{OlderThan: time.Hour}); done.Rows != 2 {
		t.Errorf("%d rows removed of 2", done.Rows)
	}
}

// A lane that is stuck keeps its first row. The rows above it that are gone do not count
// in the size: young ones of other lanes stay.
//
// Promises: L
func TestSizeBesideAStuckLane(t *testing.T) {
	pool, _ := newOutbox(t, 2)
	c := carry(t, pool)
	insert := func(lane store.Lane, n int) {
		t.Helper()
		key := ""
		for i := 0; key == ""; i++ {
			if k := fmt.Sprint("key-", i); migrate.Lane(k, "", 2) == lane {
				key = k
			}
		}
		c.exec(`INSERT INTO postrider_outbox (topic, key) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) SELECT 't', ? FROM n`, n, key)
	}
	insert(0, 1) // never settled
	insert(1, 2000)
	c.settle(1, 5000)
	for c.number(`SELECT count(*) FROM postrider_outbox`) > 1 {
		c.prune(ops.PruneRequest{})
	}
	insert(1, 100)
	c.settle(1, 5000)
	const size = 100_000 // about 500 rows
	req := ops.PruneRequest{OlderThan: time.Hour, MaxBytes: size}
	if done := c.prune(req); done.Rows != 0 {
		t.Errorf("%d young rows removed; 101 are there, and %d bytes hold more", done.Rows, size)
	}
	c.exec(`DELETE FROM postrider_outbox WHERE seq % 2 = 0 AND lane = 1`) // by hand
	if _, err := c.Office().Retention.Tidy(t.Context(), ops.TidyRequest{}); err != nil {
		t.Fatal(err)
	}
	if n := c.number(`SELECT (SELECT seq FROM sqlite_sequence WHERE name = 'postrider_outbox') - removed - (SELECT count(*) FROM postrider_outbox) FROM postrider_retention`); n != 0 {
		t.Errorf("after a deletion by hand the count is %d rows off", n)
	}
	insert(1, 1000)
	c.settle(1, 5000)
	if done := c.prune(req); done.Rows == 0 {
		t.Error("no row removed above the size")
	}
}
