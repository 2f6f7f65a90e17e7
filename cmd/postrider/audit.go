package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store/ops"
)

func (a *app) auditCommand() *cobra.Command {
	var (
		req    ops.AuditRequest
		every  time.Duration
		reason string
	)
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Compare committed messages with sent, parked and pending ones",
		Long: "The outbox has two separate books: rows, counted when they become visible, and the pipes'\n" +
			"counters. For every lane of every pipe\n\n" +
			"    committed = sent + parked + discarded - replayed + pending\n\n" +
			"at each comparison. A difference is printed with its lane, the numbers between which it arose\n" +
			"and candidates; the exit code is 6. A comparison counts new rows only; --full counts all rows\n" +
			"and finds rows that were removed by hand after they had been sent. A relay compares\n" +
			"every --audit-every, and counts in full once a day.",
		Example: "  postrider audit\n  postrider audit --full --output json\n  postrider audit --every 1m",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if req.Reopen && reason == "" {
				return exit.Usagef("missing reason: give --reason for the journal, since --reopen forgets differences")
			}
			if err := alone(cmd, "reopen", "reason"); err != nil {
				return err
			}
			st, k, err := a.openKeeper(cmd, nil)
			if err != nil {
				return err
			}
			defer st.Close()
			if err := st.Need(ops.CanAudit); err != nil {
				return exit.With(exit.Usage, err)
			}
			req.Actor, req.Reason = a.actor(), reason
			return a.audit(cmd.Context(), k, req, every)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.BoolVar(&req.Full, "full", false, "count every row")
	fs.DurationVar(&every, "every", 0, "repeat at this interval until interrupted")
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
	books := answer.BooksOf(b)
	err := a.print(books, books.Text)
	if err == nil && books.Difference != 0 {
		err = exit.Withf(exit.Findings, "the books differ by %s", plural.Of(books.Difference, "message"))
	}
	return err
}
