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

// SourceOptions of [OpenSource] and [NewSource].
type SourceOptions struct {
	Group  string   // the consumer group; required
	Topics []string // required
	// Prefix is put before every topic, and taken off the topic of records that do not
	// name their own.
	Prefix string
	// Foreign says what records look like that others wrote, such as Debezium's
	// outbox event router.
	Foreign envelope.Foreign
	// MaxHeld bounds the unsettled messages of one partition; it is paused
	// above. 4096 if zero.
	MaxHeld int
	// MaxHeldBytes bounds the unsettled messages of all partitions; no more are
	// fetched above, but for what the client has under way: from each broker a
	// 32nd of it, as it is compressed there, which kgo.FetchMaxBytes of the
	// client changes. 64 MiB if zero.
	MaxHeldBytes int
}

// Source receives as a member of a consumer group. What is committed is, per
// partition, the longest row of acknowledged messages; a new group begins with
// the oldest message. It is safe for concurrent use.
type Source struct {
	client *kgo.Client
	group  string
	prefix string
	codec  envelope.Codec
	max    int           // messages of a partition
	most   int           // bytes of all
	poll   chan struct{} // held by the one that polls
	commit chan struct{} // held by the one that commits

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
	next      int64 // to be committed: everything before it is acknowledged
	committed int64
}

// sessionTimeout is how long the broker waits for a member that is silent before
// its partitions go to others: they stand still that long after a SIGKILL. The
// client's own 45 s are meant for members that keep state. A member that was
// only slow costs a rebalance, and repetitions that the inbox knows.
const sessionTimeout = 10 * time.Second

// fetchShare is which part of MaxHeldBytes one answer of a broker may bring, and
// partitionShare which part of that is one partition's. An answer lies in the
// client unpacked, with several hundred bytes for each record, until it has been
// polled: the client's own 50 MiB per broker made consumers of 160 MiB.
const (
	fetchShare     = 64
	partitionShare = 4
)

// NewSource returns a source on a client of its own with these options: brokers,
// credentials and whatever else it needs. It takes options, not a client, because
// franz-go fixes group, topics and rebalance callbacks when a client is made, and a
// client is a member of one group only. The group and offset options are the source's
// own, but for the times: a member that died is missed after a session timeout of
// 10 s, which kgo.SessionTimeout changes. Close ends the client. NewSource does no I/O.
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
	fetch := int32(min(max(s.most/fetchShare, 64<<10), 50<<20)) // a batch that is larger comes alone
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

// Extend does nothing: a partition is ours as long as the client lives.
func (s *Source) Extend(context.Context, []broker.Delivery) error { return nil }

// Close leaves the group. What was not settled goes to another member: at once,
// or after the session timeout when the broker does not answer within leaveTimeout.
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

// leaveTimeout is how long the program's end may wait for a broker that is silent.
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

// wait polls the brokers, or lets another call do it, until there may be
// something to return.
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
	anew, err := s.pollOnce(polling)
	switch {
	case len(anew) > 0:
		s.follow(anew)
	case err == nil && errors.Is(polling.Err(), context.DeadlineExceeded) && ctx.Err() == nil:
		return s.reach(ctx)
	}
	return err
}

// silence is after what time without a record the brokers are asked whether they are
// there: the client continues trying and says nothing.
const silence = 5 * time.Second

// reach says why no broker answers, if none does; a busy one has time to.
func (s *Source) reach(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, 3*silence)
	defer cancel()
	err := s.client.Ping(asking)
	if err == nil || ctx.Err() != nil || errors.Is(err, kgo.ErrClientClosed) || s.client.Context().Err() != nil {
		return nil // Receive looks at the caller's context itself
	}
	return fmt.Errorf("kafkabroker: receive: no broker answers: %w", remedy(err, ""))
}

// pollOnce takes what the brokers have sent, and names the topics of which they say
// that the one that we read is gone.
func (s *Source) pollOnce(ctx context.Context) (anew map[string][]int32, err error) {
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
		case errors.Is(e.Err, kerr.UnknownTopicID) && anew[e.Topic] == nil:
			if anew == nil {
				anew = make(map[string][]int32)
			}
			for at := range s.logs {
				if at.topic == e.Topic {
					anew[e.Topic] = append(anew[e.Topic], at.partition)
				}
			}
			anew[e.Topic] = append(anew[e.Topic], e.Partition)
		}
		if err == nil {
			err = fmt.Errorf("kafkabroker: receive from %s/%d: %w", e.Topic, e.Partition, sourceRemedy(e.Err, e.Topic, s.group))
		}
	}
	return anew, err
}

// follow goes over to the topics that have the names of some that are gone, now or
// when they are made. What is in hand is not told to them: their offsets begin anew.
// The client would stay with the old ones for ever, see "Topic recreation" in
// https://github.com/twmb/franz-go.
func (s *Source) follow(anew map[string][]int32) {
	s.drop(anew)
	topics := slices.Collect(maps.Keys(anew))
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

// bytes is the size of what is held. The caller holds mu.
func (s *Source) bytes() (n int) {
	for _, h := range s.logs {
		n += h.Bytes()
	}
	return n
}

// resume continues with partitions that were paused. The caller holds mu.
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
	return broker.Delivery{Message: m, Origin: origin, Token: place{r.Topic, r.Partition}, Err: err}
}
