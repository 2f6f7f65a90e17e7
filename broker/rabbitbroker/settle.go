package rabbitbroker

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/inhand"
)

// Extend implements broker.Source. RabbitMQ has no call to extend a delivery's time.
func (s *Source) Extend(ctx context.Context, _ []broker.Delivery) error { return ctx.Err() }

// settleWait bounds the wait for the broker's answer: a broker that dies never answers,
// and the caller's context may have no deadline.
const settleWait = 5 * time.Second

// Settle implements broker.Source. Before it returns, the broker has processed the
// acknowledgements: AMQP does not answer them, but a channel processes its commands
// in order, and answers the request that Settle sends after them. Settling a message
// twice, or a message of a connection that has ended, has no effect: the broker delivers
// the latter again.
func (s *Source) Settle(ctx context.Context, verdicts []broker.Verdict) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	live, asked, err := s.sort(verdicts)
	if err != nil || !asked || live == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	select {
	case live.barrier <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("rabbitbroker: acknowledge: %w", ctx.Err())
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-live.barrier }()
		done <- live.ch.Qos(s.opts.MaxHeld, 0, false) // the present value: only the answer matters
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("rabbitbroker: acknowledge: %w", err)
	}
	return nil
}

// sort applies the verdicts to the log and sends the acknowledgements to the broker.
// asked reports whether there are any.
func (s *Source) sort(verdicts []broker.Verdict) (live *subscription, asked bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, v := range verdicts {
		if _, ok := v.Delivery.Token.(inhand.Token); !ok {
			return nil, false, fmt.Errorf("rabbitbroker: settle: verdict %d (%s): not a delivery of this source", i, v.Delivery.Origin)
		}
	}
	// A receiver that waits for Settle does not call Receive, and so
	// would not notice the end of the session.
	if s.live != nil && (s.live.ch.IsClosed() || s.live.conn.IsClosed()) {
		s.lose()
	}
	now := time.Now()
	for _, v := range verdicts {
		asked = asked || v.Ack
		t, _ := v.Delivery.Token.(inhand.Token)
		if _, ok := t.Live(); !ok {
			continue
		}
		if !v.Ack {
			t.GiveBack(now.Add(v.Delay))
			continue
		}
		tag, _ := t.Origin().Token.(uint64)
		if s.live == nil {
			continue
		}
		if err := s.live.ch.Ack(tag, false); err != nil { // the broker delivers it again
			return nil, false, fmt.Errorf("rabbitbroker: acknowledge: %w", err)
		}
		t.Ack()
	}
	s.log.Remove()
	s.wake()
	return s.live, asked, nil
}

// attemptOf counts the deliveries of a message: a quorum queue reports how often it was
// redelivered (https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling),
// another queue only whether it was.
func attemptOf(d *amqp.Delivery) int {
	switch n := d.Headers["x-delivery-count"].(type) {
	case int64:
		return int(n) + 1
	case int32:
		return int(n) + 1
	}
	if d.Redelivered {
		return 0
	}
	return 1
}
