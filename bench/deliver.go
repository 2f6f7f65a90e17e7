package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/bench/figures"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/proc"
	"github.com/postrider/postrider/relay"
)

// Latency with the broker "null": from the return of the writer's COMMIT to the call of Deliver, without
// what a broker, its network and its reader add.

// clockSink notes when Deliver was called for each message.
type clockSink struct {
	mu     sync.Mutex
	called []int64 // by number, in nanoseconds of the machine's clock; 0: not yet
	left   int
	again  int
	all    chan struct{} // closed once every message came
}

func (s *clockSink) Info() broker.Info { return broker.Info{Name: "clock"} }

func (s *clockSink) Deliver(_ context.Context, batch broker.Batch) []error {
	now := time.Now().UnixNano()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range batch.Messages {
		switch n, err := number(batch.Messages[i].Payload); {
		case err != nil || n >= len(s.called):
			return []error{broker.Rejected(fmt.Errorf("message %d is not of this run: %w", n, err), "foreign", "")}
		case s.called[n] != 0:
			s.again++
		default:
			s.called[n] = now
			if s.left--; s.left == 0 {
				close(s.all)
			}
		}
	}
	return nil
}

// childDeliver runs a relay, and prints when Deliver was called for each of the messages, and how many came
// again, once all came.
func childDeliver(ctx context.Context, pgURL, count string) error {
	n, err := atoi(count)
	if err != nil {
		return err
	}
	st, pool, err := relayStore(ctx, pgURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	s := &clockSink{called: make([]int64, n), left: n, all: make(chan struct{})}
	running, end := context.WithCancel(ctx)
	defer end()
	ended := make(chan error, 1)
	go func() { ended <- relay.New(st, s, nil).Run(running) }()
	select {
	case <-s.all:
	case err := <-ended:
		return errors.Join(err, errors.New("the relay ended before all messages came"))
	}
	<-ctx.Done() // its CPU time is read meanwhile
	if err := <-ended; err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	for _, at := range s.called {
		fmt.Fprintln(out, at)
	}
	fmt.Fprintln(out, s.again)
	return out.Flush()
}

// runDeliver measures from commit to Deliver.
func runDeliver(ctx context.Context, c config, pool *pgxpool.Pool, pgURL string, database int) (res *latencyResult, err error) {
	n := c.rate * (warmUp + c.seconds)
	relay, err := startChild(ctx, "deliver", woken(pgURL, c), strconv.Itoa(n))
	if err != nil {
		return nil, err
	}
	res = &latencyResult{Workload: "latency", Broker: c.broker, Wake: c.wake, Rate: c.rate, Messages: n}
	cpu, server := newWindow(relay.cmd.Process.Pid), newWindow(database)
	committed, err := writeAt(ctx, pool, insertInto("postrider.outbox", "bench"), c.rate, n, nil)
	if err != nil {
		return nil, err
	}
	if res.Relay.Core, err = cpu.fraction(); err != nil {
		return nil, err
	}
	if res.Database.Core, err = server.fraction(); err != nil {
		return nil, err
	}
	if res.Relay.RSS, err = proc.PeakRSS(relay.cmd.Process.Pid); err != nil {
		return nil, err
	}
	if err := settled(ctx, pool, n); err != nil {
		return nil, err
	}
	if err := relay.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return nil, err
	}
	f, lines := &follower{received: make([]time.Time, n)}, bufio.NewScanner(relay.out)
	read := func() int64 {
		lines.Scan()
		v, perr := strconv.ParseInt(lines.Text(), 10, 64)
		err = errors.Join(err, perr)
		return v
	}
	for i := range n {
		f.received[i] = time.Unix(0, read())
	}
	res.Gate = gate{Delivered: n, Duplicates: int(read())}
	res.Gate.OK = res.Gate.Duplicates == 0
	if err = errors.Join(err, relay.cmd.Wait()); err != nil {
		return nil, fmt.Errorf("deliver: %w", err)
	}
	warm := c.rate * warmUp
	res.percentiles, err = f.between(committed[warm:], f.received[warm:], time.Time{}, time.Now())
	res.Relay.RSS = figures.Round(res.Relay.RSS)
	return res, err
}

// settled waits until n messages are settled.
func settled(ctx context.Context, pool *pgxpool.Pool, n int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		var done bool
		if err := pool.QueryRow(ctx, `SELECT sum(delivered) >= $1 FROM postrider.lane_cursor`, n).Scan(&done); done || err != nil {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("wait for the relay: %w", err)
		}
	}
}
