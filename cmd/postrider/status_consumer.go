package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/inbox"
)

// consumerAnswer is what `status --consumer NAME --output json` prints of each.
type consumerAnswer struct {
	Time           time.Time       `json:"time"`
	Consumer       string          `json:"consumer"`
	LastProcessed  *time.Time      `json:"last_processed"`
	Remembers      *time.Time      `json:"remembers_since"`
	IdleSeconds    *float64        `json:"idle_seconds"`
	Dead           int64           `json:"dead"`
	DeadSeconds    float64         `json:"oldest_dead_seconds"`
	Retrying       int64           `json:"retrying"`
	Overdue        int64           `json:"overdue"`
	OverdueSeconds float64         `json:"oldest_overdue_seconds"`
	Stashed        int64           `json:"stashed"`
	Due            int64           `json:"due"`
	DueSeconds     float64         `json:"oldest_due_seconds"`
	Gaps           int64           `json:"gaps"`
	GapSeconds     float64         `json:"oldest_gap_seconds"`
	Blocked        int64           `json:"blocked_keys"`
	Capped         bool            `json:"lower_bounds,omitempty"`
	Waiting        []missingAnswer `json:"waiting"`
}

// missingAnswer is a key that waits for versions.
type missingAnswer struct {
	Topic      string  `json:"topic"`
	Key        string  `json:"key"`
	From       int64   `json:"from"`
	To         int64   `json:"to"`
	Messages   int64   `json:"messages"`
	AgeSeconds float64 `json:"age_seconds"`
}

// everyConsumer is the value of --consumer that means all.
const everyConsumer = "all"

// consumersOf are the names that --consumer gives.
func consumersOf(name string) []string {
	if name == everyConsumer {
		return nil
	}
	return []string{name}
}

// inboxes are those of an opened database; ok is false where there are none.
func (a *app) inboxes(st *open.Outbox) (i admin.Inboxes, ok bool) {
	if st.Inbox == nil {
		return i, false
	}
	db, dialect := st.Inbox()
	return admin.Inboxes{DB: db, Dialect: dialect, Schema: inboxSchema(a.set)}, true
}

func (a *app) consumerStatus(ctx context.Context, name string) error {
	st, err := open.Store(&a.set.Settings)
	if err != nil {
		return err
	}
	defer st.Close()
	i, ok := a.inboxes(st)
	if !ok {
		return exit.Usagef("store %s keeps no inbox: give that of the consumer's database, postgres:// or sqlite:", a.set.Kind())
	}
	if st.Exists != nil {
		if err := st.Exists(); err != nil {
			return err
		}
	}
	all, err := i.Status(ctx, consumersOf(name)...)
	if unknown := (*admin.UnknownConsumerError)(nil); errors.As(err, &unknown) {
		return exit.Usagef("%v", unknown)
	}
	if err != nil {
		return fmt.Errorf("status: %w; if the inbox's tables are not there, the consumer makes them with Inbox.Migrate", err)
	}
	answers := make([]consumerAnswer, 0, len(all))
	for n := range all {
		answers = append(answers, answerOfConsumer(&all[n]))
	}
	return a.print(answers, func(w *tabwriter.Writer) {
		if len(all) == 0 {
			output.Row(w, "no consumer has processed anything here")
		}
		for n := range all {
			if n > 0 {
				output.Row(w)
			}
			consumerText(w, &all[n])
		}
	})
}

func answerOfConsumer(s *admin.ConsumerStatus) consumerAnswer {
	a := consumerAnswer{
		Time: s.At, Consumer: s.Consumer, Dead: s.Dead, DeadSeconds: s.DeadAge.Seconds(),
		Retrying: s.Retrying, Overdue: s.Overdue, OverdueSeconds: s.OverdueAge.Seconds(),
		Stashed: s.Stashed, Due: s.Due, DueSeconds: s.DueAge.Seconds(),
		Gaps: s.Gaps, GapSeconds: s.GapAge.Seconds(), Blocked: s.Blocked, Capped: s.Capped, Waiting: []missingAnswer{},
	}
	if !s.LastClaim.IsZero() {
		idle := s.At.Sub(s.LastClaim).Seconds()
		a.LastProcessed, a.Remembers, a.IdleSeconds = &s.LastClaim, &s.FirstClaim, &idle
	}
	for _, g := range s.Waiting {
		a.Waiting = append(a.Waiting, missingAnswer{g.Topic, g.Key, g.Mark + 1, g.Needs, g.Stashed, g.Age.Seconds()})
	}
	return a
}

func consumerText(w *tabwriter.Writer, s *admin.ConsumerStatus) {
	output.Row(w, "consumer", output.Visible(s.Consumer, ""))
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
	for n, g := range s.Waiting {
		if n == holdsShown {
			output.Row(w, "waits", fmt.Sprintf("and %d more keys: see --output json", s.Gaps-int64(n)))
			break
		}
		output.Row(w, "waits", fmt.Sprintf("%s %s: versions %d to %d are missing, %d messages behind them for %s",
			output.Visible(g.Topic, ""), output.Visible(g.Key, ""), g.Mark+1, g.Needs, g.Stashed, output.Short(g.Age)))
	}
}

// withAge is a number of things and how old the oldest of them is.
func withAge(n int64, age time.Duration) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%d, the oldest for %s", n, output.Short(age))
}
