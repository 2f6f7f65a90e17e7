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

// The versions of the transaction protocol that the sink speaks: a request adds
// partitions, and the epoch grows when the sink asks for it, which it does
// whenever it does not know how a transaction ended. Produce 12 and EndTxn 5
// (KIP-890, part 2) change both. Every broker since 2.5 accepts these versions.
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
// A call's messages are invisible to read_committed consumers until it commits.
// So any failure before the commit is sent is an outage, and only a commit
// without an answer is unknown. Unless a commit was answered, the
// transactor is dirty: before it sends again, it aborts and has its epoch raised,
// naming its present one. That settles how the old transaction ended and fences off
// requests still in flight. It fails if another producer has taken
// the transactional id over: then this producer is fenced for good.
type transactor struct {
	sink *Sink
	id   string
	turn chan struct{} // held during a transaction, and while one is cleaned up

	// The holder of turn owns the rest.
	producer producer
	dirty    bool            // a transaction may be open, or its outcome is unknown
	opened   time.Time       // just before the last transaction was begun
	fenced   error           // not nil: another producer has the id
	next     map[place]int32 // sequence numbers; they outlive a topic that was forgotten and found again
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

// release ends the turn. A transaction left open is cleaned up first, in the background,
// because read_committed consumers wait for its end.
func (t *transactor) release() {
	if !t.dirty || t.fenced != nil || t.producer.id < 0 {
		<-t.turn
		return
	}
	go func() {
		defer func() { <-t.turn }()
		_ = t.ready(t.sink.client.Context()) // the next call tries again
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
		// A missing transaction and a fenced producer are no errors here: begin finds
		// out. After any other error the transaction may still be open, and begin
		// would fence this producer itself.
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
		case unanswered != nil: // the next call asks again
			return t.shutOut(err)
		}
	}
	if err != nil {
		return t.failure(err)
	}
	t.dirty = false
	return nil
}

// nothingToAbort reports whether err means that this producer has no open transaction.
func nothingToAbort(err error) bool {
	return isFenced(err) || errors.Is(err, kerr.InvalidTxnState) || errors.Is(err, kerr.InvalidProducerIDMapping)
}

// expired reports whether the coordinator itself fenced this producer: it aborts a
// transaction that was open for too long and raises the epoch by one, and
// brokers with transaction.version below 2 (all before Kafka 4) refuse the old epoch.
// When another process takes the id over, the coordinator aborts an open transaction in
// the same way, and then raises the epoch once more. So an epoch one above ours, after an
// abort, belongs to no process. If a process takes the id meanwhile, begin with this
// epoch is refused. The request needs Kafka 3.
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

// failure returns the error of a transaction of which nothing will become visible.
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

// begin asks for the producer id of the transactional id, or for the next epoch of
// the producer id that this process has.
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
		t.next = make(map[place]int32)
		return nil
	})
}

// expiry is the time after which the broker aborts an abandoned transaction: longer
// than a call takes, yet short because read_committed consumers wait for it.
func (t *transactor) expiry() time.Duration { return max(3*t.sink.timeout, 10*time.Second) }

// end commits or aborts the transaction.
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

// add registers the partitions with the transaction. It returns the errors of
// partitions that were refused individually.
func (t *transactor) add(ctx context.Context, batches []*txBatch) (map[*partition]error, error) {
	parts := make(map[place]*partition)
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = t.id, t.producer.id, t.producer.epoch
	at := make(map[string]int)
	for _, b := range batches {
		pl := b.p.place()
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
// coordinator asks for retries while it still records the end of the previous
// transaction.
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

// pause waits for d and reports whether ctx was still alive then.
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
