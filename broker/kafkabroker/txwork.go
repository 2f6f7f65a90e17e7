package kafkabroker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/postrider/postrider/broker"
)

// work is what a Deliver call in transactional mode has to do.
type work struct {
	*call
	sink    *Sink
	bars    map[string]bar
	targets []*target
	closer  map[*partition]bool // refused a batch of several: to be sent record by record
}

// bar says from where on nothing more of a key is sent, and why.
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
	single  bool // one record, sent alone to see whether it is the bad one
	tries   int
}

// newWork is the work of a call, some messages of which may have no route.
func newWork(s *Sink, c *call, bad []error) *work {
	w := &work{call: c, sink: s, bars: make(map[string]bar), closer: make(map[*partition]bool)}
	for i, err := range bad {
		if err != nil {
			w.answer(int32(i), err)
		}
	}
	return w
}

// answer answers message i, and bars the rest of its key.
func (w *work) answer(i int32, err error) {
	w.fail(i, err)
	if key := w.msgs[i].Key; key != "" {
		if b, known := w.bars[key]; !known || i < b.behind {
			w.bars[key] = bar{i, err}
		}
	}
}

// answered reports whether message i has its answer.
func (w *work) answered(i int) bool { return w.errs != nil && w.errs[i] != nil }

// rest answers everything that has no answer yet.
func (w *work) rest(err error) {
	for i := range w.msgs {
		if !w.answered(i) {
			w.answer(int32(i), err)
		}
	}
}

// refuse acts on the answer to a batch that the transaction cannot have.
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
		w.targets = nil // to be looked at again
	}
}

func codeOf(err error) int16 {
	var ke *kerr.Error
	if errors.As(err, &ke) {
		return ke.Code
	}
	return kerr.UnknownServerError.Code
}

// plan makes the batches of what has no answer yet, and answers what cannot be sent.
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
			w.put(e, b, int32(i)) // the first one has room
			open[p] = b
			batches = append(batches, b)
		}
	}
	return slices.DeleteFunc(batches, func(b *txBatch) bool { return len(b.msgs) == 0 })
}

// put appends message i to b, or answers it, and reports false where b has no room.
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

// finish makes what is sent of b, with the numbers that its partition has come to.
func (b *txBatch) finish(t *transactor) {
	if b.tries > 0 {
		return // the same bytes: the broker compares the numbers
	}
	e := t.sink.encoders.Get().(*encoder)
	defer t.sink.encoders.Put(e)
	b.sealed = e.finish(slices.Clone(b.records), len(b.msgs), stamp{
		producer: t.producer.id, epoch: t.producer.epoch, sequence: t.next[b.p],
		millis: time.Now().UnixMilli(), transactional: true,
	}, t.sink.compressor)
}
