package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/store"
)

// letterAnswer is a consumer's dead letter in JSON.
type letterAnswer struct {
	ID       string    `json:"id"`
	Topic    string    `json:"topic"`
	Key      string    `json:"key"`
	Type     string    `json:"type"`
	Version  int64     `json:"version,omitempty"`
	Origin   string    `json:"origin"` // where it stood at the broker
	Attempts int       `json:"attempts"`
	Error    string    `json:"error"`
	Died     time.Time `json:"died"`
	bodyAnswer
}

// mailbox is the inbox of one consumer.
type mailbox struct {
	*inbox.Inbox
	inboxes admin.Inboxes
	close   func()
}

// openInbox opens the database of a consumer, which need not hold an outbox.
func (a *app) openInbox() (*mailbox, error) {
	st, err := open.Store(&a.set.Settings)
	if err != nil {
		return nil, err
	}
	if st.Inbox == nil {
		st.Close()
		return nil, exit.Usagef("store %s keeps no consumer's dead letters: give that of the consumer's database, postgres:// or sqlite:", a.set.Kind())
	}
	if st.Exists != nil {
		if err := st.Exists(); err != nil {
			st.Close()
			return nil, err
		}
	}
	db, d := st.Inbox()
	schema := inboxSchema(a.set)
	return &mailbox{inbox.New(d, a.consumer, &inbox.Options{Schema: schema}), admin.Inboxes{DB: db, Dialect: d, Schema: schema}, st.Close}, nil
}

// inboxSchema is the schema of the inbox tables; SQLite has none.
func inboxSchema(set settings) string {
	if set.Kind() == "sqlite" {
		return ""
	}
	return set.Schema
}

// letters answers with a page of dead letters, and says what is missing when
// the tables are.
func (m *mailbox) letters(ctx context.Context, after string, limit int) ([]inbox.DeadLetter, error) {
	letters, err := m.DeadLetters(ctx, m.inboxes.DB, after, limit)
	if err != nil {
		return nil, fmt.Errorf("%w; if its tables are not there, the consumer makes them with Inbox.Migrate", err)
	}
	return letters, nil
}

func (a *app) consumerDead(cmd *cobra.Command, after string, limit int) error {
	m, err := a.openInbox()
	if err != nil {
		return err
	}
	defer m.close()
	letters, err := m.letters(cmd.Context(), after, limit)
	if err != nil {
		return err
	}
	answers := make([]letterAnswer, 0, len(letters))
	for i := range letters {
		answers = append(answers, answerOfLetter(&letters[i], false))
	}
	return a.print(answers, func(w *tabwriter.Writer) {
		if len(answers) == 0 {
			output.Row(w, "none")
			return
		}
		output.Row(w, "ID", "TOPIC", "KEY", "TYPE", "ATTEMPTS", "DIED", "ERROR")
		for _, r := range answers {
			output.Row(w, output.Visible(r.ID, ""), output.Visible(r.Topic, ""), output.Visible(r.Key, ""), output.Visible(r.Type, ""), r.Attempts, output.Stamp(r.Died), output.Visible(r.Error, ""))
		}
		if len(answers) == limit {
			output.Row(w)
			output.Row(w, "there may be more: --after "+answers[len(answers)-1].ID)
		}
	})
}

func answerOfLetter(l *inbox.DeadLetter, payload bool) letterAnswer {
	m := &l.Message
	return letterAnswer{
		ID: m.ID, Topic: m.Topic, Key: m.Key, Type: m.Type, Version: m.Version, Origin: l.Origin,
		Attempts: l.Attempts, Error: l.Cause, Died: l.DiedAt, bodyAnswer: bodyOf(m, payload),
	}
}

func letterText(w *tabwriter.Writer, l *letterAnswer) {
	for _, c := range [][2]string{
		{"id", l.ID},
		{"topic", l.Topic},
		{"key", l.Key},
		{"type", l.Type},
		{"version", strconv.FormatInt(l.Version, 10)},
		{"origin", l.Origin},
		{"attempts", strconv.Itoa(l.Attempts)},
		{"error", l.Error},
		{"died", output.Stamp(l.Died)},
		{"payload bytes", strconv.Itoa(l.PayloadBytes)},
	} {
		output.Row(w, c[0], output.Visible(c[1], ""))
	}
	l.text(w)
}

func (a *app) consumerShow(cmd *cobra.Command, id string, payload bool) error {
	m, err := a.openInbox()
	if err != nil {
		return err
	}
	defer m.close()
	var found *inbox.DeadLetter
	err = m.each(cmd.Context(), func(l *inbox.DeadLetter) bool { return l.Message.ID == id }, func(l *inbox.DeadLetter) error {
		found = l
		return nil
	})
	if err != nil {
		return err
	}
	if found == nil {
		return fmt.Errorf("consumer %s has no dead letter %s: see `postrider dead list --consumer %s`", a.consumer, id, a.consumer)
	}
	answer := answerOfLetter(found, payload)
	return a.print(answer, func(w *tabwriter.Writer) { letterText(w, &answer) })
}

// each calls fn for the dead letters that match.
func (m *mailbox) each(ctx context.Context, match func(*inbox.DeadLetter) bool, fn func(*inbox.DeadLetter) error) error {
	const page = 200
	for after := ""; ; {
		letters, err := m.letters(ctx, after, page)
		if err != nil {
			return err
		}
		for i := range letters {
			after = letters[i].Message.ID
			if !match(&letters[i]) {
				continue
			}
			if err := fn(&letters[i]); err != nil {
				return err
			}
		}
		if len(letters) < page {
			return nil
		}
	}
}

// letterResult is what became of one dead letter.
type letterResult struct {
	ID     string `json:"id"`
	Result string `json:"result"`
}

// consumerAct retries or discards dead letters, by their ids or by a filter.
func (a *app) consumerAct(cmd *cobra.Command, kind store.ActKind, f *orderFlags, ids []string) error {
	for _, name := range []string{"lane", "since", "until", "class", "code", "error", "set-topic", "set-header", "unset-header", "wait", "rate"} {
		if cmd.Flags().Changed(name) {
			return exit.Usagef("--%s does not go with --consumer: name ids, or use --topic, --key, --type or --all", name)
		}
	}
	q := f.order.Match
	ids = append(ids, q.IDs...)
	filtered := q.All || q.Topic != "" || q.Key != "" || q.Type != ""
	switch {
	case len(ids) == 0 && !filtered:
		return exit.Usagef("give the ids of the messages (`postrider dead list --consumer %s`), or --topic, --key, --type or --all", a.consumer)
	case kind == store.ActDiscard && strings.TrimSpace(f.order.Reason) == "" && !f.dryRun:
		return exit.Usagef("give --reason: the log keeps why")
	}
	m, err := a.openInbox()
	if err != nil {
		return err
	}
	defer m.close()
	acts := !f.dryRun && (f.yes || !filtered)
	results := []letterResult{}
	match := func(l *inbox.DeadLetter) bool {
		return (len(ids) == 0 || slices.Contains(ids, l.Message.ID)) && (q.Topic == "" || q.Topic == l.Message.Topic) &&
			(q.Key == "" || q.Key == l.Message.Key) && (q.Type == "" || q.Type == l.Message.Type)
	}
	err = m.each(cmd.Context(), match, func(l *inbox.DeadLetter) error {
		result, err := "found", error(nil)
		if acts {
			result, err = m.act(cmd.Context(), kind, l, a.actor(), cmp.Or(strings.TrimSpace(f.order.Reason), "none given"))
		}
		results = append(results, letterResult{l.Message.ID, result})
		return err
	})
	if acts && len(results) > 0 {
		a.logger().InfoContext(cmd.Context(), "dead letters changed", "act", string(kind), "consumer", a.consumer, "messages", len(results), "actor", a.actor(), "reason", f.order.Reason)
	}
	return errors.Join(err, a.printLetters(results, acts, ids))
}

// act does it to one dead letter, with an entry in the consumer's journal.
func (m *mailbox) act(ctx context.Context, kind store.ActKind, l *inbox.DeadLetter, actor, reason string) (string, error) {
	err := m.inboxes.Decide(ctx, m.Consumer(), kind, l, actor, reason)
	var commit *admin.CommitError
	switch {
	case err == nil:
		return "done", nil
	case errors.Is(err, inbox.ErrNotDead): // somebody else was faster
		return "not found", nil
	case errors.As(err, &commit):
		return "unknown", fmt.Errorf("message %s: %w", l.Message.ID, err)
	}
	return "failed", err
}

func (a *app) printLetters(results []letterResult, acted bool, ids []string) error {
	err := a.print(results, func(w *tabwriter.Writer) {
		for _, r := range results {
			output.Row(w, r.ID, r.Result)
		}
		switch {
		case len(results) == 0:
			output.Row(w, "none")
		case !acted:
			output.Row(w)
			output.Row(w, fmt.Sprintf("%d dead letters; nothing was done: --yes does it", len(results)))
		}
	})
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !slices.ContainsFunc(results, func(r letterResult) bool { return r.ID == id }) {
			return fmt.Errorf("consumer %s has no dead letter %s: see `postrider dead list --consumer %s`", a.consumer, id, a.consumer)
		}
	}
	return nil
}
