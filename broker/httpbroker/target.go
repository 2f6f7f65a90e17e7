package httpbroker

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// state of a job, guarded by its target's lock.
type state uint8

const (
	fresh state = iota
	queued
	flying
	done
	dropped // abandoned before it was sent
)

// job is one message on its way to one endpoint.
type job struct {
	t      *target
	name   string            // the message's id: webhook-id
	id     string            // under which the answer is kept when the call has ended; "": it is not kept
	sum    [sha256.Size]byte // of headers and payload, when the call has ended
	size   int               // of the payload
	header http.Header
	body   *body

	// Guarded by t.mu.
	c      *call // the call that waits for it; nil: none
	i      int   // index of its message in the call
	state  state
	began  time.Time
	proved time.Time // the breaker's value when the request began
	cancel context.CancelFunc
	err    error // when done
	ended  time.Time
	slot   bool // counts among the sink's requests
}

// lateID identifies a sent message. A replay by a person has another id.
func lateID(m *postrider.Message) string {
	if m.ID == "" {
		return ""
	}
	return m.ID + "/" + m.Headers[envelope.Generation]
}

// target is one endpoint at work.
type target struct {
	s    *Sink
	p    *prepared
	dest string // destination in errors; "" for the only endpoint
	http *client

	mu      sync.Mutex
	queue   []*job
	left    int // about the number of dropped jobs in the queue
	workers int
	late    map[string]*job // in flight or done, without a waiting call
	swept   time.Time
	br      breaker
	pace    pace
	closed  bool
	held    bool // stopped by a person, not by its own answer
}

func newTarget(s *Sink, p *prepared) *target {
	t := &target{s: s, p: p, http: &client{p: p}, late: make(map[string]*job)}
	t.br.init(p)
	t.pace.rate = p.Rate
	return t
}

// submit queues a fresh job, or answers it if nothing may be sent to the endpoint now.
func (t *target) submit(j *job) {
	t.mu.Lock()
	err := t.closedTo(time.Now())
	if err == nil && j.state == fresh {
		j.state = queued
		t.queue = append(t.queue, j)
		t.hire()
	}
	c, i := j.c, j.i
	t.mu.Unlock()
	if err != nil && c != nil {
		c.answer(j, i, err)
	}
}

// closedTo returns the error of messages that must not be sent now, or nil.
func (t *target) closedTo(now time.Time) error {
	switch {
	case t.closed:
		return broker.Outage(errClosed, codeClosed, t.dest)
	case t.p.Stopped:
		return t.outage(codeStopped, "it is stopped by its settings")
	case t.held:
		return t.outage(codeStopped, "it is stopped (see postrider status): "+resumeIt(t.p.Name)+" resumes it")
	}
	return t.br.closedTo(now, t.dest)
}

// hire starts another worker if enough jobs are queued.
func (t *target) hire() {
	if len(t.queue) > 0 && t.workers < t.p.Concurrency && !t.pace.waiting {
		t.workers++
		go t.work()
	}
}

// work sends jobs one after the other until none is left.
func (t *target) work() {
	for {
		select {
		case t.s.slots <- struct{}{}:
		case <-t.s.life.Done():
			t.mu.Lock()
			t.workers--
			t.mu.Unlock()
			return
		}
		ctx, j, pause := t.take()
		if j == nil {
			<-t.s.slots
			if pause == 0 {
				return
			}
			t.sleep(pause)
			continue
		}
		t.fly(ctx, j)
	}
}

// take picks the next job. Without a job the worker ends, unless it has to
// wait for the rate limit.
func (t *target) take() (context.Context, *job, time.Duration) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.queue) > 0 && t.queue[0].state != queued {
		t.queue = t.queue[1:]
	}
	if len(t.queue) == 0 || !t.br.admits() {
		t.workers--
		return nil, nil, 0
	}
	if pause := t.pace.take(now); pause > 0 {
		if t.pace.waiting { // one waiting worker is enough
			t.workers--
			return nil, nil, 0
		}
		t.pace.waiting = true
		return nil, nil, pause
	}
	j := t.queue[0]
	t.queue[0] = nil
	t.queue = t.queue[1:]
	ctx, cancel := context.WithTimeout(t.s.life, t.p.Timeout)
	j.state, j.began, j.proved, j.cancel, j.slot = flying, now, t.br.proved, cancel, true
	t.br.flying++
	t.hire()
	return ctx, j, 0
}

// sleep waits for the rate limit.
func (t *target) sleep(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.s.life.Done():
	}
	t.mu.Lock()
	t.pace.waiting = false
	t.mu.Unlock()
}

// fly sends one job and passes on its answer.
func (t *target) fly(ctx context.Context, j *job) {
	t.land(j, t.send(ctx, j))
	j.cancel()
	t.mu.Lock()
	slot := j.slot
	j.slot = false
	t.mu.Unlock()
	if slot {
		<-t.s.slots
	}
}

// land handles the outcome of a request.
func (t *target) land(j *job, v verdict) {
	now := time.Now()
	t.mu.Lock()
	j.state, j.ended = done, now
	j.err = t.br.judge(j, v, now, t.dest)
	if v.fault == accepted {
		t.s.accepted(j.began)
	}
	t.br.flying--
	c, i := j.c, j.i
	var flushed []*job
	shut := t.closedTo(now)
	if shut != nil {
		flushed, t.queue = t.queue, nil
	} else {
		t.hire()
	}
	if c == nil {
		t.keep(j)
	}
	t.mu.Unlock()
	if c != nil {
		c.answer(j, i, j.err)
	}
	t.answerAll(flushed, shut)
}

// answerAll answers jobs that are taken off the queue.
func (t *target) answerAll(jobs []*job, err error) {
	for _, j := range jobs {
		t.mu.Lock()
		c, i := j.c, j.i
		t.mu.Unlock()
		if c != nil {
			c.answer(j, i, err)
		}
	}
}

// hangs reports whether calls have waited for the endpoint in vain.
func (t *target) hangs() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.br.hung
}

// slow reports whether the endpoint itself delays the job: the request
// has had no answer for patience, or the job waits for the endpoint's own limits and the
// call has waited long.
func (t *target) slow(j *job, now time.Time, patience time.Duration, long bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch j.state {
	case flying:
		return now.Sub(j.began) >= patience || t.s.opts.Patience <= 0 && t.br.silent(j.began, now) && t.s.outran(j.began)
	case queued:
		return long && (t.pace.waiting || t.br.flying >= t.p.Concurrency || !t.br.admits())
	case fresh, done, dropped:
	}
	return false
}

// leave ends a call's wait for a job, and returns the message's error. ended is
// the error of the call's context.
func (t *target) leave(j *job, ended error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	j.c = nil
	switch j.state {
	case done:
		return j.err
	case flying:
		if ended != nil || !t.goOn(j) {
			j.body.drop()
			j.cancel()
			j.id = "" // the answer is not kept
			return broker.Unknown(errors.Join(errNoAnswerYet, ended), "", t.dest)
		}
	default:
		j.state = dropped
		j.body.drop()
		t.compact()
		if ended != nil {
			return broker.NotTried(broker.Unknown(ended, "", t.dest))
		}
	}
	switch {
	case t.dest == "":
		return notTried()
	case t.br.hung:
		return t.outage(codeSlow, "it has not answered in time; the request continues in the background")
	}
	return broker.Throttled(&EndpointError{Endpoint: t.p.Name, Reason: "messages arrive faster than it accepts them"}, codeBusy, t.dest, 0)
}

// compact removes dropped jobs from the queue when there are many.
func (t *target) compact() {
	t.left++
	if t.left > 64 && 2*t.left > len(t.queue) {
		t.queue = slices.DeleteFunc(t.queue, func(j *job) bool { return j.state != queued })
		t.left = 0
	}
}

var errNoAnswerYet = errors.New("sent, but not answered yet")

// goOn lets a request continue without its call, if MaxLateBytes leaves room for its payload.
func (t *target) goOn(j *job) bool {
	if j.id == "" || t.closed || t.s.life.Err() != nil {
		return false
	}
	t.sweep()
	if t.s.late.Add(int64(j.size)) > int64(t.s.opts.MaxLateBytes) {
		t.s.late.Add(-int64(j.size))
		return false
	}
	j.sum = j.digest()
	j.body.own()
	if old := t.late[j.id]; old != nil {
		t.forget(old)
	}
	t.late[j.id] = j
	if t.br.lastOK.Before(j.began) {
		t.br.hung = true
	}
	if j.slot {
		j.slot = false
		<-t.s.slots
		t.hire()
	}
	return true
}

// How long an unused answer is kept, and how often old ones are removed.
const keepLate, sweepLate = 5 * time.Minute, 10 * time.Second

// sweep forgets old answers: another relay must have sent their messages.
func (t *target) sweep() {
	now := time.Now()
	if now.Sub(t.swept) < sweepLate {
		return
	}
	t.swept = now
	for _, j := range t.late { // order does not matter: only deletes
		if j.stale(now) || j.state == done && now.Sub(j.ended) > keepLate {
			t.forget(j)
		}
	}
}

// maxLate is the number of unused answers that are kept.
const maxLate = 4096

// keep holds the answer of a request whose call has ended. It drops the message: a payload
// counts against MaxLateBytes, and the answer may never be used.
func (t *target) keep(j *job) {
	if t.late[j.id] != j || j.id == "" {
		return
	}
	t.s.late.Add(-int64(j.size))
	j.body.drop()
	j.name, j.header = "", nil
	if len(t.late) > maxLate {
		for _, old := range t.late { // forget any one: its message is sent once more
			if old.state == done {
				t.forget(old)
				break
			}
		}
	}
}

func (t *target) forget(j *job) {
	delete(t.late, j.id)
	if j.state == flying {
		t.s.late.Add(-int64(j.size))
		j.cancel()
		j.body.drop()
	}
}

// staleAfter is the age up to which a failure is used as the answer to a new try.
const staleAfter = time.Second

// stale reports whether the job has failed too long ago for a new try.
func (j *job) stale(now time.Time) bool {
	return j.state == done && j.err != nil && now.Sub(j.ended) > staleAfter
}

// resume finds the request that an earlier call has left for the same message: j takes
// it over, or its answer is known. The caller holds the call's lock.
func (t *target) resume(j *job) (old *job, answered bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old = t.late[j.id]
	if old == nil {
		return nil, false
	}
	if old.stale(time.Now()) || old.sum != j.digest() {
		t.forget(old)
		return nil, false
	}
	delete(t.late, j.id)
	if old.state == flying {
		t.s.late.Add(-int64(old.size))
	}
	old.c, old.i = j.c, j.i
	return old, old.state == done
}

// digest is the same for jobs with the same headers and payload.
func (j *job) digest() (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(j.header)) {
		fmt.Fprintf(h, "%q%q", name, j.header[name])
	}
	j.body.with(func(data []byte) { _, _ = h.Write(data) })
	h.Sum(sum[:0])
	return sum
}

// close aborts requests in flight and answers queued jobs.
func (t *target) close() {
	t.mu.Lock()
	t.closed = true
	waiting := t.queue
	t.queue = nil
	for _, j := range slices.Collect(maps.Values(t.late)) {
		t.forget(j)
	}
	t.mu.Unlock()
	t.answerAll(waiting, broker.Outage(errClosed, codeClosed, t.dest))
	t.http.close()
}

func tooLarge(t *target, size, limit int) error {
	return broker.Rejected(&EndpointError{
		Endpoint: t.p.Name, Reason: fmt.Sprintf("the payload has %d bytes, above its max-message-bytes of %d", size, limit),
	}, codeTooLarge, t.dest)
}

// jitter spreads a pause over its second half, so that instances do not retry together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
