package mysqlstore

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/ops"
)

// Keep removes the points that are too old for their grain; the first of each quarter of an hour
// stays longest. It counts blocked keys, and no statement reads the whole table.
func TestPointsThin(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		pool := newOutbox(t, server, 2)
		o := newOwner(t, pool, "a")
		h := o.s.Office().History
		// One point each ten seconds for three hours, one a minute for three days, and one each
		// quarter of an hour for 36 days, all with the grain that they would have.
		var rows []string
		base := o.count(`SELECT ` + now + ` DIV 900000000 * 900`)
		for s := int64(10); s < 36*86400; s += 10 {
			grain := 10
			switch {
			case s%900 == 0:
				grain = 900
			case s%60 == 0 && s < 3*86400:
				grain = 60
			case s >= 3*3600:
				continue
			}
			rows = append(rows, fmt.Sprintf("('main', %d, %d, 0, 0, 0, 0, 0, 0, 0, 1)", (base-s)*1_000_000, grain))
		}
		o.exec(`INSERT INTO postrider_sample VALUES ` + strings.Join(rows, ","))
		for i := range 9 {
			o.exec("INSERT INTO postrider_parked (pipe, lane, seq, state, captures, attempts, class, code, error, topic, `key`, type, id, payload, content_type, headers, version, schema_version, created_at, due_at)"+
				" VALUES ('main', 0, ?, 'dead', 1, 1, 'rejected', 'c', 'no', 't', ?, 'm', UUID(), '', '', '{}', 0, 0, 1, 1)", i+1, fmt.Sprint("k", i%3))
		}
		if kept, err := h.Keep(t.Context(), ops.Point{Dead: 9}); err != nil || !kept {
			t.Fatalf("kept %v, error %v", kept, err)
		}
		for grain, want := range map[int]int64{10: 2 * 300, 60: 48 * 56, 900: 35 * 96} {
			if n := o.count(`SELECT COUNT(*) FROM postrider_sample WHERE grain = ?`, grain); n < want-100 || n > want+100 {
				t.Errorf("%d points of grain %d are left, want about %d", n, grain, want)
			}
		}
		points, err := h.Points(t.Context(), time.Now().Add(-20*time.Second), 0)
		if err != nil || len(points) == 0 || points[len(points)-1].Blocked != 3 || points[len(points)-1].Dead != 9 {
			t.Errorf("the newest points are %+v, error %v, want 3 blocked keys", points, err)
		}
		o.exec(`ANALYZE TABLE postrider_sample`)
		for statement, args := range map[string][]any{
			"SELECT at, grain FROM postrider_sample WHERE pipe = ? AND at BETWEEN ? AND ? AND grain >= ? ORDER BY at": {"main", (base - 900) * 1_000_000, base * 2_000_000, 0},
			`DELETE FROM postrider_sample WHERE pipe = ? AND grain = ? AND at < ?`:                                    {"main", 10, (base - 7200) * 1_000_000},
			`DELETE FROM postrider_sample WHERE pipe = ? AND at > ? AND at <= ?`:                                      {"main", base * 1_000_000, (base + 7200) * 1_000_000},
		} {
			if kind := kindOfPlan(t, pool, statement, args...); kind != "range" && kind != "ref" {
				t.Errorf("%s reads the table by %q, want a range of an index", statement, kind)
			}
		}
	})
}

// Of processes that keep a point at the same time one does, a pipe that was removed meanwhile
// leaves none, and a clock that was set back hides what lies ahead of it and frees the slots
// of the next two hours.
func TestPointsOfTwoKeepers(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		pool := newOutbox(t, server, 2)
		o := newOwner(t, pool, "a")
		o.put("k", "a", "b")
		var wait sync.WaitGroup
		var mu sync.Mutex
		did := 0
		for range 8 {
			wait.Go(func() {
				kept, err := New(pool, nil).Office().History.Keep(t.Context(), ops.Point{Delivered: 1})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				if kept {
					did++
				}
			})
		}
		wait.Wait()
		if n := o.count(`SELECT COUNT(*) FROM postrider_sample`); n != int64(did) || n < 1 || n > 2 { // a slot may begin meanwhile
			t.Errorf("%d points, kept by %d, want one", n, did)
		}
		if n := o.count(`SELECT MIN(drawn) FROM postrider_sample`); n != o.count(`SELECT MAX(seq) FROM postrider_outbox`) {
			t.Errorf("the number %d is that of no newest message", n)
		}
		o.exec(`DELETE FROM postrider_sample`)
		for i := range 3 {
			o.exec(`INSERT INTO postrider_sample SELECT 'main', `+now+` + ?, 900, 0, 0, 0, 0, 0, 0, 0, 1`, int64(i+1)*3600_000_000)
		}
		h := o.s.Office().History
		if all, err := h.Points(t.Context(), time.Time{}, 0); err != nil || len(all) > 0 {
			t.Errorf("points ahead of the clock are listed: %+v, error %v", all, err)
		}
		if kept, err := h.Keep(t.Context(), ops.Point{}); err != nil || !kept {
			t.Errorf("kept %v, error %v", kept, err)
		}
		if n := o.count(`SELECT COUNT(*) FROM postrider_sample`); n != 2 {
			t.Errorf("%d points are there, want the new one and that of three hours ahead", n)
		}
		if _, err := o.s.Office().Pipes.RemovePipe(t.Context(), ops.RemovePipe{Name: "main", Forfeit: 10}); err != nil {
			t.Fatal(err)
		}
		if kept, err := h.Keep(t.Context(), ops.Point{}); err != nil || kept {
			t.Errorf("a removed pipe: kept %v, error %v", kept, err)
		}
		if n := o.count(`SELECT COUNT(*) FROM postrider_sample`); n != 0 {
			t.Errorf("a removed pipe has left %d points", n)
		}
	})
}

// kindOfPlan returns how a statement would read its only table: range, ALL, index.
func kindOfPlan(t *testing.T, pool *sql.DB, statement string, args ...any) string {
	t.Helper()
	rows, err := pool.QueryContext(t.Context(), "EXPLAIN FORMAT=TRADITIONAL "+statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil || !rows.Next() {
		t.Fatalf("no plan, error %v", errors.Join(err, rows.Err()))
	}
	cells, all := make([]sql.NullString, len(names)), make([]any, len(names))
	for i := range cells {
		all[i] = &cells[i]
	}
	if err := rows.Scan(all...); err != nil {
		t.Fatal(err)
	}
	return cells[slices.Index(names, "type")].String
}
