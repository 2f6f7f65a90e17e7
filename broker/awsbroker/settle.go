package awsbroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider/broker"
)

// Settle implements broker.Source. Acknowledged messages are deleted. A message that is
// given back becomes visible after its delay, rounded up to seconds; what waits behind
// it becomes visible before, while its group is locked, so that the group continues
// with this message.
func (s *Source) Settle(ctx context.Context, verdicts []broker.Verdict) error {
	acks, backs, err := s.sort(verdicts)
	if err != nil {
		return err
	}
	found := s.acknowledge(ctx, acks)
	var behind []*item
	s.mu.Lock()
	for _, g := range backs {
		for _, it := range g {
			behind = append(behind, it.group.waiting...)
		}
	}
	s.mu.Unlock()
	if len(behind) > 0 {
		if err := s.hide(ctx, behind, 0, func(it *item, _ bool) { s.lose(it) }); err != nil {
			return errors.Join(found, err)
		}
	}
	for delay, g := range backs {
		found = errors.Join(found, s.hide(ctx, g, delay, func(it *item, _ bool) { s.remove(it) }))
	}
	return found
}

// sort parts the verdicts about what is in hand: those that give back by their delay.
func (s *Source) sort(verdicts []broker.Verdict) (acks []*item, backs map[time.Duration][]*item, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, errSourceClosed
	}
	backs = make(map[time.Duration][]*item)
	seen := make(map[*item]bool, len(verdicts))
	for i, v := range verdicts {
		it, ok := v.Delivery.Token.(*item)
		if !ok {
			return nil, nil, fmt.Errorf("awsbroker: settle: verdict %d (%s): not a delivery of this source", i, v.Delivery.Origin)
		}
		switch {
		case seen[it] || !it.live():
		case v.Ack:
			acks = append(acks, it)
		default:
			d := min((max(v.Delay, 0) + time.Second - 1).Truncate(time.Second), mostVisibility-s.opts.Visibility)
			backs[d] = append(backs[d], it)
		}
		seen[it] = true
	}
	return acks, backs, nil
}

// parallel is how many requests one call has under way at once.
const parallel = 8

// inBatches calls fn for ten items at a time, several at once, and joins the errors.
func inBatches(items []*item, fn func([]*item) error) error {
	var (
		wg    sync.WaitGroup
		slots = make(chan struct{}, parallel)
		mu    sync.Mutex
		found error
	)
	for part := range slices.Chunk(items, mostEntries) {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := fn(part); err != nil {
				mu.Lock()
				found = errors.Join(found, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return found
}

// acknowledge deletes messages, ten by ten. One that is visible already is delivered again.
func (s *Source) acknowledge(ctx context.Context, items []*item) error {
	return inBatches(items, func(part []*item) error {
		ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
		defer cancel()
		url, err := s.queues.url(ctx, s.name)
		if err != nil {
			return fmt.Errorf("awsbroker: acknowledge: %w", err)
		}
		entries := make([]types.DeleteMessageBatchRequestEntry, len(part))
		for n, it := range part {
			entries[n] = types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(n)), ReceiptHandle: aws.String(it.handle)}
		}
		out, err := s.queues.client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: aws.String(url), Entries: entries}, once)
		if err != nil {
			return s.unsettled("acknowledge", "sqs:DeleteMessage", err)
		}
		return s.answers(part, "acknowledge", "sqs:DeleteMessage", out.Failed, func(it *item, gone bool) {
			if gone {
				s.lose(it)
			} else {
				s.remove(it)
			}
		})
	})
}

// hide sets for how long others do not see messages, ten by ten, and calls done for
// each that the service answered, under mu; gone is true if the source no longer holds the message.
func (s *Source) hide(ctx context.Context, items []*item, d time.Duration, done func(it *item, gone bool)) error {
	return inBatches(items, func(part []*item) error {
		ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
		defer cancel()
		url, err := s.queues.url(ctx, s.name)
		if err != nil {
			return fmt.Errorf("awsbroker: change visibility: %w", err)
		}
		entries := make([]types.ChangeMessageVisibilityBatchRequestEntry, len(part))
		for n, it := range part {
			entries[n] = types.ChangeMessageVisibilityBatchRequestEntry{
				Id: aws.String(strconv.Itoa(n)), ReceiptHandle: aws.String(it.handle), VisibilityTimeout: int32(d / time.Second), //nolint:gosec // at most 12 hours
			}
		}
		out, err := s.queues.client.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: aws.String(url), Entries: entries}, once)
		if err != nil {
			return s.unsettled("change visibility", "sqs:ChangeMessageVisibility", err)
		}
		return s.answers(part, "change visibility", "sqs:ChangeMessageVisibility", out.Failed, done)
	})
}

// unsettled is the error of a request; a queue that is gone is asked for again.
func (s *Source) unsettled(what, action string, err error) error {
	err = refusal(err, s.queues.about(action, s.name, false))
	if broker.Classify(err).Code == codeNoQueue {
		s.queues.forget(s.name)
	}
	return fmt.Errorf("awsbroker: %s: %w", what, err)
}

// noLonger reports whether code is that of an entry whose message is visible to others
// or deleted: a repetition changes nothing.
func noLonger(code string) bool {
	return code == "ReceiptHandleIsInvalid" || code == "MessageNotInflight" || code == "InvalidParameterValue"
}

// answers notes what the service did with each item. Its error has the entries that
// failed although their messages may still be ours: the caller tries them again.
func (s *Source) answers(part []*item, what, action string, failed []types.BatchResultErrorEntry, done func(it *item, gone bool)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	refused := make(map[string]*types.BatchResultErrorEntry, len(failed))
	for i := range failed {
		refused[aws.ToString(failed[i].Id)] = &failed[i]
	}
	var found error
	for n, it := range part {
		f := refused[strconv.Itoa(n)]
		switch {
		case f == nil:
			done(it, false)
		case noLonger(shortCode(aws.ToString(f.Code))):
			done(it, true)
		default:
			found = errors.Join(found, fmt.Errorf("awsbroker: %s: %s: %w", what, it.delivery.Origin, entryError(f, s.queues.about(action, s.name, false))))
		}
	}
	s.wake()
	return found
}
