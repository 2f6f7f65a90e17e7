package rabbitbroker

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
)

// session is one connection with one channel in confirm mode. It ends with the
// first thing that goes wrong on either, and is never repaired.
type session struct {
	conn *amqp.Connection
	wire *conn
	ch   *amqp.Channel

	reason atomic.Pointer[string] // why publishers are blocked; nil: they are not
	ended  chan struct{}          // closed when why is known

	confirmed atomic.Int64  // when the latest message that is confirmed was sent, Unix ns
	anywhere  *atomic.Int64 // the same, over all connections of the sink
	someLeft  atomic.Bool
	learned   atomic.Bool // the sink has looked why it ended

	mu        sync.Mutex
	why       error                   // why the session ended
	returned  map[string]*amqp.Return // by message id
	left      map[string]*sent        // unconfirmed when their call ended
	anonymous uint64
}

// openSession connects and makes sure that the exchange is there: publishing to
// one that is not would end the channel with everything that is on its way.
func openSession(ctx context.Context, d *dialer, exchange string) (*session, error) {
	c, wire, err := d.open(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{
		conn: c, wire: wire, ended: make(chan struct{}),
		returned: make(map[string]*amqp.Return), left: make(map[string]*sent),
	}
	if err := within(ctx, wire, func() error { return s.begin(exchange) }); err != nil {
		s.end(nil)
		return nil, err
	}
	return s, nil
}

// within runs calls of the client, which know no context: the end of ctx breaks
// the connection and thereby them.
func within(ctx context.Context, wire *conn, call func() error) error {
	ctx, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = wire.Close() })
	err := call()
	if !stop() { // the connection is gone, whatever the call says
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

// checkExchange looks for an exchange on a channel of its own, which a missing
// one ends.
func checkExchange(c *amqp.Connection, exchange string) error {
	if exchange == "" {
		return nil // the default exchange is always there
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

// watch takes down what the broker says besides confirms. It ends with the
// session, because the client closes these channels.
func (s *session) watch() {
	// The client hands a return to one listener after the other and only then
	// looks at the confirm that follows. The second listener is received when the
	// return is noted: no confirm of a returned message is seen before that.
	returns, noted := s.ch.NotifyReturn(make(chan amqp.Return)), s.ch.NotifyReturn(make(chan amqp.Return))
	go func() {
		for r := range returns {
			s.mu.Lock()
			s.returned[r.MessageId] = &r
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

// endWait is how long the client may take to say why a session is over.
const endWait = 100 * time.Millisecond

// end breaks the connection. A nil error is none.
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

// because is why a session that is over has ended, as far as it is known.
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
	return fmt.Errorf("%w: %w", errSessionEnd, s.why)
}

// publish sends a message. An error means that it may have been sent.
func (s *session) publish(p *publishing) (*amqp.DeferredConfirmation, error) {
	s.mu.Lock()
	if p.MessageId == "" { // the name of its return
		s.anonymous++
		p.MessageId = "-" + strconv.FormatUint(s.anonymous, 10)
	}
	delete(s.returned, p.MessageId)
	s.mu.Unlock()
	return s.ch.PublishWithDeferredConfirm(p.exchange, p.routingKey, true, false, p.Publishing)
}

// answer is what the broker has said of a message whose confirmation is done.
func (s *session) answer(w *sent) error {
	acked := w.confirm.Acked()
	if at := w.since.UnixNano(); acked && at > s.confirmed.Load() {
		s.confirmed.Store(at) // two at once may take it back a little
		s.anywhere.Store(at)
	}
	if !acked && s.over() { // the client's way to say that there is no confirm
		why := s.because()
		return broker.Unknown(why, replyCode(why), "")
	}
	s.mu.Lock()
	r := s.returned[w.id]
	delete(s.returned, w.id)
	s.mu.Unlock()
	switch {
	case r != nil:
		return returned(r)
	case !acked:
		return nacked(w.destination)
	}
	return nil
}

// leave keeps in mind that a message is on its way although its call has ended.
func (s *session) leave(w *sent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.left) >= leftMost {
		for id, w := range s.left {
			select {
			case <-w.confirm.Done():
				delete(s.left, id)
				delete(s.returned, id)
			default:
			}
		}
	}
	own := *w
	s.left[w.id] = &own
	s.someLeft.Store(true)
}

// leftMost messages are remembered before those with an answer are forgotten.
const leftMost = 1024

// settled waits until an earlier sending of the message is answered: its return
// must not be taken for that of the next one, nor may it arrive behind it.
func (s *session) settled(ctx context.Context, id string, wait time.Duration) error {
	if !s.someLeft.Load() {
		return nil
	}
	s.mu.Lock()
	w := s.left[id]
	s.mu.Unlock()
	if w == nil {
		return nil
	}
	if err := s.answered(ctx, w, wait); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.left, id)
	delete(s.returned, id)
	s.someLeft.Store(len(s.left) > 0)
	return nil
}

// answered waits for the answer of a message that was left, but not in vain.
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

// stuckAfter is how old a message is at least whose queue is said not to work.
const stuckAfter = 3 * time.Second

// lostAfter that many times the limit a confirm is not expected any more.
const lostAfter = 10

// confirmsOthers reports whether the broker has confirmed on this connection what
// was sent well after since: then it works, and not the queue of what was sent at since.
func (s *session) confirmsOthers(since time.Time) bool {
	return time.Since(since) >= stuckAfter && s.confirmed.Load() > since.UnixNano()
}

// silent reports whether the broker confirms nothing on this connection of what was
// sent since, although it takes what is sent: as one whose queues have no leader.
func (s *session) silent(since time.Time) bool {
	return s.reason.Load() == nil && s.confirmed.Load() <= since.UnixNano()
}

// brokerConfirms is the same over all connections.
func (s *session) brokerConfirms(since time.Time) bool {
	return time.Since(since) >= stuckAfter && s.anywhere.Load() > since.UnixNano()
}

// unanswered is the answer for a message that was sent at since and that the broker
// says nothing of. A queue that does not work (one without a majority of its
// members) is an outage of its own: were its messages unknown while others are
// acknowledged, they would count as those that make a broker hang up.
func (s *session) unanswered(since time.Time, destination string, err error) error {
	if s.brokerConfirms(since) {
		return broker.Outage(fmt.Errorf("%w, while others are confirmed: look whether the queue has a majority of its members", errNoConfirm), codeNoConfirm, destination)
	}
	return broker.Unknown(err, "", "")
}

// close ends the session in order.
func (s *session) close(wait time.Duration) {
	stop := time.AfterFunc(wait, func() { _ = s.wire.Close() })
	defer stop.Stop()
	_ = s.conn.Close() // whatever it says, the connection is gone
	_ = s.wire.Close()
}
