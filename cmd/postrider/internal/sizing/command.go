package sizing

import (
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/inbox"
)

// Command is `postrider size`. print writes an answer as --output wants it.
func Command(print func(answer any, text func(w *tabwriter.Writer)) error) *cobra.Command {
	var w Workload
	cmd := &cobra.Command{
		Use:   "size",
		Short: "Estimate disk, WAL and memory from a rate of messages",
		Long: "Estimate what an outbox and its consumers will take on PostgreSQL. No database is asked. Tests compare the\n" +
			"estimate with measured tables: docs/sizing.md has the formula and what it leaves out.\n\n" +
			"--bytes counts a payload as PostgreSQL stores it. A row above 2 kB is compressed: for an outbox that exists,\n" +
			"ask it for SELECT avg(pg_column_size(payload)) FROM postrider.outbox.",
		Example: "  postrider size --rate 200 --bytes 800\n  postrider size --rate 2000 --bytes 300 --retention 72h --consumers 3",
		Args:    unused,
		RunE: func(*cobra.Command, []string) error {
			if err := w.check(); err != nil {
				return err
			}
			e := w.Estimate()
			return print(e, func(t *tabwriter.Writer) { e.write(t, w) })
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.Float64Var(&w.Rate, "rate", 0, "messages per second, on average over the retention (required)")
	fs.Int64Var(&w.Bytes, "bytes", 0, "bytes of a payload, as it is stored (required)")
	fs.DurationVar(&w.Retention, "retention", admin.DefaultRetention, "how long settled messages stay: --retention of the relay")
	fs.Int64Var(&w.Key, "key-bytes", 16, "bytes of a key")
	fs.Int64Var(&w.Names, "name-bytes", 40, "bytes of topic, type and content type together")
	fs.Int64Var(&w.Headers, "header-bytes", 0, "bytes of the headers as JSON; 0: no headers")
	fs.Int64Var(&w.Lanes, "lanes", 64, "lanes of the outbox")
	fs.Int64Var(&w.Relays, "relays", 2, "relays")
	fs.Int64Var(&w.Consumers, "consumers", 1, "consumers with an inbox on PostgreSQL")
	fs.DurationVar(&w.Horizon, "horizon", inbox.DefaultHorizon, "how long a consumer keeps the ids of processed messages")
	return cmd
}

// unused refuses what would be ignored. It runs before settings are read from a file.
func unused(cmd *cobra.Command, args []string) (err error) {
	if len(args) > 0 {
		return exit.Usagef("size takes flags only, not %s", redact.Word(args[0]))
	}
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) {
		if err == nil && f.Changed && !slices.Contains([]string{"output", "config", "log-level", "log-format"}, f.Name) {
			err = exit.Usagef("--%s has no effect on size: it asks no database", f.Name)
		}
	})
	return err
}

// check refuses a workload that no outbox can have.
func (w Workload) check() error {
	if !(w.Rate > 0 && w.Rate <= 1e6) {
		return exit.Usagef("rate is %v: give the messages per second, up to 1000000", w.Rate)
	}
	for _, f := range []struct {
		name                string
		value, least, limit int64
	}{
		{"bytes", w.Bytes, 1, 16 << 20},
		{"key-bytes", w.Key, 0, 512},
		{"name-bytes", w.Names, 1, 3 * 255},
		{"header-bytes", w.Headers, 0, 16 << 10},
		{"lanes", w.Lanes, 1, 4096},
		{"relays", w.Relays, 1, 1000},
		{"consumers", w.Consumers, 0, 1000},
	} {
		if f.value < f.least || f.value > f.limit {
			return exit.Usagef("%s is %d: use %d to %d", f.name, f.value, f.least, f.limit)
		}
	}
	const most = 10 * 365 * 24 * time.Hour
	for _, f := range []struct {
		name  string
		value time.Duration
	}{{"retention", w.Retention}, {"horizon", w.Horizon}} {
		if f.value < 0 || f.value > most {
			return exit.Usagef("%s is %v: use 0s to %v", f.name, f.value, most)
		}
	}
	return nil
}

// size is a number of bytes for people.
func size(n int64) string {
	units := []string{"B", "kB", "MB", "GB", "TB", "PB"}
	f, i := float64(n), 0
	for ; f >= 1000 && i < len(units)-1; i++ {
		f /= 1000
	}
	if i == 0 || f >= 100 {
		return fmt.Sprintf("%.0f %s", f, units[i])
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}

func (e Estimate) write(t *tabwriter.Writer, w Workload) {
	row := func(name string, n int64, note string) { output.Row(t, name, size(n), note) }
	row("outbox", e.Outbox, fmt.Sprintf("%d messages, after %s of retention", e.Messages, output.Short(w.Retention)))
	row("  rows", e.Rows, "")
	row("  indexes", e.Indexes, "")
	row("  progress", e.Progress, "at most")
	row("  dead rows", e.Dead, "between two runs of autovacuum")
	if w.Consumers > 0 {
		row("inbox", e.Inbox, fmt.Sprintf("%d claims, kept %s; in the consumers' databases", e.Claims, output.Short(w.Horizon)))
	}
	row("WAL", e.WAL, "each second, without page images after checkpoints")
	row("payloads in memory", e.Memory, "at most, in each relay")
	output.Row(t, "connections", e.Connections, fmt.Sprintf("of %d relays", w.Relays))
	for _, a := range e.Advice {
		output.Row(t, a)
	}
}
