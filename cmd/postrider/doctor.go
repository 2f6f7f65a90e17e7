package main

import (
	"context"
	"errors"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/store/ops"
)

type doctorFlags struct {
	failOn string
	all    bool
	// consumer limits the examination to the inbox of this consumer; "": the outbox and all consumers.
	consumer string
	req      ops.ExamineRequest
}

func (a *app) doctorCommand() *cobra.Command {
	var set doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Diagnose an outbox: find what is wrong or will be",
		Long: "Examine the database without changing it; no relay has to run. Each finding names its\n" +
			"consequence and its remedy; the worst comes first. A value ten times over its limit is\n" +
			"critical. The command exits with code 6 when a finding is at least as bad as --fail-on.\n\n" +
			"Without --pipe every pipe that is not paused is examined. With --broker the command also checks\n" +
			"that the broker answers and has the topics of the newest messages. Consumers whose inbox is in\n" +
			"the same database are examined too. With --consumer NAME, or all, only consumers are examined;\n" +
			"the database needs no outbox.",
		Example: "  postrider doctor --store postgres://admin@db1/shop --role shop_relay\n" +
			"  postrider doctor --fail-on warning --output json\n" +
			"  postrider doctor --store postgres://db2/billing --consumer all",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if set.consumer != "" {
				if err := exclude(cmd, "--consumer", "role", "max-transaction", "max-lag", "max-skew"); err != nil {
					return err
				}
			}
			return a.examine(cmd.Context(), &set)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&set.failOn, "fail-on", "critical", "least severity for exit code 6: warning, critical or never")
	fs.BoolVar(&set.all, "all", false, "print passed checks too")
	fs.StringVar(&set.consumer, "consumer", "", "examine only this consumer, or all consumers, and no outbox")
	fs.StringSliceVar(&set.req.Only, "only", nil, "make only these checks, and print passed ones too")
	fs.StringVar(&set.req.Role, "role", "", "the relay's role, whose privileges are judged (default: the role of --store)")
	fs.DurationVar(&set.req.Timeout, "timeout", 5*time.Second, "time limit of each check")
	fs.DurationVar(&set.req.Limits.Transaction, "max-transaction", 5*time.Minute, "age above which an open transaction is reported")
	fs.DurationVar(&set.req.Limits.Lag, "max-lag", time.Minute, "age above which the oldest pending message is reported")
	fs.DurationVar(&set.req.Limits.Skew, "max-skew", time.Second, "difference above which clocks are reported")
	return cmd
}

func (a *app) examine(ctx context.Context, set *doctorFlags) error {
	failOn := ops.Critical + 1
	if set.failOn != "never" {
		if err := failOn.UnmarshalText([]byte(set.failOn)); err != nil || failOn == ops.OK || failOn == ops.Skipped {
			return exit.Usagef("fail-on is %s: use warning, critical or never", redact.Word(set.failOn))
		}
	}
	st, err := a.openStore()
	if err != nil {
		return err
	}
	defer st.Close()
	if err := st.Need(ops.CanDiagnose); err != nil {
		return exit.With(exit.Usage, err)
	}
	if st.Exists != nil {
		if err := st.Exists(); err != nil {
			return err
		}
	}
	if _, _, err := open.Reach(ctx, st); err != nil && exit.Of(err) == exit.Unreachable {
		return err
	}
	if a.set.Pipe != "" {
		set.req.Pipes = []string{a.set.Pipe}
	}
	doctors := a.doctorsOf(st, set.consumer)
	if a.set.Broker != "" && set.consumer == "" {
		sink, err := open.Sink(&a.set.Settings)
		if err != nil {
			return err
		}
		defer sink.Close()
		destinations, err := a.set.Destinations(st)
		if err != nil {
			return err
		}
		doctors = append(doctors, admin.Destinations(sink.Sink, destinations))
	}
	found, err := admin.Examine(ctx, set.req, doctors...)
	if unknown := (*admin.UnknownConsumerError)(nil); errors.As(err, &unknown) {
		return exit.Usagef("%v", unknown)
	}
	if unknown := (*admin.UnknownCheckError)(nil); errors.As(err, &unknown) {
		return exit.Usagef("%v", unknown)
	}
	if err != nil {
		return err
	}
	if err := a.print(found, func(w *tabwriter.Writer) { answer.DiagnosisText(w, found, set.all || len(set.req.Only) > 0) }); err != nil {
		return err
	}
	if found.Worst >= failOn {
		return exit.Withf(exit.Findings, "findings: %d critical, %s", found.Critical, answer.Warnings(found.Warning))
	}
	return nil
}

// doctorsOf returns the doctors of the outbox and of the consumers beside it, or of consumers only.
func (a *app) doctorsOf(st *open.Outbox, consumer string) []ops.Doctor {
	i, ok := open.InboxesOf(st, &a.set.Settings)
	switch {
	case consumer != "":
		return []ops.Doctor{i.Doctor(consumersOf(consumer)...)}
	case ok:
		return []ops.Doctor{st.Doctor, i.Doctor()}
	}
	return []ops.Doctor{st.Doctor}
}
