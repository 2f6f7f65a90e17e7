// Package tail wakes a relay that waits for messages: by LISTEN, or by reading the server's
// log through a temporary slot. Nothing here decides what is delivered: without it a relay polls.
package tail

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/xids"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// The ways to learn of messages.
const (
	Poll   = "poll"
	Listen = "listen"
	Log    = "log"
)

const (
	// A session that listens and does not read keeps the server's queue of
	// notifications, or its log, from being emptied: after that long without a Wait, the
	// store stops listening.
	deafAfter = 10 * time.Second
	// listenAgain is the pause before another try to listen.
	listenAgain = time.Second
)

// Bell wakes one store while Wait is called regularly. It is safe for concurrent use.
type Bell struct {
	*db.Outbox
	way    string
	bell   chan struct{} // rung when something was written; holds one ring
	rings  *rings
	rows   atomic.Int64 // that reads have returned
	limits limits

	follows Rows

	mu     sync.Mutex
	boot   string
	stop   context.CancelFunc // nil: not listening
	waited time.Time          // when Wait was called last
	retry  time.Time          // not before
	state  store.Wake
}

// New returns the bell of an outbox. way is Poll, Listen or Log. It does no I/O.
func New(o *db.Outbox, way string) *Bell {
	return &Bell{
		Outbox: o, way: way, bell: make(chan struct{}, 1), rings: newRings(), limits: usual(),
		state: store.Wake{Wanted: way, Using: Poll, Since: time.Now()},
	}
}

// Name sets the boot id of the relay, which names the slot.
func (b *Bell) Name(boot string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.boot = boot
}

// State says how Wait learns of messages now, and why not as it was asked to.
func (b *Bell) State() store.Wake {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

// Begin notes that a read begins. End takes what it returns.
func (b *Bell) Begin() uint64 {
	if b.way != Log {
		return 0
	}
	return b.rings.begin()
}

// End notes that a read of these lanes ended, with what its snapshot saw. look is nil if it
// failed; a quiet read found every number accounted for. rows is how many it returned.
func (b *Bell) End(read uint64, lanes []int16, look *xids.Look, quiet bool, rows int) {
	if b.way != Log {
		return
	}
	b.rows.Add(int64(rows))
	b.rings.end(read, lanes, look, quiet)
}

// Wait sleeps for limit, until ctx ends, or until something was written.
func (b *Bell) Wait(ctx context.Context, limit time.Duration) error {
	var bell <-chan struct{}
	limit = max(limit, 0)
	if b.way != Poll {
		b.begin()
		bell = b.bell
		if d, ok := b.rings.pause(); ok && d < limit {
			limit = d
			defer b.rings.looked()
		}
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-ctx.Done():
		b.end()
		return ctx.Err()
	case <-bell:
	case <-t.C:
	}
	return nil
}

// begin begins to listen unless the store listens already.
func (b *Bell) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waited = time.Now()
	if b.stop != nil || b.waited.Before(b.retry) {
		return
	}
	//nolint:forbidigo // it lives from one Wait to the next, and ends when they end
	ctx, cancel := context.WithCancel(context.Background())
	b.stop = cancel
	go func() {
		defer cancel()
		if b.way == Log {
			b.tail(ctx)
		} else {
			b.turn(store.Wake{Using: Poll, Why: why(b.hear(ctx))}) // the next Wait listens again; until then the relay polls
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.stop, b.retry = nil, time.Now().Add(listenAgain)
	}()
}

// end ends listening, because Wait is not called any more.
func (b *Bell) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stop != nil {
		b.stop()
	}
}

// deaf reports whether nobody waits any more.
func (b *Bell) deaf() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.waited) > deafAfter
}

// tail reads the log, and listens or pauses while it cannot, until nobody waits any more.
func (b *Bell) tail(ctx context.Context) {
	defer b.turn(store.Wake{Using: Poll})
	pause := time.Duration(0)
	for ctx.Err() == nil && !b.deaf() {
		began := time.Now()
		reason := b.follow(ctx)
		if ctx.Err() != nil || b.deaf() {
			return
		}
		if time.Since(began) > b.limits.again {
			pause = 0
		}
		if reason.soon {
			pause = min(max(2*pause, b.limits.soon), b.limits.again)
		} else {
			pause = b.limits.again
		}
		b.turn(store.Wake{Using: Poll, Why: reason.Why, Fix: reason.Fix})
		for b.instead(ctx, pause) >= b.limits.busy*pause.Seconds() { // the log would be as busy
			b.turn(store.Wake{Using: Poll, Why: "busy: full pages, polling costs less"})
			pause = b.limits.again
		}
	}
}

// instead listens for so long if writers notify, or pauses, and returns how many rows were
// read meanwhile.
func (b *Bell) instead(ctx context.Context, pause time.Duration) float64 {
	before := b.rows.Load()
	limited, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	if c, _ := b.check(limited, ""); c.notifies {
		_ = b.hear(limited) // it is known why the log is not read
	}
	for limited.Err() == nil && !b.deaf() {
		_ = db.Pause(limited, min(pause, deafAfter/4)) // its error is that of limited
	}
	if ctx.Err() != nil || b.deaf() {
		return 0
	}
	return float64(b.rows.Load() - before)
}

// turn notes how Wait learns of messages from now on.
func (b *Bell) turn(w store.Wake) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.Using == b.state.Using && w.Why == b.state.Why {
		return
	}
	b.state.Using, b.state.Why, b.state.Fix, b.state.Since = w.Using, w.Why, w.Fix, time.Now()
}

// opened notes that the log is read from now on.
func (b *Bell) opened() {
	b.turn(store.Wake{Using: Log})
	b.sound() // for messages written before
}

// ring notes a commit, and wakes Wait.
func (b *Bell) ring(xid uint32) {
	b.rings.add(xid)
	b.sound()
}

func (b *Bell) sound() {
	select {
	case b.bell <- struct{}{}:
	default:
	}
}

// slotName returns the name of the next slot: another one each time, since a dead one may
// still be there.
func (b *Bell) slotName() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slotPrefix + strings.ToLower(b.boot[:min(len(b.boot), 32)]) + "_" + strings.ToLower(rand.Text()[:6])
}

func why(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
