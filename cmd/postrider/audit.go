package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// booksAnswer is what `audit --output json` prints: one object per look.
type booksAnswer struct {
	Time       time.Time     `json:"time"`
	Difference int64         `json:"difference"`
	Full       bool          `json:"full"`
	Opened     bool          `json:"opened"`
	Counted    int64         `json:"rows_counted"`
	Pipes      []bookAnswer  `json:"pipes"`
	Lanes      []bookAnswer  `json:"lanes,omitempty"` // those that differ
	Missing    []ops.LaneGap `json:"missing,omitempty"`
}

type bookAnswer struct {
	Pipe       string      `json:"pipe"`
	Lane       *store.Lane `json:"lane,omitempty"`
	Committed  int64       `json:"committed"`
	Sent       int64       `json:"sent"`
	Parked     int64       `json:"parked"`
	Discarded  int64       `json:"discarded"`
	Replayed   int64       `json:"replayed"`
	Pending    int64       `json:"pending"`
	Behind     bool        `json:"pending_is_lower_bound,omitempty"`
	Difference int64       `json:"difference"`
	After      int64       `json:"window_after,string,omitempty"`
	To         int64       `json:"window_to,string,omitempty"`
	IDs        []string    `json:"candidate_ids,omitempty"`
	Unused     []int64     `json:"candidate_numbers,omitempty"`
}

func (a *app) auditCommand() *cobra.Command {
	var (
		req    ops.AuditRequest
		every  time.Duration
		reason string
	)
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Compare what was committed with what became of it",
		Long: "Two books are kept apart: rows, counted once when they become visible, and the pipes' own\n" +
			"counters. For every lane of every pipe\n\n" +
			"    committed = sent + parked + discarded - replayed + pending\n\n" +
			"holds at each look. A difference is named with its lane, the numbers between which it arose\n" +
			"and candidates, and exits with code 6. A look counts what is new; --full counts all rows\n" +
			"and finds those that were removed by hand after they had been sent. A relay looks by\n" +
			"itself (--audit-every) and counts in full once a day.",
		Example: "  postrider audit\n  postrider audit --full --output json\n  postrider audit --every 1m",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if req.Reopen && reason == "" {
				return exit.Usagef("missing reason: give --reason for the journal, since --reopen forgets differences")
			}
			st, k, err := a.openKeeper(cmd, nil)
			if err != nil {
				return err
			}
			defer st.Close()
			req.Actor, req.Reason = a.actor(), reason
			return a.audit(cmd.Context(), k, req, every)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.BoolVar(&req.Full, "full", false, "count every row")
	fs.DurationVar(&every, "every", 0, "look again and again until interrupted")
	fs.BoolVar(&req.Reopen, "reopen", false, "accept the present state: forget differences and begin new books")
	fs.StringVar(&reason, "reason", "", "why, with --reopen")
	return cmd
}

func (a *app) audit(ctx context.Context, k *admin.Keeper, req ops.AuditRequest, every time.Duration) error {
	for {
		b, err := k.Look(ctx, req)
		if err == nil {
			err = a.printBooks(b)
		}
		if every <= 0 {
			return err
		}
		if err != nil && ctx.Err() == nil {
			a.logger().ErrorContext(ctx, "audit", "error", err)
		}
		req.Reopen = false
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

func (a *app) printBooks(b ops.Books) error {
	answer := booksAnswer{Time: b.At, Difference: b.Difference(), Full: b.Full, Opened: b.Opened, Counted: b.Counted, Missing: b.Missing, Pipes: []bookAnswer{}}
	for _, l := range b.Lanes {
		one := bookAnswer{
			l.Pipe, &l.Lane, l.Committed, l.Sent, l.Parked, l.Gone, l.Again, l.Pending, l.Behind, l.Difference, l.From, l.To, l.IDs, l.Unused,
		}
		if l.Difference != 0 {
			answer.Lanes = append(answer.Lanes, one)
		}
		n := len(answer.Pipes)
		if n == 0 || answer.Pipes[n-1].Pipe != l.Pipe {
			answer.Pipes = append(answer.Pipes, bookAnswer{Pipe: l.Pipe})
			n++
		}
		answer.Pipes[n-1].add(&one)
	}
	err := a.print(answer, answer.text)
	if err == nil && answer.Difference != 0 {
		err = exit.Withf(exit.Findings, "the books differ by %d messages", answer.Difference)
	}
	return err
}

func (b *bookAnswer) add(l *bookAnswer) {
	b.Committed += l.Committed
	b.Sent += l.Sent
	b.Parked += l.Parked
	b.Discarded += l.Discarded
	b.Replayed += l.Replayed
	b.Pending += l.Pending
	b.Behind = b.Behind || l.Behind
	b.Difference += l.Difference
}

func (b *booksAnswer) text(w *tabwriter.Writer) {
	output.Row(w, "PIPE", "COMMITTED", "SENT", "PARKED", "DISCARDED", "REPLAYED", "PENDING", "DIFFERENCE")
	for _, p := range b.Pipes {
		pending := fmt.Sprint(p.Pending)
		if p.Behind {
			pending += " or more"
		}
		output.Row(w, output.Visible(p.Pipe, ""), p.Committed, p.Sent, p.Parked, p.Discarded, p.Replayed, pending, p.Difference)
	}
	for _, l := range b.Lanes {
		output.Row(w)
		output.Row(w, fmt.Sprintf("lane %d of pipe %s: %s", *l.Lane, output.Visible(l.Pipe, ""), excess(l.Difference)))
		output.Row(w, fmt.Sprintf("  between the numbers %d and %d", l.After+1, l.To))
		output.Row(w, "  messages there: "+strings.Join(l.IDs, " "))
		output.Row(w, "  numbers without a row: "+numbers(l.Unused))
	}
	for _, g := range b.Missing {
		output.Row(w)
		output.Row(w, fmt.Sprintf("lane %d: %d rows are gone that retention did not remove", g.Lane, g.Rows))
		output.Row(w, "  numbers without a row: "+numbers(g.Unused))
	}
}

// excess says which book has more.
func excess(n int64) string {
	if n > 0 {
		return fmt.Sprintf("%d committed messages are neither sent nor parked nor pending", n)
	}
	return fmt.Sprintf("%d more were sent than committed", -n)
}

// numbers lists those that nobody used: rolled back, or removed.
func numbers(unused []int64) string {
	if len(unused) == 0 {
		return "none"
	}
	text := make([]string, len(unused))
	for i, n := range unused {
		text[i] = fmt.Sprint(n)
	}
	return strings.Join(text, " ")
}
