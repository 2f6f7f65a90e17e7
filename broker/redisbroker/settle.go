package redisbroker

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/inhand"
)

// ackPage is the most ids of one command: a script accepts only a few
// thousand arguments.
const ackPage = 500

// Settle implements broker.Source. The next call, with the same or other verdicts, sends
// acknowledgements that the server has not confirmed again.
func (s *Source) Settle(ctx context.Context, verdicts []broker.Verdict) error {
	if err := s.sort(verdicts); err != nil {
		return err
	}
	s.acks.Lock()
	defer s.acks.Unlock()
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return errClosed
	}
	if s.opts.Delete {
		if err := s.done.meet(ctx); err != nil {
			return fmt.Errorf("redisbroker: acknowledge: %w", err)
		}
	}
	pages := s.unconfirmed()
	cmds := make([]redis.Cmder, len(pages))
	for i, p := range pages {
		cmds[i] = s.acknowledge(ctx, p)
	}
	if len(cmds) == 0 {
		return nil
	}
	_, err := s.done.exec(ctx, cmds...)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range pages {
		if cmds[i].Err() != nil {
			continue
		}
		if err != nil { // the client leaves commands without an answer unchanged
			break
		}
		for _, id := range p.ids {
			p.st.confirmed(id)
		}
	}
	if err := failure(err, cmds...); err != nil {
		return fmt.Errorf("redisbroker: acknowledge: %w", err)
	}
	return nil
}

// page has some ids of one stream.
type page struct {
	st  *stream
	ids []string
}

// acknowledge returns the command for a page.
func (s *Source) acknowledge(ctx context.Context, p page) redis.Cmder {
	var args []any
	switch {
	case !s.opts.Delete:
		args = []any{"xack", p.st.name, s.opts.Group}
	case s.done.has(hasXAckDel):
		args = []any{"xackdel", p.st.name, s.opts.Group, "acked", "ids", len(p.ids)}
	default:
		args = []any{"eval", doneScript, 1, p.st.name, s.opts.Group}
	}
	for _, id := range p.ids {
		args = append(args, id)
	}
	return redis.NewCmd(ctx, args...)
}

// unconfirmed returns the acknowledgements to send, in pages.
func (s *Source) unconfirmed() (pages []page) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.streams {
		p := page{st: st}
		for id := range st.acks {
			if p.ids = append(p.ids, id); len(p.ids) == ackPage {
				pages = append(pages, p)
				p.ids = nil
			}
		}
		if len(p.ids) > 0 {
			pages = append(pages, p)
		}
	}
	return pages
}

// sort applies the verdicts to the messages in hand.
func (s *Source) sort(verdicts []broker.Verdict) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	now := time.Now()
	changed := make(map[*stream]bool)
	for i, v := range verdicts {
		t, ok := v.Delivery.Token.(inhand.Token)
		if !ok {
			return fmt.Errorf("redisbroker: settle: verdict %d (%s): not a delivery of this source", i, v.Delivery.Origin)
		}
		if _, live := t.Live(); !live {
			continue
		}
		at, ok := t.Origin().Token.(place)
		if !ok {
			continue
		}
		at.st.out--
		changed[at.st] = true
		if !v.Ack {
			t.GiveBack(now.Add(v.Delay))
			continue
		}
		t.Ack()
		delete(at.st.inHand, at.id)
		at.st.acks[at.id] = true
	}
	for st := range changed {
		st.log.Remove()
	}
	s.wake()
	return nil
}
