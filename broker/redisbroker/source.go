package redisbroker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/inhand"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/budget"
)

// SourceOptions of [OpenSource] and [NewSource].
type SourceOptions struct {
	Group  string   // the consumer group; required; made from the beginning of a stream
	Topics []string // required
	// Prefix is put before every topic, and taken off the name of the stream of entries
	// that do not name their topic.
	Prefix string
	// Partitions is in how many streams each topic is, as [SinkOptions] has it; 0 or 1:
	// one stream, named like the topic.
	Partitions int
	// Foreign says what entries look like that others wrote.
	Foreign envelope.Foreign
	// Lease is how long after its end a source's streams stay with it; 15 s if
	// zero. After Close they are free at once.
	Lease time.Duration
	// MaxHeld bounds the unsettled messages; 1024 if zero.
	MaxHeld int
	// MaxHeldBytes bounds them, as far as the size of messages can be told from
	// those before; 64 MiB if zero.
	MaxHeldBytes int
	// Delete deletes entries that are acknowledged, once every group of the stream
	// has acknowledged them (XACKDEL ACKED, Redis 8.2) or when the stream has no
	// other group (older servers). Without it they stay.
	Delete bool
	// Timeout is how long an answer may take; 5 s if zero.
	Timeout time.Duration
	// Logger is told what an operator should know; nil: nothing.
	Logger *slog.Logger
}

// pageBytes is about the most that one answer holds: the whole answer has to come
// within the timeout, over a slow line too.
const pageBytes = 1 << 20

// consumer is the one name under which all sources of a group read. Only one of
// them reads a stream at a time, and finds there what the one before it left.
const consumer = "postrider"

// Source receives for one consumer group. Each of its streams is read by the one
// source of the group that holds its lease; sources of one group share the
// streams evenly, and take over those of one that has ended. It is safe for
// concurrent use.
type Source struct {
	opts    SourceOptions
	id      string // of this source, in leases
	members string // the key of the set of sources
	codec   envelope.Codec

	life  context.Context // ends with Close
	end   context.CancelFunc
	start sync.Once
	ended chan struct{} // closed when the pump has ended

	read *link      // the pump's
	acks sync.Mutex // held while done is used
	done *link

	mu      sync.Mutex
	streams []*stream
	next    int // whose messages are given out first
	try     int // which lease is tried first
	change  chan struct{}
	err     error // of the pump, for the next Receive
	closed  bool
	budget  budget.Budget // of the bytes held
	page    budget.Budget // of those of one answer
	largest int           // message that the last read brought
}

// NewSource returns a source on two connections of its own, made as client says, for
// the reason that [NewSink] has; client is not changed. It does no I/O. opts must name
// a group and topics. Close ends the connections.
func NewSource(client *redis.Options, options *SourceOptions) (*Source, error) {
	if client == nil || options == nil || options.Group == "" || len(options.Topics) == 0 {
		return nil, errors.New("redisbroker: source: client options, a group and topics are required")
	}
	opts := *options
	var streams []string
	for _, topic := range opts.Topics {
		streams = append(streams, Streams(opts.Prefix+topic, opts.Partitions)...)
	}
	opts.Lease = cmp.Or(opts.Lease, 15*time.Second)
	opts.MaxHeld = cmp.Or(opts.MaxHeld, 1024)
	opts.MaxHeldBytes = cmp.Or(opts.MaxHeldBytes, 64<<20)
	opts.Timeout = cmp.Or(opts.Timeout, 5*time.Second)
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Source{
		opts: opts, id: rand.Text(), members: streams[0] + ":postrider-members:" + opts.Group,
		read: newLink(client, opts.Timeout, demands{}), done: newLink(client, opts.Timeout, demands{}),
		ended: make(chan struct{}), change: make(chan struct{}), codec: wireCodec(),
	}
	s.codec.Foreign = opts.Foreign
	s.budget.Bytes, s.page.Bytes = opts.MaxHeldBytes, pageBytes
	for _, name := range streams {
		s.streams = append(s.streams, &stream{
			name: name, lease: name + ":postrider-lease:" + opts.Group, log: &inhand.Log{},
			inHand: make(map[string]bool), acks: make(map[string]bool),
		})
	}
	s.life, s.end = context.WithCancel(context.Background()) //nolint:forbidigo // it ends with Close
	return s, nil
}

// Info implements broker.Source. A source keeps its leases by itself, however long
// its receivers work.
func (s *Source) Info() broker.SourceInfo { return broker.SourceInfo{Name: "redis"} }

// Extend implements broker.Source. There is nothing to extend.
func (s *Source) Extend(ctx context.Context, _ []broker.Delivery) error { return ctx.Err() }

var errClosed = errors.New("redisbroker: source is closed")

// Close ends Receive and gives the streams free. What receivers hold is received
// again by the next source.
func (s *Source) Close() {
	s.mu.Lock()
	already := s.closed
	s.closed = true
	s.wake()
	s.mu.Unlock()
	if already {
		return
	}
	s.end()
	s.start.Do(func() { close(s.ended) })
	<-s.ended
	s.acks.Lock()
	defer s.acks.Unlock()
	s.leave()
	s.read.close()
	s.done.close()
}

// leave gives back the leases, as far as the server can be reached: they run out
// by themselves.
func (s *Source) leave() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), min(time.Second, s.opts.Timeout))
	defer cancel()
	cmds := []redis.Cmder{redis.NewCmd(ctx, "zrem", s.members, s.id)}
	for _, st := range s.streams {
		if st.held {
			cmds = append(cmds, redis.NewCmd(ctx, "eval", releaseScript, 1, st.lease, s.id))
		}
	}
	_, _ = s.done.exec(ctx, cmds...)
}

// wake makes receivers and the pump look again. The caller holds mu.
func (s *Source) wake() {
	close(s.change)
	s.change = make(chan struct{})
}

// Receive implements broker.Source.
func (s *Source) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	s.start.Do(func() { go s.pump() })
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.mu.Lock()
		ds, due := s.take(max(limit, 1), time.Now())
		change, closed, err := s.change, s.closed, s.err
		if len(ds) == 0 {
			s.err = nil
		}
		s.mu.Unlock()
		switch {
		case closed:
			return nil, errClosed
		case len(ds) > 0:
			return ds, nil
		case err != nil:
			return nil, err
		}
		if !due.IsZero() {
			var cancel context.CancelFunc
			wait, cancel := context.WithDeadline(ctx, due)
			await(wait, change)
			cancel()
			continue
		}
		await(ctx, change)
	}
}

func await(ctx context.Context, change <-chan struct{}) {
	select {
	case <-change:
	case <-ctx.Done():
	}
}

// take gives out what may be given out now; due is when the next one that was
// given back may be. The caller holds mu.
func (s *Source) take(limit int, now time.Time) (ds []broker.Delivery, due time.Time) {
	if s.closed {
		return nil, due
	}
	s.next++
	for n := range s.streams {
		st := s.streams[(s.next+n)%len(s.streams)]
		if !st.held || st.leaving || !now.Before(st.until) {
			continue
		}
		before := len(ds)
		var at time.Time
		ds, at = st.log.Take(ds, limit, now)
		st.out += len(ds) - before
		if !at.IsZero() && (due.IsZero() || at.Before(due)) {
			due = at
		}
	}
	return ds, due
}

// stream is one stream of a source. Its fields are guarded by the source's mu;
// the pump alone changes them, but for log, inHand, acks and out.
type stream struct {
	name, lease string

	held    bool      // the lease is ours
	until   time.Time // for sure
	leaving bool      // others shall have it, as soon as nothing is out

	grouped bool   // the group is there
	known   bool   // it was there before
	claim   string // where claiming what is pending continues; "": all is here
	last    string // nothing new up to this id

	log    *inhand.Log
	pos    int64
	out    int             // with receivers
	inHand map[string]bool // ids in log
	acks   map[string]bool // ids acknowledged here that the server has not confirmed
	gone   map[string]bool // ids confirmed since claiming began: its answers may hold them
}

// drop forgets what was received: another source may have it.
func (st *stream) drop() {
	st.log.Drop()
	st.log = &inhand.Log{}
	st.inHand = make(map[string]bool)
	st.held, st.leaving, st.grouped, st.out, st.claim, st.last, st.gone = false, false, false, 0, "", "", nil
}

// confirmed notes that the server has taken an acknowledgement.
func (st *stream) confirmed(id string) {
	delete(st.acks, id)
	if st.claim == "" {
		return
	}
	if st.gone == nil {
		st.gone = make(map[string]bool)
	}
	st.gone[id] = true
}
