// Command peers measures Postrider beside other relays: "go run ./bench peers" runs it.
// It is a module of its own, so that nobody else builds what the peers need.
//
// Every way to bring rows to Kafka gets a database of its own with the same rows, written in
// INSERTs of 100, neither vacuumed nor warmed, and the same warmed broker. In each round all
// ways run once, in a rotated order. A gate counts the records of each run: a run that lost
// one has no numbers. Duplicates and breaks of order are counted beside the numbers.
//
// A way that cannot be started is listed with the reason.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// config has the values of the flags.
type config struct {
	broker   string
	store    string
	postgres string
	messages int
	rounds   int
	rate     int
	seconds  int
	only     string
	output   string
}

const usage = "usage: bench peers [--broker kafka] [--messages N] [--rounds N] [--rate N] [--seconds N] [--store postgres|mysql-9.7|mariadb-10.11|mariadb-11.8] [--postgres 15|16|17|18] [--only NAME,...] [--output text|json]"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 1 && args[0] == "child" {
		return runChild(ctx, args[1], args[2:])
	}
	c, err := parse(args)
	if err != nil {
		return err
	}
	report, err := measure(ctx, c)
	if err != nil {
		return err
	}
	if c.output == "text" {
		report.print(os.Stdout)
	}
	line, err := json.Marshal(report)
	if err != nil {
		return err
	}
	fmt.Println(string(line))
	if !report.Gate.OK {
		return errors.New("the gate rejected a run of Postrider: see gate")
	}
	return nil
}

func parse(args []string) (c config, err error) {
	fs := flag.NewFlagSet("bench peers", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&c.broker, "broker", "kafka", "kafka: every peer can publish to it")
	fs.StringVar(&c.store, "store", postgres, "database of all ways: "+strings.Join(stores(), ", "))
	fs.StringVar(&c.postgres, "postgres", "15", "major version")
	fs.IntVar(&c.messages, "messages", 500_000, "rows of the backlog")
	fs.IntVar(&c.rounds, "rounds", 3, "rounds, each with all ways in a rotated order")
	fs.IntVar(&c.rate, "rate", 1000, "transactions per second of the latency table")
	fs.IntVar(&c.seconds, "seconds", 20, "duration of each latency and idle measurement in seconds; 0: neither table")
	fs.StringVar(&c.only, "only", "", "measure these ways only, and Postrider")
	fs.StringVar(&c.output, "output", "text", "text or json; json prints only the JSON object")
	switch err := fs.Parse(args); {
	case err != nil:
		return c, fmt.Errorf("%w\n%s", err, usage)
	case fs.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q\n%s", fs.Arg(0), usage)
	case c.broker != "kafka":
		return c, fmt.Errorf("unknown broker %q: use kafka: every peer can publish to it\n%s", c.broker, usage)
	case !slices.Contains(stores(), c.store):
		return c, fmt.Errorf("unknown store %q: use %s\n%s", c.store, strings.Join(stores(), ", "), usage)
	case c.output != "text" && c.output != "json":
		return c, fmt.Errorf("unknown output %q: use text or json\n%s", c.output, usage)
	case c.messages < minMessages || c.rounds < 1 || c.rate < 1 || c.seconds < 0:
		return c, fmt.Errorf("use at least %d messages, 1 round, a rate of 1 and 0 seconds\n%s", minMessages, usage)
	}
	names := namesOf(ways(c.store, nil))
	for name := range strings.SplitSeq(c.only, ",") {
		if c.only != "" && !slices.Contains(names, name) {
			return c, fmt.Errorf("unknown way %q: use %s", name, strings.Join(names, ", "))
		}
	}
	return c, nil
}

// say reports progress on standard error, apart from the result.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}
