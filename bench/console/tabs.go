package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/bench/figures"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// mostOfTabs is the part of throughput that open pages may cost.
const mostOfTabs = 0.02

// tabsResult is the JSON object of the workload tabs: drains beside open pages, and without.
type tabsResult struct {
	Workload string         `json:"workload"`
	Messages int            `json:"messages"`
	Open     int            `json:"open_pages"`
	Rounds   int            `json:"rounds"`
	Events   float64        `json:"events_received"` // by all pages, in a drain
	Alone    float64        `json:"alone_events_per_s"`
	Beside   float64        `json:"beside_events_per_s"`
	Rate     figures.Paired `json:"events_per_s_of_alone"`
	CPU      figures.Paired `json:"cpu_per_message_of_alone"` // of the process: relay, console and its pages
	Verdict  string         `json:"verdict"`
}

// drained is what the process of the relay prints.
type drained struct {
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu_s"`
}

// runTabs drains a backlog by a relay whose process also serves the console, with open pages and
// without, in turns. The relay's sink acknowledges everything: nothing hides what the pages take.
func runTabs(ctx context.Context, c *config) error {
	pg, err := testserver.LaunchPostgres(ctx, c.postgres, "", testserver.Durable(), testserver.Throughput())
	if err != nil {
		return err
	}
	defer func() { _ = pg.Close() }()
	pool, err := pgxpool.New(ctx, pg.URL)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pgstore.New(pool, nil).Office().Migrator.Migrate(ctx, ops.MigrateRequest{}); err != nil {
		return fmt.Errorf("make the outbox: %w", err)
	}
	say("writing %d messages", c.messages)
	for _, text := range []string{
		fmt.Sprintf(`INSERT INTO postrider.outbox (topic, key, type, payload) SELECT 'bench', 'key-' || i %% 100000, 'bench.event', convert_to(repeat(md5(i::text), 8), 'UTF8')
FROM generate_series(1, %d) i`, c.messages),
		"VACUUM (ANALYZE, FREEZE) postrider.outbox", "CHECKPOINT",
	} {
		if _, err := pool.Exec(ctx, text); err != nil {
			return fmt.Errorf("fill the outbox: %w", err)
		}
	}
	var alone, beside, rates, cpus []float64
	var events int64
	for i := -1; i < c.rounds; i++ { // the first one warms up
		var d [2]drained
		order := []int{0, 1}
		if i%2 == 0 {
			order = []int{1, 0}
		}
		for _, with := range order {
			if _, err := pool.Exec(ctx, "DELETE FROM postrider.progress"); err != nil {
				return err
			}
			if _, err := pool.Exec(ctx, "VACUUM postrider.progress"); err != nil {
				return err
			}
			var n int64
			if d[with], n, err = once(ctx, pg.URL, c.messages, with*c.tabs); err != nil {
				return err
			}
			events = max(events, n)
		}
		a, b := float64(c.messages)/d[0].Seconds, float64(c.messages)/d[1].Seconds
		say("round %d: alone %.0f/s, %.2f s of CPU; beside %d pages %.0f/s, %.2f s", i+1, a, d[0].CPU, c.tabs, b, d[1].CPU)
		if i >= 0 {
			alone, beside, rates, cpus = append(alone, a), append(beside, b), append(rates, b/a), append(cpus, d[1].CPU/d[0].CPU)
		}
	}
	res := tabsResult{
		Workload: "tabs", Messages: c.messages, Open: c.tabs, Rounds: c.rounds, Events: float64(events),
		Alone: figures.Middle(alone), Beside: figures.Middle(beside), Rate: figures.Pairs(rates), CPU: figures.Pairs(cpus),
	}
	res.Verdict = res.Rate.Verdict(1 - mostOfTabs)
	return json.NewEncoder(os.Stdout).Encode(res)
}

// once drains the outbox while so many pages are open, and returns how many events they got.
func once(ctx context.Context, store string, messages, tabs int) (d drained, events int64, err error) {
	self, err := os.Executable()
	if err != nil {
		return d, 0, err
	}
	cmd := exec.CommandContext(ctx, self, "relay", store, strconv.Itoa(messages))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return d, 0, err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return d, 0, err
	}
	if err := cmd.Start(); err != nil {
		return d, 0, err
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, out)
		err = errors.Join(err, cmd.Wait())
	}()
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		return d, 0, errors.New("the relay's process printed no address")
	}
	root := lines.Text()
	ctx, cancel := context.WithCancel(ctx)
	var open sync.WaitGroup
	defer open.Wait()
	defer cancel()
	var got atomic.Int64
	opened := make(chan error, tabs)
	for range tabs {
		open.Go(func() { opened <- follow(ctx, root, &got, opened) })
	}
	for range tabs {
		if err := <-opened; err != nil {
			return d, 0, err
		}
	}
	if _, err := io.WriteString(in, "go\n"); err != nil {
		return d, 0, err
	}
	if !lines.Scan() {
		return d, 0, errors.New("the relay's process ended early")
	}
	return d, got.Load(), json.Unmarshal([]byte(strings.TrimSpace(lines.Text())), &d)
}

// follow reads the events of one page until ctx ends. It reports on opened when the first one came.
func follow(ctx context.Context, root string, got *atomic.Int64, opened chan<- error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, root+"/o/shop/events", nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: &http.Transport{}}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("events: status %d", resp.StatusCode)
	}
	lines := bufio.NewReader(resp.Body)
	for first := true; ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return nil // the measurement has ended
		}
		if !strings.HasPrefix(line, "data: ") {
			continue
		}
		got.Add(1)
		if first {
			first = false
			opened <- nil
		}
	}
}

// drain is the process that is measured: a console, and a relay that begins when a line comes.
func drain(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("usage: bench/console relay STORE MESSAGES")
	}
	want, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	var pools [2]*pgxpool.Pool
	for i := range pools {
		conf, err := pgstore.ParseConfig(args[0])
		if err != nil {
			return err
		}
		if i == 1 {
			conf.MaxConns = 2 // as the program's console
		}
		if pools[i], err = pgxpool.NewWithConfig(ctx, conf); err != nil {
			return err
		}
		defer pools[i].Close()
	}
	watched := pgstore.New(pools[1], nil)
	pages := console.New([]console.Outbox{{Name: "shop", Store: watched, Office: watched.Office()}}, &console.Options{
		Authenticate: func(*http.Request) (console.User, error) {
			return console.User{Name: "bench", Role: console.Viewer}, nil
		},
	})
	defer pages.Close()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: pages}
	defer server.Close()
	go func() { _ = server.Serve(l) }()
	fmt.Println("http://" + l.Addr().String())
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	return relay.New(pgstore.New(pools[0], nil), &counting{want: want, start: time.Now(), cpu: used()}, nil).Run(ctx)
}

// counting acknowledges every message, and prints what the first want of them took.
type counting struct {
	want  int64
	acked atomic.Int64
	start time.Time
	cpu   time.Duration
}

func (*counting) Info() broker.Info { return broker.Info{Name: "null"} }

func (s *counting) Deliver(_ context.Context, batch broker.Batch) []error {
	n := int64(len(batch.Messages))
	if now := s.acked.Add(n); now >= s.want && now-n < s.want {
		_ = json.NewEncoder(os.Stdout).Encode(drained{time.Since(s.start).Seconds(), (used() - s.cpu).Seconds()})
	}
	return nil
}

// used is the CPU time of this process.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
