package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/broker"
)

const (
	// softBatchBytes is the size at which a batch ends when there is more to send.
	softBatchBytes = 512 << 10
	// requestBytes is the size at which a request ends when more partitions are ready.
	requestBytes = 1 << 20
	// requestsPerBroker is the number of requests in flight, each with other partitions,
	// while requests have bulkBytes or more. Small ones are sent one at a time: messages
	// that arrive meanwhile share the next one, because a request costs the broker
	// more than a record does.
	requestsPerBroker = 3
	bulkBytes         = 32 << 10
	// leastBatchBytes is the size below which batches do not shrink when the broker
	// refuses larger ones.
	leastBatchBytes = 16 << 10
	// triesUnsent is the number of tries for a batch that was never sent.
	triesUnsent = 3
)

// leader sends to one broker. Its workers live as long as partitions are ready.
type leader struct {
	sink *Sink
	id   int32

	mu      sync.Mutex
	ready   []*partition
	workers int
	bulk    bool // the last request was of bulkBytes or more
}

func (s *Sink) leaderOf(id int32) *leader {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leaders[id]
	if l == nil {
		l = &leader{sink: s, id: id}
		s.leaders[id] = l
	}
	return l
}

// add lists a partition without starting a worker.
func (l *leader) add(p *partition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready = append(l.ready, p)
}

// kick starts another worker if enough partitions are ready.
func (l *leader) kick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ready) > 0 && (l.workers == 0 || l.bulk && l.workers < requestsPerBroker) {
		l.workers++
		go l.work()
	}
}

// relist lists p with its present leader.
func relist(p *partition) {
	l := p.leader.Load()
	l.add(p)
	l.kick()
}

func (l *leader) work() {
	e := l.sink.encoders.Get().(*encoder)
	defer l.sink.encoders.Put(e)
	for {
		runtime.Gosched() // calls that are about to add to this request go first
		flight := l.gather(e)
		if len(flight) == 0 {
			return
		}
		l.kick()
		l.send(flight)
	}
}

// pop takes a ready partition; nil ends the worker.
func (l *leader) pop(last bool) *partition {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ready) == 0 {
		if last {
			l.workers--
		}
		return nil
	}
	p := l.ready[0]
	l.ready[0] = nil
	l.ready = l.ready[1:]
	return p
}

// gather makes the batches of one request. Without a batch the worker ends.
func (l *leader) gather(e *encoder) []*batch {
	var flight []*batch
	var down error // why no producer id is available
	size := 0
	for size < requestBytes {
		p := l.pop(len(flight) == 0)
		if p == nil {
			break
		}
		if at := p.leader.Load(); at != l {
			at.add(p)
			at.kick()
			continue
		}
		if mixes(flight, p.topic) {
			l.add(p)
			break
		}
		b, needs := p.next(e)
		for needs && down == nil {
			if down = p.topic.ensureProducer(l.sink.client.Context()); down == nil {
				b, needs = p.next(e)
			}
		}
		if needs {
			p.refuse(down)
			continue
		}
		if b != nil {
			flight = append(flight, b)
			size += len(b.buf)
		}
	}
	if len(flight) > 0 {
		l.mu.Lock()
		l.bulk = size >= bulkBytes
		l.mu.Unlock()
	}
	return flight
}

// mixes reports whether a request would have batches of two states of one topic: one that the
// sink has forgotten, and the next. Of two batches for one partition the broker
// appends one, and its answer does not say which.
func mixes(flight []*batch, t *topic) bool {
	for i := len(flight) - 1; i >= 0; i-- {
		switch other := flight[i].p.topic; {
		case other == t:
			return false
		case other.name == t.name:
			return true
		}
	}
	return false
}

func (l *leader) send(flight []*batch) {
	if l.id < 0 {
		l.all(flight, kerr.LeaderNotAvailable)
		return
	}
	ctx, cancel := context.WithTimeout(l.sink.client.Context(), l.sink.timeout)
	defer cancel()
	kresp, err := l.sink.client.Broker(int(l.id)).Request(ctx, l.request(flight))
	if err != nil {
		l.all(flight, err)
		return
	}
	resp, ok := kresp.(*kmsg.ProduceResponse)
	if !ok {
		l.all(flight, fmt.Errorf("answer of kind %T", kresp))
		return
	}
	at := 0
	for i := range resp.Topics {
		rt := &resp.Topics[i]
		for j := range rt.Partitions {
			rp := &rt.Partitions[j]
			if n := find(flight, at, rt, rp.Partition); n >= 0 {
				b := flight[n]
				flight[n], at = nil, n+1 // once settled it may be another partition's batch
				l.settle(b, rp.ErrorCode)
			}
		}
	}
	l.all(flight, kerr.NetworkException)
}

// find returns the index of the batch that an answer belongs to, searching from hint
// on. Answered batches are nil.
func find(flight []*batch, hint int, rt *kmsg.ProduceResponseTopic, num int32) int {
	for n := range flight {
		i := (hint + n) % len(flight)
		if flight[i] == nil || flight[i].p.num != num {
			continue
		}
		t := flight[i].p.topic
		if rt.Topic == t.name || rt.Topic == "" && rt.TopicID == t.view.Load().id {
			return i
		}
	}
	return -1
}

func (l *leader) request(flight []*batch) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Acks = -1
	req.TimeoutMillis = int32(l.sink.timeout.Milliseconds())
	for _, b := range flight {
		name := b.p.topic.name
		at := len(req.Topics) - 1
		for ; at >= 0 && req.Topics[at].Topic != name; at-- {
		}
		if at < 0 {
			at = len(req.Topics)
			t := kmsg.NewProduceRequestTopic()
			t.Topic, t.TopicID = name, b.p.topic.view.Load().id
			req.Topics = append(req.Topics, t)
		}
		rp := kmsg.NewProduceRequestTopicPartition()
		rp.Partition, rp.Records = b.p.num, b.buf
		req.Topics[at].Partitions = append(req.Topics[at].Partitions, rp)
	}
	return req
}

func (l *leader) all(flight []*batch, err error) {
	for _, b := range flight {
		if b != nil {
			l.again(b, err)
		}
	}
}

// settle acts on the broker's answer to one batch.
func (l *leader) settle(b *batch, errorCode int16) {
	p := b.p
	more := false
	act, err := actOn(errorCode)
	if act == actRepeated {
		if act = actDone; b.tries == 0 { // without an earlier try our sequence numbers are wrong
			act = actNewProducer
		}
	}
	switch act {
	case actSplit:
		more = p.split(b, err)
	case actFail:
		more = p.failed(b, err)
	case actNewProducer:
		p.forgotten()
		l.again(b, err)
	case actRetry:
		l.again(b, err)
	default:
		more = p.succeeded(b)
	}
	if more {
		relist(p)
	}
}

// again tries a batch once more after a pause, or gives it up.
func (l *leader) again(b *batch, err error) {
	p := b.p
	tries, more := p.retry(b, err)
	if tries == 0 {
		if more {
			relist(p)
		}
		return
	}
	time.AfterFunc(backoff(tries), func() {
		_, lookErr := p.topic.refresh(l.sink.client.Context()) // ends by itself
		if errors.Is(lookErr, errNoTopic) || errors.Is(lookErr, errOtherTopic) {
			p.refuse(broker.Outage(lookErr, code(lookErr), p.topic.name))
			l.sink.forget(p.topic)
			return
		}
		if p.relist(b) { // b may be another batch by now, which is then early with its own retry
			relist(p)
		}
	})
}

// backoff is the pause before try n + 1.
func backoff(n int) time.Duration {
	return min(20*time.Millisecond<<min(n, 6), time.Second)
}
