package mysqlstore

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
)

// logged returns a pool whose sessions write statements to the server's binary log.
func logged(t *testing.T, url string) *sql.DB {
	t.Helper()
	cfg, _, err := config(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Params["binlog_format"] = "'STATEMENT'"
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(c)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// A server that logs statements refuses the writes of READ COMMITTED. A row whose number was given up is delivered
// there all the same.
//
// Promises: L
func TestARowThatWasGivenUpIsDeliveredWithABinaryLogOfStatements(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		late := hole(t, db)
		s := New(logged(t, urlOf(t, server, db)), nil)
		if on, err := list[string](t.Context(), s.box.DB, `SELECT CONCAT(IF(@@log_bin, 1, 0), @@binlog_format)`); err != nil || on[0] != "1STATEMENT" {
			t.Fatalf("log_bin and binlog_format are %q, error %v", on, err)
		}
		g := lease(t, s, "a")
		carry(t, s, "a", &g)
		giveUp(t, s, holes.Set{{First: 1, Last: 1}})
		carry(t, s, "a", &g)
		if err := late.Commit(); err != nil {
			t.Fatal(err)
		}
		s.eye.sweepAt = 0
		if got, err := tryCarry(t, s, "a", &g); !errors.Is(err, store.ErrIdentity) {
			t.Fatalf("read %v, error %v", got, err)
		}
		g = lease(t, s, "a")
		if got := carry(t, s, "a", &g); !slices.Equal(got, []int64{1}) {
			t.Errorf("read %v", got)
		}
	})
}

// The server refuses to have a row read again whose number was given up, by this instance or by another one. Status
// tells why, other lanes are read, and the row is delivered once the server accepts it.
//
// Promises: L, S
func TestARowThatCannotBeRevivedHoldsNoOtherLaneUp(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		for name, same := range map[string]bool{"this instance": true, "another instance": false} {
			t.Run(name, func(t *testing.T) {
				db := newOutbox(t, server, 2)
				late := hole(t, db)
				s := New(db, nil)
				g := lease(t, s, "a")
				carry(t, s, "a", &g)
				by := s
				if !same {
					by = New(db, nil)
				}
				giveUp(t, by, holes.Set{{First: 1, Last: 1}})
				if err := late.Commit(); err != nil {
					t.Fatal(err)
				}
				exec := func(query string) {
					t.Helper()
					if _, err := db.ExecContext(t.Context(), query); err != nil {
						t.Fatal(err)
					}
				}
				exec(`CREATE TRIGGER refuse BEFORE INSERT ON postrider_alarm FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not now'`)
				for i := range 8 {
					exec(fmt.Sprintf("INSERT INTO postrider_outbox (topic, `key`) VALUES ('t', 'k%d')", i))
				}
				want, err := list[int64](t.Context(), db, `SELECT seq FROM postrider_outbox WHERE seq > 2 AND lane <> (SELECT lane FROM postrider_outbox WHERE seq = 1) ORDER BY seq`)
				if err != nil || len(want) == 0 || len(want) == 8 {
					t.Fatalf("rows %v are in the other lane, error %v", want, err)
				}
				s.eye.sweepAt = 0
				got, err := tryCarry(t, s, "a", &g)
				if err != nil {
					t.Fatal(err)
				}
				for _, seq := range want {
					if !slices.Contains(got, seq) {
						t.Errorf("read %v, want all of %v", got, want)
					}
				}
				trouble := func() string {
					g = lease(t, s, "a")
					st, err := s.Office().Admin.Status(t.Context())
					if err != nil || len(st.Instances) != 1 {
						t.Fatalf("instances %+v, error %v", st.Instances, err)
					}
					return fmt.Sprint(st.Instances[0].Trouble)
				}
				if told := trouble(); !strings.Contains(told, "not now") {
					t.Errorf("status tells %s", told)
				}
				exec(`DROP TRIGGER refuse`)
				s.eye.sweepAt = 0
				if _, err := tryCarry(t, s, "a", &g); !errors.Is(err, store.ErrIdentity) {
					t.Fatalf("error %v", err)
				}
				if told := trouble(); told != "[]" {
					t.Errorf("status tells %s", told)
				}
				got = append(got, carry(t, s, "a", &g)...)
				if slices.Sort(got); !slices.Equal(got, []int64{1, 3, 4, 5, 6, 7, 8, 9, 10}) {
					t.Errorf("read %v, want each row once", got)
				}
			})
		}
	})
}
