package httpbroker

import (
	"net/http"
	"time"

	"github.com/postrider/postrider/broker"
)

// Proportions of a breaker.
const (
	openAfter = 5 // failures in a row that may be the endpoint's fault
	minPause  = 200 * time.Millisecond
	maxPause  = 5 * time.Second
	probes    = 8    // concurrent requests that test whether it has recovered
	maxBlamed = 4096 // messages whose failures are remembered
)

// breaker has the health of an endpoint. It decides whose fault a
// failure is. By default it is the endpoint's, so that an
// endpoint that fails for all messages makes no dead letters. A message that fails again,
// although the endpoint has accepted others since, has failed by itself, and so has
// a message that is refused for minutes while there is no other to compare it with.
type breaker struct {
	name   string
	flying int

	proved time.Time // when the youngest accepted request began: the endpoint still worked then
	lastOK time.Time
	hung   bool          // calls have waited in vain, without any answer since
	usual  time.Duration // about the time of an accepted request; 0: none was accepted

	failures int       // of the endpoint, in a row
	opened   time.Time // when it was opened last: failures of older requests do not count
	until    time.Time // nothing is sent before
	why      verdict   // the verdict that opened it
	gone     bool

	accepted uint64           // messages, since the start
	blamed   map[string]blame // by message id
	alone    alone
}

// blame records when a message failed last, and how many others had been accepted.
type blame struct {
	at       time.Time
	accepted uint64
}

// others reports whether the endpoint has accepted another message since. A demand for
// other credentials (401, 403) concerns all messages: then only requests that began
// since count.
func (a blame) others(b *breaker, j *job, v verdict) bool {
	if v.err.Status == http.StatusUnauthorized || v.err.Status == http.StatusForbidden {
		return j.proved.After(a.at)
	}
	return b.accepted > a.accepted
}

// alone is the message that is refused while no other is tried: it is the only
// one, or the others wait behind it. Then no evidence shows whose fault the refusal is.
type alone struct {
	id     string // "": no message
	others bool   // other messages were refused too: the endpoint refuses all
	since  time.Time
}

// refusedAlone is how long the refusal of a single message counts as the endpoint's
// outage. After that it uses attempts, and the message becomes a dead letter for a
// person to handle.
const refusedAlone = 5 * time.Minute

// refused records a verdict that may be a refusal, and reports whether it is the
// message's own fault by now.
func (a *alone) refused(id string, v verdict, now time.Time) bool {
	switch {
	case !v.refusal || id == "": // the endpoint has another failure
		*a = alone{}
	case a.id == "":
		*a = alone{id: id, since: now}
	case a.id != id:
		a.others = true
	}
	return a.id != "" && !a.others && now.Sub(a.since) >= refusedAlone
}

func (b *breaker) init(p *prepared) {
	b.name, b.blamed = p.Name, make(map[string]blame)
}

// admits reports whether one more request may be sent.
func (b *breaker) admits() bool {
	return b.flying < probes || !b.hung && b.failures < openAfter
}

// closedTo returns the error of messages that must not be sent now, or nil.
func (b *breaker) closedTo(now time.Time, dest string) error {
	switch {
	case b.gone:
		return broker.Outage(b.why.err, b.why.code, dest)
	case !now.Before(b.until):
		return nil
	case b.why.fault == throttled:
		return broker.Throttled(b.why.err, b.why.code, dest, b.until.Sub(now))
	}
	return broker.Outage(b.why.err, b.why.code, dest)
}

// judge takes the outcome of a request and returns the message's answer.
func (b *breaker) judge(j *job, v verdict, now time.Time, dest string) error {
	switch v.fault {
	case accepted:
		b.accepted++
		if j.began.After(b.proved) {
			b.proved = j.began
		}
		b.failures, b.hung, b.lastOK = 0, false, now
		b.took(now.Sub(j.began))
		if b.why.fault != throttled { // otherwise the request was in flight when the endpoint asked for a pause
			b.until = time.Time{}
		}
		delete(b.blamed, j.name)
		b.alone = alone{}
		return nil
	case cancelled:
		return broker.Unknown(v.err, v.code, dest)
	case rejected:
		b.hung = false
		return broker.Rejected(v.err, v.code, dest)
	case gone:
		b.gone, b.why = true, v
		return broker.Outage(v.err, v.code, dest)
	case throttled:
		b.hung = false
		b.failures = max(b.failures, openAfter-1)
		b.trip(j, v, now)
		b.pause(now.Add(v.retryAfter), v)
		return broker.Throttled(v.err, v.code, dest, max(b.until.Sub(now), 0))
	case doubtful:
		b.hung = v.late
		before, seen := b.blamed[j.name]
		b.blame(j.name, now)
		own := b.alone.refused(j.name, v, now)
		if own || seen && before.others(b, j, v) {
			return broker.Failed(v.err, v.code, dest)
		}
	case down:
		b.hung = v.late
	}
	b.trip(j, v, now)
	return broker.Outage(v.err, v.code, dest)
}

func (b *breaker) took(d time.Duration) {
	if b.usual == 0 {
		b.usual = d
	}
	b.usual += (d - b.usual) / 8
}

// silent reports whether the endpoint has not answered at all since a request began,
// for much longer than its usual time.
func (b *breaker) silent(began, now time.Time) bool {
	return now.Sub(began) >= max(leastPatience, 4*b.usual) && b.lastOK.Before(began)
}

func (b *breaker) blame(id string, now time.Time) {
	if id == "" {
		return
	}
	if len(b.blamed) >= maxBlamed {
		clear(b.blamed) // a forgotten message has one more failure blamed on the endpoint
	}
	b.blamed[id] = blame{now, b.accepted}
}

// trip counts a failure of the endpoint and opens the breaker for longer each time.
func (b *breaker) trip(j *job, v verdict, now time.Time) {
	if j.began.Before(b.opened) {
		return
	}
	b.failures++
	if b.failures < openAfter {
		return
	}
	b.opened = now
	b.pause(now.Add(jitter(min(minPause<<min(b.failures-openAfter, 10), maxPause))), v)
}

// pause blocks sending before until, because of v, unless a longer pause is in force.
func (b *breaker) pause(until time.Time, v verdict) {
	if until.After(b.until) {
		b.until, b.why = until, v
	}
}

// pace is a rate limit: a bucket of up to one second's requests.
type pace struct {
	rate    float64 // per second; 0: none
	tokens  float64
	at      time.Time
	waiting bool // a worker waits for the next token
}

// take takes a token and returns 0, or returns the time until there is one.
func (p *pace) take(now time.Time) time.Duration {
	if p.rate == 0 {
		return 0
	}
	if p.at.IsZero() {
		p.tokens = max(p.rate, 1)
	} else {
		p.tokens = min(p.tokens+now.Sub(p.at).Seconds()*p.rate, max(p.rate, 1))
	}
	p.at = now
	if p.tokens >= 1 {
		p.tokens--
		return 0
	}
	return time.Duration((1 - p.tokens) / p.rate * float64(time.Second))
}
