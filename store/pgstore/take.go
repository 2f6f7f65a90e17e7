package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/operations"
)

func laneIDs(lanes []store.Lane) []int16 {
	ids := []int16{}
	for _, l := range lanes {
		ids = append(ids, int16(l))
	}
	return ids
}

// giveBack releases lanes. The instance keeps a lane that cannot be released now; it
// is granted and released again.
func (s *Store) giveBack(ctx context.Context, req store.LeaseRequest) error {
	if len(req.Release) == 0 && !req.Leave {
		return nil
	}
	b := &pgx.Batch{}
	s.box.QueueSession(b, s.box.Limits().Take)
	if len(req.Release) > 0 {
		lanes, epochs := []int16{}, []int64{}
		for _, r := range req.Release {
			lanes, epochs = append(lanes, int16(r.Lane)), append(epochs, r.Epoch)
		}
		b.Queue(s.sql.release, s.opts.Pipe, req.BootID, lanes, epochs)
	}
	if req.Leave {
		b.Queue(s.sql.releaseAll, s.opts.Pipe, req.BootID)
	}
	err := s.box.Pool.SendBatch(ctx, b).Close()
	if db.Blocked(err) {
		_, err = s.evict(ctx)
	}
	return err
}

// take takes free lanes, up to the instance's share. If another session's unfinished transaction blocks
// one, sessions that have been silent for a lease are terminated. If that does not
// help, the lanes are tried one by one for a short time, and blocked ones
// are left for the next heartbeat.
func (s *Store) take(ctx context.Context, req store.LeaseRequest, a *leaseAnswer) error {
	wants := req.Share(a.lanes, a.live) - len(a.grants)
	if wants <= 0 || req.Leave || req.Observe {
		return nil
	}
	l := s.box.Limits()
	free, err := s.free(ctx, req, a.grants, wants)
	if err != nil || len(free) == 0 {
		return err
	}
	if err = s.tryTake(ctx, req.BootID, a, free, l.Take); !db.Blocked(err) {
		return err
	}
	put, err := s.evict(ctx)
	if err != nil {
		return err
	}
	if put > 0 {
		if err = s.tryTake(ctx, req.BootID, a, free, l.Take); !db.Blocked(err) {
			return err
		}
	}
	until := time.Now().Add(2 * l.Take)
	for _, lane := range free {
		if time.Now().After(until) {
			break
		}
		if err := s.tryTake(ctx, req.BootID, a, []int16{lane}, l.Take/4); err != nil && !db.Blocked(err) {
			return err
		}
	}
	return nil
}

// free returns at most limit lanes that an instance may take, in random order. The heartbeats of an
// instance that has its share do not look for them, which costs as much as reading its positions.
func (s *Store) free(ctx context.Context, req store.LeaseRequest, held []store.LaneGrant, limit int) (free []int16, err error) {
	ids := []int16{} // never NULL
	for _, g := range held {
		ids = append(ids, int16(g.Lane))
	}
	b := &pgx.Batch{}
	s.box.QueueSession(b, s.box.Limits().Lock)
	b.Queue(s.sql.free, s.opts.Pipe, req.BootID, ids, laneIDs(req.Only), limit).Query(func(rows pgx.Rows) (err error) {
		free, err = pgx.CollectRows(rows, pgx.RowTo[int16])
		return err
	})
	err = s.box.Pool.SendBatch(ctx, b).Close()
	return free, err
}

// tryTake takes all of the lanes that are still free, or fails.
func (s *Store) tryTake(ctx context.Context, boot string, a *leaseAnswer, lanes []int16, wait time.Duration) error {
	now := standing{history: a.history}
	b := &pgx.Batch{}
	s.box.QueueSession(b, wait)
	b.Queue(s.sql.take, s.opts.Pipe, boot, lanes)
	s.queueStanding(b, boot, &now)
	if err := s.box.Pool.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	a.standing = now
	return nil
}

// evict terminates the sessions of this role that hold progress rows in an open
// transaction and whose client has been silent for longer than a lease: its host
// died, or its process was stopped between the first byte of a Settle and
// the last. Such a transaction has settled nothing, and no client waits for it; until
// it ends no other instance can insert the same number. See docs/adr.
func (s *Store) evict(ctx context.Context) (ended int, err error) {
	l := s.box.Limits()
	err = s.box.Pool.QueryRow(ctx, s.sql.evict, l.TTL.Seconds(), max(l.Take.Milliseconds(), 1)).Scan(&ended)
	return ended, err
}

// blocker returns an error with the session that a settlement waits for, nil if none is
// visible: this instance's own end within the wait for a lock.
func (s *Store) blocker(ctx context.Context) error {
	var pid int
	var user, app string
	var open float64
	err := s.box.Pool.QueryRow(ctx, s.sql.blocker, s.box.Limits().Lock.Seconds()).Scan(&pid, &user, &app, &open)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("rows of %s.progress or %s.parked are held by a transaction of %q (%s, process %d), open for %v: end it, SELECT pg_terminate_backend(%d)",
		s.opts.Schema, s.opts.Schema, user, app, pid, db.Seconds(open).Round(time.Second), pid)
}

// makePipe creates this store's pipe, from now, unless another instance was faster.
func (s *Store) makePipe(ctx context.Context) error {
	_, err := s.office.Pipes.AddPipe(ctx, ops.AddPipe{Name: s.opts.Pipe, Actor: "relay"})
	if errors.Is(err, ops.ErrPipeExists) {
		return nil
	}
	return err
}

func (s *Store) noteKinds(kinds map[int64]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds = kinds
}

// executes returns the statements that execute a request: those of all kinds if no
// lease has listed it.
func (s *Store) executes(id int64) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.carry.Of(s.kinds[id])
}

// pagesPerTurn is the number of pages of orders that an instance gets with a
// heartbeat: they are in one settlement, which must not take long, and each of
// their lanes waits for it.
const pagesPerTurn = 4

// turn picks the requests for an instance. Pages of orders are picked at
// random: a page that waits, for a rate or for live messages, delays no other.
func (a *standing) turn(mine func(store.Request) bool) []store.Request {
	var picked, pages []store.Request
	for _, r := range a.requests {
		switch {
		case !mine(r):
		case operations.IsPage(a.kinds[r.ID]):
			pages = append(pages, r)
		default:
			picked = append(picked, r)
		}
	}
	rand.Shuffle(len(pages), func(i, j int) { pages[i], pages[j] = pages[j], pages[i] })
	picked = append(picked, pages[:min(len(pages), pagesPerTurn)]...)
	slices.SortFunc(picked, func(a, b store.Request) int { return cmp.Compare(a.ID, b.ID) })
	return picked
}
