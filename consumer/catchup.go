package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// catchUpBatch is the most stashed messages that are applied in one transaction.
const catchUpBatch = 100

// catchUp applies the messages that waited for t, many in one transaction. No attempt
// is counted: at the first error it leaves them to [Consumer.tendStash], which
// takes them one by one, and so they stay until a sweep is through with all. It also leaves
// them if messages must be opened first, since keys are never fetched inside a transaction.
func (c *Consumer[Tx]) catchUp(ctx context.Context, t *task) {
	k := key{t.m.Topic, t.m.Key}
	if c.opts.Opener != nil || c.singles.has(k) {
		c.wakeStash()
		return
	}
	for more := true; more; {
		var err error
		if more, err = c.catchUpSome(ctx, t); err != nil {
			t.log().DebugContext(ctx, "stashed messages taken singly", "error", err)
			c.singles.add(k)
			c.wakeStash()
		}
	}
}

// catchUpSome is one transaction. It ends before it is likely to take longer than half of
// HandlerTimeout: its key's other messages wait for the mark meanwhile.
func (c *Consumer[Tx]) catchUpSome(ctx context.Context, t *task) (more bool, err error) {
	limited, cancel := context.WithTimeout(ctx, c.opts.HandlerTimeout)
	defer cancel()
	var (
		n, dropped int
		times      []time.Time
		longest    time.Duration
	)
	begin := time.Now()
	err = c.db.Transact(limited, func(tx Tx, conn inbox.Conn) (err error) {
		n, dropped, err = c.inbox.Unstash(limited, conn, t.m.Topic, t.m.Key, catchUpBatch, func(s inboxwork.Stashed) error {
			now := time.Now()
			if len(times) > 0 && now.Sub(begin)+longest > c.opts.HandlerTimeout/2 {
				more = true
				return inboxwork.ErrEnough
			}
			h, known := c.wrapped[s.Message.Type]
			switch {
			case !known:
				return errUnknownType
			case wasErased(&s.Message):
				h = nothing[Tx]
			}
			times = append(times, s.Message.Time)
			next := &task{d: broker.Delivery{Origin: s.Origin}, m: s.Message, readable: s.Message, consumer: c.opts.Name, logger: c.opts.Logger}
			err := c.protect(limited, next, tx, h, catchUpBatch)
			longest = max(longest, time.Since(now))
			return err
		})
		return err
	})
	if err != nil {
		return false, err
	}
	for _, at := range times {
		c.counts.effect(at)
	}
	c.counts.stale.Add(int64(dropped))
	return more || n == catchUpBatch, nil
}

// singles are the keys whose stashed messages are taken one by one, since many of
// them in one transaction failed.
type singles struct {
	mu   sync.Mutex
	keys map[key]bool
}

func (s *singles) add(k key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		s.keys = make(map[key]bool)
	}
	s.keys[k] = true
}

func (s *singles) has(k key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[k]
}

func (s *singles) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = nil
}
