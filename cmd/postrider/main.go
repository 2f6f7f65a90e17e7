// Command postrider is the relay and the operator's tool of Postrider:
//
//	postrider demo       see it work: no server, no configuration
//	postrider migrate    make the outbox
//	postrider relay      carry the outbox to a broker
//	postrider status     what is where
//
// Exit codes: 0 success, 1 failure, 2 wrong usage or configuration, also of the
// database (login, privileges, row security), 3 lag above --fail-if-lag,
// 4 database or broker unreachable, or read-only for now: try again, 5 schema
// missing or of another version, 6 the doctor, the audit, prune or a schema command found
// something.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/demo"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

func main() {
	os.Exit(int(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.LookupEnv)))
}

func run(args []string, in io.Reader, out, errOut io.Writer, lookupEnv func(string) (string, bool)) exit.Code {
	ctx, stop := notify(context.Background(), errOut)
	defer stop()
	if v, _ := lookupEnv(demo.WithParent); v != "" {
		ctx = demo.UntilClosed(ctx, in)
	}
	a := &app{in: in, out: out, errOut: errOut, lookupEnv: lookupEnv}
	a.set.Stdout = out
	cmd := a.root()
	if len(args) > 0 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd) {
		a.completions().Register(cmd)
	}
	cmd.SetArgs(args)
	cmd.SetIn(in)
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return exit.OK
	}
	fmt.Fprintln(errOut, "postrider: "+redact.OneLine(err.Error()))
	return exit.Of(err)
}

// oneSignal is how long what arrives belongs to the first signal: timeout(1),
// shells and process managers send it to the process and to its group.
const oneSignal = 500 * time.Millisecond

// notify ends the context at the first SIGINT or SIGTERM and the process at the second.
func notify(ctx context.Context, errOut io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		var first time.Time
		for {
			select {
			case <-done:
				return
			case <-signals:
			}
			switch {
			case first.IsZero():
				first = time.Now()
				cancel()
			case time.Since(first) >= oneSignal:
				fmt.Fprintln(errOut, "postrider: second signal: exiting at once; unsettled messages will be sent again")
				os.Exit(int(exit.Failure))
			}
		}
	}()
	return ctx, func() { signal.Stop(signals); close(done); cancel() }
}
