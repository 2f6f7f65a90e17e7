// Command console measures the console: how long its pages take at size, and what open pages
// cost a relay in the same process.
//
//	go run ./bench/console pages --settled 20000000 --dead 1000000 --keys 50000
//	go run ./bench/console pages --store postgres://...   an outbox that an earlier run has filled
//	go run ./bench/console tabs --messages 2000000 --rounds 9
//
// It starts private servers ("make servers" installs them) and stops them at the end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// config has the values of the flags.
type config struct {
	store, program, postgres string
	settled, dead, keys      int
	times, messages, tabs    int
	rounds                   int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/console:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "relay" {
		return drain(ctx, args[1:])
	}
	if len(args) == 0 || args[0] != "pages" && args[0] != "tabs" {
		return errors.New("usage: bench/console pages|tabs [flags]")
	}
	var c config
	fs := flag.NewFlagSet("bench/console "+args[0], flag.ContinueOnError)
	fs.StringVar(&c.store, "store", "", "URL of a filled outbox on PostgreSQL (default: a server of its own, filled first)")
	fs.StringVar(&c.program, "program", "", "the binary whose console is timed (default: built from this tree)")
	fs.StringVar(&c.postgres, "postgres", "18", "major version of the own server")
	fs.IntVar(&c.settled, "settled", 20_000_000, "rows of the outbox, dead letters included")
	fs.IntVar(&c.dead, "dead", 1_000_000, "dead letters")
	fs.IntVar(&c.keys, "keys", 50_000, "keys of the dead letters")
	fs.IntVar(&c.times, "times", 20, "requests for each page, and one before them that warms up")
	fs.IntVar(&c.messages, "messages", 2_000_000, "messages that the relay of tabs drains")
	fs.IntVar(&c.tabs, "open", 20, "pages that are open beside the relay of tabs")
	fs.IntVar(&c.rounds, "rounds", 9, "drains with pages and drains without, in turns")
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	if c.settled < 1 || c.dead < 1 || c.keys < 1 || c.times < 1 || c.messages < 1 || c.tabs < 1 || c.rounds < 1 {
		return errors.New("every number must be positive")
	}
	if args[0] == "tabs" {
		return runTabs(ctx, &c)
	}
	return runPages(ctx, &c)
}

// say reports progress on standard error, apart from the result.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}
