package natsbroker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/inhand"
)

// Extend implements broker.Source.
func (s *Source) Extend(ctx context.Context, deliveries []broker.Delivery) error {
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
		if msg, ok := t.Origin().Token.(jetstream.Msg); ok {
			if err := msg.InProgress(); err != nil {
				return fmt.Errorf("natsbroker: extend %s: %w", d.Origin, err)
			}
		}
	}
	return ctx.Err()
}

// settleParallel acknowledgements wait for the server's answer at once.
const settleParallel = 64

// settleWait bounds that wait. A server that dies owes an answer that never
// comes, and the caller's context may be without end.
const settleWait = 5 * time.Second

// Settle implements broker.Source. An acknowledgement is confirmed by the
// server before Settle returns; one that failed leaves its message unsettled
// with the server, which delivers it again.
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
	for _, msg := range acks {
		slot <- struct{}{}
		wg.Go(func() {
			defer func() { <-slot }()
			if err := msg.DoubleAck(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if first == nil {
					first = fmt.Errorf("natsbroker: acknowledge: %w", err)
				}
			}
		})
	}
	wg.Wait()
	return first
}

// sort applies the verdicts to the log and returns what to acknowledge.
func (s *Source) sort(verdicts []broker.Verdict) ([]jetstream.Msg, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var acks []jetstream.Msg
	now := time.Now()
	for i, v := range verdicts {
		t, ok := v.Delivery.Token.(inhand.Token)
		if !ok {
			return nil, fmt.Errorf("natsbroker: settle: verdict %d (%s): not a delivery of this source", i, v.Delivery.Origin)
		}
		if _, live := t.Live(); !live {
			continue
		}
		msg, ok := t.Origin().Token.(jetstream.Msg)
		if !ok {
			continue
		}
		if !v.Ack {
			t.GiveBack(now.Add(v.Delay))
			continue
		}
		t.Ack()
		acks = append(acks, msg)
		if meta, err := msg.Metadata(); err == nil {
			delete(s.inHand, meta.Sequence.Stream)
		}
	}
	s.log.Remove()
	s.wake()
	return acks, nil
}
