package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store/memstore"
)

// largeTx is the number of records from which the log tells a transaction without them.
const largeTx = 4

// goesAhead makes a plan one in which nodes read the database's log: commits are told before
// others see them, late, or never, since streams break. The network is quick and writers write
// to the same keys at the same time, so that much goes ahead.
func (p plan) goesAhead() plan {
	p.Family, p.Ahead = memstore.Cursor, true
	d := drawer{rng: rand.New(rand.NewPCG(p.Seed, 0x61686561)), p: p}
	d.p.Ops = slices.Clone(p.Ops)
	d.p.Latency = min(p.Latency, time.Duration(1+d.rng.IntN(6))*time.Millisecond)
	for range 6 {
		at, key := d.time(), d.rng.IntN(6)
		for range 4 + d.rng.IntN(8) {
			o := op{Kind: opTx, At: at + d.upTo(400*time.Millisecond)}
			for range 1 + d.rng.IntN(largeTx) {
				o.Tx.Inserts = append(o.Tx.Inserts, insert{Key: key + d.rng.IntN(2)})
			}
			if d.rng.IntN(4) == 0 {
				o.Dur = d.upTo(100 * time.Millisecond)
			}
			d.add(o)
		}
	}
	slices.SortStableFunc(d.p.Ops, func(a, b op) int { return int(a.At - b.At) })
	return d.p
}

// RunAhead runs one seed with nodes that read ahead.
func RunAhead(ctx context.Context, seed uint64) Result {
	return runPlan(ctx, makePlan(seed).goesAhead(), mutant{}, true)
}

// ReplayAhead runs one seed with nodes that read ahead and returns its plan and trace.
func ReplayAhead(ctx context.Context, seed uint64) (Result, string) {
	return replay(ctx, makePlan(seed).goesAhead())
}

// flush writes a commit into the log. Others see it at once, or after a while.
func (wr *writer) flush(t *simTx) {
	w := wr.w
	t.tx.Flush()
	t.flushed = true
	w.told()
	if w.chance(3, 5) {
		wr.end(t, true)
		return
	}
	most := 20 * time.Millisecond
	if w.chance(1, 3) {
		most = 400 * time.Millisecond
	}
	w.after(time.Duration(w.rng.Int64N(int64(most))), func() { wr.end(t, true) })
}

// lose writes what is in the log only and does not survive a failover: another history
// continues without it. Streams that continue tell it, late.
func (wr *writer) lose() {
	w := wr.w
	for range 4 {
		t := &simTx{tx: w.db.Begin(), locks: map[int]int64{}}
		wr.insert(t, insert{Key: w.rng.IntN(6)})
		t.tx.Flush()
		for _, n := range w.nodes {
			n.hearAt = max(n.hearAt, w.now+time.Duration(w.rng.Int64N(int64(leaseTTL))))
			n.hearLater(n.hearAt, n.boot, n.stream, w.db.LogEnd())
		}
		wr.end(t, false)
	}
}

// told lets the streams of the nodes tell what the log has now, in order.
func (w *world) told() {
	end := w.db.LogEnd()
	for _, n := range w.nodes {
		late := time.Duration(w.rng.Int64N(int64(4 * time.Millisecond)))
		if w.chance(1, 8) {
			late *= 15
		}
		n.hearAt = max(n.hearAt, w.now+late)
		n.hearLater(n.hearAt, n.boot, n.stream, end)
	}
}

func (n *node) hearLater(at time.Duration, boot string, stream, end int) {
	n.w.at(at, func() {
		switch {
		case n.boot != boot || n.boot == "" || n.stream != stream:
		case n.w.now < n.pausedUntil:
			n.hearLater(n.pausedUntil+time.Microsecond, boot, stream, end)
		default:
			n.store.HearLog(end, largeTx-1)
			n.post(0, port.Woke{ID: n.waits})
		}
	})
}

// streams opens a node's stream, which breaks within 5 s.
func (n *node) streams(boot string) {
	w := n.w
	w.after(time.Duration(w.rng.Int64N(int64(500*time.Millisecond))), func() {
		if n.boot != boot {
			return
		}
		n.stream++
		n.store.OpenLog()
		w.after(time.Duration(w.rng.Int64N(int64(5*time.Second))), func() {
			if n.boot != boot {
				return
			}
			n.stream++
			n.store.CloseLog()
			n.streams(boot)
		})
	})
}
