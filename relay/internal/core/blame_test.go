package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/blame"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// partly answers with an outage what goes to a part of the topic, while down.
func partly(down *bool) func(*postrider.Message, int) error {
	return func(m *postrider.Message, _ int) error {
		if *down && strings.HasPrefix(m.Key, "part") {
			return broker.Outage(errHTTP500, "NOT_ENOUGH_REPLICAS", "orders")
		}
		return nil
	}
}

// An outage of a part of a destination, such as one partition of a topic, uses up no
// attempt, though the rest of the destination works.
//
// Promises: S
func TestAPartOfADestinationThatIsDownBurnsNoAttempt(t *testing.T) {
	const keys, seconds = 60, 1200
	down := true
	s := newStage(t, port.Config{}, 4, partly(&down))
	all := 0
	for i := range seconds {
		key := "good"
		if i < keys {
			key = fmt.Sprint("part", i)
		}
		all += len(s.comes(time.Duration(i)*time.Second, store.Lane(i%4), key, fmt.Sprint("good", i%20)))
	}
	s.until(seconds*time.Second, func() bool { return false })
	if s.attempts() > 0 || len(s.dead()) > 0 {
		t.Errorf("%d attempts, %d dead letters in an outage of a part", s.attempts(), len(s.dead()))
	}
	down = false
	if !s.until(6*time.Minute, func() bool { return len(s.acked) == all }) {
		t.Errorf("%d of %d messages are delivered after the outage", len(s.acked), all)
	}
}

// A destination of which a part is down is acknowledged and unavailable in one call after the
// other. It is told as down for as long as that lasts, and as available once.
func TestAPartOfADestinationThatIsDownIsToldSeldom(t *testing.T) {
	down := true
	s := newStage(t, port.Config{}, 4, partly(&down))
	var told []bool
	see := func() bool {
		for _, f := range factsOf[port.HealthChanged](s.rig) {
			told = append(told, f.Down)
		}
		s.facts = nil
		return false
	}
	for i := range 900 {
		s.comes(time.Duration(i)*time.Second, store.Lane(i%4), fmt.Sprint("part", i), fmt.Sprint("good", i%20))
	}
	s.until(10*time.Minute, see)
	if n := len(told); n == 0 || n > 10 || !told[n-1] {
		t.Errorf("told %d times in ten minutes, the last time as down: %v", n, n > 0 && told[n-1])
	}
	down = false
	s.until(5*time.Minute, see)
	if n := len(told); told[n-1] {
		t.Errorf("still told as down five minutes after the outage")
	}
}

// An outage of a part that meets few messages at a time makes no more than so many
// dead letters, until one of its messages is acknowledged.
func TestAPartOfADestinationThatIsDownMakesFewDeadLetters(t *testing.T) {
	const keys = 40
	down := true
	s := newStage(t, port.Config{Retry: port.Backoff{MaxAttempts: 2, Max: time.Second}}, 2, partly(&down))
	for i := range 20 * keys {
		if i%20 == 0 {
			s.comes(time.Duration(i)*time.Second, store.Lane(i/20%2), fmt.Sprint("part", i))
		}
		s.comes(time.Duration(i)*time.Second, store.Lane(i%2), fmt.Sprint("good", i))
	}
	s.until(20*keys*time.Second, func() bool { return false })
	if n := len(s.dead()); n == 0 || n > blame.Most {
		t.Errorf("%d dead letters", n)
	}
	was := len(s.dead())
	down = false
	if !s.until(6*time.Minute, func() bool { return len(s.parked) == was }) {
		t.Fatalf("%d records are parked, %d of them dead", len(s.parked), was)
	}
	down = true
	from := s.now - s.began
	s.comes(from, 0, "part")
	for i := range 300 {
		s.comes(from+time.Duration(i)*time.Second, 1, fmt.Sprint("late", i))
	}
	if !s.until(5*time.Minute, func() bool { return len(s.dead()) > was }) {
		t.Error("a message that its destination never takes is no dead letter after an outage of a part has ended")
	}
}

// mute answers nothing for a part of the topic, while down.
func mute(down *bool) func(*postrider.Message, int) error {
	return func(m *postrider.Message, _ int) error {
		if *down && strings.HasPrefix(m.Key, "part") {
			return broker.Unknown(errTest, "timeout", "")
		}
		return nil
	}
}

// A part of a destination that stays silent, such as one partition whose leader hangs,
// uses up no attempt of many messages, though the rest of the destination works.
//
// Promises: S
func TestAPartOfADestinationThatIsSilentBurnsNoAttempt(t *testing.T) {
	const keys, seconds = 60, 600
	down := true
	s := newStage(t, port.Config{}, 4, mute(&down))
	all := 0
	for i := range seconds {
		key := "good"
		if i == 0 {
			for n := range keys {
				all += len(s.comes(0, store.Lane(n%4), fmt.Sprint("part", n)))
			}
		}
		all += len(s.comes(time.Duration(i)*time.Second, store.Lane(i%4), key, fmt.Sprint("good", i%20)))
	}
	s.until(seconds*time.Second, func() bool { return false })
	if s.attempts() > 0 || len(s.dead()) > 0 {
		t.Errorf("%d attempts, %d dead letters while a part is silent", s.attempts(), len(s.dead()))
	}
	down = false
	if !s.until(6*time.Minute, func() bool { return len(s.acked) == all }) {
		t.Errorf("%d of %d messages are delivered afterwards", len(s.acked), all)
	}
}

// A silent part that meets few messages at a time makes no more than so many dead
// letters, until one of its messages is acknowledged.
func TestAPartOfADestinationThatIsSilentMakesFewDeadLetters(t *testing.T) {
	const keys = 40
	down := true
	s := newStage(t, port.Config{Retry: port.Backoff{MaxAttempts: 2, Max: time.Second}}, 2, mute(&down))
	for i := range 20 * keys {
		if i%20 == 0 {
			s.comes(time.Duration(i)*time.Second, store.Lane(i/20%2), fmt.Sprint("part", i))
		}
		s.comes(time.Duration(i)*time.Second, store.Lane(i%2), fmt.Sprint("good", i))
	}
	s.until(20*keys*time.Second, func() bool { return false })
	if n := len(s.dead()); n == 0 || n > blame.Most {
		t.Errorf("%d dead letters", n)
	}
	was := len(s.dead())
	down = false
	if !s.until(6*time.Minute, func() bool { return len(s.parked) == was }) {
		t.Fatalf("%d records are parked, %d of them dead", len(s.parked), was)
	}
}

// Throttling says nothing of a message that was answered with an outage once: it uses
// up no part of an attempt, and the delay that was asked for is kept.
//
// Promises: S
func TestAThrottledSuspectBurnsNoAttempt(t *testing.T) {
	answer, sent := broker.Outage(errHTTP500, "HTTP_500", "hook"), 0
	s := newStage(t, port.Config{Retry: port.Backoff{MaxAttempts: 2, Max: time.Second}}, 2, func(m *postrider.Message, _ int) error {
		if m.Key != "a" {
			return nil
		}
		sent++
		return answer
	})
	s.comes(0, 0, "a")
	s.until(time.Minute, func() bool { return sent > 4 })
	answer, sent = broker.Throttled(errHTTP500, "HTTP_429", "hook", 12*time.Second), 0
	from := s.now - s.began
	for i := range 600 {
		s.comes(from+time.Duration(i)*time.Second, 1, "b")
	}
	s.until(3*time.Minute, func() bool { return false })
	if sent < 4 || sent > 3*60/12+2 {
		t.Errorf("sent %d times in three minutes, the delay is 12 s", sent)
	}
	answer, sent = broker.Outage(errHTTP500, "HTTP_500", "hook"), 0
	if !s.until(time.Minute, func() bool { return sent == 1 }) || s.attempts() > 0 {
		t.Errorf("sent %d times, %d attempts by one outage", sent, s.attempts())
	}
}

// A dead letter that a person sends again, and that is acknowledged, shows that its place
// recovered: the next message that is never taken there is a dead letter again.
func TestADeadLetterThatArrivesEndsTheBlame(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	l := r.e.held[0]
	b := &batch{msgs: []postrider.Message{{Topic: "orders"}}, meta: []store.Meta{{Seq: 1}}}
	r.e.blamed[blame.Cause{Place: "orders"}], r.e.blamed[blame.Cause{Place: "orders", Out: true}] = blame.Most, blame.Most
	r.e.cleared(l, b, 0)
	wantEqual(t, "blames by a record of which nothing is known", len(r.e.blamed), 2)
	b.meta[0].Generation = 1
	r.e.cleared(l, b, 0)
	wantEqual(t, "blames by a dead letter that arrived", len(r.e.blamed), 0)
}

// What a person did to records may have ended their wait: a suspect that was skipped
// must not count among the silent ones of its place.
func TestActsOfPeopleEndSuspicion(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	l := r.e.held[0]
	l.suspects = blame.Suspects{1: {Place: "orders"}}
	r.e.settled(l, &store.Settlement{})
	wantEqual(t, "suspects after a settlement", len(l.suspects), 1)
	r.e.settled(l, &store.Settlement{Requests: []int64{7}})
	wantEqual(t, "suspects after an act", len(l.suspects), 0)
}

// A lane whose messages meet silence is not held up by its old view: what comes behind
// them shows whether the broker works.
//
// Promises: S
func TestAnOldViewDoesNotHoldUpASilentLane(t *testing.T) {
	down := true
	s := newStage(t, port.Config{}, 1, mute(&down))
	s.e.lanes[0].records = 1 // a dead letter
	for i := range 20 {
		s.comes(0, 0, fmt.Sprint("part", i))
	}
	s.until(viewAge+time.Minute, func() bool { return false })
	good := s.comes(viewAge+time.Minute, 0, "good")
	if !s.until(5*time.Minute, func() bool { return s.acked[good[0]] > 0 }) {
		t.Error("a message behind 20 silent ones is not delivered in a lane with a dead letter")
	}
}
