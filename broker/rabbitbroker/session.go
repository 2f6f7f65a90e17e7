package rabbitbroker

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
)

// session is one connection with one channel in confirm mode. It ends with the
// first error on either, and is never repaired.
type session struct {
	conn *amqp.Connection
	wire *conn
	ch   *amqp.Channel

	reason atomic.Pointer[string] // why publishers are blocked; nil: they are not
	ended  chan struct{}          // closed when why is known

	confirmed atomic.Int64  // when the latest confirmed message was sent, Unix ns
	anywhere  *atomic.Int64 // the same, over all connections of the sink
	someLeft  atomic.Bool
	learned   atomic.Bool // the sink has learned from its end

	mu        sync.Mutex
	why       error // why the session ended
	flights   map[place]flight
	left      map[place][]*sent // unconfirmed when their calls ended
	anonymous uint64
}

// place is what a return says of its message. The id alone is not enough: messages for
// different queues may share one.
type place struct{ id, key string }

// flight has the messages of one place that the broker has not answered.
type flight struct {
	open     int
	returned *amqp.Return // of one of them, and counts for all: the broker does not say which
}

// openSession connects and makes sure that the exchange exists: publishing to
// a missing one would end the channel with all messages in flight.
func openSession(ctx context.Context, d *dialer, exchange string) (*session, error) {
	c, wire, err := d.open(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{
		conn: c, wire: wire, ended: make(chan struct{}),
		flights: make(map[place]flight), left: make(map[place][]*sent),
	}
	if err := within(ctx, wire, func() error { return s.begin(exchange) }); err != nil {
		s.end(nil)
		return nil, err
	}
	return s, nil
}

// within runs a call of the client that takes no context: the end of ctx closes
// the connection, which ends the call.
func within(ctx context.Context, wire *conn, call func() error) error {
	ctx, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = wire.Close() })
	err := call()
	if !stop() { // the connection is closed, whatever the call returned
		return broker.Outage(fmt.Errorf("no answer: %w", ctx.Err()), "", "")
	}
	return err
}

func (s *session) begin(exchange string) error {
	if err := checkExchange(s.conn, exchange); err != nil {
		return err
	}
	ch, err := s.conn.Channel()
	if err == nil {
		s.ch = ch
		err = ch.Confirm(false)
	}
	if err != nil {
		return broker.Outage(fmt.Errorf("no channel: %w", err), replyCode(err), "")
	}
	s.watch()
	return nil
}

// checkExchange checks that an exchange exists, on a channel of its own, because a
// missing one ends the channel.
func checkExchange(c *amqp.Connection, exchange string) error {
	if exchange == "" {
		return nil // the default exchange always exists
	}
	ch, err := c.Channel()
	if err != nil {
		return broker.Outage(fmt.Errorf("no channel: %w", err), replyCode(err), "")
	}
	defer ch.Close()
	if err := ch.ExchangeDeclarePassive(exchange, "direct", true, false, false, false, nil); err != nil {
		return notChecked(err, "exchange", exchange)
	}
	return nil
}

// watch records the broker's notifications besides confirms. It ends with the
// session, because the client closes these channels.
func (s *session) watch() {
	// The client passes a return to one listener after the other and only then
	// handles the confirm that follows. Receiving from the second listener after the
	// return is recorded ensures that no confirm of a returned message is seen before that.
	returns, noted := s.ch.NotifyReturn(make(chan amqp.Return)), s.ch.NotifyReturn(make(chan amqp.Return))
	go func() {
		for r := range returns {
			s.mu.Lock()
			if f, ok := s.flights[place{r.MessageId, r.RoutingKey}]; ok {
				f.returned = &r
				s.flights[place{r.MessageId, r.RoutingKey}] = f
			}
			s.mu.Unlock()
			<-noted
		}
	}()
	blocks := s.conn.NotifyBlocked(make(chan amqp.Blocking, 1))
	go func() {
		for b := range blocks {
			if b.Active {
				s.reason.Store(&b.Reason)
			} else {
				s.reason.Store(nil)
			}
		}
	}()
	closed, channelClosed := s.conn.NotifyClose(make(chan *amqp.Error, 1)), s.ch.NotifyClose(make(chan *amqp.Error, 1))
	go func() {
		defer close(s.ended)
		for e := range channelClosed {
			s.end(e)
		}
		for e := range closed {
			s.end(e)
		}
	}()
}

// endWait bounds the wait for the client's reason for a session's end.
const endWait = 100 * time.Millisecond

// end records err and closes the connection.
func (s *session) end(err *amqp.Error) {
	s.mu.Lock()
	if s.why == nil && err != nil {
		s.why = err
	}
	s.mu.Unlock()
	_ = s.wire.Close()
}

// over reports whether nothing can be published any more.
func (s *session) over() bool { return s.ch.IsClosed() || s.conn.IsClosed() }

// because returns the reason for the end of a session, as far as known. It wraps the
// broker's reason alone: a relay logs a reason once, with and without its context.
func (s *session) because() error {
	limit := time.NewTimer(endWait)
	defer limit.Stop()
	select {
	case <-s.ended:
	case <-limit.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why == nil {
		return errSessionEnd
	}
	return fmt.Errorf("%s: %w", errSessionEnd, s.why)
}

// publish sends a message. An error means that it may have been sent.
func (s *session) publish(p *publishing) (*amqp.DeferredConfirmation, error) {
	s.mu.Lock()
	if p.MessageId == "" { // returns are matched by it
		s.anonymous++
		p.MessageId = "-" + strconv.FormatUint(s.anonymous, 10)
	}
	f := s.flights[p.place()]
	f.open++
	s.flights[p.place()] = f
	s.mu.Unlock()
	return s.ch.PublishWithDeferredConfirm(p.exchange, p.routingKey, true, false, p.Publishing)
}

// answer returns the error of a message whose confirmation is done; nil: accepted.
func (s *session) answer(w *sent) error {
	acked := w.confirm.Acked()
	if at := w.since.UnixNano(); acked && at > s.confirmed.Load() {
		s.confirmed.Store(at) // concurrent calls may set it back a little
		s.anywhere.Store(at)
	}
	if !acked && s.over() { // the client reports a missing confirm as a nack
		why := s.because()
		return broker.Unknown(why, replyCode(why), "")
	}
	s.mu.Lock()
	r := s.landed(w.place)
	s.mu.Unlock()
	switch {
	case r != nil:
		return returned(r)
	case !acked:
		return nacked(w.destination)
	}
	return nil
}

// landed counts an answered message out, and returns the return that counts for it. The
// caller holds mu.
func (s *session) landed(at place) *amqp.Return {
	f := s.flights[at]
	if f.open--; f.open > 0 {
		s.flights[at] = f
	} else {
		delete(s.flights, at)
	}
	return f.returned
}

// leave remembers a message in flight whose call has ended.
func (s *session) leave(w *sent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.left) >= leftMost {
		for at := range s.left {
			s.forget(at)
		}
	}
	own := *w
	s.left[w.place] = append(s.left[w.place], &own)
	s.someLeft.Store(true)
}

// leftMost is the number of places with remembered messages above which answered messages
// are forgotten.
const leftMost = 1024

// forget forgets the remembered messages of a place that are answered by now. The caller
// holds mu.
func (s *session) forget(at place) {
	s.left[at] = slices.DeleteFunc(s.left[at], func(w *sent) bool {
		select {
		case <-w.confirm.Done():
			s.landed(at)
			return true
		default:
			return false
		}
	})
	if len(s.left[at]) == 0 {
		delete(s.left, at)
	}
}

// settled waits until the broker has answered earlier sends of the message: their return
// must not be taken for the return of the next send, nor may they arrive after that.
func (s *session) settled(ctx context.Context, at place, wait time.Duration) error {
	if !s.someLeft.Load() {
		return nil
	}
	for {
		s.mu.Lock()
		s.forget(at)
		var w *sent
		if open := s.left[at]; len(open) > 0 {
			w = open[0]
		}
		s.someLeft.Store(len(s.left) > 0)
		s.mu.Unlock()
		if w == nil {
			return nil
		}
		if err := s.answered(ctx, w, wait); err != nil {
			return err
		}
	}
}

// answered waits for the answer of a remembered message, unless it cannot come any more.
func (s *session) answered(ctx context.Context, w *sent, wait time.Duration) error {
	for end := time.Now().Add(wait); ; {
		limit := time.NewTimer(min(time.Until(end), sweepAfter))
		select {
		case <-w.confirm.Done():
			limit.Stop()
			return nil
		case <-ctx.Done():
			limit.Stop()
			return s.unanswered(w.since, w.destination, ctx.Err())
		case <-limit.C:
		}
		switch {
		case time.Since(w.since) > lostAfter*wait, time.Since(w.since) > wait && s.silent(w.since):
			s.end(nil) // so that it can be sent again
			return broker.Unknown(errNoConfirm, "", w.destination)
		case s.brokerConfirms(w.since), !time.Now().Before(end):
			return s.unanswered(w.since, w.destination, errNoConfirm)
		}
	}
}

// stuckAfter is the least age of a message whose queue counts as stuck.
const stuckAfter = 3 * time.Second

// lostAfter times the limit, a confirm is not expected any more.
const lostAfter = 10

// confirmsOthers reports whether the broker has confirmed, on this connection, a message
// sent after since, which is at least stuckAfter ago. Then the broker works, and the queue
// of the message sent at since does not.
func (s *session) confirmsOthers(since time.Time) bool {
	return time.Since(since) >= stuckAfter && s.confirmed.Load() > since.UnixNano()
}

// silent reports whether the broker, which has not blocked publishers, has confirmed no
// message sent after since on this connection: its queues may have no leader.
func (s *session) silent(since time.Time) bool {
	return s.reason.Load() == nil && s.confirmed.Load() <= since.UnixNano()
}

// brokerConfirms is confirmsOthers over all connections.
func (s *session) brokerConfirms(since time.Time) bool {
	return time.Since(since) >= stuckAfter && s.anywhere.Load() > since.UnixNano()
}

// unanswered returns the error of a message that was sent at since and not answered.
// A stuck queue (one without a majority of its
// members) is an outage of that queue: if its messages were unknown while others are
// acknowledged, they would be suspected of making the broker close connections.
func (s *session) unanswered(since time.Time, destination string, err error) error {
	if s.brokerConfirms(since) {
		return broker.Outage(fmt.Errorf("%w, while others are confirmed: check that the queue has a majority of its members", errNoConfirm), codeNoConfirm, destination)
	}
	return broker.Unknown(err, "", "")
}

// close closes channel and connection in an orderly way.
func (s *session) close(wait time.Duration) {
	stop := time.AfterFunc(wait, func() { _ = s.wire.Close() })
	defer stop.Stop()
	_ = s.conn.Close() // even on error the connection is gone
	_ = s.wire.Close()
}
