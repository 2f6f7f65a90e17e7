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

// SourceOptions configures [OpenSource] and [NewSource].
type SourceOptions struct {
	Group  string   // the consumer group; required; created at the beginning of a stream
	Topics []string // required
	// Prefix is put before every topic, and removed from the stream's name for entries
	// that do not name their topic.
	Prefix string
	// Partitions is the number of streams of each topic, as in [SinkOptions]; 0 or 1:
	// one stream, named like the topic.
	Partitions int
	// Foreign describes entries of other writers.
	Foreign envelope.Foreign
	// Lease is how long a crashed source keeps its streams; 15 s if
	// zero. Close frees them at once.
	Lease time.Duration
	// MaxHeld bounds the unsettled messages; 1024 if zero.
	MaxHeld int
	// MaxHeldBytes bounds their bytes, estimated from the size of earlier
	// messages; 64 MiB if zero.
	MaxHeldBytes int
	// Delete deletes acknowledged entries: once every group of the stream
	// has acknowledged them (XACKDEL ACKED, Redis 8.2) or if the stream has no
	// other group (older servers). Without it they stay.
	Delete bool
	// Timeout is how long an answer may take; 5 s if zero.
	Timeout time.Duration
	// Logger gets events for operators; nil: none are logged.
	Logger *slog.Logger
}

// pageBytes is about the most bytes of one answer: the whole answer must arrive
// within the timeout, even over a slow line.
const pageBytes = 1 << 20

// consumer is the name under which all sources of a group read. Only one of
// them reads a stream at a time, and finds its predecessor's pending entries.
const consumer = "postrider"

// Source receives for one consumer group. Only the source that holds a stream's lease
// reads the stream. Sources of one group share the
// streams evenly, and take over those of a source that has ended. It is safe for
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
	next    int // index of the stream whose messages are given out first
	try     int // index of the stream whose lease is tried first
	change  chan struct{}
	err     error // of the pump, for the next Receive
	closed  bool
	budget  budget.Budget // of the bytes held
	page    budget.Budget // of the bytes of one answer
	largest int           // size of the largest message of the last read
}

// NewSource returns a source on two connections of its own, made with a copy of the
// client's options, for the same reason as [NewSink]. It does no I/O. options must name
// a group and topics. Close closes the connections.
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

// Info implements broker.Source. A source renews its leases itself, however long
// its receivers work.
func (s *Source) Info() broker.SourceInfo { return broker.SourceInfo{Name: "redis"} }

// Extend implements broker.Source. It does nothing: deliveries have no deadline.
func (s *Source) Extend(ctx context.Context, _ []broker.Delivery) error { return ctx.Err() }

var errClosed = errors.New("redisbroker: source is closed")

// Close ends Receive and frees the streams. The next source receives the messages that
// receivers hold again.
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

// leave gives the leases back if the server is reachable. Otherwise they
// expire.
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

// take returns the messages that may be given out now; due is when the next message that
// was given back is due. The caller holds mu.
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

	held    bool      // this source has the lease
	until   time.Time // the lease lasts at least until then
	leaving bool      // the lease is given back once receivers hold no message

	grouped bool      // the group exists
	known   bool      // it existed before
	again   time.Time // after a refusal: when the next command may be sent
	claim   string    // where claiming pending entries continues; "": all are here
	last    string    // the stream has no new entry up to this id

	log    *inhand.Log
	pos    int64
	out    int             // with receivers
	inHand map[string]bool // ids in log
	acks   map[string]bool // ids acknowledged here that the server has not confirmed
	gone   map[string]bool // ids confirmed since claiming began: its answers may contain them
}

// drop forgets all received messages: another source may have them.
func (st *stream) drop() {
	st.log.Drop()
	st.log = &inhand.Log{}
	st.inHand = make(map[string]bool)
	st.held, st.leaving, st.grouped, st.out, st.claim, st.last, st.gone = false, false, false, 0, "", "", nil
}

// confirmed records that the server has confirmed an acknowledgement.
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
