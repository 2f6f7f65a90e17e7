// Command bench measures Postrider against the limits of its machine, in one interleaved
// run. A gate discards the numbers of a run whose messages were lost, duplicated or
// reordered.
//
//	go run ./bench run W1 --broker kafka|nats|pubsub|rabbitmq|redis|sqs|null --messages 500000 --output json
//	go run ./bench run W1 --store postgres|mysql-9.7|mariadb-10.11|mariadb-11.8
//	go run ./bench run latency --rate 1000 --broker kafka|nats|redis|null --wake poll|listen|log
//	go run ./bench run idle
//	go run ./bench run enqueue
//	go run ./bench run consume
//	go run ./bench run webhooks
//	go run ./bench run window --broker rabbitmq --messages 100000
//	go run ./bench run outage --messages 6144000
//	go run ./bench run tenants --tenants 8 --messages 500000
//	go run ./bench peers --messages 500000 --output json
//
// W1, latency, idle, enqueue and consume run on each store of --store, the others on PostgreSQL.
//
// With POSTRIDER_BENCH_PROFILES=DIR the relay and the probe write the CPU profiles
// relay.prof and produce.prof to DIR, and each way to consume one with its name.
//
// It starts private servers ("make servers" installs them) and stops them at the end.
// The last line of the output is one JSON object.
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

	"github.com/postrider/postrider/bench/apart"
	"github.com/postrider/postrider/bench/database"
)

// config has the values of the flags.
type config struct {
	broker   string
	store    string // of database.Stores
	postgres string // major version
	messages int
	rounds   int
	rate     int
	seconds  int
	tenants  int
	wake     string
	apart    bool // the tenant with the backlog has a relay process of its own
	settled  int  // settled rows of workload old
	output   string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: bench peers [flags], or bench run W1|framing|latency|idle|enqueue|consume|webhooks|outage|tenants|window|W6|W9-key|W9-slow|W9-dest|W10|old|retention [--broker kafka|nats|pubsub|rabbitmq|redis|sqs|null] [--messages N] [--rounds N] [--rate N] [--seconds N] [--settled N] [--wake poll|listen|log] [--store postgres|mysql-9.7|mariadb-10.11|mariadb-11.8] [--postgres 15|16|17|18] [--output json|text]")

func run(ctx context.Context, args []string) error {
	if len(args) >= 2 && args[0] == "child" {
		return runChild(ctx, args[1], args[2:])
	}
	if len(args) > 0 && args[0] == "peers" {
		return apart.Run(ctx, "peers", args[1:])
	}
	if len(args) < 2 || args[0] != "run" {
		return errUsage
	}
	c, fs, err := parseFlags(args[2:])
	if err != nil {
		return err
	}
	result, err := runWorkload(ctx, args[1], c, fs)
	if err != nil {
		return err
	}
	line, err := json.Marshal(result)
	if err != nil {
		return err
	}
	_, err = fmt.Println(string(line))
	return err
}

// given reports whether a flag was set.
func given(fs *flag.FlagSet, name string) (is bool) {
	fs.Visit(func(f *flag.Flag) { is = is || f.Name == name })
	return is
}

// say reports progress on standard error, apart from the result.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

func parseFlags(args []string) (c config, fs *flag.FlagSet, err error) {
	fs = flag.NewFlagSet("bench run", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&c.broker, "broker", "kafka", "kafka, nats, pubsub, rabbitmq, redis, sqs or null")
	fs.StringVar(&c.store, "store", database.Postgres, "database of the workloads W1, latency, idle, enqueue and consume: "+strings.Join(database.Stores(), ", "))
	fs.StringVar(&c.postgres, "postgres", "15", "major version")
	fs.IntVar(&c.messages, "messages", 500_000, fmt.Sprintf("messages of the backlog; of workload webhooks %d, of consume %d in batches and a tenth of it singly", webhookMessages, consumeMessages))
	fs.IntVar(&c.rounds, "rounds", 3, "rounds of probes and drain")
	fs.IntVar(&c.rate, "rate", 1000, "transactions per second of the latency run")
	fs.IntVar(&c.seconds, "seconds", 20, "duration of the latency and the idle run, in seconds")
	fs.IntVar(&c.settled, "settled", 20_000_000, "settled rows of workload old")
	fs.StringVar(&c.wake, "wake", "poll", "how the relay of workloads W1, latency and idle learns of messages: poll, listen or log")
	fs.IntVar(&c.tenants, "tenants", 8, "schemas that one relay process of workload tenants serves")
	fs.BoolVar(&c.apart, "apart", false, "run the tenant with the backlog in a relay process of its own, to compare with a shared one")
	fs.StringVar(&c.output, "output", "text", "text or json; json prints only the JSON object on standard output")
	if err := fs.Parse(args); err != nil {
		return c, nil, fmt.Errorf("%w\n%w", err, errUsage)
	}
	if c.messages < 1 || c.rounds < 1 || c.rate < 1 || c.seconds < 1 {
		return c, nil, fmt.Errorf("messages, rounds, rate and seconds must be positive\n%w", errUsage)
	}
	return c, fs, nil
}

// anyStore are the workloads that run on every store.
var anyStore = []string{"w1", "latency", "idle", "enqueue", "consume"}

// runWorkload runs the workload of that name. Some have other defaults than the flags.
func runWorkload(ctx context.Context, name string, c config, fs *flag.FlagSet) (result any, err error) {
	if !slices.Contains(database.Stores(), c.store) {
		return nil, fmt.Errorf("unknown store %q: use %s\n%w", c.store, strings.Join(database.Stores(), ", "), errUsage)
	}
	if c.store != database.Postgres && !slices.Contains(anyStore, strings.ToLower(name)) {
		return nil, fmt.Errorf("workload %s cannot run on %s: leave out --store, or use one of %s\n%w", name, c.store, strings.Join(anyStore, ", "), errUsage)
	}
	switch strings.ToLower(name) {
	case "w1":
		result, err = runW1(ctx, c)
	case "framing":
		result, err = runFraming(ctx, c)
	case "latency":
		result, err = runLatency(ctx, c)
	case "idle":
		result, err = runIdle(ctx, c)
	case "tenants":
		result, err = runTenants(ctx, c)
	case "webhooks":
		if !given(fs, "messages") {
			c.messages = webhookMessages
		}
		result, err = runWebhooks(ctx, c)
	case "outage":
		if !given(fs, "messages") {
			c.messages = outageMessages
		}
		if !given(fs, "rate") {
			c.rate = outageFresh
		}
		result, err = runOutage(ctx, c)
	case "consume":
		if !given(fs, "messages") {
			c.messages = consumeMessages
		}
		result, err = runConsume(ctx, c)
	case "window":
		result, err = runWindow(ctx, c)
	case "enqueue":
		result, err = runEnqueue(ctx, c)
	default:
		dis, ok := disturbances()[strings.ToLower(name)]
		if !ok {
			return nil, fmt.Errorf("unknown workload %q\n%w", name, errUsage)
		}
		result, err = runDisturbed(ctx, c, name, dis)
	}
	return result, err
}
