// Package top draws an outbox on a terminal, again and again.
package top

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/store/ops"
)

// lanesShown is how many lanes are shown: the latest ones.
const lanesShown = 10

// Pipe is a pipe of an outbox that is watched.
type Pipe struct {
	Name  string // of its entry in the file's list; "" of the only one
	Admin ops.Admin
	Ready func(context.Context) error // whether its schema is there
}

// Program is what the command needs of the program.
type Program struct {
	Out    io.Writer
	Format func() string // of --output
	Open   func() (pipes []Pipe, done func(), err error)
}

// Command returns the command top.
func Command(a Program) *cobra.Command {
	var every time.Duration
	cmd := &cobra.Command{
		Use: "top", Short: "Watch lag, rates, relays and the latest lanes on a terminal",
		Long: "Watch an outbox on a screen that is drawn again, with the rates since the last look and the ten\n" +
			"lanes with the highest lag. Ctrl-C ends it. In a script use `postrider status --watch`.",
		Example: "  postrider top --store postgres://reader@db1/shop --every 5s",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case every < 100*time.Millisecond:
				return exit.Usagef("every is %s: use 100ms or more", every)
			case (output.Printer{Format: a.Format()}).Structured():
				return exit.Usagef("top draws a screen: use `postrider status --watch --output %s`", a.Format())
			case !output.IsTerminal(a.Out):
				return exit.Usagef("top needs a terminal: use `postrider status --watch`")
			}
			return a.run(cmd.Context(), every)
		},
	}
	cmd.Flags().DurationVar(&every, "every", 2*time.Second, "time between two looks")
	return cmd
}

// The screen beside the shell's, without a cursor and without wrapped lines.
const (
	screenOn  = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	screenOff = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

func (a Program) run(ctx context.Context, every time.Duration) error {
	pipes, done, err := a.Open()
	if err != nil {
		return err
	}
	defer done()
	for _, p := range pipes {
		if err := p.Ready(ctx); err != nil {
			return err
		}
	}
	fmt.Fprint(a.Out, screenOn)
	defer fmt.Fprint(a.Out, screenOff)
	before := make([]*seenStatus, len(pipes))
	for {
		var page bytes.Buffer
		for i, p := range pipes {
			s, err := p.Admin.Status(ctx)
			if ctx.Err() != nil {
				return nil
			}
			if i > 0 {
				fmt.Fprintln(&page)
			}
			if err != nil {
				fmt.Fprintln(&page, output.Visible("status failed: "+err.Error()))
				continue
			}
			now := &seenStatus{s, time.Now()}
			draw(&page, p.Name, before[i], now)
			before[i] = now
		}
		fmt.Fprint(a.Out, redrawn(page.String()))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// redrawn writes a page over the one before, without a flicker.
func redrawn(page string) string {
	return "\x1b[H" + strings.ReplaceAll(page, "\n", "\x1b[K\n") + "\x1b[J"
}

// seenStatus is a status and when it was taken.
type seenStatus struct {
	ops.Status
	at time.Time
}

// draw writes one pipe. before is the look before this one, nil at the first.
func draw(page *bytes.Buffer, name string, before, now *seenStatus) {
	w := tabwriter.NewWriter(page, 0, 4, 2, ' ', 0)
	if name != "" {
		output.Row(w, "relay "+name+":")
	}
	rate := "after the next look"
	if before != nil {
		if seconds := now.at.Sub(before.at).Seconds(); seconds > 0 {
			rate = fmt.Sprintf("%.1f/s", max(float64(now.Delivered-before.Delivered)/seconds, 0))
		}
	}
	output.Row(w, "time", output.Stamp(now.at))
	output.Row(w, "sent", rate)
	answer.StatusText(w, now.Status, nil, false)
	_ = w.Flush() // a buffer takes everything
	lanes := slices.Clone(now.Lanes)
	slices.SortStableFunc(lanes, func(x, y ops.LaneStatus) int {
		return cmp.Or(cmp.Compare(y.Lag, x.Lag), cmp.Compare(y.Pending, x.Pending), cmp.Compare(x.Lane, y.Lane))
	})
	w = tabwriter.NewWriter(page, 0, 4, 2, ' ', 0)
	output.Row(w, "")
	output.Row(w, "lane", "lag", "pending", "parked", "owner", "waits for")
	for i := range lanes[:min(len(lanes), lanesShown)] {
		l := &lanes[i]
		output.Row(w, l.Lane, output.Short(l.Lag), l.Pending, l.Parked, cmp.Or(l.Owner, "nobody"), now.WaitsFor(l))
	}
	_ = w.Flush() // as above
}
