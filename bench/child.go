package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/postrider/postrider/bench/clock"
	"github.com/postrider/postrider/bench/database"
	"github.com/postrider/postrider/bench/routed"
	"github.com/postrider/postrider/bench/rows"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/proc"
	"github.com/postrider/postrider/relay"
)

// A child is this program in a separate process, so that its CPU time and memory can be
// measured. It prints "done SECONDS" after n messages and exits on SIGTERM.
type child struct {
	cmd *exec.Cmd
	out *bufio.Reader
}

// usage is the consumption of a child by the operating system's accounting.
type usage struct {
	took time.Duration // by the child's clock, from the start of its work to the n-th acknowledgement
	cpu  time.Duration
	rss  float64 // peak in MiB
}

func startChild(ctx context.Context, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{"child"}, args...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &child{cmd, bufio.NewReader(pipe)}, cmd.Start()
}

// finish waits for the child's count, ends the child and returns its usage.
func (c *child) finish() (usage, error) {
	line, err := c.out.ReadString('\n')
	if err != nil {
		return usage{}, fmt.Errorf("%s ended early: %w", strings.Join(c.cmd.Args[1:3], " "), c.cmd.Wait())
	}
	var seconds float64
	if _, err := fmt.Sscanf(line, "done %g", &seconds); err != nil {
		return usage{}, fmt.Errorf("child printed %q: %w", line, err)
	}
	return c.end(time.Duration(seconds * float64(time.Second)))
}

func (c *child) end(took time.Duration) (usage, error) {
	rss, err := proc.PeakRSS(c.cmd.Process.Pid)
	if err != nil {
		return usage{}, err
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return usage{}, err
	}
	if _, err := io.Copy(io.Discard, c.out); err != nil {
		return usage{}, err
	}
	if err := c.cmd.Wait(); err != nil {
		return usage{}, err
	}
	ps := c.cmd.ProcessState
	return usage{took: took, cpu: ps.UserTime() + ps.SystemTime(), rss: rss}, nil
}

// runChild is the main function of a child.
func runChild(ctx context.Context, what string, args []string) error {
	if dir := os.Getenv("POSTRIDER_BENCH_PROFILES"); dir != "" {
		name := what // of the last round
		if what == "consume" && len(args) > 1 {
			name = args[1]
		}
		if what == "relay" && len(args) == 5 && args[4] != "" {
			name += "-" + args[4]
		}
		f, err := os.Create(filepath.Join(dir, name+".prof"))
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	switch {
	case what == "relay" && len(args) == 5:
		return childRelay(ctx, args[0], args[1], args[2], args[3], args[4])
	case what == "deliver" && len(args) == 2:
		return childDeliver(ctx, args[0], args[1])
	case what == "outage" && len(args) == 2:
		return childOutage(ctx, args[0], args[1])
	case what == "produce" && len(args) == 5:
		return childProduce(ctx, args[0], args[1], args[2], args[3], args[4])
	case what == "sink" && len(args) == 4:
		return childSink(ctx, args[0], args[1], args[2], args[3])
	case what == "consume" && len(args) == 4:
		return childConsume(ctx, args[0], args[1], args[2], args[3])
	}
	return errUsage
}

// childRelay drains an outbox until it is ended. Its sink has the given fault.
func childRelay(ctx context.Context, url, brokerName, brokerURL, count, fault string) error {
	n, err := atoi(count)
	if err != nil {
		return err
	}
	st, closeStore, err := database.OpenStore(ctx, url)
	if err != nil {
		return err
	}
	defer closeStore()
	var sink broker.Sink
	var closeSink func()
	switch fault {
	case plainRoute:
		sink, closeSink, err = routed.Plain(brokerURL)
	case framed:
		sink, closeSink, err = routed.Framed(ctx, brokerURL)
	default:
		sink, closeSink, err = openSink(brokerName, brokerURL)
	}
	if err != nil {
		return err
	}
	defer closeSink()
	if fault != "" && fault != framed && fault != plainRoute {
		if sink, err = newFaulty(ctx, sink, url, fault); err != nil {
			return err
		}
	}
	counted := &countingSink{Sink: sink, want: int64(n), start: time.Now()}
	return relay.New(st, counted, nil).Run(ctx)
}

// childDeliver prints when its relay called Deliver for each of the messages.
func childDeliver(ctx context.Context, url, count string) error {
	n, err := atoi(count)
	if err != nil {
		return err
	}
	st, closeStore, err := database.OpenStore(ctx, url)
	if err != nil {
		return err
	}
	defer closeStore()
	return clock.Run(ctx, st, n, rows.Number, os.Stdout)
}

// countingSink prints the time of the n-th acknowledgement.
type countingSink struct {
	broker.Sink
	want  int64
	acked atomic.Int64
	start time.Time
}

func (s *countingSink) Deliver(ctx context.Context, batch broker.Batch) []error {
	errs := s.Sink.Deliver(ctx, batch)
	acked := int64(len(batch.Messages))
	for _, err := range errs {
		if err != nil {
			acked--
		}
	}
	if now := s.acked.Add(acked); now >= s.want && now-acked < s.want {
		fmt.Printf("done %g\n", time.Since(s.start).Seconds())
	}
	return errs
}

// nullSink acknowledges every message, which leaves reading and settling.
type nullSink struct{}

func (nullSink) Info() broker.Info                             { return broker.Info{Name: "null"} }
func (nullSink) Deliver(context.Context, broker.Batch) []error { return nil }
