package mysqlstore

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// A new pipe begins at once beside many rows that another pipe has passed, and gets what is
// committed later, also below the rows that are there.
//
// Promises: L
func TestANewPipeReadsFewRows(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		u := server.Database(t)
		db, single := pool(t, u), pool(t, u)
		single.SetMaxOpenConns(1)
		if _, err := New(db, nil).Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 2}); err != nil {
			t.Fatal(err)
		}
		const rows = 12_000
		// Some numbers are missing.
		_, err := db.ExecContext(t.Context(), fmt.Sprintf(`INSERT INTO postrider_outbox (seq, topic) WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 120)
			SELECT a.i * 200 + b.i, 't' FROM r AS a JOIN r AS b WHERE b.i <= %d`, rows/120))
		if err != nil {
			t.Fatal(err)
		}
		late, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		write := func(q querier) (id int64) {
			t.Helper()
			res, err := q.ExecContext(t.Context(), insert)
			if err == nil {
				id, err = res.LastInsertId()
			}
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		want := []int64{write(late)}
		write(db)
		begin := func(db *sql.DB, pipe string) {
			t.Helper()
			s := New(db, &Options{Pipe: pipe, MakePipe: true})
			if _, err := s.Lease(t.Context(), store.LeaseRequest{BootID: pipe, Observe: true}); err != nil {
				t.Fatal(err)
			}
		}
		begin(db, "slow") // nobody has passed anything
		s := New(db, nil)
		g := lease(t, s, "main")
		for range 4 {
			carry(t, s, "main", &g)
		}
		want = append(want, write(late))
		write(db)

		reads := func() (n int) {
			t.Helper()
			var name string
			if err := single.QueryRowContext(t.Context(), `SELECT 'sum', SUM(VARIABLE_VALUE) FROM `+sessionStatus(t, s)+` WHERE VARIABLE_NAME LIKE 'Handler_read%'`).Scan(&name, &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		before := reads()
		begin(single, "quick")
		if n := reads() - before; n > 5000 {
			t.Errorf("a new pipe read %d rows where %d are there", n, rows)
		}
		if err := late.Commit(); err != nil {
			t.Fatal(err)
		}
		for _, pipe := range []string{"slow", "quick"} {
			s := New(db, &Options{Pipe: pipe, MakePipe: true})
			g := lease(t, s, pipe)
			var got []int64
			for range 3 {
				got = append(got, carry(t, s, pipe, &g)...)
			}
			if pipe == "slow" {
				got = slices.DeleteFunc(got, func(n int64) bool { return n == want[1]+1 })
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: read %v, want %v", pipe, got, want)
			}
		}
	})
}

func sessionStatus(t *testing.T, s *Store) string {
	t.Helper()
	version, err := list[string](t.Context(), s.box.DB, `SELECT VERSION()`)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(version, "") || version[0][0] == '1' { // MariaDB
		return "information_schema.SESSION_STATUS"
	}
	return "performance_schema.session_status"
}

// Every lane that an outbox can have is there.
func TestAnOutboxCanHaveAllLanes(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 4096)
		s := New(db, nil)
		if g := lease(t, s, "a"); g.Total != 4096 || len(g.Lanes) != 4096 {
			t.Errorf("%d lanes, %d were leased", g.Total, len(g.Lanes))
		}
		if _, err := New(db, &Options{Pipe: "second"}).Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute}); !errors.Is(err, store.ErrNoPipe) {
			t.Errorf("a pipe that does not exist was leased: %v", err)
		}
		s = New(db, &Options{Pipe: "second", MakePipe: true})
		if g := lease(t, s, "a"); g.Total != 4096 || len(g.Lanes) != 4096 {
			t.Errorf("a second pipe: %d lanes, %d were leased", g.Total, len(g.Lanes))
		}
	})
}
