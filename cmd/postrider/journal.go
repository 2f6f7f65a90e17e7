package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// entryAnswer is one entry of the journal in JSON. Numbers that may exceed what a
// JavaScript number holds are strings.
type entryAnswer struct {
	ID     string          `json:"id"`
	At     time.Time       `json:"at"`
	Actor  string          `json:"actor"`
	Act    string          `json:"act"`
	Pipe   string          `json:"pipe,omitempty"`
	Lane   *store.Lane     `json:"lane,omitempty"`
	Seq    string          `json:"seq,omitempty"`
	Key    string          `json:"key,omitempty"`
	Target json.RawMessage `json:"target,omitempty"`
	Reason string          `json:"reason"`
	Result string          `json:"result"`
	Count  *int64          `json:"count,omitempty"`
	Ask    string          `json:"ask,omitempty"`
}

func (a *app) journalCommand() *cobra.Command {
	var (
		q     ops.JournalQuery
		since time.Duration
		name  string
	)
	cmd := &cobra.Command{
		Use: "journal", Short: "List what people did: who, when, what, why",
		Long: "List the acts of people on this outbox, the newest first. An act that a relay carries out\n" +
			"has an entry when it is asked for and one for each lane in which it was carried out.",
		Example: "  postrider journal --since 24h\n  postrider journal --act discard --actor ann --output json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.Limit < 1 || q.Limit > 10_000 {
				return exit.Usagef("limit is %d: use 1 to 10000", q.Limit)
			}
			if name != "" {
				return a.consumerJournal(cmd, name, q.Before, q.Limit)
			}
			if since > 0 {
				q.Since = time.Now().Add(-since)
			}
			st, err := a.openReady(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			if err := st.Need(ops.CanJournal); err != nil {
				return err
			}
			entries, err := st.Journal.Entries(cmd.Context(), q)
			if err != nil {
				return fmt.Errorf("journal: %w", err)
			}
			answers := make([]entryAnswer, 0, len(entries))
			for _, e := range entries {
				answers = append(answers, entryOf(e))
			}
			return a.print(answers, func(w *tabwriter.Writer) { journalText(w, answers, q.Limit) })
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&name, "consumer", "", "acts on this consumer instead, in its own database: --store names that one")
	fs.Int64Var(&q.ID, "id", 0, "only this entry, and what was done because of it")
	fs.StringVar(&q.Actor, "by", "", "only acts of this person")
	fs.StringVar(&q.Act, "act", "", "only this act: retry, discard, skip, replay, pause, resume ...")
	fs.StringVar(&q.Key, "key", "", "only acts on this key")
	fs.DurationVar(&since, "since", 0, "only what is not older than this")
	fs.Int64Var(&q.Before, "before", 0, "only entries before this one: the next page")
	fs.IntVar(&q.Limit, "limit", 100, "at most so many")
	return cmd
}

func (a *app) consumerJournal(cmd *cobra.Command, name string, before int64, limit int) error {
	for _, other := range []string{"id", "by", "act", "key", "since"} {
		if cmd.Flags().Changed(other) {
			return exit.Usagef("--%s does not go with --consumer", other)
		}
	}
	i, done, err := a.openInboxes()
	if err != nil {
		return err
	}
	defer done()
	acts, err := i.Acts(cmd.Context(), name, before, limit)
	if err != nil {
		return noTables(err)
	}
	answers := make([]actAnswer, 0, len(acts))
	for _, e := range acts {
		answers = append(answers, actAnswer{strconv.FormatInt(e.ID, 10), e.At, e.Actor, e.Act, e.Topic, e.Key, e.MessageID, e.Was, e.Now, e.Reason})
	}
	return a.print(answers, func(w *tabwriter.Writer) {
		if len(answers) == 0 {
			output.Row(w, "none")
			return
		}
		output.Row(w, "ID", "AT", "WHO", "ACT", "TOPIC", "KEY", "MESSAGE", "WAS", "NOW", "WHY")
		for _, e := range answers {
			output.Row(w, e.ID, output.Stamp(e.At), output.Visible(e.Actor, ""), e.Act, output.Visible(e.Topic, ""), output.Visible(e.Key, ""), output.Visible(e.Message, ""), e.Was, e.Now, output.Visible(e.Reason, ""))
		}
		if len(answers) == limit {
			output.Row(w)
			output.Row(w, "there may be more: --before "+answers[len(answers)-1].ID)
		}
	})
}

// actAnswer is an entry of a consumer's journal in JSON.
type actAnswer struct {
	ID      string    `json:"id"`
	At      time.Time `json:"at"`
	Actor   string    `json:"actor"`
	Act     string    `json:"act"`
	Topic   string    `json:"topic"`
	Key     string    `json:"key"`
	Message string    `json:"message_id,omitempty"`
	Was     int64     `json:"was"`
	Now     int64     `json:"now"`
	Reason  string    `json:"reason"`
}

func entryOf(e ops.JournalEntry) entryAnswer {
	answer := entryAnswer{
		ID: strconv.FormatInt(e.ID, 10), At: e.At, Actor: e.Actor, Act: e.Act, Pipe: e.Pipe, Lane: e.Lane, Key: e.Key,
		Target: e.Target, Reason: e.Reason, Result: e.Result, Count: e.Count,
	}
	if e.Seq != 0 {
		answer.Seq = strconv.FormatInt(e.Seq, 10)
	}
	if e.Ask != 0 {
		answer.Ask = strconv.FormatInt(e.Ask, 10)
	}
	return answer
}

func journalText(w *tabwriter.Writer, answers []entryAnswer, limit int) {
	if len(answers) == 0 {
		output.Row(w, "none")
		return
	}
	output.Row(w, "ID", "AT", "WHO", "ACT", "PIPE", "LANE", "SEQ", "KEY", "RESULT", "COUNT", "ASKED BY", "WHY", "TARGET")
	for _, e := range answers {
		lane, count := "", ""
		if e.Lane != nil {
			lane = strconv.Itoa(int(*e.Lane))
		}
		if e.Count != nil {
			count = strconv.FormatInt(*e.Count, 10)
		}
		output.Row(w, e.ID, output.Stamp(e.At), output.Visible(e.Actor, ""), e.Act, output.Visible(e.Pipe, ""), lane, e.Seq, output.Visible(e.Key, ""), e.Result, count,
			e.Ask, output.Visible(e.Reason, ""), output.Visible(string(e.Target), ""))
	}
	if len(answers) == limit {
		output.Row(w)
		output.Row(w, "there may be more: --before "+answers[len(answers)-1].ID)
	}
}
