package kafkabroker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/postrider/postrider/broker"
)

// work is the state of a Deliver call in transactional mode.
type work struct {
	*call
	sink    *Sink
	bars    map[string]bar
	targets []*target
	closer  map[*partition]bool // refused a batch of several: to be sent record by record
}

// bar is the message from which on a key is not sent, and the reason.
type bar struct {
	behind int32
	cause  error
}

// txBatch is a record batch of a transaction. It is encoded once, and gets its
// numbers each time it is sent.
type txBatch struct {
	p       *partition
	msgs    []int32
	records []byte // with room for the header
	sealed  []byte
	single  bool // one record, sent alone to test whether it is bad
	tries   int
}

// newWork returns the work of a call; bad has the errors of messages without a route.
func newWork(s *Sink, c *call, bad []error) *work {
	w := &work{call: c, sink: s, bars: make(map[string]bar), closer: make(map[*partition]bool)}
	for i, err := range bad {
		if err != nil {
			w.answer(int32(i), err)
		}
	}
	return w
}

// answer records the error of message i and bars the rest of its key.
func (w *work) answer(i int32, err error) {
	w.fail(i, err)
	if key := w.msgs[i].Key; key != "" {
		if b, known := w.bars[key]; !known || i < b.behind {
			w.bars[key] = bar{i, err}
		}
	}
}

// answered reports whether message i has an error already.
func (w *work) answered(i int) bool { return w.errs != nil && w.errs[i] != nil }

// rest records err for all messages without an error.
func (w *work) rest(err error) {
	for i := range w.msgs {
		if !w.answered(i) {
			w.answer(int32(i), err)
		}
	}
}

// refuse handles a batch that the transaction cannot contain.
func (w *work) refuse(b *txBatch, err error) {
	name := b.p.topic.name
	a, _ := actOn(codeOf(err))
	switch {
	case a != actSplit: // the topic's fault
		for _, i := range b.msgs {
			w.answer(i, broker.Outage(remedy(err, name), code(err), name))
		}
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			w.sink.forget(b.p.topic)
		}
	case len(b.msgs) > 1:
		w.closer[b.p] = true
	default:
		w.answer(b.msgs[0], broker.Rejected(b.p.sized(&batch{buf: b.records}, err), code(err), name))
	}
	if w.targets != nil && a != actSplit {
		w.targets = nil // looked up again
	}
}

func codeOf(err error) int16 {
	var ke *kerr.Error
	if errors.As(err, &ke) {
		return ke.Code
	}
	return kerr.UnknownServerError.Code
}

// plan makes batches of the messages without an answer, and answers those that cannot be
// sent.
func (w *work) plan(ctx context.Context) []*txBatch {
	e := w.sink.encoders.Get().(*encoder)
	defer w.sink.encoders.Put(e)
	open := make(map[*partition]*txBatch)
	var batches []*txBatch
	for i := range w.msgs {
		if w.answered(i) {
			continue
		}
		if b, ok := w.bars[w.msgs[i].Key]; ok && int32(i) > b.behind {
			w.answer(int32(i), broker.NotTried(b.cause))
			continue
		}
		topic, key := w.place(i)
		t := w.target(ctx, topic)
		if t.err != nil {
			w.answer(int32(i), t.err)
			continue
		}
		num := t.keyless
		if key != "" {
			num = partitionOf(key, len(t.parts))
		}
		p := t.parts[num]
		b := open[p]
		if b == nil || !w.put(e, b, int32(i)) {
			b = &txBatch{p: p, records: e.begin(nil), single: w.closer[p]}
			w.put(e, b, int32(i)) // a new batch has room for it
			open[p] = b
			batches = append(batches, b)
		}
	}
	return slices.DeleteFunc(batches, func(b *txBatch) bool { return len(b.msgs) == 0 })
}

// put appends message i to b, or answers it. It returns false if b has no room.
func (w *work) put(e *encoder, b *txBatch, i int32) bool {
	if len(b.msgs) > 0 && b.single {
		return false
	}
	at := len(b.records)
	var err error
	if b.records, err = e.add(b.records, &w.msgs[i], w.route(i), b.p.topic.name, len(b.msgs)); err != nil {
		w.answer(i, err)
		return true
	}
	size, hard := len(b.records), w.sink.maxBatch
	if size > min(int(b.p.topic.maxBatch.Load()), softBatchBytes) && len(b.msgs) > 0 {
		b.records = b.records[:at]
		return false
	}
	if size > hard {
		b.records = b.records[:at]
		err := tooLarge(errTooLarge, size, hard, clientLimit(), b.p.topic.name)
		w.answer(i, broker.Rejected(err, kerr.MessageTooLarge.Message, b.p.topic.name))
		return true
	}
	b.msgs = append(b.msgs, i)
	return true
}

func (w *work) target(ctx context.Context, topic string) *target {
	n := slices.IndexFunc(w.targets, func(t *target) bool { return t.name == topic })
	if n < 0 {
		n = len(w.targets)
		w.targets = append(w.targets, w.sink.target(ctx, topic))
	}
	return w.targets[n]
}

// finish encodes b for sending, with the next sequence numbers of its partition.
func (b *txBatch) finish(t *transactor) {
	if b.tries > 0 {
		return // a retry sends the same bytes: the broker compares the sequence numbers
	}
	e := t.sink.encoders.Get().(*encoder)
	defer t.sink.encoders.Put(e)
	b.sealed = e.finish(slices.Clone(b.records), len(b.msgs), stamp{
		producer: t.producer.id, epoch: t.producer.epoch, sequence: t.next[b.p.place()],
		millis: time.Now().UnixMilli(), transactional: true,
	}, t.sink.compressor)
}
