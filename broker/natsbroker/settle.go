package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/inhand"
)

// Extend implements broker.Source. It also extends messages that wait for a receiver, and
// keeps the pin: a busy receiver may not call Receive for long.
func (s *Source) Extend(ctx context.Context, deliveries []broker.Delivery) error {
	if err := s.stay(); err != nil {
		return err
	}
	s.keep()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range deliveries {
		t, ok := d.Token.(inhand.Token)
		if !ok {
			return fmt.Errorf("natsbroker: extend: %s is not a delivery of this source", d.Origin)
		}
		if _, live := t.Live(); !live {
			continue
		}
		if msg, ok := t.Origin().Token.(*nats.Msg); ok {
			if err := msg.InProgress(); err != nil {
				return fmt.Errorf("natsbroker: extend %s: %w", d.Origin, err)
			}
		}
	}
	return ctx.Err()
}

// stay keeps the pin if no call of Receive does.
func (s *Source) stay() error {
	select {
	case s.one <- struct{}{}:
		defer func() { <-s.one }()
	default:
		return nil
	}
	if s.over() {
		return nil
	}
	if _, err := s.drain(); err != nil {
		return err
	}
	if err := s.puller.stay(); err != nil {
		return fmt.Errorf("natsbroker: extend: %w", err)
	}
	return nil
}

// settleParallel is the number of acknowledgements that wait for their answers at once.
const settleParallel = 64

// settleWait bounds that wait: a server that dies never answers, and the caller's
// context may have no deadline.
const settleWait = 5 * time.Second

// ack is an acknowledgement that the server has not confirmed yet.
type ack struct {
	seq   uint64 // of the stream
	msg   *nats.Msg
	since time.Time
}

// Settle implements broker.Source. It waits until the server has confirmed the
// acknowledgements. The next call, with the same or other verdicts, sends unconfirmed ones
// again, until AckWait has passed: then the server
// delivers the message again.
func (s *Source) Settle(ctx context.Context, verdicts []broker.Verdict) error {
	acks, err := s.sort(verdicts)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, min(s.opts.AckWait/3, settleWait))
	defer cancel()
	var (
		wg    sync.WaitGroup
		slot  = make(chan struct{}, settleParallel)
		mu    sync.Mutex
		first error
	)
	for _, a := range acks {
		slot <- struct{}{}
		wg.Go(func() {
			defer func() { <-slot }()
			if !s.owed(a) {
				return
			}
			err := a.msg.AckSync(nats.Context(ctx))
			if err == nil || errors.Is(err, nats.ErrMsgAlreadyAckd) { // by a concurrent call
				s.confirmed(a)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if first == nil {
				first = fmt.Errorf("natsbroker: acknowledge: %w", may(s.js.Conn(), err, sourceRights))
			}
		})
	}
	wg.Wait()
	return first
}

// owed reports whether a must still be sent: not if another call has confirmed it, or
// the consumer is gone.
func (s *Source) owed(a ack) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acks[a.seq] == a
}

func (s *Source) confirmed(a ack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.acks[a.seq] == a {
		delete(s.acks, a.seq)
	}
}

// sort applies the verdicts to the log and returns what to acknowledge.
func (s *Source) sort(verdicts []broker.Verdict) ([]ack, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for i, v := range verdicts {
		t, ok := v.Delivery.Token.(inhand.Token)
		if !ok {
			return nil, fmt.Errorf("natsbroker: settle: verdict %d (%s): not a delivery of this source", i, v.Delivery.Origin)
		}
		if _, live := t.Live(); !live {
			continue
		}
		msg, ok := t.Origin().Token.(*nats.Msg)
		if !ok {
			continue
		}
		if !v.Ack {
			t.GiveBack(now.Add(v.Delay))
			continue
		}
		t.Ack()
		if meta, err := msg.Metadata(); err == nil { // every delivery has metadata
			delete(s.inHand, meta.Sequence.Stream)
			s.acks[meta.Sequence.Stream] = ack{meta.Sequence.Stream, msg, now}
		}
	}
	s.log.Remove()
	s.wake()
	var acks []ack
	for seq, a := range s.acks {
		if now.Sub(a.since) > s.opts.AckWait {
			delete(s.acks, seq)
			continue
		}
		acks = append(acks, a)
	}
	return acks, nil
}
