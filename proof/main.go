// Command proof runs the shipped binary against real servers, kills it again and again,
// and counts the messages at the broker. Or it runs consumers and counts their effects
// in the database. Except for the consumers (package member) and the launcher of test
// servers it imports no part of the product: the writers use plain SQL, the readers the
// brokers' own clients.
//
//	go run ./proof --broker kafka --messages 200000 --kills 20 --broker-kills 20
//	go run ./proof --broker nats --for 30m
//	go run ./proof --store mysql-9.7 --messages 100000 --kills 20 --store-kills 5
//	go run ./proof failover --kills 10 --switchovers 10
//	go run ./proof consume --broker kafka --messages 200000 --kills 30 --db-restarts 5 --rebalances 3
//
// It prints one JSON object and exits with 1 unless nothing was lost, invented
// or reordered.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/proof/member"
)

// Config configures a run.
type Config struct {
	Broker      string
	Postgres    string // major version
	Store       string // "mariadb-11.8", "mysql-9.7" ...; "": PostgreSQL
	StoreKills  int    // kills of the database
	Binary      string // the postrider binary
	Messages    int    // backlog written before the relay starts
	Writers     int    // concurrent writers until the kills are done
	Rate        int    // transactions per second of all writers; 0: as many as they can
	Kills       int
	BrokerKills int           // kills and freezes of the broker, in turns
	Freeze      time.Duration // the first freeze of the broker, of which the others are short, and of a relay
	Relays      int           // relay processes that share the lanes
	Freezes     int           // of a relay, whose lanes the others take
	Wake        string        // how relays learn of messages; "log": and the log is disturbed all the time

	For        time.Duration // a run by the clock; 0: a campaign of Kills
	KillEvery  time.Duration
	AuditEvery time.Duration
}

func main() {
	if os.Getenv(endpointFile) != "" {
		fmt.Fprintln(os.Stderr, "proof: endpoint:", beEndpoint())
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var code int
	if os.Getenv(member.Env) != "" {
		code = beMember(ctx)
	} else {
		code = command(ctx)
	}
	stop()
	os.Exit(code)
}

// command returns the exit status: 0 if the run keeps the promises.
func command(ctx context.Context) int {
	if len(os.Args) > 1 && os.Args[1] == "consume" {
		r, err := consumeCommand(ctx, os.Args[2:])
		return report(r, r.OK, err)
	}
	if len(os.Args) > 1 && os.Args[1] == "failover" {
		r, err := failoverCommand(ctx, os.Args[2:])
		return report(r, r.OK, err)
	}
	var c Config
	flag.StringVar(&c.Broker, "broker", "kafka", "one of "+strings.Join(brokerNames(), ", "))
	flag.StringVar(&c.Postgres, "postgres", "15", "major version")
	flag.StringVar(&c.Store, "store", "", "the database instead of PostgreSQL: "+testserver.MariaDB10+", "+testserver.MariaDB11+" or "+testserver.MySQL9)
	flag.IntVar(&c.StoreKills, "store-kills", 0, "with --store: SIGKILLs of the database")
	flag.StringVar(&c.Binary, "binary", "", "the postrider binary; built when empty")
	flag.IntVar(&c.Messages, "messages", 500_000, "messages written before the relay starts")
	flag.IntVar(&c.Writers, "writers", 8, "concurrent writers")
	flag.IntVar(&c.Rate, "write-rate", 0, "transactions per second of all writers, of four messages each on average; 0: as many as they can")
	flag.IntVar(&c.Kills, "kills", 20, "SIGKILLs of a relay, each while it delivers")
	flag.IntVar(&c.BrokerKills, "broker-kills", 0, "SIGKILLs and SIGSTOPs of the broker, in turns")
	flag.DurationVar(&c.Freeze, "freeze", 30*time.Second, "duration of the broker's first freeze, longer than any client's timeout")
	flag.StringVar(&c.Wake, "wake", "poll", "how the relays learn of messages: poll, listen or log; log is disturbed every second")
	flag.IntVar(&c.Freezes, "relay-freezes", 0, "SIGSTOPs of a relay for --freeze, before the kills; with --relays 2 the other one takes its lanes")
	flag.IntVar(&c.Relays, "relays", 1, "relay processes")
	flag.DurationVar(&c.For, "for", 0, "duration of a run by the clock, with a long transaction, a crash of the database and a promotion, instead of --kills")
	flag.DurationVar(&c.KillEvery, "kill-every", 30*time.Second, "with --for: interval between SIGKILLs of a relay")
	flag.DurationVar(&c.AuditEvery, "audit-every", time.Minute, "with --for: interval between audits of the books")
	flag.Parse()
	return report(prove(ctx, c))
}

// report prints the result and returns the exit status.
func report(result any, ok bool, err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "proof:", err)
		return 2
	}
	line, err := json.Marshal(result)
	if err != nil {
		fmt.Fprintln(os.Stderr, "proof:", err)
		return 2
	}
	fmt.Println(string(line))
	if !ok {
		return 1
	}
	return 0
}

func prove(ctx context.Context, c Config) (result any, ok bool, err error) {
	if c.For > 0 {
		n, err := RunNight(ctx, c)
		return n, n.OK, err
	}
	r, err := Run(ctx, c)
	return r, r.OK, err
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}
