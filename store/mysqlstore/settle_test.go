package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// forgetful connections lose the answer of a settlement that has succeeded, while lose is true.
type forgetful struct {
	driver.Connector
	lose *atomic.Bool
}

func (c forgetful) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return forgetfulConn{conn.(mysqlConn), c.lose}, nil //nolint:forcetypeassert // the driver's
}

type forgetfulConn struct {
	mysqlConn
	lose *atomic.Bool
}

func (c forgetfulConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	res, err := c.mysqlConn.ExecContext(ctx, query, args)
	if err == nil && strings.Contains(query, "settled_mark = ?") && c.lose.CompareAndSwap(true, false) {
		return nil, driver.ErrBadConn
	}
	return res, err
}

// A call whose answer was lost is repeated. Lanes that another instance has settled since are lost, and the others are told as
// settled; nothing is done twice.
//
// Promises: L, D, Q
func TestACallWhoseAnswerWasLostIsKnown(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		for _, parks := range []bool{false, true} {
			pool := newOutbox(t, server, 3)
			if _, err := pool.ExecContext(t.Context(), `ALTER TABLE postrider_outbox AUTO_INCREMENT = 1000`); err != nil {
				t.Fatal(err)
			}
			cfg, _, err := config(urlOf(t, server, pool))
			if err != nil {
				t.Fatal(err)
			}
			c, err := mysql.NewConnector(cfg)
			if err != nil {
				t.Fatal(err)
			}
			lose := new(atomic.Bool)
			losing := sql.OpenDB(forgetful{c, lose})
			t.Cleanup(func() { _ = losing.Close() })
			s, other := New(losing, nil), New(pool, nil)
			g := lease(t, s, "a")
			var call []store.Settlement
			for _, l := range g.Lanes {
				st := store.Settlement{BootID: "a", Lane: l.Lane, Epoch: l.Epoch, Delivered: 3, Position: db.Encode(holes.Position{At: 500}, db.History(g.Identity))}
				if parks {
					st.Park = []store.Park{{Seq: int64(l.Lane) + 1, State: store.Dead, Message: postrider.Message{ID: "x", Topic: "t"}, Class: "rejected"}}
				}
				call = append(call, st)
			}
			lose.Store(true)
			if lost, err := s.Settle(t.Context(), call); err == nil {
				t.Fatalf("lost %v, and no error", lost)
			}
			// Another instance has lane 1 since, and has settled it.
			if _, err := pool.ExecContext(t.Context(), `UPDATE postrider_progress SET owner = '' WHERE lane = 1`); err != nil {
				t.Fatal(err)
			}
			for _, l := range lease(t, other, "b").Lanes {
				if lost, err := other.Settle(t.Context(), []store.Settlement{{BootID: "b", Lane: l.Lane, Epoch: l.Epoch, Delivered: 4}}); err != nil || len(lost) > 0 {
					t.Fatalf("lost %v, error %v", lost, err)
				}
			}
			want, wantTold := []string{"3 at 500", "7 at 500", "3 at 500"}, []string(nil)
			if parks {
				wantTold = []string{"1", "1", "1"}
			}
			for _, again := range []string{"repeated", "repeated once more"} {
				if lost, err := s.Settle(t.Context(), call); err != nil || !slices.Equal(lost, []store.Lane{1}) {
					t.Errorf("%s: lost %v, error %v", again, lost, err)
				}
				got, err := list[string](t.Context(), pool, `SELECT CONCAT(delivered, ' at ', pos) FROM postrider_progress ORDER BY lane`)
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%s: %q, want %q, error %v", again, got, want, err)
				}
				told, err := list[string](t.Context(), pool, `SELECT JSON_LENGTH(history) FROM postrider_parked ORDER BY seq`)
				if err != nil || !slices.Equal(told, wantTold) {
					t.Errorf("%s: records have %q attempts, want %q, error %v", again, told, wantTold, err)
				}
			}
		}
	})
}

// A settlement locks the rows of its lanes and nothing else, however many lanes there are: neither other lanes, nor those of
// other pipes, nor the place of a new one.
func TestASettlementLocksItsLanesAlone(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		for _, lanes := range []int{1, 2, 64} {
			pool := newOutbox(t, server, lanes)
			lease(t, New(pool, &Options{Pipe: "alpha", MakePipe: true}), "z")
			lease(t, New(pool, &Options{Pipe: "zeta", MakePipe: true}), "z")
			s := New(pool, nil)
			g := lease(t, s, "a")
			var call []store.Settlement
			for _, l := range g.Lanes[:(lanes+1)/2] {
				call = append(call, store.Settlement{BootID: "a", Lane: l.Lane, Epoch: l.Epoch, Position: db.Encode(holes.Position{At: 5}, db.History(g.Identity))})
			}
			identity, here := s.leased()
			fence, err := s.fence(identity, here, 1, markOf(call), call)
			if err != nil || len(fence) != 1 {
				t.Fatalf("%d statements, error %v", len(fence), err)
			}
			tx, err := pool.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.ExecContext(t.Context(), fence[0].Query, fence[0].Args...); err != nil {
				t.Fatal(err)
			}
			free, err := list[string](t.Context(), pool, `SELECT pipe FROM postrider_progress FOR UPDATE SKIP LOCKED`)
			if want := 3*lanes - len(call); err != nil || len(free) != want {
				t.Errorf("%d lanes: %d of other settlements are free, want %d, error %v", lanes, len(free), want, err)
			}
			if _, err := pool.ExecContext(t.Context(), `INSERT INTO postrider_progress (pipe, lane, pos) VALUES ('beta', 0, 0), ('main-2', 0, 0), ('zz', 0, 0)`); err != nil {
				t.Errorf("%d lanes: a new pipe: %v", lanes, err)
			}
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
		}
	})
}
