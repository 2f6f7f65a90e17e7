package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/store"
)

// hostile writes versions 1, 2, 3 ... of one key in every way in which numbers come to be
// visible late or never.
type hostile struct {
	db  *sql.DB
	key string
	rng *rand.Rand
	n   int64 // committed versions

	noXA bool
}

func (h *hostile) message() postrider.Message {
	return postrider.Message{Topic: "t", Key: h.key, Version: h.n + 1, Payload: []byte("x")}
}

func (h *hostile) enqueue(ctx context.Context, tx *sql.Tx, n int) error {
	for range n {
		if err := outbox.New(dialect.MySQL, nil).Enqueue(ctx, tx, h.message()); err != nil {
			return err
		}
		h.n++
	}
	return nil
}

// inTx runs fn in a transaction that commits, or not.
func (h *hostile) inTx(ctx context.Context, level sql.IsolationLevel, commit bool, fn func(*sql.Tx) error) error {
	before := h.n
	tx, err := h.db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if !commit {
		h.n = before
		return tx.Rollback()
	}
	return tx.Commit()
}

func (h *hostile) write(ctx context.Context) error {
	level := []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted, sql.LevelSerializable}[h.rng.IntN(3)]
	pause := func(ctx context.Context, tx *sql.Tx, most float64) error {
		_, err := tx.ExecContext(ctx, `DO SLEEP(?)`, h.rng.Float64()*most)
		return err
	}
	way := h.rng.IntN(6)
	if h.noXA && way == 4 {
		way = 5
	}
	switch way {
	case 0: // rolled back, after others have gone past
		return h.inTx(ctx, level, false, func(tx *sql.Tx) error {
			return errors.Join(h.enqueue(ctx, tx, 1+h.rng.IntN(5)), pause(ctx, tx, 0.05))
		})
	case 1: // some of it rolled back
		return h.inTx(ctx, level, true, func(tx *sql.Tx) error {
			before := h.n
			if _, err := tx.ExecContext(ctx, `SAVEPOINT a`); err != nil {
				return err
			}
			if err := h.enqueue(ctx, tx, 2); err != nil {
				return err
			}
			h.n = before
			_, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT a`)
			return errors.Join(err, h.enqueue(ctx, tx, 1))
		})
	case 2: // late
		return h.inTx(ctx, level, true, func(tx *sql.Tx) error {
			return errors.Join(h.enqueue(ctx, tx, 1+h.rng.IntN(3)), pause(ctx, tx, 0.2))
		})
	case 3: // numbers are drawn long before rows are there
		return h.slow(ctx, 3+4*h.rng.IntN(2), h.rng.Float64()*0.1)
	case 4:
		return h.xa(ctx)
	}
	return h.inTx(ctx, level, true, func(tx *sql.Tx) error { return h.enqueue(ctx, tx, 1) })
}

// slow is one statement that sleeps before its last row. Its number was drawn before: the
// server draws 1, then 2, then 4 numbers ahead for a statement of unknown length.
func (h *hostile) slow(ctx context.Context, rows int, seconds float64) error {
	_, err := h.db.ExecContext(ctx, "INSERT INTO postrider_outbox (topic, `key`, payload, version) WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < ?)"+
		" SELECT 't', ?, IF(SLEEP(IF(i < ?, 0, ?)) = 0, 'x', 'y'), ? + i FROM r", rows, h.key, rows, seconds, h.n)
	if err == nil {
		h.n += int64(rows)
	}
	return err
}

// xa is prepared by one session and committed, or not, by another.
func (h *hostile) xa(ctx context.Context) error {
	id := fmt.Sprintf("'%s-%d'", h.key, h.rng.Int64())
	first, err := h.db.Conn(ctx)
	if err != nil {
		return err
	}
	var session int64
	if err := first.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&session); err != nil {
		return errors.Join(err, first.Close())
	}
	for _, query := range []string{
		"XA START " + id,
		fmt.Sprintf("INSERT INTO postrider_outbox (topic, `key`, payload, version) VALUES ('t', '%s', 'x', %d)", h.key, h.n+1),
		"XA END " + id, "XA PREPARE " + id,
	} {
		if _, err = first.ExecContext(ctx, query); err != nil {
			break
		}
	}
	// The session ends, and what it has prepared does not.
	_ = first.Raw(func(any) error { return driver.ErrBadConn })
	if err != nil {
		return err
	}
	how := "XA COMMIT "
	if h.rng.IntN(3) == 0 {
		how = "XA ROLLBACK "
	}
	// A commit while the first session is ending may answer that it succeeded and leave the
	// transaction open for ever, which is the server's fault (seen on MariaDB 10.11).
	for alive := 1; alive > 0; {
		if err := h.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ?", session).Scan(&alive); err != nil {
			return err
		}
	}
	if _, err = h.db.ExecContext(ctx, how+id); err == nil && how == "XA COMMIT " {
		h.n++
	}
	return err
}

// endPrepared ends what a failed run has left, which would hold up the end of the database.
func endPrepared(t *testing.T, db *sql.DB) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	rows, err := db.QueryContext(ctx, "XA RECOVER")
	if err != nil {
		t.Error(err)
		return
	}
	defer rows.Close()
	var ids []string
	for rows.Next() {
		var id string
		var format, first, second int
		if err := rows.Scan(&format, &first, &second, &id); err != nil {
			t.Error(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Error(err)
	}
	for _, id := range ids {
		if _, err := db.ExecContext(ctx, "XA ROLLBACK '"+id+"'"); err != nil {
			t.Error(err)
		}
	}
}

// reader carries the outbox until everything is there, and forgets what it has seen now
// and then.
type reader struct {
	t    *testing.T
	db   *sql.DB
	boot int
	next map[string]int64
	seen int
}

// carry reads and settles until done says so and nothing is left.
func (r *reader) carry(ctx context.Context, done *atomic.Bool) error {
	rng := rand.New(rand.NewPCG(7, 7))
	for {
		r.boot++
		st, boot := New(r.db, nil), fmt.Sprintf("boot%d", r.boot)
		g, err := st.Lease(ctx, store.LeaseRequest{BootID: boot, Instance: boot, TTL: time.Minute})
		if err != nil {
			return err
		}
		idle := false
		// Every other reader lives long enough to give holes up.
		life := time.Duration(0)
		if r.boot%2 == 1 {
			life = 2 * patience
		}
		for began, n := time.Now(), rng.IntN(60); n >= 0 || !idle && time.Since(began) < life; n-- {
			before, ended := r.seen, done.Load()
			if err := r.round(ctx, st, boot, g.Lanes, rng); err != nil {
				return err
			}
			idle = ended && r.seen == before
		}
		if _, err := st.Lease(ctx, store.LeaseRequest{BootID: boot, Leave: true}); err != nil {
			return err
		}
		if idle {
			return nil
		}
	}
}

func (r *reader) round(ctx context.Context, st *Store, boot string, lanes []store.LaneGrant, rng *rand.Rand) error {
	var reads []store.LaneRead
	for _, l := range lanes {
		reads = append(reads, store.LaneRead{Lane: l.Lane, Epoch: l.Epoch, MaxRecords: 1 + rng.IntN(20)})
	}
	batches, err := st.Read(ctx, reads)
	if err != nil {
		return err
	}
	var settle []store.Settlement
	for i, b := range batches {
		for _, m := range b.Messages {
			r.seen++
			if r.next[m.Key]++; m.Version != r.next[m.Key] {
				return fmt.Errorf("key %s: version %d came where %d was due", m.Key, m.Version, r.next[m.Key])
			}
		}
		settle = append(settle, store.Settlement{BootID: boot, Lane: b.Lane, Epoch: lanes[i].Epoch, Position: b.Position, Delivered: len(b.Messages)})
		lanes[i].Epoch++
	}
	lost, err := st.Settle(ctx, settle)
	if err == nil && len(lost) > 0 {
		err = fmt.Errorf("lanes %v are lost", lost)
	}
	return err
}

// Promises: L, P, O
func TestHostileWritersLoseNothing(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, testLanes)
		t.Cleanup(func() { endPrepared(t, db) })
		var writers sync.WaitGroup
		var done atomic.Bool
		all := make([]*hostile, 9)
		errs := make([]error, len(all)+1)
		for i := range all {
			h := &hostile{db: db, key: fmt.Sprintf("key%d", i), rng: rand.New(rand.NewPCG(uint64(i), 3))}
			all[i] = h
			writers.Go(func() {
				if i == 0 { // one statement that runs longer than the store's patience
					errs[i] = h.slow(t.Context(), 3, (patience + 2*slack).Seconds())
					return
				}
				for range 25 {
					if err := again(t.Context(), func() error {
						before := h.n
						err := h.write(t.Context())
						if err != nil { // the server has rolled all of it back
							h.n = before
						}
						return err
					}); err != nil {
						errs[i] = err
						return
					}
				}
			})
		}
		var reading sync.WaitGroup
		r := &reader{t: t, db: db, next: map[string]int64{}}
		reading.Go(func() { errs[len(all)] = r.carry(t.Context(), &done) })
		writers.Wait()
		done.Store(true)
		reading.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for _, h := range all {
			if r.next[h.key] != h.n {
				t.Errorf("%s: %d of %d versions came", h.key, r.next[h.key], h.n)
			}
		}
	})
}
