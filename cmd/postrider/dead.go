package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/choose"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/letters"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/causes"
	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func (a *app) deadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "dead", Short: "List, show, retry or discard dead letters",
		Long: "A dead letter is a message that was given up. With a key, and under the policy block,\n" +
			"its key waits until a person retries or discards it. Payloads are shown only with --payload.\n" +
			"With --consumer NAME it is about messages that a consumer gave up, in its own database: --store\n" +
			"names that one, and messages are named by their id.",
		Example: "  postrider dead list --all\n  postrider dead list --consumer billing --all --store postgres://db2/billing",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&a.consumer, "consumer", "", "dead letters of this consumer instead of the relay's")
	cmd.AddCommand(a.deadList(), a.deadShow(), a.deadAct(store.ActRetry, "retry", "Send dead letters again, with the same id"),
		a.deadAct(store.ActDiscard, "discard", "Discard dead letters permanently and release their keys"))
	return cmd
}

func (a *app) deadList() *cobra.Command {
	var (
		q     ops.ParkedQuery
		all   bool
		group bool
		after string
	)
	cmd := &cobra.Command{
		Use: "list", Short: "List dead letters by number", Args: noArgs,
		Long: "List dead letters by number. With --group: by cause, the most frequent first. A cause is a code, a\n" +
			"topic, a type and an error without what differs from message to message. The first letters of the\n" +
			"list are grouped, at most --limit; when there may be more, the last line has the flags for them.\n" +
			"Each cause has the flags for `postrider dead retry` and `postrider dead discard`, which count what\n" +
			"the flags select before they act.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			most := 10_000
			if group {
				if err := exclude(cmd, "--group", "all"); err != nil {
					return err
				}
				most = groupMost
				if !cmd.Flags().Changed("limit") {
					q.Limit = groupFirst
				}
			}
			if q.Limit < 1 || q.Limit > most {
				return exit.Usagef("limit is %d: use 1 to %d", q.Limit, most)
			}
			if a.consumer != "" {
				if err := onlyWith(cmd, "--consumer", "all", "after", "limit"); err != nil {
					return err
				}
				if all {
					return a.consumerUnfinished(cmd, after, q.Limit)
				}
				return a.consumerDead(cmd, after, q.Limit)
			}
			var err error
			if q.AfterSeq, err = choose.After(after); err != nil {
				return err
			}
			st, err := a.openReady(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			q.State, q.Bare = store.Dead, true
			if group {
				return a.deadGroups(cmd, st, q)
			}
			if all {
				q.State = store.Pending // any
			}
			records, err := st.Admin.Parked(cmd.Context(), q)
			if err != nil {
				return fmt.Errorf("list: %w", err)
			}
			answers := answer.RecordsOf(records, time.Now())
			return a.print(answers, func(w *tabwriter.Writer) { answer.RecordsText(w, answers, q.Limit) })
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&group, "group", false, "count them by cause")
	fs.BoolVar(&all, "all", false, "every parked record: also scheduled, retry and waiting (with --consumer: retry and stashed)")
	fs.StringVar(&q.Topic, "topic", "", "only this topic")
	fs.StringVar(&q.Key, "key", "", "only this key")
	fs.StringVar(&q.ID, "id", "", "only this message id")
	fs.StringVar(&q.Code, "code", "", "only errors with this code")
	fs.StringVar(&after, "after", "", "only records behind this number (with --consumer: id): the next page")
	fs.IntVar(&q.Limit, "limit", 100, "at most so many; with --group the default is 5,000, and a million the most")
	return cmd
}

const (
	groupMost  = 1_000_000 // dead letters that one command groups when asked to
	groupFirst = 5_000     // and otherwise: a million take a minute
	groupPage  = 10_000
)

// deadGroups counts dead letters by cause, page by page.
func (a *app) deadGroups(cmd *cobra.Command, st *open.Outbox, q ops.ParkedQuery) error {
	var found causes.Groups
	looked, limit, bar := 0, q.Limit, a.bar("letters")
	for more := true; more; {
		q.Limit = min(groupPage, limit-looked)
		page, err := st.Admin.Parked(cmd.Context(), q)
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		found.Add(page)
		looked += len(page)
		if bar != nil {
			bar.Show(int64(looked), 0)
		}
		if more = len(page) == q.Limit && looked < limit; len(page) > 0 {
			q.AfterSeq = page[len(page)-1].Seq
		}
	}
	if bar != nil {
		bar.End()
	}
	pipe := cmp.Or(a.set.Pipe, store.DefaultPipe)
	groups, full := answer.CausesOf(found.Sorted(), &q, pipe), looked == limit
	if full && a.printer().Structured() {
		fmt.Fprintf(a.errOut, "postrider: the counts are of %d letters, and there may be more: --after %d, or a larger --limit\n", looked, q.AfterSeq)
	}
	return a.print(groups, func(w *tabwriter.Writer) { answer.CausesText(w, groups, pipe, full, q.AfterSeq) })
}

func (a *app) deadShow() *cobra.Command {
	var payload bool
	cmd := &cobra.Command{
		Use: "show SEQ", Short: "Show one dead letter", Args: choose.SeqArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.consumer != "" {
				return a.consumerShow(cmd, args[0], payload)
			}
			seqs, err := choose.Seqs(args)
			if err != nil {
				return err
			}
			st, err := a.openReady(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			r, err := admin.Find(cmd.Context(), st.Admin, seqs[0], payload)
			if err != nil {
				return notParked(seqs[0], err)
			}
			found := answer.RecordOf(r, payload, time.Now())
			return a.print(found, found.Text)
		},
	}
	cmd.Flags().BoolVar(&payload, "payload", false, "show the payload and the headers too")
	return cmd
}

func (a *app) deadAct(kind store.ActKind, use, short string) *cobra.Command {
	f := &choose.Order{Order: ops.Order{Kind: kind}}
	cmd := &cobra.Command{
		Use: use + " [SEQ...]", Short: short,
		Long: short + ". The act is a request that the relay which owns the\nlane executes; when no relay lives, this command takes the lane for a moment and does it.\n" +
			"Name records by number, or many by flags: they are counted first, and --yes does it.",
		Args: func(*cobra.Command, []string) error { return nil },
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.consumer != "" {
				return a.consumerAct(cmd, kind, f, args)
			}
			seqs, err := choose.Seqs(args)
			if err != nil {
				return err
			}
			if kind == store.ActDiscard && strings.TrimSpace(f.Order.Reason) == "" && !f.DryRun {
				return exit.Usagef("missing reason: give --reason for the journal")
			}
			switch {
			case f.Filtered(cmd.Flags()):
				f.Order.Match.Seqs = seqs
				return a.runOrder(cmd, f)
			case len(seqs) == 0:
				return exit.Usagef("give the number of the record (SEQ of `postrider dead list`), or flags that select records; see `%s --help`", cmd.CommandPath())
			case len(seqs) > maxSingles || f.DryRun || cmd.Flags().Changed("rate"):
				f.Order.Match.Seqs = seqs
				return a.runOrder(cmd, f)
			}
			return a.deadSingles(cmd, f, seqs)
		},
	}
	fs := cmd.Flags()
	f.MatchFlags(fs)
	f.ErrorFlags(fs)
	f.ActFlags(fs)
	if kind == store.ActRetry {
		fs.StringVar(&f.Order.Edit.Topic, "set-topic", "", "send to this topic instead")
		fs.StringArrayVar(&f.Set, "set-header", nil, "set this header before, NAME=VALUE; more than once for more")
		fs.StringArrayVar(&f.Unset, "unset-header", nil, "remove this header before; more than once for more")
	}
	return cmd
}

// exclude returns a usage error for the first given flag that has no effect
// beside what is named.
func exclude(cmd *cobra.Command, with string, flags ...string) error {
	for _, name := range flags {
		if cmd.Flags().Changed(name) {
			return exit.Usagef("--%s does not go with %s: leave one of them out", name, with)
		}
	}
	return nil
}

// onlyWith returns a usage error for the first given flag of the command's own that is not
// among those that have an effect beside what is named.
func onlyWith(cmd *cobra.Command, with string, flags ...string) error {
	var rest []string
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(flags, f.Name) {
			rest = append(rest, f.Name)
		}
	})
	return exclude(cmd, with, rest...)
}

// alone returns a usage error for the first given flag that has no effect without needed.
func alone(cmd *cobra.Command, needed string, flags ...string) error {
	if cmd.Flags().Changed(needed) {
		return nil
	}
	for _, name := range flags {
		if cmd.Flags().Changed(name) {
			return exit.Usagef("--%s has no effect without --%s: add it, or leave --%s out", name, needed, name)
		}
	}
	return nil
}

// maxSingles is how many records are acted on one by one; more are an order.
const maxSingles = 100

// deadSingles acts on records named by number, as they are.
func (a *app) deadSingles(cmd *cobra.Command, f *choose.Order, seqs []int64) error {
	st, err := a.openReady(cmd)
	if err != nil {
		return err
	}
	defer st.Close()
	acts := make([]store.Act, len(seqs))
	for i, seq := range seqs {
		acts[i] = store.Act{Kind: f.Order.Kind, Seq: seq, Actor: a.actor(), Reason: f.Order.Reason}
	}
	results, err := admin.Execute(cmd.Context(), st.Store, st.Admin, acts, &admin.Options{Wait: f.Wait, Logger: a.logger()})
	if err != nil {
		return fmt.Errorf("%s: %w", f.Order.Kind, err)
	}
	return a.printResults(cmd.Context(), st, string(f.Order.Kind), results)
}

// notParked says what to do about a number that names no parked record.
func notParked(seq int64, err error) error {
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("record %d: %w", seq, err)
	}
	return fmt.Errorf("record %d is not parked: see `postrider dead list`", seq)
}

func (a *app) printResults(ctx context.Context, st *open.Outbox, use string, results []admin.Result) error {
	err := a.print(results, func(w *tabwriter.Writer) {
		for _, r := range results {
			if r.Note != "" {
				output.Row(w, r.Seq, use, r.Result, r.Note)
				continue
			}
			output.Row(w, r.Seq, use, r.Result)
		}
		if use == "retry" && slices.ContainsFunc(results, func(r admin.Result) bool { return r.Result == ops.ResultDone }) && !relayLives(ctx, st) {
			output.Row(w)
			output.Row(w, "no relay lives: it is sent when one runs (`postrider relay`)")
		}
	})
	if err != nil {
		return err
	}
	for _, r := range results {
		switch r.Result {
		case admin.ResultNotFound:
			return notParked(r.Seq, nil)
		case admin.ResultQueued:
			return fmt.Errorf("record %d: the relay has not executed the request yet; it stays requested: see `postrider status`", r.Seq)
		}
	}
	return nil
}

// relayLives reports whether somebody will send what is due; when that cannot
// be told, it is assumed.
func relayLives(ctx context.Context, st *open.Outbox) bool {
	status, err := st.Admin.Status(ctx)
	return err != nil || slices.ContainsFunc(status.Instances, func(i ops.Instance) bool { return i.Alive })
}

func (a *app) consumerDead(cmd *cobra.Command, after string, limit int) error {
	m, err := letters.Open(&a.set.Settings, a.consumer)
	if err != nil {
		return err
	}
	defer m.Close()
	page, err := m.Page(cmd.Context(), after, limit)
	if err != nil {
		return err
	}
	answers := answer.LettersOf(page)
	return a.print(answers, func(w *tabwriter.Writer) { answer.LettersText(w, answers, limit) })
}

// consumerUnfinished lists also what the consumer tries again, and what waits in its stash.
func (a *app) consumerUnfinished(cmd *cobra.Command, after string, limit int) error {
	m, err := letters.Open(&a.set.Settings, a.consumer)
	if err != nil {
		return err
	}
	defer m.Close()
	page, err := m.Unfinished(cmd.Context(), a.consumer, after, limit)
	if err != nil {
		return noTables(err)
	}
	answers := answer.UnfinishedOf(page)
	return a.print(answers, func(w *tabwriter.Writer) { answer.UnfinishedText(w, answers, limit) })
}

func (a *app) consumerShow(cmd *cobra.Command, id string, payload bool) error {
	m, err := letters.Open(&a.set.Settings, a.consumer)
	if err != nil {
		return err
	}
	defer m.Close()
	var found *inbox.DeadLetter
	err = m.Each(cmd.Context(), func(l *inbox.DeadLetter) bool { return l.Message.ID == id }, func(l *inbox.DeadLetter) error {
		found = l
		return nil
	})
	if err != nil {
		return err
	}
	if found == nil {
		return fmt.Errorf("consumer %s has no dead letter %s: see `postrider dead list --consumer %s`", a.consumer, id, a.consumer)
	}
	letter := answer.LetterOf(found, payload)
	return a.print(letter, letter.Text)
}

// letterResult is what became of one dead letter.
type letterResult struct {
	ID     string `json:"id"`
	Result string `json:"result"`
}

// consumerAct retries or discards dead letters, by their ids or by a filter.
func (a *app) consumerAct(cmd *cobra.Command, kind store.ActKind, f *choose.Order, ids []string) error {
	if err := onlyWith(cmd, "--consumer", "id", "topic", "key", "type", "all", "dry-run", "yes", "reason"); err != nil {
		return err
	}
	q := f.Order.Match
	ids = append(ids, q.IDs...)
	filtered := q.All || q.Topic != "" || q.Key != "" || q.Type != ""
	switch {
	case len(ids) == 0 && !filtered:
		return exit.Usagef("give the ids of the messages (`postrider dead list --consumer %s`), or --topic, --key, --type or --all", a.consumer)
	case kind == store.ActDiscard && strings.TrimSpace(f.Order.Reason) == "" && !f.DryRun:
		return exit.Usagef("missing reason: give --reason for the log")
	}
	m, err := letters.Open(&a.set.Settings, a.consumer)
	if err != nil {
		return err
	}
	defer m.Close()
	acts := !f.DryRun && (f.Yes || !filtered)
	results := []letterResult{}
	match := func(l *inbox.DeadLetter) bool {
		return (len(ids) == 0 || slices.Contains(ids, l.Message.ID)) && (q.Topic == "" || q.Topic == l.Message.Topic) &&
			(q.Key == "" || q.Key == l.Message.Key) && (q.Type == "" || q.Type == l.Message.Type)
	}
	err = m.Each(cmd.Context(), match, func(l *inbox.DeadLetter) error {
		result, err := "found", error(nil)
		if acts {
			result, err = m.Act(cmd.Context(), kind, l, a.actor(), cmp.Or(strings.TrimSpace(f.Order.Reason), "none given"))
		}
		results = append(results, letterResult{l.Message.ID, result})
		return err
	})
	if acts && len(results) > 0 {
		a.logger().InfoContext(cmd.Context(), "dead letters changed", "act", string(kind), "consumer", a.consumer, "messages", len(results), "actor", a.actor(), "reason", f.Order.Reason)
	}
	return errors.Join(err, a.printLetters(results, acts, ids))
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
			output.Row(w, plural.Of(len(results), "dead letter")+"; nothing was done: --yes does it")
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
