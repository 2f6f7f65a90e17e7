package kafkabroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/inhand"
	"github.com/postrider/postrider/envelope"
)

// SourceOptions configures [OpenSource] and [NewSource].
type SourceOptions struct {
	Group  string   // the consumer group; required
	Topics []string // required
	// Prefix is put before every topic, and removed from the record's topic for messages
	// whose headers do not name one.
	Prefix string
	// Foreign describes records of other writers, such as Debezium's
	// outbox event router.
	Foreign envelope.Foreign
	// MaxHeld bounds the unsettled messages of one partition, which is paused
	// above it; 4096 if zero.
	MaxHeld int
	// MaxHeldBytes bounds the unsettled messages of all partitions; 64 MiB if zero.
	// Above it nothing more is fetched. Fetches in flight add up to a 32nd of it per
	// broker, counted as compressed there; kgo.FetchMaxBytes of the client changes
	// that share.
	MaxHeldBytes int
}

// Source receives as a member of a consumer group. It commits, per
// partition, the longest unbroken run of acknowledged messages; a new group begins with
// the oldest message. It is safe for concurrent use.
type Source struct {
	client *kgo.Client
	group  string
	prefix string
	codec  envelope.Codec
	max    int           // most messages held of one partition
	most   int           // most bytes held of all partitions
	poll   chan struct{} // held while polling
	commit chan struct{} // held while committing

	mu     sync.Mutex
	logs   map[place]*held
	change chan struct{} // closed and replaced when Receive should look again
	closed bool
}

type place struct {
	topic     string
	partition int32
}

type held struct {
	inhand.Log
	at        place
	paused    bool
	next      int64 // offset to commit: all earlier messages are acknowledged
	committed int64
}

// sessionTimeout is how long the broker waits for a silent member before
// it gives its partitions to others: after a SIGKILL they are unread for that long. The
// client's default of 45 s is meant for members that keep state. A member that was
// only slow costs a rebalance, and duplicates that the inbox skips.
const sessionTimeout = 10 * time.Second

// fetchShare is the part of MaxHeldBytes that one answer of a broker may have, and
// partitionShare the part of that for one partition. The client keeps an answer
// decompressed, with several hundred bytes of overhead per record, until it is
// polled: its default of 50 MiB per broker made consumers grow to 160 MiB.
const (
	fetchShare     = 64
	partitionShare = 4
)

// NewSource returns a source on a client of its own with these options: brokers,
// credentials and others. It takes options, not a client, because
// franz-go fixes group, topics and rebalance callbacks when a client is made, and a
// client is a member of one group only. The source sets the group and offset options
// itself, except for timeouts: kgo.SessionTimeout changes the 10 s after which the broker
// notices a crashed member. Close closes the client. NewSource does no I/O.
func NewSource(client []kgo.Opt, opts *SourceOptions) (*Source, error) {
	if opts == nil || opts.Group == "" || len(opts.Topics) == 0 {
		return nil, errors.New("kafkabroker: source: a group and at least one topic are required")
	}
	topics := make([]string, len(opts.Topics))
	for i, topic := range opts.Topics {
		topics[i] = opts.Prefix + topic
	}
	s := &Source{
		group: opts.Group, prefix: opts.Prefix, codec: wireCodec(), max: opts.MaxHeld, most: cmp.Or(opts.MaxHeldBytes, 64<<20), poll: make(chan struct{}, 1), commit: make(chan struct{}, 1),
		logs: make(map[place]*held), change: make(chan struct{}),
	}
	s.codec.Foreign = opts.Foreign
	if s.max <= 0 {
		s.max = 4096
	}
	fetch := int32(min(max(s.most/fetchShare, 64<<10), 50<<20)) // the broker sends a larger batch alone
	own, err := kgo.NewClient(append(append([]kgo.Opt{
		kgo.SessionTimeout(sessionTimeout), kgo.FetchMaxBytes(fetch), kgo.FetchMaxPartitionBytes(fetch / partitionShare),
	}, client...),
		kgo.ConsumerGroup(opts.Group), kgo.ConsumeTopics(topics...),
		kgo.DisableAutoCommit(), kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(500*time.Millisecond), kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsRevoked(s.revoked), kgo.OnPartitionsLost(s.lost),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafkabroker: source: %w", err)
	}
	s.client = own
	return s, nil
}

// Info implements broker.Source.
func (s *Source) Info() broker.SourceInfo { return broker.SourceInfo{Name: "kafka"} }

// Extend does nothing: the source owns a partition as long as its client lives.
func (s *Source) Extend(context.Context, []broker.Delivery) error { return nil }

// Close leaves the group. Unsettled messages go to another member: at once,
// or after the session timeout if the broker does not answer within leaveTimeout.
func (s *Source) Close() {
	s.mu.Lock()
	s.closed = true
	s.wake()
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.client.Context(), leaveTimeout)
	defer cancel()
	s.client.AllowRebalance()
	_ = s.client.LeaveGroupContext(ctx) // Close would try for most of a minute
	s.client.Close()
}

// leaveTimeout bounds how long a silent broker can delay the end of the program.
const leaveTimeout = 5 * time.Second

// wake makes receivers look again. The caller holds mu.
func (s *Source) wake() {
	close(s.change)
	s.change = make(chan struct{})
}

var errClosed = errors.New("kafkabroker: source is closed")

// Receive implements broker.Source.
func (s *Source) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		ds, due, change, closed := s.take(max(limit, 1))
		switch {
		case closed:
			return nil, errClosed
		case len(ds) > 0:
			return ds, nil
		}
		if err := s.wait(ctx, due, change); err != nil {
			return nil, err
		}
	}
}

func (s *Source) take(limit int) (ds []broker.Delivery, due time.Time, change <-chan struct{}, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, h := range s.logs {
		var d time.Time
		ds, d = h.Take(ds, limit, now)
		if !d.IsZero() && (due.IsZero() || d.Before(due)) {
			due = d
		}
	}
	return ds, due, s.change, s.closed
}

// wait polls the brokers, or waits for another call that does, until Receive may have
// messages to return.
func (s *Source) wait(ctx context.Context, due time.Time, change <-chan struct{}) error {
	if !due.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, due)
		defer cancel()
	}
	select {
	case s.poll <- struct{}{}:
		defer func() { <-s.poll }()
		return s.fetch(ctx, change)
	case <-change:
	case <-ctx.Done():
	}
	return nil // Receive looks at the caller's context itself
}

func (s *Source) fetch(ctx context.Context, change <-chan struct{}) error {
	polling, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	go func() {
		select {
		case <-change:
			cancel()
		case <-polling.Done():
		}
	}()
	recreated, err := s.pollOnce(polling)
	switch {
	case len(recreated) > 0:
		s.follow(recreated)
	case err == nil && errors.Is(polling.Err(), context.DeadlineExceeded) && ctx.Err() == nil:
		return s.reach(ctx)
	}
	return err
}

// silence is the time without a record after which the source pings the brokers: the
// client itself retries for ever and reports nothing.
const silence = 5 * time.Second

// reach returns an error if no broker answers a ping. Its timeout allows for busy brokers.
func (s *Source) reach(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, 3*silence)
	defer cancel()
	err := s.client.Ping(asking)
	if err == nil || ctx.Err() != nil || errors.Is(err, kgo.ErrClientClosed) || s.client.Context().Err() != nil {
		return nil // Receive looks at the caller's context itself
	}
	return fmt.Errorf("kafkabroker: receive: no broker answers: %w", remedy(err, ""))
}

// pollOnce takes the records that the brokers have sent. recreated has the partitions of
// topics that the brokers report as deleted and created again.
func (s *Source) pollOnce(ctx context.Context) (recreated map[string][]int32, err error) {
	fetches := s.client.PollRecords(ctx, 1000)
	defer s.client.AllowRebalance()
	s.mu.Lock()
	defer s.mu.Unlock()
	fetches.EachPartition(func(p kgo.FetchTopicPartition) { s.add(p) })
	s.wake()
	for _, e := range fetches.Errors() {
		switch {
		case errors.Is(e.Err, context.Canceled), errors.Is(e.Err, context.DeadlineExceeded), errors.Is(e.Err, kgo.ErrClientClosed):
			continue
		case errors.Is(e.Err, kerr.UnknownTopicID) && recreated[e.Topic] == nil:
			if recreated == nil {
				recreated = make(map[string][]int32)
			}
			for at := range s.logs {
				if at.topic == e.Topic {
					recreated[e.Topic] = append(recreated[e.Topic], at.partition)
				}
			}
			recreated[e.Topic] = append(recreated[e.Topic], e.Partition)
		}
		if err == nil {
			err = fmt.Errorf("kafkabroker: receive from %s/%d: %w", e.Topic, e.Partition, sourceRemedy(e.Err, e.Topic, s.group))
		}
	}
	return recreated, err
}

// follow moves to the topics that replace recreated ones, now or when they are
// created. Messages in hand are not committed to them, because their offsets start at 0
// again. The client itself would stay with the old topics for ever, see "Topic
// recreation" in https://github.com/twmb/franz-go.
func (s *Source) follow(recreated map[string][]int32) {
	s.drop(recreated)
	topics := slices.Collect(maps.Keys(recreated))
	s.client.PurgeTopicsFromClient(topics...)
	s.client.AddConsumeTopics(topics...)
}

func (s *Source) add(p kgo.FetchTopicPartition) {
	if len(p.Records) == 0 {
		return
	}
	at := place{p.Topic, p.Partition}
	h := s.logs[at]
	if h == nil {
		h = &held{at: at}
		s.logs[at] = h
	}
	for _, r := range p.Records {
		h.Add(s.decode(r), r.Offset)
	}
	if (h.Len() > s.max || s.bytes() > s.most) && !h.paused {
		h.paused = true
		s.client.PauseFetchPartitions(map[string][]int32{at.topic: {at.partition}})
	}
}

// bytes returns the size of all held messages. The caller holds mu.
func (s *Source) bytes() (n int) {
	for _, h := range s.logs {
		n += h.Bytes()
	}
	return n
}

// resume resumes paused partitions. The caller holds mu.
func (s *Source) resume() {
	if s.bytes() > s.most/2 {
		return
	}
	for _, h := range s.logs {
		if h.paused && h.Len() < max(s.max/2, 1) {
			h.paused = false
			s.client.ResumeFetchPartitions(map[string][]int32{h.at.topic: {h.at.partition}})
		}
	}
}

func (s *Source) decode(r *kgo.Record) broker.Delivery {
	hs := make([]envelope.Header, len(r.Headers))
	for i, h := range r.Headers {
		hs[i] = envelope.Header{Name: h.Key, Value: h.Value}
	}
	origin := fmt.Sprintf("%s/%d@%d", r.Topic, r.Partition, r.Offset)
	m, err := s.codec.Decode(envelope.Record{
		Topic: strings.TrimPrefix(r.Topic, s.prefix), Key: string(r.Key), Headers: hs, Payload: r.Value,
		Time: r.Timestamp.UTC(), Origin: "kafka:" + origin,
	})
	return broker.Delivery{Message: m, Origin: origin, Token: place{r.Topic, r.Partition}, Err: err, Foreign: s.codec.IsForeign(hs)}
}
