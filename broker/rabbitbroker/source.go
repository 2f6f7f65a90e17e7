package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/inhand"
	"github.com/postrider/postrider/envelope"
)

// SourceOptions configures [OpenSource] and [NewSource].
type SourceOptions struct {
	// Queue is the queue to consume; required. It must exist, with a single active
	// consumer in its arguments. A queue is topic and group in one: each
	// group of consumers has a queue of its own.
	Queue string
	// Consumer is the consumer tag for the broker's operator; "postrider" if empty.
	Consumer string
	// MaxHeld bounds the unsettled messages, the broker's prefetch; 1024 if zero.
	MaxHeld int
	// Foreign describes messages of other writers, such as Debezium.
	Foreign envelope.Foreign
	// Unchecked skips the check of the queue's arguments, for queues that are configured
	// by policies.
	Unchecked bool
}

// Source receives from one queue. Messages given back are kept here until they are
// due, in front of their keys' later ones. The broker delivers to one of several sources
// of a queue. When that one ends, another takes over, beginning with
// the unsettled messages. It is safe for concurrent use.
type Source struct {
	dialer dialer
	opts   SourceOptions
	one    chan struct{} // held while opening or taking deliveries

	life context.Context // ends with Close
	end  context.CancelFunc

	sub     *subscription // guarded by one, as what follows
	opening chan opening  // nil: none is under way
	tries   int           // openings that failed in a row
	again   time.Time     // when the next one may begin

	mu     sync.Mutex
	log    *inhand.Log // of the live session
	pos    int64
	change chan struct{}
	closed bool
	live   *subscription // the session on which to settle; nil: none
}

// opening is the result of opening a session.
type opening struct {
	sub *subscription
	err error
}

// subscription is one connection with one channel that consumes.
type subscription struct {
	conn       *amqp.Connection
	wire       *conn
	ch         *amqp.Channel
	deliveries <-chan amqp.Delivery
	closes     chan *amqp.Error // of the channel
	barrier    chan struct{}    // held while waiting for the broker's answer
	forget     func() bool      // detaches it from the end of the source
}

// NewSource returns a source that opens a connection of its own to server at the
// first Receive: see [Server] for why it takes no amqp.Connection. It does no I/O. options
// must name a queue. Close closes the connection.
func NewSource(server Server, options *SourceOptions) (*Source, error) {
	if err := server.check(); err != nil {
		return nil, fmt.Errorf("rabbitbroker: source: %w", err)
	}
	var opts SourceOptions
	if options != nil {
		opts = *options
	}
	if opts.Queue == "" || len(opts.Queue) > shortMost {
		return nil, errors.New("rabbitbroker: source: a queue is required; its name has at most 255 bytes")
	}
	if opts.Consumer == "" {
		opts.Consumer = "postrider"
	}
	if opts.MaxHeld <= 0 {
		opts.MaxHeld = 1024
	}
	opts.MaxHeld = min(opts.MaxHeld, 65535)
	life, end := context.WithCancel(context.Background()) //nolint:forbidigo // it ends with Close
	return &Source{
		life: life, end: end,
		dialer: dialer{server: server, name: "postrider source of " + opts.Queue}, opts: opts,
		one: make(chan struct{}, 1), log: new(inhand.Log), change: make(chan struct{}),
	}, nil
}

// Info implements broker.Source. Extend could move no time limit:
// the broker's consumer_timeout (30 minutes by default) ends the channel, and
// all unsettled messages are delivered again.
func (s *Source) Info() broker.SourceInfo { return broker.SourceInfo{Name: "rabbitmq"} }

var errSourceClosed = errors.New("rabbitbroker: the source is closed")

// Close closes the connection and ends Receive. The broker delivers unsettled messages
// to the next source, in the order of the queue.
func (s *Source) Close() {
	s.mu.Lock()
	s.closed = true
	live := s.live
	s.live = nil
	s.log.Drop()
	s.wake()
	s.mu.Unlock()
	s.end()
	if live != nil {
		live.close(time.Second)
	}
}

func (l *subscription) close(wait time.Duration) {
	stop := time.AfterFunc(wait, func() { _ = l.wire.Close() })
	defer stop.Stop()
	_ = l.conn.Close() // even on error the connection is gone
	_ = l.wire.Close()
}

// wake makes receivers look again. The caller holds mu.
func (s *Source) wake() {
	close(s.change)
	s.change = make(chan struct{})
}

// Receive implements broker.Source.
func (s *Source) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil, errSourceClosed
		}
		ds, due := s.log.Take(nil, max(limit, 1), time.Now())
		change := s.change
		s.mu.Unlock()
		if len(ds) > 0 {
			return ds, nil
		}
		if err := s.wait(ctx, due, change); err != nil {
			return nil, err
		}
	}
}

// wait takes deliveries in, or waits for another call that does, until Receive may have
// messages to return.
func (s *Source) wait(ctx context.Context, due time.Time, change <-chan struct{}) error {
	if !due.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, due)
		defer cancel()
	}
	select {
	case s.one <- struct{}{}:
		defer func() { <-s.one }()
		return s.fetch(ctx, change)
	case <-change:
	case <-ctx.Done():
	}
	return nil // Receive looks at the caller's context itself
}

// fetch takes arrived deliveries into the log. The caller holds one.
func (s *Source) fetch(ctx context.Context, change <-chan struct{}) error {
	if s.sub == nil {
		if err := s.subscribe(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		if s.sub == nil {
			return nil // Receive looks at the caller's context itself
		}
	}
	select {
	case d, ok := <-s.sub.deliveries:
		if err := s.add(d, ok); err != nil {
			return err
		}
	case <-change:
		return nil
	case <-ctx.Done():
		return nil
	}
	for s.sub != nil {
		select {
		case d, ok := <-s.sub.deliveries:
			if err := s.add(d, ok); err != nil {
				return err
			}
		default:
			return nil
		}
	}
	return nil
}

// add puts a delivery into the log. If ok is false the session is over: the broker
// delivers its messages again, in the same order and before all others. The error is
// the broker's own reason for that.
func (s *Source) add(d amqp.Delivery, ok bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ok {
		if s.live != s.sub {
			return nil // from an ended session
		}
		s.pos++
		s.log.Add(s.decode(&d), s.pos)
		return nil
	}
	var reason error
	select {
	case e := <-s.sub.closes:
		if e != nil && e.Server {
			reason = ended(e, s.opts.Queue)
		}
	default: // the connection was lost, or the consumer cancelled: the next opening returns the reason
	}
	_ = s.sub.wire.Close()
	s.sub.forget()
	if s.live == s.sub {
		s.lose()
	}
	s.sub = nil
	return reason
}

// lose forgets the deliveries of the ended session. The caller holds mu.
func (s *Source) lose() {
	s.live = nil
	s.log.Drop()
	s.log = new(inhand.Log)
	s.wake()
}

// subscribe opens a session, after a pause if earlier ones failed. The opening continues
// for the next call when ctx ends, because it may take longer than the contexts allow.
func (s *Source) subscribe(ctx context.Context) error {
	if s.opening == nil {
		if err := s.pause(ctx); err != nil {
			return err
		}
		result := make(chan opening, 1)
		s.opening = result
		go func() {
			sub, err := s.openSubscription(s.life)
			result <- opening{sub, err}
		}()
	}
	var o opening
	select {
	case o = <-s.opening:
		s.opening = nil
	case <-ctx.Done():
		return ctx.Err()
	}
	if o.err != nil {
		s.again = time.Now().Add(pause(s.tries))
		s.tries++
		return fmt.Errorf("rabbitbroker: receive from queue %s: %w", s.opts.Queue, o.err)
	}
	// A session that ends at once, as on a queue without a leader, is
	// opened again after a pause only.
	s.tries, s.again = 0, time.Now().Add(rand.N(100*time.Millisecond))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = o.sub.wire.Close()
		return errSourceClosed
	}
	s.sub, s.live = o.sub, o.sub
	return nil
}

// pause waits until the next opening may begin.
func (s *Source) pause(ctx context.Context) error {
	rest := time.Until(s.again)
	if rest <= 0 {
		return nil
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.life.Done():
		return errSourceClosed
	}
}

func (s *Source) openSubscription(ctx context.Context) (*subscription, error) {
	c, wire, err := s.dialer.open(ctx)
	if err != nil {
		return nil, err
	}
	sub := &subscription{conn: c, wire: wire, barrier: make(chan struct{}, 1)}
	if err := within(ctx, wire, func() error { return s.consume(sub) }); err != nil {
		_ = wire.Close()
		return nil, err
	}
	sub.forget = context.AfterFunc(ctx, func() { sub.close(time.Second) }) // also if no call waits for it
	return sub, nil
}

func (s *Source) consume(sub *subscription) error {
	if err := checkQueue(sub.conn, s.opts.Queue); err != nil {
		return err
	}
	if !s.opts.Unchecked {
		if err := checkArguments(sub.conn, s.opts.Queue); err != nil {
			return err
		}
	}
	ch, err := sub.conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Qos(s.opts.MaxHeld, 0, false); err != nil {
		return err
	}
	sub.ch, sub.closes = ch, ch.NotifyClose(make(chan *amqp.Error, 1))
	sub.deliveries, err = ch.Consume(s.opts.Queue, s.opts.Consumer, false, false, false, false, nil)
	if err != nil {
		return notChecked(err, "queue", s.opts.Queue)
	}
	return nil
}
