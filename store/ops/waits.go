package ops

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/postrider/postrider/store"
)

// What only a person ends, in the words of the view of messages.
const (
	// WaitsPipe is said of every message of a pipe that a person has paused.
	WaitsPipe = "a person: the pipe is paused"
	// WaitsTime is said of a message that is scheduled: nothing is wrong.
	WaitsTime = "its time"
	waitsLane = "a person: the lane is paused"
	waitsKey  = "a person: the key is paused"
	waitsDead = "a person: dead retry or dead discard"
)

var ofPipe = regexp.MustCompile(`postrider (dead|skip|replay|message|key|status|pause|resume|audit|relay|doctor)\b`)

// ForPipe has the commands of a text name the pipe, unless it is the default one: a number of a
// dead letter means another message there.
func ForPipe(text, pipe string) string {
	if pipe == "" || pipe == store.DefaultPipe || strings.Contains(text, "--pipe ") {
		return text
	}
	return ofPipe.ReplaceAllString(text, "postrider --pipe "+pipe+" $1")
}

// HeldText names what an instance sends nothing to, with the code and the error of the
// broker, in the words of the view of messages.
func HeldText(h store.Held) string {
	text := "the broker"
	if h.Destination != "" {
		text = "the destination " + h.Destination
	}
	for _, part := range []string{h.Code, h.Error} {
		if part != "" {
			text += ": " + part
		}
	}
	return text
}

// WaitsFor is who or what must act before messages of a lane of this status are sent: a
// person, a relay, the broker, or the destinations that the owner of the lane holds and
// what else it reports. A held destination that is the topic of messages of other lanes
// only is left out; one that is no topic of any lane, as routes make them, may concern
// each. It is empty where nothing is pending, unless not all was counted, or nothing is
// known that stops the lane.
func (s *Status) WaitsFor(l *LaneStatus) string {
	switch {
	case l.Pending == 0 && !s.Capped:
		return ""
	case s.Paused:
		return WaitsPipe
	}
	for _, h := range s.Holds {
		if h.Lane == l.Lane && h.Key == "" {
			return waitsLane
		}
	}
	if !l.Leased {
		return "a relay: none holds the lane"
	}
	var all []string
	for i := range s.Instances {
		if owner := &s.Instances[i]; owner.Alive && owner.Name == l.Owner {
			all = append(all, owner.complaints(func(where string) bool { return where == "" || s.concerns(l, where) })...)
		}
	}
	return strings.Join(all, "; ")
}

// Complaints are what does not work at an instance: what it sends nothing to, with the
// error of the broker, and its other trouble.
func (i *Instance) Complaints() []string {
	return i.complaints(func(string) bool { return true })
}

// concerns reports whether messages of the lane wait for a destination, as far as topics tell.
func (s *Status) concerns(l *LaneStatus, where string) bool {
	return slices.Contains(l.HeldTopics, where) ||
		!slices.ContainsFunc(s.Lanes, func(other LaneStatus) bool { return slices.Contains(other.HeldTopics, where) })
}

// complaints leaves out held destinations that do not concern the question.
func (i *Instance) complaints(concerns func(destination string) bool) (all []string) {
	for _, h := range i.Held {
		if concerns(h.Destination) {
			all = append(all, HeldText(h))
		}
	}
	for _, t := range i.Trouble {
		// Held has the same with its error, but of an older relay.
		if len(i.Held) == 0 || !strings.HasSuffix(t, " is down") {
			all = append(all, t)
		}
	}
	return all
}

// Trouble is what kind of complaint an instance has.
type Trouble uint8

// The kinds, the worst for messages first.
const (
	// Unreachable is a broker or a destination that does not work, and what is unknown:
	// messages wait, and no attempt is used up.
	Unreachable Trouble = iota
	// Rejecting is a destination that rejects all messages and is braked. Attempts were
	// used up before, and dead letters may have been made.
	Rejecting
	// Crowded are lanes that read no message, because too many keys are set aside.
	Crowded
)

// Troubles are the kinds of Complaints, in their order.
func (i *Instance) Troubles() (all []Trouble) {
	for n, text := range i.Complaints() {
		switch {
		case n < len(i.Held): // the error of the broker, whatever its text
			all = append(all, Unreachable)
		case strings.HasSuffix(text, ": it rejects all messages"):
			all = append(all, Rejecting)
		case strings.HasSuffix(text, ": too many keys are set aside"):
			all = append(all, Crowded)
		default:
			all = append(all, Unreachable)
		}
	}
	return all
}

// Findings are the complaints of an instance, for a doctor.
func (i *Instance) Findings() (found []Finding) {
	kinds := i.Troubles()
	for n, text := range i.Complaints() {
		f := Finding{
			Severity: Critical, What: fmt.Sprintf("relay %s: %s", i.Name, text), Why: "messages wait; no attempt is used up",
			Fix: "repair what it names, and the relay sends again by itself; see docs/runbook.md", Data: map[string]any{"instance": i.Name, "trouble": text},
		}
		switch {
		case n < len(i.Held):
			f.What = fmt.Sprintf("relay %s sends nothing to %s", i.Name, text)
		case kinds[n] == Rejecting:
			f.Why = "its messages wait; attempts were used up before, and there may be dead letters"
			f.Fix = "repair the destination, then postrider dead retry; see docs/runbook.md"
		case kinds[n] == Crowded:
			f.Why = "the lanes read no message until keys are free"
			f.Fix = "postrider dead list --all, repair what fails, then postrider dead retry or discard; see docs/runbook.md"
		}
		found = append(found, f)
	}
	return found
}
