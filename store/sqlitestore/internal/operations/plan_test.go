package operations

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
	"github.com/postrider/postrider/store/sqlitestore/internal/migrate"
)

// A list of dead letters reads those that it shows and no others, and their count reads no row: a
// million of them do not slow it down.
func TestListsReadWhatTheyShow(t *testing.T) {
	pool, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "outbox.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	o := &db.Outbox{DB: pool, Pipe: "main"}
	if _, err := migrate.New(o).Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
		t.Fatal(err)
	}
	if plan := planOf(t, pool, countDead, "main", 0, 10); !strings.Contains(plan, "COVERING INDEX postrider_parked_dead (pipe=? AND lane=?)") {
		t.Errorf("the count of dead letters is planned as\n%s\nand reads their rows", plan)
	}
	for _, c := range []struct {
		query ops.ParkedQuery
		want  string
	}{
		{ops.ParkedQuery{Code: "c"}, "INDEX postrider_parked_code (pipe=? AND code=? AND seq>?)"},
		{ops.ParkedQuery{Topic: "t"}, "INDEX postrider_parked_topic (pipe=? AND topic=? AND seq>?)"},
		{ops.ParkedQuery{Key: "k"}, "INDEX postrider_parked_key (pipe=? AND key=? AND seq>?)"},
		{ops.ParkedQuery{Code: "c", Topic: "t"}, "INDEX postrider_parked_cause (pipe=? AND code=? AND topic=? AND seq>?)"},
	} {
		c.query.State = store.Dead
		where, args := (&Admin{Outbox: o}).which(c.query)
		if plan := planOf(t, pool, `SELECT seq FROM postrider_parked WHERE `+where, args...); !strings.Contains(plan, c.want) || strings.Contains(plan, "TEMP B-TREE") {
			t.Errorf("%+v is planned as\n%s\nwant %s", c.query, plan, c.want)
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
