package answer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Life is one message in JSON, from its enqueue on.
type Life struct {
	State       string        `json:"state"`
	Parked      string        `json:"parked,omitempty"` // scheduled, retry, waiting or dead
	Pipe        string        `json:"pipe"`
	ID          string        `json:"id"`
	Seq         string        `json:"seq"` // may exceed what a JavaScript number holds
	Lane        int           `json:"lane"`
	Topic       string        `json:"topic"`
	Key         string        `json:"key"`
	Type        string        `json:"type"`
	Version     int64         `json:"version,omitempty"`
	Enqueued    time.Time     `json:"enqueued"`
	NotBefore   time.Time     `json:"not_before,omitzero"`
	Sent        time.Time     `json:"sent,omitzero"` // the view's sent_at
	Owner       string        `json:"owner,omitempty"`
	LeaseLeft   string        `json:"lease_left,omitempty"`
	Gone        bool          `json:"row_removed,omitempty"`
	Excluded    bool          `json:"excluded_by_filter,omitempty"`
	BlocksKey   bool          `json:"blocks_key,omitempty"`
	Attempts    int           `json:"attempts"`
	Generation  int           `json:"replays"`
	History     []ops.Attempt `json:"history,omitempty"`
	FirstFailed time.Time     `json:"first_failed,omitzero"`
	NextAttempt time.Time     `json:"next_attempt,omitzero"`
	Behind      string        `json:"behind_seq,omitempty"` // what it waits behind
	BehindID    string        `json:"behind_id,omitempty"`
	WaitsFor    string        `json:"waits_for,omitempty"` // the view's waits_for
	WaitsSince  time.Time     `json:"waits_since,omitzero"`
	Paused      []string      `json:"paused,omitempty"` // "key" and "lane", as far as a person paused them
	Consumer    *Effect       `json:"consumer,omitempty"`
	Do          string        `json:"do"` // the command that repairs it; "": it was sent, or waits for its time
}

// Effect is what a consumer knows of the message.
type Effect struct {
	Name        string    `json:"name"`
	Claim       string    `json:"claim"` // applied, stale, waiting, dead, discarded; "" without one
	Attempts    int       `json:"attempts"`
	State       string    `json:"attempt_state,omitempty"`
	LastError   string    `json:"last_error,omitempty"`
	NextAttempt time.Time `json:"next_attempt,omitzero"`
	Stashed     int64     `json:"stashed_version,omitempty"`
	StashNeeds  int64     `json:"stash_needs_version,omitempty"`
}

// LifeOf is the answer about a message, as of now.
func LifeOf(m *ops.MessageLife, now time.Time) Life {
	l := Life{
		State: m.State(), Pipe: m.Pipe, ID: m.Message.ID, Seq: strconv.FormatInt(m.Seq, 10), Lane: int(m.Lane),
		Topic: m.Message.Topic, Key: m.Message.Key, Type: m.Message.Type, Version: m.Message.Version,
		Enqueued: m.Message.Time, NotBefore: m.Message.NotBefore, Sent: m.SentAt, Owner: m.Owner, Gone: m.Gone, Excluded: m.Excluded, Paused: paused(m.Holds),
	}
	if m.Owner != "" {
		l.LeaseLeft = output.Short(m.Until)
	}
	if k := m.Parked; k != nil {
		l.Parked, l.BlocksKey, l.Attempts, l.Generation = k.State.String(), k.Captures && k.Message.Key != "", k.Attempts, k.Generation
		l.History, l.FirstFailed, l.NextAttempt = k.History, k.FirstFailed, next(k, now)
	}
	if m.Head != nil {
		l.Behind, l.BehindID = strconv.FormatInt(m.Head.Seq, 10), m.Head.Message.ID
	}
	l.WaitsFor, l.WaitsSince = m.WaitsFor()
	l.Do = ops.ForPipe(l.repairs(m.Held), l.Pipe)
	return l
}

// next is when a parked record is tried next; zero where only an act or another record
// decides that.
func next(k *ops.ParkedRecord, now time.Time) time.Time {
	if k.State != store.Retry && k.State != store.Scheduled {
		return time.Time{}
	}
	return now.Add(k.DueIn).UTC().Truncate(time.Second)
}

// paused names what a person has paused.
func paused(holds []ops.Hold) (all []string) {
	for _, h := range holds {
		if h.Key == "" {
			all = append(all, "lane")
		} else {
			all = append(all, "key")
		}
	}
	return all
}

// repairs is the command that changes what is wrong, or shows more of what is right.
func (l *Life) repairs(held []store.Held) string {
	switch {
	case l.WaitsFor == ops.WaitsPipe:
		return resumePipe(l.Pipe)
	case slices.Contains(l.Paused, "lane") && l.State != ops.StateSent:
		return resume(fmt.Sprintf("--lane %d", l.Lane))
	case slices.Contains(l.Paused, "key") && l.State != ops.StateSent:
		return resume("--key " + argument(l.Key))
	case l.State == ops.StateDead:
		return "postrider dead retry " + l.Seq + " --reason WHY"
	case l.Behind != "":
		return "postrider message show " + l.BehindID
	case l.State == ops.StateSent && l.Excluded:
		return "postrider pipe list"
	case l.State == ops.StateSent, l.WaitsFor == ops.WaitsTime:
		return "" // nothing is wrong here: a replay would send it again
	case l.Owner == "":
		return "postrider relay"
	case stopped(l.WaitsFor, held):
		return diagnose
	case l.State == ops.StateFailed:
		return "postrider dead retry " + l.Seq + " --reason WHY"
	}
	return "postrider doctor --only relays,lanes,lag,parked"
}

// diagnose prints what relays send nothing to, with the error of the broker and what to do.
const diagnose = "postrider doctor --only relays"

// stopped reports whether a message waits for one of these destinations.
func stopped(waitsFor string, held []store.Held) bool {
	return slices.ContainsFunc(held, func(h store.Held) bool { return waitsFor == ops.HeldText(h) })
}

func resumePipe(pipe string) string {
	return "postrider pipe resume " + argument(pipe) + " --reason WHY"
}

func resume(what string) string { return "postrider resume " + what + " --reason WHY" }

// argument is a text as a shell takes it.
func argument(text string) string {
	if text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/@") == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// Text writes one message for a person.
func (l *Life) Text(w *tabwriter.Writer) {
	state := l.State
	if l.Parked != "" {
		state += " (" + l.Parked + ")"
	}
	lines := [][2]string{
		{"state", state},
		{"id", l.ID},
		{"topic", l.Topic},
		{"key", l.Key},
		{"type", l.Type},
		{"seq", l.Seq},
		{"lane", strconv.Itoa(l.Lane)},
		{"pipe", l.Pipe},
		{"enqueued", output.Stamp(l.Enqueued)},
	}
	add := func(name, value string, there bool) {
		if there {
			lines = append(lines, [2]string{name, value})
		}
	}
	add("version", strconv.FormatInt(l.Version, 10), l.Version > 0)
	add("not before", output.Stamp(l.NotBefore), !l.NotBefore.IsZero())
	add("sent", output.Stamp(l.Sent), !l.Sent.IsZero())
	add("sent", "unknown: discarded by a person, or sent before an upgrade", l.State == ops.StateSent && l.Sent.IsZero() && !l.Excluded)
	add("owner", l.Owner+", lease "+l.LeaseLeft, l.Owner != "")
	add("owner", "no relay holds the lane", l.Owner == "" && l.State != ops.StateSent)
	add("paused", strings.Join(l.Paused, ", "), len(l.Paused) > 0)
	add("filter", "the pipe leaves it out", l.Excluded)
	add("row", "removed by retention", l.Gone)
	add("blocks its key", "true", l.BlocksKey)
	add("attempts", strconv.Itoa(l.Attempts), l.Parked != "")
	add("replays", strconv.Itoa(l.Generation), l.Generation > 0)
	add("first failed", output.Stamp(l.FirstFailed), !l.FirstFailed.IsZero())
	add("next attempt", output.Stamp(l.NextAttempt), !l.NextAttempt.IsZero())
	add("waits behind", l.Behind+" "+l.BehindID, l.Behind != "")
	add("waits for", waits(l.WaitsFor, l.WaitsSince), l.WaitsFor != "")
	if c := l.Consumer; c != nil {
		claim := c.Claim
		if claim == "" {
			claim = "not received, or forgotten by prune"
		}
		add("consumer "+c.Name, claim, true)
		add("  attempts", strings.TrimSpace(strconv.Itoa(c.Attempts)+" "+c.State), c.State != "")
		add("  next attempt", output.Stamp(c.NextAttempt), !c.NextAttempt.IsZero())
		add("  last error", c.LastError, c.LastError != "")
		add("  stash", fmt.Sprintf("version %d, waits for version %d", c.Stashed, c.StashNeeds), c.Stashed > 0)
	}
	for _, line := range lines {
		output.Row(w, line[0], line[1])
	}
	historyText(w, l.History)
	output.Row(w)
	if l.Do != "" {
		output.Row(w, "next: "+l.Do)
	}
}

// waits is what a message or a key waits for, and since when.
func waits(what string, since time.Time) string {
	if since.IsZero() {
		return what
	}
	return what + ", since " + output.Stamp(since)
}

func historyText(w *tabwriter.Writer, history []ops.Attempt) {
	if len(history) == 0 {
		return
	}
	output.Row(w)
	output.Row(w, "AT", "ATTEMPT", "CLASS", "CODE", "ERROR")
	for _, a := range history {
		output.Row(w, output.Stamp(a.At), a.Attempt, a.Class, a.Code, a.Error)
	}
}

// Key is how a key stands, in JSON.
type Key struct {
	Key       string           `json:"key"`
	Pipe      string           `json:"pipe"`
	State     string           `json:"state"` // free, pending, waiting, paused, retrying, blocked; unknown: no message of the key is known
	Lane      int              `json:"lane"`
	Owner     string           `json:"owner,omitempty"`
	LeaseLeft string           `json:"lease_left,omitempty"`
	Paused    []string         `json:"paused,omitempty"`
	Parked    map[string]int64 `json:"parked"`
	Capped    bool             `json:"parked_is_lower_bound,omitempty"`
	Head      *Record          `json:"head,omitempty"` // what holds it
	// First is the first message of the key that is neither sent nor set aside, where it is
	// among the first of the lane.
	First      *KeyMessage `json:"first,omitempty"`
	WaitsFor   string      `json:"waits_for,omitempty"` // the view's waits_for
	WaitsSince time.Time   `json:"waits_since,omitzero"`
	Do         string      `json:"do"` // the command that repairs it
}

// KeyMessage names a message of a key.
type KeyMessage struct {
	Seq      string    `json:"seq"`
	ID       string    `json:"id"`
	Topic    string    `json:"topic"`
	Enqueued time.Time `json:"enqueued"`
}

// KeyOf is the answer about a key, as of now.
func KeyOf(k *ops.KeyLife, now time.Time) Key {
	answer := Key{Key: k.Key, Pipe: k.Pipe, State: "free", Lane: int(k.Lane), Owner: k.Owner, Paused: paused(k.Holds), Parked: k.Parked, Capped: k.Capped}
	if k.Owner != "" {
		answer.LeaseLeft = output.Short(k.Until)
	}
	answer.Do = "postrider status --lanes"
	if k.Head != nil {
		head := RecordOf(*k.Head, false, now)
		answer.Head = &head
	}
	answer.WaitsFor, answer.WaitsSince = k.WaitsFor()
	if f := k.First; f != nil {
		answer.First = &KeyMessage{strconv.FormatInt(f.Seq, 10), f.Message.ID, f.Message.Topic, f.Message.Time}
		answer.State, answer.Do = "pending", "postrider message show "+f.Message.ID
		if answer.WaitsFor != "" {
			answer.State = "waiting"
		}
	}
	switch {
	case slices.Contains(answer.Paused, "key"):
		answer.State, answer.Do = "paused", resume("--key "+argument(k.Key))
	case len(answer.Paused) > 0:
		answer.State, answer.Do = "paused", resume(fmt.Sprintf("--lane %d", k.Lane))
	case k.Head != nil && k.Head.State == store.Dead:
		answer.State, answer.Do = "blocked", "postrider dead retry "+answer.Head.Seq+" --reason WHY"
	case k.Head != nil:
		answer.State, answer.Do = "retrying", "postrider message show "+answer.Head.ID
	}
	switch {
	case answer.State == "paused" || answer.State == "blocked":
	case k.LaneWaits == ops.WaitsPipe:
		answer.Do = resumePipe(k.Pipe)
	case stopped(answer.WaitsFor, k.Held):
		answer.Do = diagnose
	}
	if k.Owner == "" && k.LaneWaits != ops.WaitsPipe && answer.State != "paused" && answer.State != "blocked" {
		answer.Do = "postrider relay"
	}
	if k.Unknown() {
		answer.State, answer.Do = "unknown", ""
		answer.WaitsFor, answer.WaitsSince = "", time.Time{}
	}
	answer.Do = ops.ForPipe(answer.Do, k.Pipe)
	return answer
}

// Text writes how a key stands for a person.
func (k *Key) Text(w *tabwriter.Writer) {
	output.Row(w, "key", k.Key)
	output.Row(w, "state", k.State)
	output.Row(w, "pipe", k.Pipe)
	output.Row(w, "lane", k.Lane)
	if k.State == "unknown" {
		output.Row(w)
		output.Row(w, "the outbox has no unsent message of this key; sent messages are found by their id")
		return
	}
	owner := "no relay holds the lane"
	if k.Owner != "" {
		owner = k.Owner + ", lease " + k.LeaseLeft
	}
	output.Row(w, "owner", owner)
	if len(k.Paused) > 0 {
		output.Row(w, "paused", strings.Join(k.Paused, ", "))
	}
	for state := store.Scheduled; state <= store.Dead; state++ {
		if n := k.Parked[state.String()]; n > 0 {
			count := strconv.FormatInt(n, 10)
			if n >= ops.KeyCount {
				count += " or more"
			}
			output.Row(w, state.String(), count)
		}
	}
	if h := k.Head; h != nil {
		output.Row(w, "held by", "record "+h.Seq+" ("+h.State+"), message "+h.ID)
		output.Row(w, "  error", strings.TrimSpace(h.Class+" "+h.Code+" "+h.Error))
		if !h.NextAttempt.IsZero() {
			output.Row(w, "  next attempt", output.Stamp(h.NextAttempt))
		}
		historyText(w, h.History)
	}
	if f := k.First; f != nil {
		output.Row(w, "first pending", "record "+f.Seq+", message "+f.ID+" to "+f.Topic+", enqueued "+output.Stamp(f.Enqueued))
	}
	if k.WaitsFor != "" {
		output.Row(w, "waits for", waits(k.WaitsFor, k.WaitsSince))
	}
	output.Row(w)
	output.Row(w, "next: "+k.Do)
}
