package promises

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// mortal is the database as a process sees it that ends at some time: nothing is
// committed afterwards.
type mortal struct {
	consumer.DB[*sql.Tx]
	dead atomic.Bool
}

var errDied = errors.New("the process has ended")

func (m *mortal) Transact(ctx context.Context, fn func(tx *sql.Tx, conn inbox.Conn) error) error {
	if m.dead.Load() {
		return errDied
	}
	return m.DB.Transact(ctx, func(tx *sql.Tx, conn inbox.Conn) error {
		if err := fn(tx, conn); err != nil || m.dead.Load() {
			return errors.Join(err, errDied)
		}
		return nil
	})
}

// pairs is a source without the number of a delivery, which returns two messages at once, and
// the next two when these are acknowledged.
type pairs struct {
	next  chan []postrider.Message
	acked atomic.Int32
	all   int32
	done  chan struct{}
}

func newPairs(msgs []postrider.Message) *pairs {
	p := &pairs{next: make(chan []postrider.Message, 1), all: int32(len(msgs)), done: make(chan struct{})}
	p.next <- msgs
	return p
}

func (p *pairs) Info() broker.SourceInfo                         { return broker.SourceInfo{Name: "pairs"} }
func (p *pairs) Extend(context.Context, []broker.Delivery) error { return nil }

func (p *pairs) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	select {
	case msgs := <-p.next:
		ds := []broker.Delivery{{Message: msgs[0], Token: msgs[2:]}, {Message: msgs[1], Token: msgs[2:]}}
		return ds, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pairs) Settle(_ context.Context, vs []broker.Verdict) error {
	for _, v := range vs {
		if !v.Ack {
			continue
		}
		n := p.acked.Add(1)
		if n == p.all {
			close(p.done)
		} else if n%2 == 0 {
			p.next <- v.Delivery.Token.([]postrider.Message)
		}
	}
	return nil
}

// TestBombInABatchIsCounted: a message that ended the process in a batch is counted before
// its handler runs again, although its source counts no deliveries and brings many
// duplicates first.
//
// Promises: S
func TestBombInABatchIsCounted(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		opts := quick
		opts.Concurrency, opts.Batch = 1, 2
		var msgs []postrider.Message
		for i := range 14 {
			msgs = append(msgs, message(i, "", "order.placed", order{"x", i}))
		}
		const bomb = 13
		life := func(m *mortal, msgs []postrider.Message, explodes func(ctx context.Context) error) {
			t.Helper()
			src := newPairs(msgs)
			c := consumer.New(src, m, &opts)
			consumer.Handle(c, "order.placed", func(ctx context.Context, _ *sql.Tx, o order) error {
				if o.N == bomb {
					return explodes(ctx)
				}
				return nil
			})
			runWhile(t, c.Run, func() bool {
				select {
				case <-src.done:
					return false
				default:
					return !m.dead.Load()
				}
			})
		}
		alive := func() *mortal { return &mortal{DB: consumer.SQL(db, dialectOf(in, db))} }
		life(alive(), msgs[:12], nil)
		dies := alive()
		life(dies, msgs, func(context.Context) error { dies.dead.Store(true); return errDied })
		ran := 0
		life(alive(), msgs, func(ctx context.Context) error {
			ran++
			if n := count(t, db, "SELECT count(*) FROM "+attemptTable(in, db)+" WHERE message_id = '"+msgs[bomb].ID+"' AND begun_by IS NOT NULL"); n != 1 {
				t.Errorf("its handler runs and %d attempts are recorded", n)
			}
			return nil
		})
		if n := count(t, db, "SELECT count(*) FROM "+attemptTable(in, db)); ran != 1 || n != 0 {
			t.Errorf("the handler ran %d times; %d rows of attempts are left", ran, n)
		}
	})
}
