package mysqlstore

import (
	"database/sql"
	"slices"
	"testing"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// MySQL commits each statement of a step. A step that was broken off behind any of them, up or down, is finished by the same
// command, and leaves the tables as if it had not been broken off.
func TestAStepThatWasBrokenOffIsFinished(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		// walked returns the columns behind all steps up, and behind all steps down again.
		walked := func(broken bool) (ends [2][]string) {
			pool := newDB(t, server)
			to := func(version int) {
				t.Helper()
				if _, err := New(pool, nil).Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 2, Target: version}); err != nil {
					t.Fatal(err)
				}
			}
			to(1)
			steps := migrations()[1:]
			for i, down := range []bool{false, true} {
				for _, step := range steps {
					if broken {
						breakOff(t, pool, ops.Step{Version: step.version, Name: step.name, Down: down})
					}
					if down {
						step.version--
					}
					to(step.version)
				}
				slices.Reverse(steps)
				all, err := list[string](t.Context(), pool, `SELECT CONCAT_WS(' ', TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COALESCE(COLLATION_NAME, '-'), COALESCE(COLUMN_DEFAULT, '-'))
					FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() ORDER BY TABLE_NAME, COLUMN_NAME`)
				if err != nil {
					t.Fatal(err)
				}
				ends[i] = all
			}
			return ends
		}
		whole, broken := walked(false), walked(true)
		for i, way := range []string{"up", "down"} {
			if !slices.Equal(whole[i], broken[i]) {
				t.Errorf("%s: the columns are\n%q, want\n%q", way, broken[i], whole[i])
			}
		}
	})
}

// breakOff begins a step again and again, and is ended behind each of its statements.
func breakOff(t *testing.T, pool *sql.DB, step ops.Step) {
	t.Helper()
	text, err := script(step, 2)
	if err != nil {
		t.Fatal(err)
	}
	all := split(text)
	for k := range all {
		conn, err := pool.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, statement := range all[:k] {
			if _, err := conn.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("step %d, down %v, again: %v\n%s", step.Version, step.Down, err, statement)
			}
		}
		db.Discard(conn)
	}
}
