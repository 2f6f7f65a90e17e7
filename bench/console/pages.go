package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// The bars of a page.
const (
	mostP95 = 200 * time.Millisecond
	mostMax = 2 * time.Second
)

// runPages asks the shipped console for each page, in turns, beside an idle relay.
func runPages(ctx context.Context, c *config) (err error) {
	if c.store == "" {
		pg, err := testserver.LaunchPostgres(ctx, c.postgres, "", testserver.Throughput())
		if err != nil {
			return err
		}
		defer func() { _ = pg.Close() }()
		c.store = pg.URL
	}
	pool, err := pgxpool.New(ctx, c.store)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pgstore.New(pool, nil).Office().Migrator.Migrate(ctx, ops.MigrateRequest{}); err != nil {
		return fmt.Errorf("make the outbox: %w", err)
	}
	var filled bool
	if err := pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM postrider.outbox)`).Scan(&filled); err != nil {
		return err
	}
	if !filled {
		if err := fillHistory(ctx, pool, c); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "postrider-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if c.program == "" {
		c.program = filepath.Join(dir, "postrider")
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", c.program, "github.com/postrider/postrider/cmd/postrider")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build the binary: %w\n%s", err, out)
		}
	}
	relay := exec.CommandContext(ctx, c.program, "relay", "--store", c.store, "--broker", "stdout:", "--listen", "")
	relay.Dir = dir
	if err := relay.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end(relay)) }()
	if err := parkedOnce(ctx, pool); err != nil {
		return err
	}
	console := exec.CommandContext(ctx, c.program, "console", "--store", c.store, "--listen", "127.0.0.1:0", "--role", "admin")
	console.Dir = dir
	out, err := console.StdoutPipe()
	if err != nil {
		return err
	}
	console.Stderr = console.Stdout
	if err := console.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end(console)) }()
	root, err := address(out)
	if err != nil {
		return err
	}
	return timePages(ctx, pool, root, c.times)
}

func end(cmd *exec.Cmd) error {
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return cmd.Wait()
}

var listens = regexp.MustCompile(`console: (http\S+)`)

// address reads where the console listens from what it prints.
func address(out io.Reader) (string, error) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if m := listens.FindStringSubmatch(lines.Text()); m != nil {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return m[1], nil
		}
	}
	return "", fmt.Errorf("the console ended without an address: %w", lines.Err())
}

// somebody has what the pages are asked about.
const somebody = `SELECT (SELECT id::text FROM postrider.outbox WHERE lane = 3 AND key LIKE 'key-%' AND seq > (SELECT last_value / 2 FROM postrider.outbox_seq) ORDER BY seq LIMIT 1),
  (SELECT id::text FROM postrider.parked WHERE pipe = 'main' AND state = 'dead' ORDER BY seq OFFSET 1000 LIMIT 1),
  (SELECT seq::text FROM postrider.parked WHERE pipe = 'main' AND state = 'dead' ORDER BY seq OFFSET 1000 LIMIT 1),
  (SELECT key FROM postrider.parked WHERE pipe = 'main' AND state = 'dead' ORDER BY seq OFFSET 1000 LIMIT 1)`

func timePages(ctx context.Context, pool *pgxpool.Pool, root string, times int) error {
	var settled, dead, seq, key string
	if err := pool.QueryRow(ctx, somebody).Scan(&settled, &dead, &seq, &key); err != nil {
		return fmt.Errorf("find messages to ask about: %w", err)
	}
	key = url.QueryEscape(key)
	pages := []string{
		"", "?span=5w", "lanes", "dead", "dead?code=403", "dead?topic=invoices", "dead?type=order.paid", "dead?key=" + key, "dead?code=403&topic=invoices&type=order.paid",
		"dead?error=forbidden", "keys", "key?key=" + key, "key?key=key-77", "message?id=" + settled, "message?id=" + dead, "message?seq=" + seq, "pipes", "orders", "consumers",
		"doctor", "journal", "do/discard?seq=" + seq, "do/retry?key=" + key, "do/retry?all=1", "do/retry?code=403", "do/replay?topic=orders&key=key-77",
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return err
	}
	client := &http.Client{Jar: jar, Timeout: time.Minute}
	first, err := client.Get(root)
	if err != nil {
		return err
	}
	_ = first.Body.Close()
	root = first.Request.URL.String() // of the only outbox
	took := make(map[string][]time.Duration, len(pages))
	for i := range times + 1 { // the first one warms up
		for _, p := range pages {
			d, err := get(ctx, client, root+p)
			if err != nil {
				return fmt.Errorf("page %q: %w", p, err)
			}
			if i > 0 {
				took[p] = append(took[p], d)
			}
		}
	}
	fmt.Printf("| Page (%d requests each) | p50 ms | p95 ms | most ms | |\n|---|---:|---:|---:|---|\n", times)
	for _, p := range pages {
		v := took[p]
		slices.Sort(v)
		p95, most, verdict := v[(len(v)*95+99)/100-1], v[len(v)-1], "holds"
		if p95 > mostP95 || most > mostMax {
			verdict = "**above**"
		}
		fmt.Printf("| `/%s` | %d | %d | %d | %s |\n", p, v[(len(v)-1)/2].Milliseconds(), p95.Milliseconds(), most.Milliseconds(), verdict)
	}
	return nil
}

// get returns the time until the whole page is there.
func get(ctx context.Context, client *http.Client, address string) (time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	return time.Since(start), err
}
