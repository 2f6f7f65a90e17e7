package answer

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/plural"
)

// Consumer is what `status --consumer NAME --output json` prints of each.
type Consumer struct {
	Time           time.Time  `json:"time"`
	Consumer       string     `json:"consumer"`
	LastProcessed  *time.Time `json:"last_processed"`
	Remembers      *time.Time `json:"remembers_since"`
	IdleSeconds    *float64   `json:"idle_seconds"`
	Dead           int64      `json:"dead"`
	DeadSeconds    float64    `json:"oldest_dead_seconds"`
	Retrying       int64      `json:"retrying"`
	Overdue        int64      `json:"overdue"`
	OverdueSeconds float64    `json:"oldest_overdue_seconds"`
	Stashed        int64      `json:"stashed"`
	Due            int64      `json:"due"`
	DueSeconds     float64    `json:"oldest_due_seconds"`
	Gaps           int64      `json:"gaps"`
	GapSeconds     float64    `json:"oldest_gap_seconds"`
	Blocked        int64      `json:"blocked_keys"`
	Capped         bool       `json:"lower_bounds,omitempty"`
	Waiting        []Missing  `json:"waiting"`
}

// Missing is a key that waits for versions.
type Missing struct {
	Topic      string  `json:"topic"`
	Key        string  `json:"key"`
	From       int64   `json:"from"`
	To         int64   `json:"to"`
	Messages   int64   `json:"messages"`
	AgeSeconds float64 `json:"age_seconds"`
}

// ConsumersOf is the answer about all of them.
func ConsumersOf(all []admin.ConsumerStatus) []Consumer {
	answers := make([]Consumer, 0, len(all))
	for n := range all {
		answers = append(answers, consumerOf(&all[n]))
	}
	return answers
}

func consumerOf(s *admin.ConsumerStatus) Consumer {
	a := Consumer{
		Time: s.At, Consumer: s.Consumer, Dead: s.Dead, DeadSeconds: s.DeadAge.Seconds(),
		Retrying: s.Retrying, Overdue: s.Overdue, OverdueSeconds: s.OverdueAge.Seconds(),
		Stashed: s.Stashed, Due: s.Due, DueSeconds: s.DueAge.Seconds(),
		Gaps: s.Gaps, GapSeconds: s.GapAge.Seconds(), Blocked: s.Blocked, Capped: s.Capped, Waiting: []Missing{},
	}
	if !s.LastClaim.IsZero() {
		idle := s.At.Sub(s.LastClaim).Seconds()
		a.LastProcessed, a.Remembers, a.IdleSeconds = &s.LastClaim, &s.FirstClaim, &idle
	}
	for _, g := range s.Waiting {
		a.Waiting = append(a.Waiting, Missing{g.Topic, g.Key, g.Mark + 1, g.Needs, g.Stashed, g.Age.Seconds()})
	}
	return a
}

// ConsumersText writes all of them for a person.
func ConsumersText(w *tabwriter.Writer, all []admin.ConsumerStatus) {
	if len(all) == 0 {
		output.Row(w, "no consumer has processed anything here")
	}
	for n := range all {
		if n > 0 {
			output.Row(w)
		}
		consumerText(w, &all[n])
	}
}

func consumerText(w *tabwriter.Writer, s *admin.ConsumerStatus) {
	output.Row(w, "consumer", s.Consumer)
	last, since := "never", "nothing"
	if !s.LastClaim.IsZero() {
		last = fmt.Sprintf("%s, %s ago", output.Stamp(s.LastClaim), output.Short(s.At.Sub(s.LastClaim)))
		since = "what came since " + output.Stamp(s.FirstClaim)
	}
	output.Row(w, "last processed", last)
	output.Row(w, "remembers", since)
	output.Row(w, "dead", withAge(s.Dead, s.DeadAge))
	output.Row(w, "retrying", fmt.Sprintf("%d, overdue %s", s.Retrying, withAge(s.Overdue, s.OverdueAge)))
	output.Row(w, "stashed", fmt.Sprintf("%d, due %s", s.Stashed, withAge(s.Due, s.DueAge)))
	output.Row(w, "gaps", fmt.Sprintf("%s, behind a dead letter %d", withAge(s.Gaps, s.GapAge), s.Blocked))
	if s.Capped {
		output.Row(w, "", fmt.Sprintf("these are lower bounds: %d rows were looked at", inbox.StatusLimit))
	}
	if s.Retrying+s.Stashed > 0 {
		output.Row(w, "list them", "postrider dead list --all --consumer "+argument(s.Consumer))
	}
	for n, g := range s.Waiting {
		if n == holdsShown {
			output.Row(w, "waits", fmt.Sprintf("and %d more keys: see --output json", s.Gaps-int64(n)))
			break
		}
		output.Row(w, "waits", fmt.Sprintf("%s %s: versions %d to %d are missing, %s behind them for %s",
			g.Topic, g.Key, g.Mark+1, g.Needs, plural.Of(g.Stashed, "message"), output.Short(g.Age)))
	}
}

// withAge is a number of things and how old the oldest of them is.
func withAge(n int64, age time.Duration) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%d, the oldest for %s", n, output.Short(age))
}

// Unfinished is a message that a consumer has tried or stashed and not finished, in JSON.
type Unfinished struct {
	ID          string    `json:"id"`
	State       string    `json:"state"` // retry, dead or waiting
	Topic       string    `json:"topic"`
	Key         string    `json:"key"`
	Type        string    `json:"type"`
	Version     int64     `json:"version,omitempty"`
	Origin      string    `json:"origin"` // where it stood at the broker
	Attempts    int       `json:"attempts"`
	Since       time.Time `json:"since"` // of the state's last change
	NextAttempt time.Time `json:"next_attempt,omitzero"`
	Code        string    `json:"code"`
	Error       string    `json:"error"`
	WaitsFor    string    `json:"waits_for"`
}

// UnfinishedOf is the answer about a page of them.
func UnfinishedOf(page []inbox.Unfinished) []Unfinished {
	answers := make([]Unfinished, 0, len(page))
	for i := range page {
		u := &page[i]
		answers = append(answers, Unfinished{
			u.ID, u.State, u.Topic, u.Key, u.Type, u.Version, u.Origin, u.Attempts, u.Since, u.NextAttempt, u.Code, u.Error, u.WaitsFor(),
		})
	}
	return answers
}

// UnfinishedText lists a page of at most limit messages.
func UnfinishedText(w *tabwriter.Writer, answers []Unfinished, limit int) {
	if len(answers) == 0 {
		output.Row(w, "none")
		return
	}
	output.Row(w, "ID", "STATE", "TOPIC", "KEY", "TYPE", "ATTEMPTS", "SINCE", "NEXT ATTEMPT", "WAITS FOR", "CODE", "ERROR")
	for _, u := range answers {
		output.Row(w, u.ID, u.State, u.Topic, u.Key, u.Type, u.Attempts, output.Stamp(u.Since), output.Stamp(u.NextAttempt), u.WaitsFor, u.Code, u.Error)
	}
	if len(answers) == limit {
		output.Row(w)
		output.Row(w, "there may be more: --after "+answers[len(answers)-1].ID)
	}
}
