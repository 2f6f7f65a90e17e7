package kafkabroker

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/inhand"
)

// Settle implements broker.Source. It commits before it returns; an error means
// that acknowledged messages may be received again. The next call, with the same or
// other verdicts, commits what this one could not.
func (s *Source) Settle(ctx context.Context, verdicts []broker.Verdict) error {
	wanted, err := s.apply(verdicts)
	if err != nil || len(wanted) == 0 {
		return err
	}
	select { // one commit at a time: an older offset must not overwrite a newer one
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

// apply records the verdicts and returns the offset to commit for each partition
// that they concern.
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
		switch _, live := t.Live(); {
		case !live && !v.Ack:
			continue
		case !v.Ack:
			t.GiveBack(now.Add(v.Delay))
			continue
		case live:
			t.Ack()
		} // else it was acknowledged before, by a call that may not have committed
		if at, ok := t.Origin().Token.(place); ok && s.logs[at] != nil {
			wanted[s.logs[at]] = 0
		}
	}
	for h := range wanted {
		if next, ok := h.Trim(); ok {
			h.next = next
		}
		wanted[h] = h.next
	}
	s.resume()
	s.wake()
	return wanted, nil
}

// commitAll commits the messages that were acknowledged since the last commit of each
// partition. The caller holds commit.
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

// committed adds the partitions whose commit the broker accepted to done, and returns
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

// revoked runs before another member gets the partitions. It waits for the commit in
// flight and commits the acknowledged messages; the new owner receives the rest again.
func (s *Source) revoked(ctx context.Context, _ *kgo.Client, gone map[string][]int32) {
	select {
	case s.commit <- struct{}{}:
		defer func() { <-s.commit }()
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(ctx, revokeTimeout)
	defer cancel()
	_ = s.commitAll(ctx, s.drop(gone)) // the Settle call that waits for it reports the failure
}

// revokeTimeout is how long the partitions' new owner waits for our last commit.
const revokeTimeout = 5 * time.Second

// lost runs when another member may own the partitions already.
func (s *Source) lost(_ context.Context, _ *kgo.Client, gone map[string][]int32) { s.drop(gone) }

// drop forgets partitions: their messages can be neither received nor settled any more.
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
	s.resume()
	s.wake()
	return dropped
}
