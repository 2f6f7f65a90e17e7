package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/inhand"
	"github.com/postrider/postrider/envelope"
)

// SourceOptions of NewSource.
type SourceOptions struct {
	Group  string   // the consumer group; required
	Topics []string // required
	// Client holds the brokers, credentials and whatever else the client needs.
	// The group and offset options are the source's own, but for the times:
	// a member that died is missed after a session timeout of 10 s, which
	// kgo.SessionTimeout changes.
	Client []kgo.Opt
	// MaxHeld bounds the unsettled messages of one partition; it is paused
	// above. 4096 if zero.
	MaxHeld int
}

// Source receives as a member of a consumer group. What is committed is, per
// partition, the longest row of acknowledged messages; a new group begins with
// the oldest message. It is safe for concurrent use.
type Source struct {
	client *kgo.Client
	max    int
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

// NewSource makes a client of its own; Close ends it. It does not wait for the
// brokers.
func NewSource(opts SourceOptions) (*Source, error) {
	if opts.Group == "" || len(opts.Topics) == 0 {
		return nil, errors.New("kafkabroker: source: a group and at least one topic are required")
	}
	s := &Source{
		max: opts.MaxHeld, poll: make(chan struct{}, 1), commit: make(chan struct{}, 1),
		logs: make(map[place]*held), change: make(chan struct{}),
	}
	if s.max <= 0 {
		s.max = 4096
	}
	client, err := kgo.NewClient(append(append([]kgo.Opt{kgo.SessionTimeout(sessionTimeout)}, opts.Client...),
		kgo.ConsumerGroup(opts.Group), kgo.ConsumeTopics(opts.Topics...),
		kgo.DisableAutoCommit(), kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(500*time.Millisecond), kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsRevoked(s.revoked), kgo.OnPartitionsLost(s.lost),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafkabroker: source: %w", err)
	}
	s.client = client
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-change:
			cancel()
		case <-ctx.Done():
		}
	}()
	fetches := s.client.PollRecords(ctx, 1000)
	defer s.client.AllowRebalance()
	s.mu.Lock()
	defer s.mu.Unlock()
	fetches.EachPartition(func(p kgo.FetchTopicPartition) { s.add(p) })
	s.wake()
	for _, e := range fetches.Errors() {
		if errors.Is(e.Err, context.Canceled) || errors.Is(e.Err, context.DeadlineExceeded) || errors.Is(e.Err, kgo.ErrClientClosed) {
			continue
		}
		return fmt.Errorf("kafkabroker: receive from %s/%d: %w", e.Topic, e.Partition, e.Err)
	}
	return nil
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
		h.Add(decode(r), r.Offset)
	}
	if h.Len() > s.max && !h.paused {
		h.paused = true
		s.client.PauseFetchPartitions(map[string][]int32{at.topic: {at.partition}})
	}
}

func decode(r *kgo.Record) broker.Delivery {
	hs := make([]envelope.Header, len(r.Headers))
	for i, h := range r.Headers {
		hs[i] = envelope.Header{Name: h.Key, Value: h.Value}
	}
	origin := fmt.Sprintf("%s/%d@%d", r.Topic, r.Partition, r.Offset)
	m, err := envelope.Codec{}.Decode(envelope.Record{
		Topic: r.Topic, Key: string(r.Key), Headers: hs, Payload: r.Value,
		Time: r.Timestamp.UTC(), Origin: "kafka:" + origin,
	})
	return broker.Delivery{Message: m, Origin: origin, Token: place{r.Topic, r.Partition}, Err: err}
}

// Settle implements broker.Source. It commits before it returns; an error means
// that acknowledged messages may be received again. What one call could not
// commit the next one commits with its own.
func (s *Source) Settle(ctx context.Context, verdicts []broker.Verdict) error {
	wanted, err := s.apply(verdicts)
	if err != nil || len(wanted) == 0 {
		return err
	}
	select { // one commit at a time: an older one must not come behind a newer
	case s.commit <- struct{}{}:
		defer func() { <-s.commit }()
	case <-ctx.Done():
		return fmt.Errorf("kafkabroker: commit: %w", ctx.Err())
	}
	s.mu.Lock()
	all := make([]*held, 0, len(s.logs))
	for _, h := range s.logs {
		all = append(all, h)
	}
	s.mu.Unlock()
	failed := s.commitAll(ctx, all)
	s.mu.Lock()
	defer s.mu.Unlock()
	for h, next := range wanted {
		if h.committed < next {
			if failed != nil {
				return failed
			}
			return fmt.Errorf("kafkabroker: commit: %s/%d went to another member", h.at.topic, h.at.partition)
		}
	}
	return nil
}

// apply notes the verdicts, and answers up to where the partitions they are
// about must be committed.
func (s *Source) apply(verdicts []broker.Verdict) (map[*held]int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := make(map[*held]int64)
	now := time.Now()
	for i, v := range verdicts {
		t, ok := v.Delivery.Token.(inhand.Token)
		if !ok {
			return nil, fmt.Errorf("kafkabroker: settle: verdict %d (%s): not a delivery of this source", i, v.Delivery.Origin)
		}
		if _, live := t.Live(); !live {
			continue
		}
		if !v.Ack {
			t.GiveBack(now.Add(v.Delay))
			continue
		}
		t.Ack()
		if at, ok := t.Origin().Token.(place); ok && s.logs[at] != nil {
			wanted[s.logs[at]] = 0
		}
	}
	for h := range wanted {
		if next, ok := h.Trim(); ok {
			h.next = next
		}
		wanted[h] = h.next
		if h.paused && h.Len() < s.max/2 {
			h.paused = false
			s.client.ResumeFetchPartitions(map[string][]int32{h.at.topic: {h.at.partition}})
		}
	}
	s.wake()
	return wanted, nil
}

// commitAll commits what the partitions have acknowledged since their last
// commit. The caller holds commit.
func (s *Source) commitAll(ctx context.Context, all []*held) error {
	offsets := make(map[string]map[int32]kgo.EpochOffset)
	s.mu.Lock()
	for _, h := range all {
		if h.next <= h.committed {
			continue
		}
		if offsets[h.at.topic] == nil {
			offsets[h.at.topic] = make(map[int32]kgo.EpochOffset)
		}
		offsets[h.at.topic][h.at.partition] = kgo.EpochOffset{Epoch: -1, Offset: h.next}
	}
	s.mu.Unlock()
	if len(offsets) == 0 {
		return nil
	}
	var (
		done   = make(map[place]bool)
		failed error
	)
	s.client.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if failed = err; err == nil {
			failed = committed(resp, done)
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range all {
		if at, ok := offsets[h.at.topic][h.at.partition]; ok && done[h.at] {
			h.committed = max(h.committed, at.Offset)
		}
	}
	if failed != nil {
		return fmt.Errorf("kafkabroker: commit: %w", failed)
	}
	return nil
}

// committed notes the partitions whose commit the broker has taken, and returns
// the first error of the others.
func committed(resp *kmsg.OffsetCommitResponse, done map[place]bool) (first error) {
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			err := kerr.ErrorForCode(p.ErrorCode)
			if err == nil {
				done[place{t.Topic, p.Partition}] = true
			} else if first == nil {
				first = fmt.Errorf("%s/%d: %w", t.Topic, p.Partition, err)
			}
		}
	}
	return first
}

// revoked runs before another member gets the partitions: it waits for the commit
// that is going on, and commits what was acknowledged; the rest is theirs.
func (s *Source) revoked(ctx context.Context, _ *kgo.Client, gone map[string][]int32) {
	select {
	case s.commit <- struct{}{}:
		defer func() { <-s.commit }()
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(ctx, revokeTimeout)
	defer cancel()
	_ = s.commitAll(ctx, s.drop(gone)) // the Settle call that waits for it sees that it failed
}

// revokeTimeout is how long the partitions' new owner waits for our last commit.
const revokeTimeout = 5 * time.Second

// lost runs when the partitions may be another member's already.
func (s *Source) lost(_ context.Context, _ *kgo.Client, gone map[string][]int32) { s.drop(gone) }

// drop takes partitions out: their messages cannot be received or settled any more.
func (s *Source) drop(gone map[string][]int32) (dropped []*held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for topic, parts := range gone {
		for _, p := range parts {
			at := place{topic, p}
			if h := s.logs[at]; h != nil {
				if h.paused {
					s.client.ResumeFetchPartitions(map[string][]int32{topic: {p}})
				}
				h.Drop()
				delete(s.logs, at)
				dropped = append(dropped, h)
			}
		}
	}
	s.wake()
	return dropped
}
