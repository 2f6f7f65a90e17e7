package storetest

import (
	"bytes"
	"context"
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

func withinCases() []Case {
	return []Case{
		{
			Name: "read/within", Run: readWithin,
			Promise: "all batches of a call hold at most Within bytes; a lane that was left out has More, keeps its position and loses no record",
		},
		{
			Name: "read/within-stragglers", Run: readWithinStragglers, Needs: NeedsBackdatedWriters,
			Promise: "late records obey the call's limit of bytes too, and are read in the end",
		},
		{
			Name: "parked/within", Run: parkedWithin,
			Promise: "a parked read returns no record beyond Within, not even the first, and sets More",
		},
	}
}

const withinSize = 10_000

// withinKeys makes n large messages for each of some keys.
func withinKeys(keys, n int) (all []postrider.Message) {
	for i := range n {
		for k := range keys {
			all = append(all, label(fmt.Sprintf("k%02d", k), fmt.Sprintf("%d %s", i, bytes.Repeat([]byte("x"), withinSize))))
		}
	}
	return all
}

// sweep reads all lanes in turn, each call within a limit of bytes, until no record is
// left. The first lane of a call may return one record of any size.
type sweep struct {
	r      *relay
	within int
	after  map[store.Lane]store.Position
	next   map[string]int // by key, the next record to be read
	came   int
}

func (s *sweep) call(ctx context.Context, first int, anySize bool) (more bool, err error) {
	lanes := lanesOf(s.r.grant)
	reads := make([]store.LaneRead, 0, len(lanes))
	for i := range lanes {
		lr := s.r.laneRead(lanes[(first+i)%len(lanes)], nil, 100)
		lr.After, lr.MaxBytes, lr.Within = s.after[lr.Lane], s.within, s.within
		reads = append(reads, lr)
	}
	if anySize {
		reads[0].Within = 0
	}
	batches, err := s.r.st.Read(ctx, reads)
	if err != nil {
		return false, err
	}
	total, largest := 0, 0
	for _, b := range batches {
		more = more || b.More
		if after := s.after[b.Lane]; len(b.Messages) == 0 && b.More && after != nil && !bytes.Equal(b.Position, after) {
			return false, fmt.Errorf("lane %d was left out, but its position moved", b.Lane)
		}
		for i := range b.Messages {
			m := &b.Messages[i]
			total, largest = total+m.Size(), max(largest, m.Size())
			if want := fmt.Sprintf("%d ", s.next[m.Key]); !bytes.HasPrefix(m.Payload, []byte(want)) {
				return false, fmt.Errorf("key %s: record %.2q was read, want %q", m.Key, m.Payload, want)
			}
			s.next[m.Key]++
			s.came++
		}
		s.after[b.Lane] = b.Position
	}
	if limit := s.within; total > limit && (!anySize || total > limit+largest) {
		return false, fmt.Errorf("the batches of a call hold %d bytes, limit %d", total, limit)
	}
	return more, nil
}

func (s *sweep) all(ctx context.Context, want int) error {
	for first := range rounds {
		more, err := s.call(ctx, first, true)
		if err != nil {
			return err
		}
		if s.came == want {
			return nil
		}
		if !more && first >= len(s.r.grant.Lanes) {
			return fmt.Errorf("no lane has More after %d of %d records", s.came, want)
		}
	}
	return fmt.Errorf("%d of %d records were read", s.came, want)
}

func newSweep(r *relay, within int) *sweep {
	return &sweep{r: r, within: within, after: map[store.Lane]store.Position{}, next: map[string]int{}}
}

func readWithin(ctx context.Context, env Env) error {
	const keys, each = 20, 3
	if err := commit(ctx, env, withinKeys(keys, each)...); err != nil {
		return err
	}
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	for _, g := range r.grant.Lanes {
		if g.Position == nil {
			return fmt.Errorf("lane %d has no settled position", g.Lane)
		}
	}
	none := newSweep(r, withinSize/2)
	for i := range 2 { // the second call has learnt the size of records
		if more, err := none.call(ctx, i, false); err != nil || none.came > 0 || !more {
			return fmt.Errorf("%d records of %d bytes were read within %d, More is %v, %w", none.came, withinSize, none.within, more, err)
		}
	}
	for _, within := range []int{withinSize / 2, 5 * withinSize / 2, 15 * withinSize} {
		if err := newSweep(r, within).all(ctx, keys*each); err != nil {
			return fmt.Errorf("within %d bytes: %w", within, err)
		}
	}
	return nil
}

func readWithinStragglers(ctx context.Context, env Env) error {
	const keys = 20
	first, err := env.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = first.Rollback(ctx) }()
	for k := range keys {
		if err := first.Enqueue(ctx, label(fmt.Sprintf("late%02d", k), fmt.Sprintf("0 %s", bytes.Repeat([]byte("x"), withinSize)))); err != nil {
			return err
		}
	}
	if err := commit(ctx, env, withinKeys(keys, 2)...); err != nil {
		return err
	}
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	s := newSweep(r, 3*withinSize/2)
	if err := s.all(ctx, 2*keys); err != nil {
		return err
	}
	if err := first.Commit(ctx); err != nil {
		return err
	}
	if err := commit(ctx, env, withinKeys(keys, 3)[2*keys:]...); err != nil {
		return err
	}
	return s.all(ctx, 4*keys)
}

func parkedWithin(ctx context.Context, env Env) error {
	now := store.Park{State: store.Scheduled}
	p, err := parks(ctx, env, series("k", "m", 3), now, now, now)
	if err != nil {
		return err
	}
	lr := p.r.laneRead(p.lane, nil, 100)
	lr.Parked = true
	whole, err := p.r.readOne(ctx, lr)
	if err != nil {
		return err
	}
	if err := same("due without a limit", labels(whole), texts(series("k", "m", 3))); err != nil {
		return err
	}
	for _, keys := range [][]string{nil, {}} {
		lr.Within, lr.Keys = 1, keys
		b, err := p.r.readOne(ctx, lr)
		if err != nil {
			return err
		}
		if len(b.Messages) != 0 || !b.More {
			return fmt.Errorf("within 1 byte %d records were read, More is %v", len(b.Messages), b.More)
		}
	}
	return p.wantView(ctx, "after reads", 3)
}
