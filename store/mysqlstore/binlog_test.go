package mysqlstore

import (
	"database/sql"
	"slices"
	"testing"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// binlogBytes is how many bytes the binlog has.
func binlogBytes(t *testing.T, pool *sql.DB) (sum int64) {
	t.Helper()
	files, err := pool.QueryContext(t.Context(), "SHOW BINARY LOGS")
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	columns, err := files.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	into := make([]any, len(columns)) // MySQL has a third one
	for i := range into {
		into[i] = new(sql.RawBytes)
	}
	for into[1] = &size; files.Next(); sum += size {
		if err := files.Scan(into...); err != nil {
			t.Fatal(err)
		}
	}
	if err := files.Err(); err != nil {
		t.Fatal(err)
	}
	return sum
}

// A relay that drains a backlog settles 192 messages of a lane at once: then a message costs a byte of the binlog at most.
func TestASettlementIsFewBytesOfTheBinlog(t *testing.T) {
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			server := testserver.StartMySQL(t, version, testserver.Durable())
			pool := pool(t, server.Database(t))
			s := New(pool, nil)
			if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 64}); err != nil {
				t.Fatal(err)
			}
			const boot, each, times = "0123456789ABC", 192, 4
			g := lease(t, s, boot)
			before := binlogBytes(t, pool)
			for i := range times {
				var all []store.Settlement
				for _, l := range g.Lanes {
					at := holes.Position{At: int64(1_000_000 + (64*i+int(l.Lane))*each)}
					all = append(all, store.Settlement{BootID: boot, Lane: l.Lane, Epoch: l.Epoch + int64(i), Position: db.Encode(at, db.History(g.Identity)), Delivered: each})
				}
				if lost, err := s.Settle(t.Context(), all); err != nil || len(lost) > 0 {
					t.Fatalf("lost %v, error %v", lost, err)
				}
			}
			if n := (binlogBytes(t, pool) - before) / (64 * times); n > each {
				t.Errorf("a settlement of a lane is %d bytes of the binlog, want at most %d", n, each)
			}
		})
	}
}

// Schema 12 shortens the rows of lanes, and keeps where they stand, up and down.
func TestShortRowsKeepPositions(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		pool := newDB(t, server)
		s := New(pool, nil)
		to := func(version int) {
			t.Helper()
			if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 2, Target: version}); err != nil {
				t.Fatal(err)
			}
		}
		want := func(when string, holes ...holes.Set) {
			t.Helper()
			found, err := s.box.Positions(t.Context(), pool, []store.Lane{0, 1}, "")
			if err != nil {
				t.Fatal(err)
			}
			for lane, p := range found {
				if p.At != 70 || !slices.Equal(p.Open, holes[lane]) {
					t.Errorf("%s: lane %d stands at %v", when, lane, p)
				}
			}
		}
		to(11)
		for _, query := range []string{
			`ALTER TABLE postrider_outbox AUTO_INCREMENT = 100`,
			`UPDATE postrider_progress SET pos = 70, settled_by = 'x', settled_call = 1 << 60, holes = IF(lane = 0, '[[5,7]]', '[]')`,
		} {
			if _, err := pool.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		to(12)
		open := holes.Set{{First: 5, Last: 7}}
		want("after the migration", open, nil)
		g := lease(t, s, "a")
		for i, l := range g.Lanes {
			p := db.Encode(holes.Position{At: 70, Open: []holes.Set{nil, open}[i]}, db.History(g.Identity))
			if lost, err := s.Settle(t.Context(), []store.Settlement{{BootID: "a", Lane: l.Lane, Epoch: l.Epoch, Position: p}}); err != nil || len(lost) > 0 {
				t.Fatalf("lost %v, error %v", lost, err)
			}
		}
		want("after settlements", nil, open)
		to(11)
		want("after the way back", nil, open)
		if got, err := list[string](t.Context(), pool, `SELECT holes FROM postrider_progress ORDER BY lane`); err != nil || !slices.Equal(got, []string{"[]", "[[5,7]]"}) {
			t.Errorf("a program of schema 11 finds the holes %q, %v", got, err)
		}
		to(12)
		want("after both", nil, open)
	})
}
