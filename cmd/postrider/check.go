package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/claim"
	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/lines"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

func (a *app) checkCommand() *cobra.Command {
	var samples string
	var newest int
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Preview messages at the broker, and send nothing",
		Long: "Preview sample messages, in the form that enqueue reads, or the newest of the outbox: print\n" +
			"for each by which route it goes, where to, with which key, format and headers, and how many\n" +
			"bytes it has there. It exits with 1 when one would be refused: no route, a template without\n" +
			"a value, a format that cannot carry it, a limit of the broker. Without messages it checks\n" +
			"the routes alone, those of every relay where the file has several. Of what only the broker knows, it knows nothing.",
		Example: "  postrider check --samples samples.jsonl\n" +
			"  postrider check --newest 100 --relay billing --output json",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.check(cmd.Context(), samples, newest) },
	}
	cmd.Flags().StringVar(&samples, "samples", "", "file with one JSON object per line; - for stdin")
	cmd.Flags().IntVar(&newest, "newest", 0, "so many of the pipe's newest messages, at most 10000; fewer where their payloads take more than 64 MiB")
	a.set.relay.ClaimFlag(cmd.Flags())
	return cmd
}

// checkBytes bounds the payloads of the newest messages that are checked at once.
const checkBytes = 64 << 20

// refusedError says that messages would be rejected.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

func (a *app) check(ctx context.Context, samples string, newest int) error {
	if newest < 0 || newest > 10_000 || samples != "" && newest != 0 {
		return exit.Usagef("give --samples FILE, or --newest with 1 to 10000")
	}
	several := len(a.relays) > 0 && a.relayName == ""
	switch {
	case several && samples == "" && newest == 0:
		return a.checkRelays()
	case several && a.set.Broker == "":
		return exit.Usagef("the file has a list of relays: choose one with --relay")
	}
	sink, err := open.Sink(&a.set.Settings)
	if err != nil {
		return err
	}
	defer sink.Close()
	msgs, err := a.toCheck(ctx, samples, newest)
	if err != nil {
		return err
	}
	var claims *claim.Policy
	if above := int(a.set.relay.ClaimAbove); above > 0 {
		claims = &claim.Policy{Schema: a.schemaName(), Above: above}
	}
	found, err := admin.Check(sink.Sink, cmp.Or(a.set.Pipe, pgstore.DefaultPipe), msgs, claims)
	if err != nil {
		return err
	}
	refused := 0
	for _, c := range found {
		if c.Refused != "" {
			refused++
		}
	}
	if err := a.print(found, func(w *tabwriter.Writer) { answer.ChecksText(w, found, len(a.set.Routes)) }); err != nil {
		return err
	}
	if refused > 0 {
		return &refusedError{fmt.Sprintf("%d of %d messages would be refused", refused, len(found))}
	}
	return nil
}

// checkRelays checks the routes of every relay of the file.
func (a *app) checkRelays() error {
	entries, sets, err := a.unitSettings()
	if err != nil {
		return err
	}
	for i, set := range sets {
		sink, err := open.Sink(&set.Settings)
		if err != nil {
			return fmt.Errorf("%s: relay %s: %w", entries[i].Where, entries[i].Name, err)
		}
		sink.Close()
	}
	return a.print([]admin.Checked{}, func(w *tabwriter.Writer) {
		for i, set := range sets {
			output.Row(w, fmt.Sprintf("relay %s: %s", entries[i].Name, answer.RoutesInOrder(len(set.Routes))))
		}
		output.Row(w, "give --relay, and --samples or --newest, to try them")
	})
}

func (a *app) toCheck(ctx context.Context, samples string, newest int) ([]postrider.Message, error) {
	switch {
	case samples == "-":
		return a.samples(ctx, a.in)
	case samples != "":
		f, err := os.Open(samples)
		if err != nil {
			return nil, exit.Usagef("samples: %w", err)
		}
		defer f.Close()
		return a.samples(ctx, f)
	case newest == 0:
		return nil, nil
	}
	st, err := a.openStore()
	if err != nil {
		return nil, err
	}
	defer st.Close()
	if err := st.Need(ops.CanSample); err != nil {
		return nil, exit.Usagef("%w; use --samples", err)
	}
	if err := open.Ready(ctx, st, a.schemaName()); err != nil {
		return nil, err
	}
	return st.Samples.Newest(ctx, newest, checkBytes)
}

// samples reads messages as enqueue does.
func (a *app) samples(ctx context.Context, in io.Reader) ([]postrider.Message, error) {
	var all []postrider.Message
	r := &lines.Reader{Batch: 1, Write: func(_ context.Context, msgs []postrider.Message) error {
		for _, m := range msgs {
			m.Time = time.Now().UTC()
			all = append(all, m)
		}
		return nil
	}}
	if err := r.Run(ctx, in); err != nil {
		return nil, exit.Withf(exit.Usage, "samples: %w", err)
	}
	if len(all) == 0 {
		return nil, exit.With(exit.Usage, errors.New("samples: the file contains no message"))
	}
	return all, nil
}
