package operations

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
	"github.com/postrider/postrider/store/sqlitestore/internal/migrate"
)

// A list of parked records reads those that it shows, and counts read no row: a million dead letters
// slow down neither them nor the doctor.
func TestListsReadWhatTheyShow(t *testing.T) {
	pool, o := newOutbox(t)
	for _, c := range []struct {
		what, query string
		args        []any
		want        string
	}{
		{"the count of dead letters", countState, []any{"main", "dead", 10}, "COVERING INDEX postrider_parked_state (pipe=? AND <expr>=?)"},
		{"the look for a dead letter of a lane", someDead, []any{"main", 0}, "COVERING INDEX postrider_parked_dead (pipe=? AND lane=?)"},
		{"the count of a lane's rows", countAhead, []any{"main", 0, 10}, "INDEX postrider_outbox_lane (lane=? AND seq>?)"},
		{"the look for a lane's first due rows", firstDue, []any{"main", 0, 10, 10, 10}, "INDEX postrider_outbox_lane (lane=? AND seq>? AND seq<?)"},
		{"the newest record of an id", `SELECT seq FROM postrider_parked WHERE ` + byID, []any{"main", "i"}, "INDEX postrider_parked_id (pipe=? AND id=?)"},
	} {
		if plan := planOf(t, pool, c.query, c.args...); !strings.Contains(plan, c.want) {
			t.Errorf("%s is planned as\n%s\nwant %s", c.what, plan, c.want)
		}
	}
	if !readsRows(t, pool, firstDue, "main", 0, 10, 10, 10) || readsRows(t, pool, countAhead, "main", 0, 10) {
		t.Error("the count of a lane's rows reads them, or the look for their times does not")
	}
	const byState, byKey, sorted = "INDEX postrider_parked_state (pipe=? AND <expr>=? AND seq>?)", "INDEX postrider_parked_key (pipe=? AND key=? AND seq>?)", "INDEX postrider_parked_id (pipe=? AND id=?)"
	for _, c := range []struct {
		query ops.ParkedQuery
		want  string
	}{
		{ops.ParkedQuery{State: store.Dead}, byState},
		{ops.ParkedQuery{State: store.Retry}, byState},
		{ops.ParkedQuery{State: store.Waiting}, byState},
		{ops.ParkedQuery{State: store.Retry, Topic: "t"}, byState},
		{ops.ParkedQuery{State: store.Retry, Code: "c"}, byState},
		{ops.ParkedQuery{State: store.Dead, Code: "c"}, "INDEX postrider_parked_code (pipe=? AND code=? AND seq>?)"},
		{ops.ParkedQuery{State: store.Dead, Topic: "t"}, "INDEX postrider_parked_topic (pipe=? AND topic=? AND seq>?)"},
		{ops.ParkedQuery{State: store.Dead, Code: "c", Topic: "t"}, "INDEX postrider_parked_cause (pipe=? AND code=? AND topic=? AND seq>?)"},
		{ops.ParkedQuery{State: store.Dead, Key: "k"}, byKey},
		{ops.ParkedQuery{State: store.Waiting, Key: "k"}, byKey},
		{ops.ParkedQuery{Key: "k"}, byKey},
		{ops.ParkedQuery{State: store.Dead, ID: "i"}, sorted},
		{ops.ParkedQuery{ID: "i"}, sorted},
	} {
		where, args := (&Admin{Outbox: o}).which(c.query)
		plan := planOf(t, pool, `SELECT error FROM postrider_parked WHERE `+where, args...)
		if !strings.Contains(plan, c.want) || c.want != sorted && strings.Contains(plan, "TEMP B-TREE") {
			t.Errorf("%+v is planned as\n%s\nwant %s", c.query, plan, c.want)
		}
	}
}

func newOutbox(t *testing.T) (*sql.DB, *db.Outbox) {
	t.Helper()
	pool, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "outbox.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	o := &db.Outbox{DB: pool, Pipe: "main", Now: time.Now}
	if _, err := migrate.New(o).Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
		t.Fatal(err)
	}
	return pool, o
}

// A page of an order reads a short range of its lane, whatever else its records must meet.
func TestPagesReadTheirRange(t *testing.T) {
	pool, o := newOutbox(t)
	if plan := planOf(t, pool, discarded, "main", 0, "[1]"); !strings.Contains(plan, "SEARCH o USING INTEGER PRIMARY KEY (rowid=?)") {
		t.Errorf("the times of discarded records are planned as\n%s", plan)
	}
	all := ops.Match{
		Seqs: []int64{1}, IDs: []string{"i"}, Topic: "t", Key: "k", Type: "x", Class: "c", Code: "c", Error: "e", Lane: new(store.Lane),
		Versions: ops.Versions{First: 1}, Since: o.Now(), Until: o.Now(), IdleFor: time.Second,
	}
	for _, match := range []ops.Match{{All: true}, {Topic: "t"}, {Key: "k"}, {Code: "c"}, {Code: "c", Topic: "t"}, {IDs: []string{"i"}}, {Seqs: []int64{1}}, all} {
		for kind, want := range map[store.ActKind][2]string{
			store.ActDiscard: {"COVERING INDEX postrider_parked_lane (pipe=? AND lane=? AND seq>? AND seq<?)", "postrider_parked_1 (pipe=? AND seq=?)"},
			store.ActSkip:    {"COVERING INDEX postrider_parked_lane (pipe=? AND lane=? AND seq>? AND seq<?)", "postrider_parked_1 (pipe=? AND seq=?)"},
			store.ActReplay:  {"INDEX postrider_outbox_lane (lane=? AND seq>? AND seq<?)", "INTEGER PRIMARY KEY (rowid=?)"},
		} {
			from, args := parkedSource(9), []any{"main", 0, 0, 9}
			m := match
			if kind == store.ActReplay {
				from, m.Class, m.Code, m.Error, m.IdleFor = settledSource(9), "", "", "", 0
			}
			fits, more := where(&m, string(kind), 0, true)
			if kind == store.ActReplay {
				fits, more = fits+" AND "+notParked, append(more, "main")
			}
			plan := planOf(t, pool, from.fitting(fits, 10), append(args, more...)...)
			if !strings.Contains(plan, want[0]) || !strings.Contains(plan, "SEARCH k USING") || !strings.Contains(plan, want[1]) || strings.Contains(plan, "TEMP B-TREE") {
				t.Errorf("%s of %+v is planned as\n%s\nwant %q", kind, match, plan, want)
			}
			if plan := planOf(t, pool, from.next(), append(args, 10)...); !strings.Contains(plan, want[0]) {
				t.Errorf("the look for the rows of a page is planned as\n%s\nwant %s", plan, want[0])
			}
		}
	}
}

// planOf returns the plan of a statement.
func planOf(t *testing.T, pool *sql.DB, statement string, args ...any) string {
	t.Helper()
	rows, err := pool.QueryContext(t.Context(), `EXPLAIN QUERY PLAN `+statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var id, parent, unused int
		var line string
		if err := rows.Scan(&id, &parent, &unused, &line); err != nil {
			t.Fatal(err)
		}
		plan = append(plan, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(plan, "\n")
}

// readsRows reports whether a statement reads a column of a row that an index found. The plan
// alone names no index of a table with a generated column as covering.
func readsRows(t *testing.T, pool *sql.DB, statement string, args ...any) bool {
	t.Helper()
	rows, err := pool.QueryContext(t.Context(), `EXPLAIN `+statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	table := map[int]bool{} // cursors that move only when a column is read
	reads := false
	for rows.Next() {
		var p1, p3, unused int
		var code string
		var rest [3]any
		if err := rows.Scan(&unused, &code, &p1, &unused, &p3, &rest[0], &rest[1], &rest[2]); err != nil {
			t.Fatal(err)
		}
		table[p3] = table[p3] || code == "DeferredSeek"
		reads = reads || code == "Column" && table[p1]
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return reads
}
