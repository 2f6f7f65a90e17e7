package pgstore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/store/ops"
)

// Keep removes the points that are too old for their grain; the first of each quarter of an hour
// stays longest. It counts blocked keys, and no statement reads the whole table.
func TestPointsThin(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 2)
		h := d.store("main").Office().History
		// One point each ten seconds for three hours, one a minute for three days, and one each
		// quarter of an hour for 36 days, all with the grain that they would have.
		d.exec(`INSERT INTO box.sample SELECT 'main', at, CASE WHEN s % 900 = 0 THEN 900 WHEN s % 60 = 0 THEN 60 ELSE 10 END, 0, 0, 0, false, 0, 0, 0, 1
			FROM (SELECT to_timestamp(floor(extract(epoch FROM now()) / 900) * 900 - s) AS at, s FROM generate_series(10, 36 * 86400, 10) s) x
			WHERE s < 3 * 3600 OR s % 60 = 0 AND s < 3 * 86400 OR s % 900 = 0`)
		d.exec(`INSERT INTO box.parked (pipe, lane, seq, state, captures, due_at, attempts, class, code, error, first_failed, last_attempt, created_at,
			 version, schema_version, id, topic, key, type, content_type, headers, payload)
			SELECT 'main', 0, g, 'dead', true, now(), 1, 'rejected', 'c', 'no', now(), now(), now(), 0, 0, gen_random_uuid(), 't', 'k' || g % 3, 'm', '', '{}', '' FROM generate_series(1, 9) g`)
		if kept, err := h.Keep(t.Context(), ops.Point{Dead: 9}); err != nil || !kept {
			t.Fatalf("kept %v, error %v", kept, err)
		}
		for grain, want := range map[int]int64{10: 2 * 300, 60: 48 * 56, 900: 35 * 96} {
			if n := d.count(fmt.Sprintf(`SELECT count(*) FROM box.sample WHERE grain = %d`, grain)); n < want-100 || n > want+100 {
				t.Errorf("%d points of grain %d are left, want about %d", n, grain, want)
			}
		}
		points, err := h.Points(t.Context(), time.Now().Add(-20*time.Second), 0)
		if err != nil || len(points) == 0 || points[len(points)-1].Blocked != 3 || points[len(points)-1].Dead != 9 {
			t.Errorf("the newest points are %+v, error %v, want 3 blocked keys", points, err)
		}
		d.exec(`ANALYZE box.sample`)
		for _, statement := range []string{
			`SELECT * FROM box.sample WHERE pipe = 'main' AND at >= now() - interval '15 minutes' AND grain >= 0 ORDER BY at`,
			`DELETE FROM box.sample WHERE pipe = 'main' AND (grain = 10 AND at < now() - interval '7200 seconds' OR grain = 60 AND at < now() - interval '172800 seconds')`,
		} {
			if plan := strings.Join(d.plan(statement), "\n"); strings.Contains(plan, "Seq Scan on sample") {
				t.Errorf("%s\n%s", statement, plan)
			}
		}
	})
}

// A clock that was set back hides what lies ahead of it and frees the slots of the next two hours.
func TestPointsAfterTheClockWasSetBack(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 2)
		h := d.store("main").Office().History
		d.exec(`INSERT INTO box.sample SELECT 'main', now() + i * interval '1 hour', 900, 0, 0, 0, false, 0, 0, 0, 1 FROM generate_series(1, 3) i`)
		if all, err := h.Points(t.Context(), time.Time{}, 0); err != nil || len(all) > 0 {
			t.Errorf("points ahead of the clock are listed: %+v, error %v", all, err)
		}
		if kept, err := h.Keep(t.Context(), ops.Point{}); err != nil || !kept {
			t.Errorf("kept %v, error %v", kept, err)
		}
		if n := d.count(`SELECT count(*) FROM box.sample`); n != 2 {
			t.Errorf("%d points are there, want the new one and that of three hours ahead", n)
		}
	})
}

// plan returns the plan of a statement that is not run.
func (d *db) plan(statement string) (lines []string) {
	d.Helper()
	rows, err := d.pool.Query(d.Context(), d.sql("EXPLAIN "+statement))
	if err != nil {
		d.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			d.Fatal(err)
		}
		lines = append(lines, line)
	}
	return lines
}
