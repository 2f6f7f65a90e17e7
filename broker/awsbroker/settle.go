package awsbroker

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/inhand"
)

// parallel is how many requests one call has under way at once.
const parallel = 8

// acknowledge deletes messages. One that is visible already is delivered again.
func (s *Source) acknowledge(ctx context.Context, batch []*held) ([]error, error) {
	const what, action = "acknowledge", "sqs:DeleteMessage"
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	url, err := s.queues.url(ctx, s.name)
	if err != nil {
		return nil, fmt.Errorf("awsbroker: %s: %w", what, err)
	}
	entries := make([]types.DeleteMessageBatchRequestEntry, len(batch))
	for n, h := range batch {
		entries[n] = types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(n)), ReceiptHandle: aws.String(h.Of.handle)}
	}
	out, err := s.queues.client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: aws.String(url), Entries: entries}, once)
	if err != nil {
		return nil, s.unsettled(what, action, err)
	}
	done := idsOf(out.Successful, func(e *types.DeleteMessageBatchResultEntry) *string { return e.Id })
	return s.answers(batch, what, action, done, out.Failed), nil
}

// hide sets for how long others do not see messages.
func (s *Source) hide(ctx context.Context, batch []*held, d time.Duration) ([]error, error) {
	const what, action = "change visibility", "sqs:ChangeMessageVisibility"
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	url, err := s.queues.url(ctx, s.name)
	if err != nil {
		return nil, fmt.Errorf("awsbroker: %s: %w", what, err)
	}
	entries := make([]types.ChangeMessageVisibilityBatchRequestEntry, len(batch))
	for n, h := range batch {
		entries[n] = types.ChangeMessageVisibilityBatchRequestEntry{
			Id: aws.String(strconv.Itoa(n)), ReceiptHandle: aws.String(h.Of.handle), VisibilityTimeout: int32(d / time.Second), //nolint:gosec // at most 12 hours
		}
	}
	out, err := s.queues.client.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: aws.String(url), Entries: entries}, once)
	if err != nil {
		return nil, s.unsettled(what, action, err)
	}
	done := idsOf(out.Successful, func(e *types.ChangeMessageVisibilityBatchResultEntry) *string { return e.Id })
	return s.answers(batch, what, action, done, out.Failed), nil
}

// idsOf are the ids of the entries that succeeded.
func idsOf[E any](entries []E, id func(*E) *string) map[string]bool {
	ids := make(map[string]bool, len(entries))
	for i := range entries {
		ids[aws.ToString(id(&entries[i]))] = true
	}
	return ids
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

// answers are the service's for each message of a batch; done has the entries that
// succeeded. An error is of an entry that failed, or that the answer does not name,
// although its message may still be ours.
func (s *Source) answers(batch []*held, what, action string, done map[string]bool, failed []types.BatchResultErrorEntry) []error {
	refused := make(map[string]*types.BatchResultErrorEntry, len(failed))
	for i := range failed {
		refused[aws.ToString(failed[i].Id)] = &failed[i]
	}
	answers := make([]error, len(batch))
	for n, h := range batch {
		id := strconv.Itoa(n)
		f := refused[id]
		switch {
		case f == nil && done[id]:
		case f == nil:
			answers[n] = fmt.Errorf("awsbroker: %s: %s: %w", what, h.Delivery.Origin, errNoAnswer)
		case noLonger(shortCode(aws.ToString(f.Code))):
			answers[n] = inhand.ErrLost
		default:
			answers[n] = fmt.Errorf("awsbroker: %s: %s: %w", what, h.Delivery.Origin, entryError(f, s.queues.about(action, s.name, false)))
		}
	}
	return answers
}
