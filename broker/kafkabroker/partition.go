package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/broker"
)

// partition is the queue of one partition. At most one batch of it is
// unacknowledged: that alone makes the broker's log a prefix of every segment.
type partition struct {
	topic  *topic
	num    int32
	leader atomic.Pointer[leader]

	mu       sync.Mutex
	queue    []*segment
	flight   *batch // made and not resolved
	listed   bool   // in a leader's ready list
	producer *producer
	sequence int32
	limit    int // records per batch while a bad one is being looked for; 0: none
}

// place names the partition as the broker knows it, whichever topic's state it belongs to.
func (p *partition) place() place { return place{p.topic.name, p.num} }

// batch is a record batch and the segments that its messages belong to.
type batch struct {
	p       *partition
	parts   []part
	records int
	buf     []byte
	since   time.Time // first try
	tries   int
	onWire  bool
	written bool  // a try may have been appended
	cause   error // error of the last failed try
	lent    bool  // the client may still read buf for an abandoned request
}

type part struct {
	seg      *segment
	from, to int
}

// release makes b ready for another use. The caller must not touch it again.
func (p *partition) release(b *batch) {
	if b.lent || cap(b.buf) > softBatchBytes*2 {
		b.buf = nil
	}
	clear(b.parts)
	*b = batch{parts: b.parts[:0], buf: b.buf[:0]}
	p.topic.sink.batches.Put(b)
}

// push adds a segment and reports whether the partition must be listed.
func (p *partition) push(s *segment) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, s)
	return p.list()
}

// list marks the partition as listed if there is something to send. The caller
// holds mu and lists the partition when list returns true.
func (p *partition) list() bool {
	if p.listed || p.flight != nil || len(p.queue) == 0 {
		return false
	}
	p.listed = true
	return true
}

// next returns the batch to send now, or nil. A leader calls it for a partition that
// it took from its list. A partition without a producer takes the topic's; needs
// reports that the topic has none either, and that nothing was done. The topic's producer
// is read under the lock, so that a producer dropped by this partition is not taken.
func (p *partition) next(e *encoder) (b *batch, needs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listed = false
	fresh := p.topic.producer.Load()
	if p.producer == nil && fresh == nil {
		return nil, true
	}
	if p.flight != nil && p.flight.onWire {
		return nil, false
	}
	renumber := p.producer == nil
	if renumber {
		p.producer, p.sequence = fresh, 0
	}
	if b = p.flight; b != nil { // a retry
		if renumber {
			if b.lent {
				b.buf = slices.Clone(b.buf)
			}
			e.restamp(b.buf, p.producer)
		}
		b.onWire = true
		return b, false
	}
	b = p.topic.sink.batches.Get().(*batch)
	b.p = p
	b.buf = e.begin(b.buf)
	for len(p.queue) > 0 && p.fill(e, b, p.queue[0]) {
		p.queue[0] = nil
		p.queue = p.queue[1:]
	}
	if b.records == 0 {
		p.release(b)
		return nil, false
	}
	b.since, b.onWire = time.Now(), true
	b.buf = e.finish(b.buf, b.records, stamp{
		producer: p.producer.id, epoch: p.producer.epoch, sequence: p.sequence, millis: b.since.UnixMilli(),
	}, p.topic.sink.compressor)
	p.flight = b
	return b, false
}

// dropProducer makes the partition count from 0 under another producer id. There
// is no other way to continue when the broker's sequence number is unknown: the broker
// takes other records under a used number for a duplicate, and
// acknowledges them without appending them. The caller holds mu.
func (p *partition) dropProducer() {
	p.topic.producer.CompareAndSwap(p.producer, nil)
	p.producer = nil
}

// fill moves messages of s into b and reports whether s is used up.
func (p *partition) fill(e *encoder, b *batch, s *segment) bool {
	hard := p.topic.sink.maxBatch
	soft := min(int(p.topic.maxBatch.Load()), softBatchBytes)
	from := s.next
	flush := func() {
		if from < s.next {
			b.parts = append(b.parts, part{s, from, s.next})
		}
	}
	for ; s.next < len(s.idx); s.next++ {
		i := s.idx[s.next]
		if i < 0 {
			flush()
			from = s.next + 1
			continue
		}
		m := &s.call.msgs[i]
		if _, bad := s.failed[m.Key]; bad {
			flush()
			from = s.next + 1
			s.reject(s.next, broker.Failed(broker.ErrNotTried, "", ""))
			continue
		}
		if b.records > 0 && p.limit > 0 && b.records >= p.limit {
			flush()
			return false
		}
		at := len(b.buf)
		var err error
		if b.buf, err = e.add(b.buf, m, s.call.route(i), p.topic.name, b.records); err != nil {
			flush()
			from = s.next + 1
			s.reject(s.next, err)
			continue
		}
		if len(b.buf) > soft && b.records > 0 {
			b.buf = b.buf[:at]
			flush()
			return false
		}
		if size := len(b.buf); size > hard {
			b.buf = b.buf[:at]
			flush()
			from = s.next + 1
			err := tooLarge(errTooLarge, size, hard, clientLimit(), p.topic.name)
			s.reject(s.next, broker.Rejected(err, kerr.MessageTooLarge.Message, p.topic.name))
			continue
		}
		b.records++
	}
	flush()
	return true
}

// succeeded resolves the batch in flight and reports whether to list again.
func (p *partition) succeeded(b *batch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sequence = (p.sequence + int32(b.records)) & 0x7fffffff
	if p.limit > 0 {
		if p.limit *= 2; p.limit > 1<<12 {
			p.limit = 0
		}
	}
	for _, pt := range b.parts {
		pt.seg.resolve(pt.from, pt.to, nil)
	}
	p.flight = nil
	p.release(b)
	return p.list()
}

// failed resolves the batch in flight after a final answer, together with
// the rest of its segments: none of their messages is sent afterwards. It reports
// whether to list again.
func (p *partition) failed(b *batch, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	b.written = b.written || !neverAppended(err)
	return p.fail(b, failure(err, p.topic.name, b.written))
}

func (p *partition) fail(b *batch, err error) bool {
	for _, pt := range b.parts {
		pt.seg.resolve(pt.from, pt.to, err)
	}
	behind := broker.NotTried(err)
	p.queue = slices.DeleteFunc(p.queue, func(s *segment) bool {
		if !slices.ContainsFunc(b.parts, func(pt part) bool { return pt.seg == s }) {
			return false
		}
		s.resolve(s.next, len(s.idx), behind)
		return true
	})
	if b.written {
		p.dropProducer()
	}
	p.flight = nil
	p.release(b)
	return p.list()
}

// split handles a batch that was refused as a whole because of some record:
// a single record is rejected, a larger batch is halved and tried again. It reports
// whether to list again.
func (p *partition) split(b *batch, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.records == 1 {
		pt := b.parts[0]
		if !pt.seg.dead {
			pt.seg.reject(pt.from, broker.Rejected(p.sized(b, err), code(err), p.topic.name))
		}
	} else {
		p.limit = b.records / 2
		if errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) {
			p.topic.maxBatch.Store(max(int64(len(b.buf)/2), leastBatchBytes))
		}
		var back []*segment
		for i := len(b.parts) - 1; i >= 0; i-- {
			s := b.parts[i].seg
			s.next = b.parts[i].from
			switch {
			case s.dead, len(back) > 0 && back[0] == s:
			case len(back) == 0 && len(p.queue) > 0 && p.queue[0] == s:
			default:
				back = append([]*segment{s}, back...)
			}
		}
		p.queue = append(back, p.queue...)
	}
	if b.written { // an earlier try
		p.dropProducer()
	}
	p.flight = nil
	p.release(b)
	return p.list()
}

// sized adds the size and the limit to the refusal of a batch of one record.
func (p *partition) sized(b *batch, err error) error {
	if !errors.Is(err, kerr.MessageTooLarge) && !errors.Is(err, kerr.RecordListTooLarge) {
		return err
	}
	limit := int(p.topic.limit.Load())
	if len(b.buf) <= limit { // the limit was lowered since it was read
		limit = 0
	}
	return tooLarge(err, len(b.buf), limit, topicLimit(), p.topic.name)
}

// forgotten handles a broker that has lost the sequence numbers of the batch in flight.
func (p *partition) forgotten() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropProducer()
}

// retry takes the batch off the wire after a try that ended with err. It returns
// the number of tries, or 0 when the batch has been given up, and then
// whether to list the partition. All of it runs under the lock: another call may give
// up a batch that is off the wire, which must not be touched after that.
func (p *partition) retry(b *batch, err error) (tries int, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b.tries++
	b.written, b.cause = b.written || !neverAppended(err), err
	b.lent = b.lent || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	over := errors.Is(err, context.Canceled) || errors.Is(err, kgo.ErrClientClosed) // no request's own context is cancelled: the client is closed
	dead := slices.ContainsFunc(b.parts, func(pt part) bool { return pt.seg.dead })
	unsent := !b.written && b.tries >= triesUnsent
	if dead || unsent || over || time.Since(b.since) > p.topic.sink.timeout {
		return 0, p.fail(b, failure(err, p.topic.name, b.written))
	}
	b.onWire = false
	return b.tries, false
}

// relist lists the batch that waits for another try, unless it was given up.
func (p *partition) relist(b *batch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flight != b || b.onWire || p.listed {
		return false
	}
	p.listed = true
	return true
}

// abandon takes a call's segment out: messages on the wire are unknown, queued ones
// will not be sent. If none was on the wire, the broker accepted
// nothing during the whole call, which is an outage. It reports
// whether to list again.
func (p *partition) abandon(s *segment, cause error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = slices.DeleteFunc(p.queue, func(o *segment) bool { return o == s })
	b := p.flight
	mine := func(pt part) bool { return pt.seg == s }
	queued := broker.Outage(fmt.Errorf("%w: nothing was sent", cause), "", "")
	if b != nil && slices.ContainsFunc(b.parts, mine) {
		given := broker.Unknown(cause, "", p.topic.name)
		if shortOfReplicas(b.cause) {
			given = failure(b.cause, p.topic.name, b.written)
		}
		queued = broker.NotTried(given)
		for _, pt := range b.parts {
			if mine(pt) {
				s.resolve(pt.from, pt.to, given)
			}
		}
	}
	s.resolve(s.next, len(s.idx), queued)
	s.dead = true
	if b != nil && !b.onWire && slices.ContainsFunc(b.parts, mine) {
		return p.fail(b, failure(errGivenUp, p.topic.name, b.written))
	}
	return false
}

// refuse resolves all queued messages with err, and the batch that waits
// for another try.
func (p *partition) refuse(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.queue {
		s.resolve(s.next, len(s.idx), err)
	}
	p.queue = nil
	if b := p.flight; b != nil && !b.onWire {
		cause := err
		if b.written {
			cause = broker.Unknown(errors.Unwrap(err), "", p.topic.name)
		}
		p.fail(b, cause)
	}
}
