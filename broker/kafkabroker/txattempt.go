package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/broker"
)

// attempt sends the batches and commits them. again reports that something was refused,
// nothing was committed, and the rest is to be tried again; err applies to all
// messages without an error of their own.
func (t *transactor) attempt(ctx context.Context, w *work, batches []*txBatch) (again bool, err error) {
	t.dirty, t.opened = true, time.Now()
	limited, cancel := context.WithTimeout(ctx, t.sink.timeout)
	defer cancel()
	refused, err := t.add(limited, batches)
	if err != nil {
		return false, t.unsent(err)
	}
	for _, b := range batches {
		if err := refused[b.p]; err != nil {
			w.refuse(b, err)
		}
	}
	if len(refused) > 0 {
		return true, nil
	}
	whole, err := t.produce(limited, w, batches)
	if err != nil {
		return false, t.unsent(err)
	}
	if !whole {
		return true, nil
	}
	return false, t.commit(ctx)
}

// unsent returns the error of all messages when no commit was sent. Whether this
// producer is fenced is decided later, by ready.
func (t *transactor) unsent(err error) error {
	if isFenced(err) {
		if readyErr := t.ready(t.sink.client.Context()); t.fenced != nil {
			return readyErr
		}
	}
	return broker.Outage(fmt.Errorf("transactional id %q: nothing was committed: %w", t.id, remedy(err, "")), code(err), "")
}

// commit commits the transaction. Without an answer of the coordinator its outcome is
// unknown.
func (t *transactor) commit(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, t.sink.timeout)
	defer cancel()
	switch err := t.end(limited, true); {
	case err == nil:
		t.dirty = false
		return nil
	case isFenced(err), errors.Is(err, kerr.InvalidTxnState), errors.Is(err, kerr.TransactionAbortable):
		return t.unsent(err)
	default:
		return broker.Unknown(fmt.Errorf("transactional id %q: the commit was not answered: %w", t.id, remedy(err, "")), code(err), "")
	}
}

// produce sends the batches, one per partition at a time, and reports whether all
// of them were appended. After a refusal the transaction will not be
// committed; then only single-record batches are still sent, so that one attempt finds
// all bad records.
func (t *transactor) produce(ctx context.Context, w *work, batches []*txBatch) (whole bool, err error) {
	queues := make(map[*partition][]*txBatch)
	var order []*partition
	for _, b := range batches {
		if queues[b.p] == nil {
			order = append(order, b.p)
		}
		queues[b.p] = append(queues[b.p], b)
	}
	whole = true
	for round := 0; len(order) > 0; {
		var flight []*txBatch
		for _, p := range order {
			flight = append(flight, queues[p][0])
		}
		retry := false
		for i, err := range t.send(ctx, flight) {
			b := flight[i]
			switch t.judge(b, err) {
			case actDone:
				at := b.p.place()
				t.next[at] = (t.next[at] + int32(len(b.msgs))) & 0x7fffffff
			case actRetry:
				b.tries++
				retry = true
				continue
			case actSplit, actFail:
				whole = false
				w.refuse(b, err)
			default:
				return false, err
			}
			queues[b.p] = queues[b.p][1:]
		}
		order = remaining(order, queues, whole)
		if retry {
			round++
			if !pause(ctx, backoff(round)) {
				return false, fmt.Errorf("%w: appended only in part", ctx.Err())
			}
			if err := t.lookAgain(ctx, order); err != nil {
				return false, err
			}
		}
	}
	return whole, nil
}

// remaining returns the partitions with batches left to send. If the transaction will
// not be committed, only batches that search for bad records count.
func remaining(order []*partition, queues map[*partition][]*txBatch, whole bool) (left []*partition) {
	for _, p := range order {
		if q := queues[p]; len(q) > 0 && (whole || q[0].single) {
			left = append(left, p)
		}
	}
	return left
}

// judge classifies the answer to a batch. An error that is neither this batch's fault
// nor likely to pass ends the transaction.
func (t *transactor) judge(b *txBatch, err error) act {
	var ke *kerr.Error
	if err == nil {
		return actDone
	}
	if !errors.As(err, &ke) {
		if notSent(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return actNewProducer
		}
		return actRetry // with the same sequence numbers, which the broker recognises
	}
	switch a, _ := actOn(ke.Code); {
	case a == actRepeated && b.tries > 0:
		return actDone
	case a == actSplit, a == actRetry:
		return a
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return actFail
	}
	return actNewProducer
}

// lookAgain refreshes the leaders of the partitions.
func (t *transactor) lookAgain(ctx context.Context, order []*partition) error {
	seen := make(map[*topic]bool)
	for _, p := range order {
		if seen[p.topic] {
			continue
		}
		seen[p.topic] = true
		if _, err := p.topic.refresh(ctx); errors.Is(err, errNoTopic) || errors.Is(err, errOtherTopic) {
			t.sink.forget(p.topic)
			return fmt.Errorf("topic %s: %w", p.topic.name, err)
		}
	}
	return nil
}

// send sends one batch of each partition, and returns an error for each.
func (t *transactor) send(ctx context.Context, flight []*txBatch) []error {
	errs := make([]error, len(flight))
	by := make(map[int32][]int)
	for i, b := range flight {
		b.finish(t)
		id := b.p.leader.Load().id
		by[id] = append(by[id], i)
	}
	var wg sync.WaitGroup
	for id, idx := range by {
		wg.Go(func() { t.sendTo(ctx, id, flight, idx, errs) })
	}
	wg.Wait()
	return errs
}

func (t *transactor) sendTo(ctx context.Context, id int32, flight []*txBatch, idx []int, errs []error) {
	fail := func(err error) {
		for _, i := range idx {
			errs[i] = err
		}
	}
	if id < 0 {
		fail(kerr.LeaderNotAvailable)
		return
	}
	req := kmsg.NewPtrProduceRequest()
	req.TransactionID, req.Acks = kmsg.StringPtr(t.id), -1
	req.TimeoutMillis = int32(t.sink.timeout.Milliseconds())
	at, which := make(map[string]int), make(map[place]int)
	for _, i := range idx {
		b := flight[i]
		name := b.p.topic.name
		n, ok := at[name]
		if !ok {
			n = len(req.Topics)
			at[name] = n
			rt := kmsg.NewProduceRequestTopic()
			rt.Topic = name
			req.Topics = append(req.Topics, rt)
		}
		rp := kmsg.NewProduceRequestTopicPartition()
		rp.Partition, rp.Records = b.p.num, b.sealed
		req.Topics[n].Partitions = append(req.Topics[n].Partitions, rp)
		which[b.p.place()] = i
	}
	kresp, err := t.sink.client.Broker(int(id)).Request(ctx, req)
	if err != nil {
		fail(err)
		return
	}
	fail(kerr.NetworkException) // where the answer has nothing
	if resp, ok := kresp.(*kmsg.ProduceResponse); ok {
		for _, rt := range resp.Topics {
			for _, rp := range rt.Partitions {
				if i, ok := which[place{rt.Topic, rp.Partition}]; ok {
					errs[i] = kerr.ErrorForCode(rp.ErrorCode)
				}
			}
		}
	}
}
