package core

import (
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/port"
)

// scope is one destination that does not work, "" for the whole sink: a circuit
// breaker, and the brake.
type scope struct {
	name    string
	open    bool
	pause   pause
	since   time.Duration // when it was opened
	tripped time.Duration // when it was tripped last
	by      port.ID       // and by which call: its messages must not stay in memory
	probe   *call         // the one call that may try while it is open
	tried   time.Duration // when such a call ended last
	free    bool          // the next try is that of a record without a key
	silent  bool          // silence was the last answer, to a message that was sent alone: the next try is one message

	code   string // of the rejections for which the brake holds
	braked bool
}

// isOut reports whether the last answer was an outage. A scope that is nil works.
func (s *scope) isOut() bool { return s != nil && s.open }

// mayTry reports whether a call may try what the open scope holds.
func (s *scope) mayTry(now time.Duration) bool { return now >= s.pause.until && s.probe == nil }

func (e *Engine) sinkHeld() bool {
	s := e.scopes[""]
	return s.isOut() && !s.mayTry(e.now)
}

// hasOpenDestination reports whether messages must be looked at one by one.
func (e *Engine) hasOpenDestination() bool {
	n := len(e.scopes)
	if _, ok := e.scopes[""]; ok {
		n--
	}
	return n > 0
}

// openAt returns the scope of the place if that does not work, and nil otherwise.
func (e *Engine) openAt(place string) *scope {
	if s := e.scopes[e.destination(place)]; s.isOut() {
		return s
	}
	return nil
}

// heldScope returns the open scope that a message of topic must wait for. The
// first call after its pause becomes the probe and may carry the destination.
func (e *Engine) heldScope(topic string, c *call) *scope {
	s := e.openAt(topic)
	if s == nil || s.name == "" || s.probe == c {
		return nil
	}
	if !s.mayTry(e.now) {
		return s
	}
	s.probe = c
	c.probes = append(c.probes, s)
	return nil
}

// placeOf is the topic that m goes to, as the sink's routes have it.
func (e *Engine) placeOf(m *postrider.Message) string {
	if e.cfg.Place == nil {
		return m.Topic
	}
	return e.cfg.Place(m)
}

// destination is where a topic goes as far as errors have told.
func (e *Engine) destination(topic string) string { return e.dests.Of(topic) }

func (e *Engine) scope(name string) *scope {
	s := e.scopes[name]
	if s == nil {
		s = &scope{name: strings.Clone(name)} // a message's topic would hold the bytes of a whole read
		e.scopes[s.name] = s
	}
	return s
}

// trip opens the scope for longer than before, once per call. Calls that had
// begun before it was tripped last tell nothing new.
func (e *Engine) trip(s *scope, c *call, err *broker.Error) {
	s.silent = false
	if e.hold(s, c) && s.name == "" { // an answer that came meanwhile may show that the sink works
		for _, l := range e.held {
			l.idle = false
		}
	}
	if err.Class == broker.ClassThrottled && err.RetryAfter > 0 {
		s.pause.until = max(s.pause.until, e.now+min(err.RetryAfter, e.cfg.OutageMax))
	}
	if s.name == "" {
		e.sinkFails(err)
	} else {
		e.tellAll(e.places.Fails(e.now, s.name, err))
	}
}

// hold opens the scope for longer than before, and reports whether the call tells anything new.
func (e *Engine) hold(s *scope, c *call) (fresh bool) {
	if s.open && (s.by == c.id || c.sentAt < s.tripped && s.probe != c) {
		return false
	}
	if !s.open {
		s.since = e.now
	}
	e.pauseFor(&s.pause, e.cfg.OutageBase, e.cfg.OutageMax)
	s.open, s.tripped, s.by, s.free, e.probed = true, e.now, c.id, false, c.laneID
	return true
}

// recover closes the scopes that an acknowledged message of topic proves to
// work. An answer to a call that had begun before a scope was tripped may be
// older than what tripped it, and proves nothing.
func (e *Engine) recover(c *call, topic string) {
	if len(e.scopes)+e.rows.Len() == 0 {
		return
	}
	for _, name := range [2]string{"", e.destination(topic)} {
		s := e.scopes[name]
		if s.isOut() && c.sentAt < s.tripped {
			continue
		}
		e.rows.Works(name)
		if s != nil {
			e.drop(s, false)
		}
	}
}

// drop closes a scope, and forgets which topics lead there. untried: nobody knows whether it works.
func (e *Engine) drop(s *scope, untried bool) {
	if s.braked {
		e.tell(port.BrakeChanged{Destination: s.name, Code: s.code})
	}
	e.tellAll(e.places.Works(e.now, s.name, untried))
	delete(e.scopes, s.name)
	e.parked.freed = true
	if s.name == "" {
		return
	}
	e.dests.Forget(s.name)
}

// planScopes drops the scopes that no call has tried for long, though it could: their
// messages have gone to another relay with their lanes, or a person has removed them, and no
// acknowledgement will come. The count of rejections stays, so a brake holds again at once.
func (e *Engine) planScopes() {
	e.tellAll(e.places.Ends(e.now)...)
	if !e.lease.valid || e.paused {
		e.restFrom = e.now
		return
	}
	rest := max(viewAge, 4*e.cfg.OutageMax)
	var names []string
	for name, s := range e.scopes {
		if s.probe == nil && e.now >= max(s.tripped, s.tried, s.pause.until, e.restFrom)+rest {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		e.drop(e.scopes[name], true)
	}
	if at := e.sink.Failed; at > 0 && e.scopes[""] == nil && e.now >= max(at, e.restFrom)+rest && !e.unresolved() {
		e.sinkWorks(true)
	}
}

// unresolved reports whether a message in memory, or the fate of a parked one, is open.
func (e *Engine) unresolved() bool {
	return slices.ContainsFunc(e.held, func(l *lane) bool { return l.done < len(l.queue) || l.suspects.Await() })
}

// endProbe lets the next call try when this one proved nothing.
func (e *Engine) endProbe(c *call) {
	for _, s := range c.probes {
		if s.probe == c {
			s.probe, s.tried = nil, e.now
		}
	}
}

// rejected counts a rejection and reports whether the brake holds: the message
// must then wait instead of dying.
func (e *Engine) rejected(topic string, err *broker.Error) (*scope, bool) {
	if e.cfg.Brake < 0 {
		return nil, false
	}
	name := err.Destination
	if name == "" {
		name = e.destination(topic)
	}
	if name == "" {
		return nil, false
	}
	n, fresh := e.rows.Rejected(e.now, name, err.Code, e.cfg.Brake, func(name string) bool {
		s := e.scopes[name]
		return s != nil && s.braked
	})
	if s := e.scopes[name]; fresh && s != nil && s.braked {
		s.braked = false
		e.tell(port.BrakeChanged{Destination: name, Code: err.Code})
	}
	if n <= e.cfg.Brake {
		return nil, false
	}
	s := e.scope(name)
	e.dests.Lead(topic, s.name)
	if !s.braked {
		s.braked, s.code = true, err.Code
		e.tell(port.BrakeChanged{Destination: s.name, Code: err.Code, Rejections: e.cfg.Brake, On: true})
	}
	return s, true
}

// noteAck remembers which topics work. It costs two comparisons per batch.
func (e *Engine) noteAck(c *call, topic string) {
	e.lastAck, e.anyAck = e.now, true
	e.ackSentAt = max(e.ackSentAt, c.sentAt)
	if c.sentAt >= e.sink.At {
		e.sinkWorks(false)
	}
	e.acked.Acked(e.now, topic)
}

// othersWork reports whether something other than the destination was
// acknowledged lately.
func (e *Engine) othersWork(destination string) bool {
	return e.acked.Work(e.now, func(topic string) bool { return e.destination(topic) != destination })
}

func (e *Engine) sinkFails(err error)    { e.tellAll(e.sink.Fails(e.now, err)) }
func (e *Engine) sinkWorks(untried bool) { e.tellAll(e.sink.Works(untried)) }

// tellAll tells the facts that are not nil.
func (e *Engine) tellAll(facts ...port.Fact) {
	for _, f := range facts {
		if f != nil {
			e.tell(f)
		}
	}
}
