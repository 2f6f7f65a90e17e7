package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/ops"
)

// prune removes all that is due.
func (o *owner) prune(req ops.PruneRequest) (rows int64) {
	o.Helper()
	req.Runner = "keeper"
	for {
		done, err := o.s.Office().Retention.Prune(o.Context(), req)
		if err != nil || done.Runner != "" {
			o.Fatalf("%+v, %v", done, err)
		}
		if rows += done.Rows; len(done.Left) == 0 {
			return rows
		}
		req.Lanes, req.After = done.Left, done.After
	}
}

// A row that came late below a position stays until it was read, also one whose number was
// given up.
//
// Promises: L
func TestRetentionLeavesWhatCameLate(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		o := newOwner(t, db, "a")
		late, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := late.ExecContext(t.Context(), "INSERT INTO postrider_outbox (topic, `key`, type) VALUES ('t', 'k', 'late')"); err != nil {
			t.Fatal(err)
		}
		o.put("k", "a", "b")
		want(t, "read", o.step(), "a", "b")
		if err := late.Commit(); err != nil {
			t.Fatal(err)
		}
		if n := o.prune(ops.PruneRequest{DryRun: true}); n != 2 {
			t.Errorf("%d rows are due, want 2", n)
		}
		if n := o.prune(ops.PruneRequest{}); n != 2 {
			t.Errorf("%d rows are removed, want 2", n)
		}
		want(t, "the late one", o.step(), "late")
		if n := o.prune(ops.PruneRequest{}); n != 1 {
			t.Errorf("%d rows are removed, want the late one", n)
		}
		o.put("k", "given up")
		o.step()
		o.exec(`INSERT INTO postrider_dropped (pipe, high, low, dropped_at) SELECT 'main', MAX(seq), MAX(seq), 0 FROM postrider_outbox`)
		if n := o.prune(ops.PruneRequest{}); n != 0 {
			t.Errorf("%d rows are removed whose number was given up", n)
		}
		o.exec(`TRUNCATE postrider_outbox`)
		o.put("k", "again")
		if done, err := o.s.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "keeper"}); !errors.Is(err, store.ErrUnusable) {
			t.Errorf("numbers began again: %+v, %v", done, err)
		}
		if n := o.count(`SELECT COUNT(*) FROM postrider_outbox`); n != 1 {
			t.Errorf("%d rows are left, want 1", n)
		}
	})
}

// A number that was given up becomes a gap again while retention looks at its lane: its row, which was
// never sent, stays. Sessions of READ COMMITTED see the lane of before and the notes of behind.
//
// Promises: L
func TestRetentionLeavesWhatIsRevivedMeanwhile(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		o := newOwner(t, db, "a")
		late, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := late.ExecContext(t.Context(), "INSERT INTO postrider_outbox (topic, `key`, type) VALUES ('t', 'k', 'late')"); err != nil {
			t.Fatal(err)
		}
		o.put("k", "a")
		want(t, "read", o.step(), "a")
		giveUp(t, o.s, holes.Set{{First: 1, Last: 1}})
		o.step()
		if err := late.Commit(); err != nil {
			t.Fatal(err)
		}
		revived := false
		keeper := hooked(t, urlOf(t, server, db), func(query string) {
			if !strings.HasPrefix(query, "SELECT low, high FROM postrider_dropped") || revived {
				return
			}
			revived = true
			if err := sweep(t, New(db, nil)); !errors.Is(err, store.ErrIdentity) {
				t.Errorf("the sweep: error %v", err)
			}
		})
		keeper.SetMaxOpenConns(1)
		if _, err := keeper.ExecContext(t.Context(), `SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED`); err != nil {
			t.Fatal(err)
		}
		if _, err := New(keeper, nil).Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "keeper", MaxBytes: 1}); err != nil || !revived {
			t.Fatalf("revived: %v, error %v", revived, err)
		}
		o.lease()
		want(t, "the late one", o.step(), "late")
	})
}

// The age of a settlement is known by samples where a lane is busy, and a gap in the numbers
// that is open keeps what is above it.
func TestRetentionCountsFromTheSettlement(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		o := newOwner(t, db, "a")
		o.put("", "a", "b", "c")
		o.step()
		o.exec(`DELETE FROM postrider_times`)
		o.minute() // takes a sample
		o.put("", "d")
		o.step()
		hour := ops.PruneRequest{OlderThan: time.Hour}
		if n := o.prune(hour); n != 0 {
			t.Errorf("%d rows are removed that were settled just now", n)
		}
		o.exec(`UPDATE postrider_times SET at = at - 7200000000`)
		if n := o.prune(hour); n != 3 {
			t.Errorf("%d rows are removed, want those of the sample", n)
		}
		o.exec(`UPDATE postrider_progress SET settled_at = settled_at - 7200000000`)
		if n := o.prune(hour); n != 1 {
			t.Errorf("%d rows are removed of a lane that is quiet, want 1", n)
		}
		if n := o.prune(ops.PruneRequest{OlderThan: time.Hour, Actor: "ann", Reason: "r"}); n != 0 {
			t.Errorf("%d rows are removed", n)
		}
		o.put("", "e", "f", "g")
		o.step()
		o.prune(ops.PruneRequest{Limit: 2, Actor: "ann", Reason: "r"})
		if n := o.count(`SELECT COUNT(*) FROM postrider_journal WHERE act = 'prune'`); n == 0 {
			t.Error("a person's prune has no entry")
		}
	})
}

// Retention takes the rows that it removes by their numbers: it does not meet a row that a writer
// has just inserted, which is locked, and where a server keeps snapshots apart ends the transaction.
func TestRetentionWaitsForNoWriter(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		o := newOwner(t, db, "a")
		for i := range 60 {
			o.put("k", fmt.Sprint(i))
		}
		o.page = 100
		o.step()
		var name string
		if err := db.QueryRowContext(t.Context(), `SELECT DATABASE()`).Scan(&name); err != nil {
			t.Fatal(err)
		}
		tx, err := pool(t, server.DatabaseURL(name)).BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO postrider_outbox (topic, `key`, type) VALUES ('t', 'k', 'late')"); err != nil {
			t.Fatal(err)
		}
		db.SetMaxOpenConns(1)
		o.exec(`SET SESSION innodb_lock_wait_timeout = 1`)
		if n := o.prune(ops.PruneRequest{}); n != 60 {
			t.Errorf("%d rows are removed, want 60", n)
		}
	})
}

// Sixteen writers, two relays, retention, pauses and new pipes beside each other: no error
// reaches anybody, and each message is read once and in turn.
//
// Promises: L, O
func TestTheOfficeBesideWriters(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		const writers, each = 16, 40
		db := newOutbox(t, server, 4)
		db.SetMaxOpenConns(60)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var writing, working sync.WaitGroup
		for w := range writers {
			writing.Go(func() {
				for i := range each {
					tx, err := db.BeginTx(t.Context(), nil)
					if err != nil {
						t.Error(err)
						return
					}
					_, err = tx.ExecContext(t.Context(), "INSERT INTO postrider_outbox (topic, `key`, version) VALUES ('t', ?, ?)", fmt.Sprint("k", w), i+1)
					if err == nil && i%5 == 0 {
						_, err = tx.ExecContext(t.Context(), `DO SLEEP(0.01)`)
					}
					if err = errors.Join(err, tx.Commit()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		next, seen := map[string]int64{}, 0
		var mu sync.Mutex
		for _, boot := range []string{"a", "b"} {
			working.Go(func() {
				s := New(db, nil)
				for ctx.Err() == nil {
					g, err := s.Lease(t.Context(), store.LeaseRequest{BootID: boot, Instance: boot, TTL: time.Minute})
					if err != nil {
						t.Error(err)
						return
					}
					for _, l := range g.Lanes {
						b, err := s.Read(t.Context(), []store.LaneRead{{Lane: l.Lane, Epoch: l.Epoch, MaxRecords: 50}})
						if err != nil {
							t.Error(err)
							return
						}
						st := store.Settlement{BootID: boot, Lane: l.Lane, Epoch: l.Epoch, Position: b[0].Position, Delivered: len(b[0].Messages)}
						for _, r := range g.Requests {
							if r.Lane == l.Lane {
								st.Requests = append(st.Requests, r.ID)
							}
						}
						lost, err := s.Settle(t.Context(), []store.Settlement{st})
						if err != nil {
							t.Error(err)
							return
						}
						if len(lost) > 0 {
							continue
						}
						mu.Lock()
						for _, m := range b[0].Messages {
							if seen++; m.Version != next[m.Key]+1 {
								t.Errorf("key %s: version %d behind %d", m.Key, m.Version, next[m.Key])
							}
							next[m.Key] = m.Version
						}
						if seen == writers*each {
							stop()
						}
						mu.Unlock()
					}
				}
			})
		}
		office := New(db, nil).Office()
		for _, work := range []func(i int) error{
			func(int) error {
				_, err := office.Retention.Prune(t.Context(), ops.PruneRequest{Runner: "keeper"})
				return err
			},
			func(i int) error {
				kind := []store.ActKind{store.ActPause, store.ActResume}[i%2]
				_, err := office.Admin.Request(t.Context(), store.Act{Kind: kind, Key: "nobody", Actor: "ann", Reason: "r"})
				return err
			},
			func(i int) error {
				name := fmt.Sprint("p", i)
				_, err := office.Pipes.AddPipe(t.Context(), ops.AddPipe{Name: name, Actor: "ann", Reason: "r"})
				if err == nil {
					_, err = office.Pipes.RemovePipe(t.Context(), ops.RemovePipe{Name: name, Forfeit: 1 << 40, Actor: "ann", Reason: "r"})
				}
				return err
			},
		} {
			working.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					if err := work(i); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		writing.Wait()
		gone := time.AfterFunc(2*time.Minute, stop) // a test that hangs says nothing
		working.Wait()
		gone.Stop()
		if seen != writers*each {
			t.Errorf("%d messages were read, want %d", seen, writers*each)
		}
	})
}
