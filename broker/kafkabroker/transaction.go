package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/postrider/postrider/broker"
)

// The versions of the transaction protocol that the sink speaks: partitions are
// added by a request, and the epoch grows when the sink asks for it, which it does
// whenever it does not know how a transaction ended. From Produce 12 and EndTxn 5
// on (KIP-890, part 2) it is otherwise. Every broker since 2.5 takes these.
const (
	maxProduce = 11
	maxEndTxn  = 4
)

// TransactionOptions returns what a client needs beside [ClientOptions] for a
// sink with a TransactionalID. The client itself must have none.
func TransactionOptions() []kgo.Opt {
	v := kversion.Stable()
	v.SetMaxKeyVersion(kmsg.Produce.Int16(), maxProduce)
	v.SetMaxKeyVersion(kmsg.EndTxn.Int16(), maxEndTxn)
	return []kgo.Opt{kgo.MaxVersions(v)}
}

// checkVersions refuses a client that speaks newer versions.
func checkVersions(client *kgo.Client) error {
	v, _ := client.OptValue(kgo.MaxVersions).(*kversion.Versions)
	if v != nil {
		produce, _ := v.LookupMaxKeyVersion(kmsg.Produce.Int16())
		end, _ := v.LookupMaxKeyVersion(kmsg.EndTxn.Int16())
		if produce <= maxProduce && end <= maxEndTxn {
			return nil
		}
	}
	return errors.New("the client of a sink with a TransactionalID needs kafkabroker.TransactionOptions")
}

// transactor commits one transaction per Deliver call, one after the other.
//
// Nothing of a call is visible to who reads what is committed until its commit;
// so whatever goes wrong before the commit is sent is an outage, and only a commit
// without an answer is unknown. After anything but an answered commit the
// transactor is dirty: before it sends again it aborts, and has its epoch raised
// by naming the one it has. That settles how the old transaction ended, shuts out
// requests that are still on their way, and fails when another producer has taken
// the transactional id over: then this one is fenced, for good.
type transactor struct {
	sink *Sink
	id   string
	turn chan struct{} // held by the one whose transaction it is, or who cleans up

	// The rest belongs to the one that holds turn.
	producer producer
	dirty    bool      // a transaction may be open, or its end is unknown
	opened   time.Time // before the last one was begun
	fenced   error     // not nil: another producer has the id
	next     map[*partition]int32
}

func newTransactor(s *Sink, id string) *transactor {
	return &transactor{sink: s, id: id, turn: make(chan struct{}, 1), producer: producer{id: -1, epoch: -1}, dirty: true}
}

var errFenced = errors.New("another process has taken the transactional id over: this one cannot continue until it is restarted; give every relay a transactional-id of its own, or end the other one")

// deliver is Deliver in transactional mode.
func (t *transactor) deliver(ctx context.Context, c *call, bad []error) []error {
	limited, cancel := context.WithTimeout(ctx, t.sink.timeout)
	defer cancel()
	select {
	case t.turn <- struct{}{}:
	case <-limited.Done():
		return all(len(c.msgs), broker.Outage(fmt.Errorf("%w: nothing was sent; the transactions before this one take too long", limited.Err()), "", ""))
	}
	defer t.release()
	w := newWork(t.sink, c, bad)
	for {
		if err := t.ready(ctx); err != nil {
			w.rest(err)
			return w.result()
		}
		batches := w.plan(ctx)
		if len(batches) == 0 {
			return w.result()
		}
		again, err := t.attempt(ctx, w, batches)
		if err != nil {
			w.rest(err)
		}
		if !again || err != nil {
			return w.result()
		}
	}
}

// release ends the turn. What is left open is cleaned up first, beside the
// caller: readers wait for it.
func (t *transactor) release() {
	if !t.dirty || t.fenced != nil || t.producer.id < 0 {
		<-t.turn
		return
	}
	go func() {
		defer func() { <-t.turn }()
		_ = t.ready(t.sink.client.Context()) // whoever comes next tries again
	}()
}

// ready makes the transactor clean and gives it a producer id.
func (t *transactor) ready(ctx context.Context) error {
	if t.fenced != nil {
		return t.fenced
	}
	if !t.dirty {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.sink.timeout)
	defer cancel()
	if t.producer.id >= 0 {
		// That there is nothing to abort, or that somebody fenced us, is no error
		// here: the producer id's answer says how it stands. After any other the
		// transaction may be open, and begin would fence ourselves.
		if err := t.end(ctx, false); err != nil && !nothingToAbort(err) {
			return t.failure(err)
		}
	}
	err := t.begin(ctx)
	switch {
	case errors.Is(err, kerr.InvalidProducerIDMapping) && t.producer.id >= 0: // unused for days, and forgotten
		t.producer = producer{id: -1, epoch: -1}
		err = t.begin(ctx)
	case isFenced(err):
		switch late, unanswered := t.expired(ctx); {
		case late:
			t.producer.epoch++
			err = t.begin(ctx)
		case unanswered != nil: // whoever comes next asks again
			return t.shutOut(err)
		}
	}
	if err != nil {
		return t.failure(err)
	}
	t.dirty = false
	return nil
}

// nothingToAbort reports whether the coordinator says that we have no open transaction.
func nothingToAbort(err error) bool {
	return isFenced(err) || errors.Is(err, kerr.InvalidTxnState) || errors.Is(err, kerr.InvalidProducerIDMapping)
}

// expired reports whether it was the coordinator that shut us out: it ends a
// transaction that was open for too long and raises the epoch by one, for which
// brokers with transaction.version below 2 (all before Kafka 4) refuse the old one.
// A process that takes the id over has an open transaction ended in the same way,
// and then raises the epoch once more. So what is one above ours, behind an abort,
// is nobody's; should somebody take it now, begin with it is refused. Asking needs
// Kafka 3.
func (t *transactor) expired(ctx context.Context) (bool, error) {
	open := max(time.Since(t.opened), time.Since(t.opened.Round(0))) // a machine that sleeps stops the first clock
	if t.producer.id < 0 || open < t.expiry() {
		return false, nil
	}
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{t.id}
	var state kmsg.DescribeTransactionsResponseTransactionState
	err := t.patiently(ctx, func() error {
		resp, err := req.RequestWith(ctx, t.sink.client)
		if err != nil {
			return err
		}
		if len(resp.TransactionStates) != 1 {
			return errors.New("the coordinator reports no state of the transaction")
		}
		state = resp.TransactionStates[0]
		return kerr.ErrorForCode(state.ErrorCode)
	})
	aborted := state.State == "PrepareAbort" || state.State == "CompleteAbort"
	return err == nil && aborted && state.ProducerID == t.producer.id && state.ProducerEpoch == t.producer.epoch+1, err
}

// failure is what a transaction failed with of which nothing will be seen.
func (t *transactor) failure(err error) error {
	if isFenced(err) {
		t.fenced = t.shutOut(err)
		return t.fenced
	}
	return broker.Outage(fmt.Errorf("transactional id %q: nothing was committed: %w", t.id, remedy(err, "")), code(err), "")
}

func (t *transactor) shutOut(err error) error {
	return broker.Outage(fmt.Errorf("transactional id %q: %w: %w", t.id, errFenced, err), code(err), "")
}

func isFenced(err error) bool {
	return errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch)
}

// begin asks for the producer id of the transactional id, or for the next epoch
// of the one that we have.
func (t *transactor) begin(ctx context.Context) error {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID = kmsg.StringPtr(t.id)
	req.TransactionTimeoutMillis = int32(t.expiry().Milliseconds())
	req.ProducerID, req.ProducerEpoch = t.producer.id, t.producer.epoch
	return t.patiently(ctx, func() error {
		resp, err := req.RequestWith(ctx, t.sink.client)
		if err != nil {
			return err
		}
		if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
			return err
		}
		t.producer = producer{id: resp.ProducerID, epoch: resp.ProducerEpoch}
		t.next = make(map[*partition]int32)
		return nil
	})
}

// expiry is after what time the broker aborts a transaction that nobody ends:
// longer than a call takes, and short because readers wait for it.
func (t *transactor) expiry() time.Duration { return max(3*t.sink.timeout, 10*time.Second) }

// end commits or aborts.
func (t *transactor) end(ctx context.Context, commit bool) error {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.Commit = t.id, commit
	req.ProducerID, req.ProducerEpoch = t.producer.id, t.producer.epoch
	return t.patiently(ctx, func() error {
		resp, err := req.RequestWith(ctx, t.sink.client)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.ErrorCode)
	})
}

// add registers the partitions with the transaction. The answer has the
// partitions that are refused for what they are.
func (t *transactor) add(ctx context.Context, batches []*txBatch) (map[*partition]error, error) {
	parts := make(map[place]*partition)
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = t.id, t.producer.id, t.producer.epoch
	at := make(map[string]int)
	for _, b := range batches {
		pl := place{b.p.topic.name, b.p.num}
		if parts[pl] != nil {
			continue
		}
		parts[pl] = b.p
		n, ok := at[pl.topic]
		if !ok {
			n = len(req.Topics)
			at[pl.topic] = n
			rt := kmsg.NewAddPartitionsToTxnRequestTopic()
			rt.Topic = pl.topic
			req.Topics = append(req.Topics, rt)
		}
		req.Topics[n].Partitions = append(req.Topics[n].Partitions, pl.partition)
	}
	refused := make(map[*partition]error)
	err := t.patiently(ctx, func() error {
		clear(refused)
		again := *req // the client changes it
		resp, err := again.RequestWith(ctx, t.sink.client)
		if err != nil {
			return err
		}
		for _, rt := range resp.Topics {
			for _, rp := range rt.Partitions {
				switch err := kerr.ErrorForCode(rp.ErrorCode); {
				case err == nil, errors.Is(err, kerr.OperationNotAttempted):
				case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.TopicAuthorizationFailed):
					refused[parts[place{rt.Topic, rp.Partition}]] = err
				default:
					return err
				}
			}
		}
		return nil
	})
	return refused, err
}

// patiently calls fn until it succeeds, fails for good, or ctx ends. The
// coordinator asks for it while it still writes down the end of the transaction
// before.
func (t *transactor) patiently(ctx context.Context, fn func() error) error {
	for n := 0; ; n++ {
		err := fn()
		if err == nil || !kerr.IsRetriable(err) && !errors.Is(err, kerr.ConcurrentTransactions) {
			return err
		}
		if !pause(ctx, min(2*time.Millisecond<<min(n, 6), 100*time.Millisecond)) {
			return fmt.Errorf("%w, until: %w", err, ctx.Err())
		}
	}
}

// pause reports whether d has passed before ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
