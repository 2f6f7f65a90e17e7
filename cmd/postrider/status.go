package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/store"
)

func (a *app) statusCommand() *cobra.Command {
	var (
		watch, lanes bool
		every        time.Duration
		failIfLag    time.Duration
		consumer     string
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show lag, backlog, dead letters, relays and lanes",
		Long: "Read the database; no relay has to run. The lag is the age of the oldest message that is\nneither sent nor dead. Failed and waiting messages count, scheduled ones from their time on.\nWith --fail-if-lag the command exits with code 3 when the lag is above that limit.\n\n" +
			"With --consumer NAME, or all, the command shows the inbox of that consumer. --store names\n" +
			"the consumer's database; no consumer has to run.",
		Example: "  postrider status --store sqlite:shop.db --watch\n" +
			"  postrider status --fail-if-lag 60s --output json\n" +
			"  postrider status --store postgres://db2/billing --consumer all",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every <= 0 {
				return exit.Usagef("every is %s: it must be above zero", every)
			}
			if err := alone(cmd, "watch", "every"); err != nil {
				return err
			}
			if consumer != "" {
				if watch || lanes || failIfLag > 0 {
					return exit.Usagef("--watch, --lanes and --fail-if-lag do not go with --consumer")
				}
				return a.consumerStatus(cmd.Context(), consumer)
			}
			looks, done, err := a.looks()
			if err != nil {
				return err
			}
			defer done()
			look := func() error { return a.lookAll(cmd.Context(), looks, failIfLag, lanes) }
			if watch {
				return a.watch(cmd.Context(), every, look)
			}
			return look()
		},
	}
	fs := cmd.Flags()
	fs.BoolVarP(&watch, "watch", "w", false, "repeat until interrupted")
	fs.DurationVar(&every, "every", time.Second, "interval of --watch")
	fs.DurationVar(&failIfLag, "fail-if-lag", 0, "exit with code 3 when the lag is above this")
	fs.StringVar(&consumer, "consumer", "", "show the inbox of this consumer, or of all, instead of the outbox")
	fs.BoolVar(&lanes, "lanes", false, "print every lane that has had messages")
	return cmd
}

// look is a pipe of an outbox whose status is shown.
type look struct {
	*app
	st *open.Outbox
}

// looks opens the outbox or, with a file that lists relays, the outbox of each.
func (a *app) looks() (looks []look, done func(), err error) {
	done = func() {
		for _, l := range looks {
			l.st.Close()
		}
	}
	failed, _, err := a.each(true, func(one *app) error {
		st, err := open.Store(&one.set.Settings)
		if err == nil {
			looks = append(looks, look{one, st})
		}
		return err
	})
	if err = errors.Join(append(failed, err)...); err != nil {
		done()
		return nil, nil, err
	}
	return looks, done, nil
}

// lookAll prints each status once. A failure of one does not hold up the others.
func (a *app) lookAll(ctx context.Context, looks []look, failIfLag time.Duration, lanes bool) error {
	var failed []error
	for i, l := range looks {
		if i > 0 && a.set.output == "text" {
			fmt.Fprintln(a.out)
		}
		err := l.lookOnce(ctx, l.st, failIfLag, lanes)
		if err != nil && l.entry != "" {
			err = fmt.Errorf("relay %s: %w", l.entry, err)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

func (a *app) lookOnce(ctx context.Context, st *open.Outbox, failIfLag time.Duration, lanes bool) error {
	if err := open.Ready(ctx, st, a.schemaName()); err != nil {
		return err
	}
	status, err := st.Admin.Status(ctx)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	var blocks map[store.Lane]admin.Block
	if lanes || a.printer().Structured() {
		if blocks, err = admin.Blocks(ctx, st.Admin, &status); err != nil {
			return fmt.Errorf("status: %w", err)
		}
	}
	err = a.print(answer.StatusOf(status, blocks, a.entry), func(w *tabwriter.Writer) {
		a.heading(w)
		answer.StatusText(w, status, blocks, lanes)
	})
	if err != nil {
		return err
	}
	if failIfLag > 0 && status.Lag > failIfLag {
		return exit.Withf(exit.Lag, "lag is %s, above the %s of --fail-if-lag: run `postrider doctor --only relays,lanes,lag,parked`", output.Short(status.Lag), failIfLag)
	}
	return nil
}

// watch looks until ctx ends. An unreachable database is said once, and looked for again.
func (a *app) watch(ctx context.Context, every time.Duration, look func() error) error {
	log, down := a.logger(), false
	for {
		err := look()
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // interrupted: the error is the interruption's
		case err == nil:
			down = false
		case exit.Of(err) != exit.Failure && exit.Of(err) != exit.Unreachable:
			return err
		case !down:
			down = true
			log.WarnContext(ctx, "status failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
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

func (a *app) consumerStatus(ctx context.Context, name string) error {
	i, err := open.Inboxes(&a.set.Settings)
	if err != nil {
		return err
	}
	defer i.Close()
	all, err := i.Status(ctx, consumersOf(name)...)
	if unknown := (*admin.UnknownConsumerError)(nil); errors.As(err, &unknown) {
		return exit.Usagef("%v", unknown)
	}
	if err != nil {
		return fmt.Errorf("status: %w; if the inbox's tables are missing, the consumer creates them with Inbox.Migrate", err)
	}
	return a.print(answer.ConsumersOf(all), func(w *tabwriter.Writer) { answer.ConsumersText(w, all) })
}
