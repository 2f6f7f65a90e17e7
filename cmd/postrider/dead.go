package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// recordAnswer is one parked record in JSON. Seq is a string: it may exceed
// what a JavaScript number holds.
type recordAnswer struct {
	Seq         string    `json:"seq"`
	Lane        int       `json:"lane"`
	State       string    `json:"state"`
	BlocksKey   bool      `json:"blocks_key"`
	ID          string    `json:"id"`
	Topic       string    `json:"topic"`
	Key         string    `json:"key"`
	Type        string    `json:"type"`
	Attempts    int       `json:"attempts"`
	Generation  int       `json:"generation"`
	Class       string    `json:"class"`
	Code        string    `json:"code"`
	Error       string    `json:"error"`
	FirstFailed time.Time `json:"first_failed,omitzero"`
	LastAttempt time.Time `json:"last_attempt,omitzero"`
	bodyAnswer
}

// bodyAnswer is a message's body; only its size where it is not asked for.
type bodyAnswer struct {
	PayloadBytes  int               `json:"payload_bytes"`
	Payload       *string           `json:"payload,omitempty"`
	PayloadBase64 *string           `json:"payload_base64,omitempty"`
	ContentType   string            `json:"content_type,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
}

func (a *app) deadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "dead", Short: "List, show, retry or discard dead letters",
		Long: "A dead letter is a message that was given up. With a key, and under the policy block,\n" +
			"its key waits until somebody retries or discards it. Payloads are shown only with --payload.\n" +
			"With --consumer NAME it is about messages that a consumer gave up, in its own database: --store\n" +
			"names that one, and messages are named by their id.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&a.consumer, "consumer", "", "dead letters of this consumer instead of the relay's")
	cmd.AddCommand(a.deadList(), a.deadShow(), a.deadAct(store.ActRetry, "retry", "Send dead letters again, with the same id"),
		a.deadAct(store.ActDiscard, "discard", "Remove dead letters for ever and free their keys"))
	return cmd
}

func (a *app) deadList() *cobra.Command {
	var (
		q     ops.ParkedQuery
		all   bool
		after string
	)
	cmd := &cobra.Command{
		Use: "list", Short: "List dead letters by number", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.Limit < 1 || q.Limit > 10_000 {
				return exit.Usagef("limit is %d: use 1 to 10000", q.Limit)
			}
			if a.consumer != "" {
				return a.consumerDead(cmd, after, q.Limit)
			}
			var err error
			if q.AfterSeq, err = parseAfter(after); err != nil {
				return err
			}
			st, err := a.openReady(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			q.State = store.Dead
			if all {
				q.State = store.Pending // any
			}
			records, err := st.Admin.Parked(cmd.Context(), q)
			if err != nil {
				return fmt.Errorf("list: %w", err)
			}
			answers := make([]recordAnswer, 0, len(records))
			for _, r := range records {
				answers = append(answers, answerOf(r, false))
			}
			return a.print(answers, func(w *tabwriter.Writer) { listText(w, answers, q.Limit) })
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&all, "all", false, "every parked record: also scheduled, retry and waiting")
	fs.StringVar(&q.Topic, "topic", "", "only this topic")
	fs.StringVar(&q.Key, "key", "", "only this key")
	fs.StringVar(&q.ID, "id", "", "only this message id")
	fs.StringVar(&after, "after", "", "only records behind this number (with --consumer: id): the next page")
	fs.IntVar(&q.Limit, "limit", 100, "at most so many")
	return cmd
}

func (a *app) deadShow() *cobra.Command {
	var payload bool
	cmd := &cobra.Command{
		Use: "show SEQ", Short: "Show one dead letter", Args: seqArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.consumer != "" {
				return a.consumerShow(cmd, args[0], payload)
			}
			seqs, err := parseSeqs(args)
			if err != nil {
				return err
			}
			st, err := a.openReady(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			r, err := admin.Find(cmd.Context(), st.Admin, seqs[0])
			if err != nil {
				return notParked(seqs[0], err)
			}
			answer := answerOf(r, payload)
			return a.print(answer, func(w *tabwriter.Writer) { showText(w, answer) })
		},
	}
	cmd.Flags().BoolVar(&payload, "payload", false, "show the payload and the headers too")
	return cmd
}

func (a *app) deadAct(kind store.ActKind, use, short string) *cobra.Command {
	f := &orderFlags{order: ops.Order{Kind: kind}}
	cmd := &cobra.Command{
		Use: use + " [SEQ...]", Short: short,
		Long: short + ". The act is a request that the relay which owns the\nlane executes; when no relay lives, this command takes the lane for a moment and does it.\n" +
			"Name records by number, or many by flags: they are counted first, and --yes does it.",
		Args: func(*cobra.Command, []string) error { return nil },
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.consumer != "" {
				return a.consumerAct(cmd, kind, f, args)
			}
			seqs, err := parseSeqs(args)
			if err != nil {
				return err
			}
			if kind == store.ActDiscard && strings.TrimSpace(f.order.Reason) == "" && !f.dryRun {
				return exit.Usagef("give --reason: the journal keeps why")
			}
			switch {
			case f.filtered(cmd.Flags()):
				f.order.Match.Seqs = seqs
				return a.runOrder(cmd, f)
			case len(seqs) == 0:
				return exit.Usagef("give the number of the record (SEQ of `postrider dead list`), or flags that select records; see `%s --help`", cmd.CommandPath())
			case len(seqs) > maxSingles || f.dryRun:
				f.order.Match.Seqs = seqs
				return a.runOrder(cmd, f)
			}
			return a.deadSingles(cmd, f, seqs)
		},
	}
	fs := cmd.Flags()
	f.match(fs)
	f.errors(fs)
	f.act(fs)
	if kind == store.ActRetry {
		fs.StringVar(&f.order.Edit.Topic, "set-topic", "", "send to this topic instead")
		fs.StringArrayVar(&f.set, "set-header", nil, "set this header before, NAME=VALUE; more than once for more")
		fs.StringArrayVar(&f.unset, "unset-header", nil, "remove this header before; more than once for more")
	}
	return cmd
}

// maxSingles is how many records are acted on one by one; more are an order.
const maxSingles = 100

// deadSingles acts on records named by number, as they are.
func (a *app) deadSingles(cmd *cobra.Command, f *orderFlags, seqs []int64) error {
	st, err := a.openReady(cmd)
	if err != nil {
		return err
	}
	defer st.Close()
	acts := make([]store.Act, len(seqs))
	for i, seq := range seqs {
		acts[i] = store.Act{Kind: f.order.Kind, Seq: seq, Actor: a.actor(), Reason: f.order.Reason}
	}
	results, err := admin.Execute(cmd.Context(), st.Store, st.Admin, acts, &admin.Options{Wait: f.wait, Logger: a.logger()})
	if err != nil {
		return fmt.Errorf("%s: %w", f.order.Kind, err)
	}
	return a.printResults(cmd.Context(), st, string(f.order.Kind), results)
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

func (a *app) openReady(cmd *cobra.Command) (*open.Outbox, error) {
	st, err := a.openStore()
	if err != nil {
		return nil, err
	}
	if err := open.Ready(cmd.Context(), st, a.schemaName()); err != nil {
		st.Close()
		return nil, err
	}
	return st, nil
}

func answerOf(r ops.ParkedRecord, payload bool) recordAnswer {
	m := r.Message
	return recordAnswer{
		Seq: strconv.FormatInt(r.Seq, 10), Lane: int(r.Lane), State: r.State.String(), BlocksKey: r.Captures && m.Key != "",
		ID: m.ID, Topic: m.Topic, Key: m.Key, Type: m.Type, Attempts: r.Attempts, Generation: r.Generation,
		Class: r.Class, Code: r.Code, Error: r.Error, FirstFailed: r.FirstFailed, LastAttempt: r.LastAttempt,
		bodyAnswer: bodyOf(&m, payload),
	}
}

func bodyOf(m *postrider.Message, payload bool) bodyAnswer {
	answer := bodyAnswer{PayloadBytes: len(m.Payload)}
	if !payload {
		return answer
	}
	answer.ContentType, answer.Headers = m.ContentType, m.Headers
	if utf8.Valid(m.Payload) {
		text := string(m.Payload)
		answer.Payload = &text
	} else {
		text := base64.StdEncoding.EncodeToString(m.Payload)
		answer.PayloadBase64 = &text
	}
	return answer
}

func listText(w *tabwriter.Writer, answers []recordAnswer, limit int) {
	if len(answers) == 0 {
		output.Row(w, "none")
		return
	}
	output.Row(w, "SEQ", "STATE", "TOPIC", "KEY", "TYPE", "ATTEMPTS", "LAST ATTEMPT", "CLASS", "CODE", "ERROR")
	for _, r := range answers {
		output.Row(w, r.Seq, r.State, output.Visible(r.Topic, ""), output.Visible(r.Key, ""), output.Visible(r.Type, ""), r.Attempts, output.Stamp(r.LastAttempt),
			r.Class, output.Visible(r.Code, ""), output.Visible(r.Error, ""))
	}
	if len(answers) == limit {
		output.Row(w)
		output.Row(w, "there may be more: --after "+answers[len(answers)-1].Seq)
	}
}

func showText(w *tabwriter.Writer, r recordAnswer) {
	for _, c := range [][2]string{
		{"seq", r.Seq},
		{"state", r.State},
		{"lane", strconv.Itoa(r.Lane)},
		{"blocks its key", strconv.FormatBool(r.BlocksKey)},
		{"id", r.ID},
		{"topic", r.Topic},
		{"key", r.Key},
		{"type", r.Type},
		{"attempts", strconv.Itoa(r.Attempts)},
		{"generation", strconv.Itoa(r.Generation)},
		{"class", r.Class},
		{"code", r.Code},
		{"error", r.Error},
		{"first failed", output.Stamp(r.FirstFailed)},
		{"last attempt", output.Stamp(r.LastAttempt)},
		{"payload bytes", strconv.Itoa(r.PayloadBytes)},
	} {
		output.Row(w, c[0], output.Visible(c[1], ""))
	}
	r.text(w)
}

func (b *bodyAnswer) text(w *tabwriter.Writer) {
	for _, name := range slices.Sorted(maps.Keys(b.Headers)) {
		output.Row(w, "header "+output.Visible(name, ""), output.Visible(b.Headers[name], ""))
	}
	switch {
	case b.Payload != nil:
		output.Row(w, "payload", output.Visible(*b.Payload, ""))
	case b.PayloadBase64 != nil:
		output.Row(w, "payload (base64)", *b.PayloadBase64)
	}
}

// actor names who asks, for the journal.
func (a *app) actor() string {
	if a.set.actor != "" {
		return a.set.actor
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}

// seqArgs demands exact record numbers, or at least one when exact is 0.
func seqArgs(exact int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 || (exact > 0 && len(args) != exact) {
			return exit.Usagef("give the number of the record (SEQ of `postrider dead list`)")
		}
		return nil
	}
}

func parseAfter(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, exit.Usagef("after is %s: give the number of a record", redact.Word(text))
	}
	return n, nil
}

func parseSeqs(args []string) ([]int64, error) {
	seqs := make([]int64, len(args))
	for i, arg := range args {
		n, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || n < 1 {
			return nil, exit.Usagef("%s is no record number: give SEQ of `postrider dead list`", redact.Word(arg))
		}
		seqs[i] = n
	}
	return seqs, nil
}
