package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/examples/orders"
)

// child is this binary started again with another command. It ends with its parent.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
	done  chan struct{} // closed when the process has ended
}

// spawn starts args. URLs go through the environment: flags are visible to all.
func (d *demo) spawn(name string, set settings, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("demo: find this program: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(d.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	defer log.Close() // the child has its own copy
	cmd := exec.Command(self, args...)
	cmd.Dir = d.dir // no postrider.yml of the working directory may speak here
	cmd.Env = environment(map[string]string{
		config.Env("store"): set.Store, config.Env("broker"): set.Broker, config.Env("schema"): set.Schema,
		envWithParent: "1",
	})
	cmd.Stderr = log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("demo: start %s: %w", name, err)
	}
	c := &child{cmd: cmd, stdin: stdin, out: bufio.NewReader(stdout), done: make(chan struct{})}
	return c, nil
}

// environment is ours without our own settings, with those of set.
func environment(set map[string]string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "POSTRIDER_") {
			env = append(env, kv)
		}
	}
	for k, v := range set {
		if v != "" {
			env = append(env, k+"="+v)
		}
	}
	return env
}

// reap waits for the process in the background. Call it once, after reading
// from out has ended.
func (c *child) reap() {
	go func() {
		defer close(c.done)
		_ = c.cmd.Wait() // how a child ended is in its log
	}()
}

// stop asks the child to end, and ends it when it does not.
func (c *child) stop() {
	if c == nil {
		return
	}
	_ = c.stdin.Close()
	select {
	case <-c.done:
	case <-time.After(5 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}

// start brings up the three processes and waits for the shop's address.
func (d *demo) start(ctx context.Context) error {
	var err error
	args := []string{"demo-orders", "--topic", d.topic}
	if d.stock == d.set.Store {
		args = append(args, "--pause", "20ms")
	}
	if d.shop, err = d.spawn("shop", d.set, args...); err != nil {
		return err
	}
	address, err := d.shop.out.ReadString('\n')
	d.shop.reap()
	if err != nil {
		return fmt.Errorf("demo: the shop did not start: %s", d.lastLog("shop"))
	}
	set := d.set
	set.Store = d.stock
	if d.houseBroker != "" {
		set.Broker = d.houseBroker
	}
	if d.house, err = d.spawn("warehouse", set, "demo-warehouse", "--topic", d.topic); err != nil {
		return err
	}
	_, err = d.house.out.ReadString('\n')
	d.house.reap()
	if err != nil {
		return fmt.Errorf("demo: the warehouse did not start: %s", d.lastLog("warehouse"))
	}
	d.relay = &relayChild{start: func() (*child, error) {
		return d.spawn("relay", d.set, "relay", "--listen", "", "--lease-ttl", "1500ms", "--log-format", "json",
			"--window", strconv.Itoa(demoWindow))
	}}
	if err := d.relay.restart(); err != nil {
		return err
	}
	d.load = newLoad(strings.TrimSpace(address), d.opts)
	return ctx.Err()
}

func (d *demo) stopChildren() {
	if d.relay != nil {
		d.relay.stop()
	}
	d.house.stop()
	d.shop.stop()
	d.relay, d.house, d.shop = nil, nil, nil
}

// lastLog is the last line that a child logged.
func (d *demo) lastLog(name string) string {
	data, err := os.ReadFile(filepath.Join(d.dir, name+".log"))
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if err != nil || lines[len(lines)-1] == "" {
		return "it logged nothing"
	}
	return lines[len(lines)-1]
}

// relayChild is the relay that is killed and started again.
type relayChild struct {
	start func() (*child, error)
	mu    sync.Mutex
	child *child
}

func (r *relayChild) restart() error {
	c, err := r.start()
	if err != nil {
		return err
	}
	c.reap()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.child = c
	return nil
}

func (r *relayChild) current() *child {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.child
}

func (r *relayChild) stop() { r.current().stop() }

// ordersCommand is the shop's process.
func (a *app) ordersCommand() *cobra.Command {
	var (
		topic string
		pause time.Duration
	)
	cmd := &cobra.Command{
		Use: "demo-orders", Short: "The shop of the demo", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runShop(cmd.Context(), topic, pause) },
	}
	cmd.Flags().StringVar(&topic, "topic", orders.Topic, "topic of the messages")
	cmd.Flags().DurationVar(&pause, "pause", 0, "each transaction stays open up to this long")
	return cmd
}

func (a *app) runShop(ctx context.Context, topic string, pause time.Duration) error {
	db, d, err := open.SQL(a.set.Store, customers)
	if err != nil {
		return err
	}
	defer db.Close() // nothing is written any more
	opts := &orders.Options{Schema: sqlSchema(d, a.set.Schema), Topic: topic}
	if pause > 0 {
		opts.Pause = func() time.Duration { return rand.N(pause) }
	}
	shop := orders.NewShop(db, d, opts)
	if err := shop.Migrate(ctx); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("demo: listen: %w", err)
	}
	srv := &http.Server{Handler: shop.Handler(a.logger()), ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	if _, err := fmt.Fprintln(a.out, l.Addr()); err != nil {
		return err
	}
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("demo: serve: %w", err)
	}
	return nil
}

// warehouseCommand is the warehouse's process.
func (a *app) warehouseCommand() *cobra.Command {
	var topic string
	cmd := &cobra.Command{
		Use: "demo-warehouse", Short: "The warehouse of the demo", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runWarehouse(cmd.Context(), topic) },
	}
	cmd.Flags().StringVar(&topic, "topic", orders.Topic, "topic of the messages")
	return cmd
}

func (a *app) runWarehouse(ctx context.Context, topic string) error {
	db, d, err := open.SQL(a.set.Store, customers)
	if err != nil {
		return err
	}
	defer db.Close() // nothing is written any more
	if d == dialect.SQLite {
		// Nobody else has the file open yet. The shop's has this mode by its outbox.
		if _, err := db.ExecContext(ctx, "PRAGMA journal_mode = WAL"); err != nil {
			return fmt.Errorf("demo: turn on WAL: %w", err)
		}
	}
	house := orders.NewWarehouse(db, d, sqlSchema(d, a.set.Schema), a.logger())
	if err := house.Migrate(ctx); err != nil {
		return err
	}
	src, err := open.Source(&a.set.Settings, orders.Consumer, topic)
	if err != nil {
		return err
	}
	defer src.Close()
	if _, err := fmt.Fprintln(a.out, "ready"); err != nil {
		return err
	}
	return house.Run(ctx, src)
}

// sqlSchema is the schema where the dialect has schemas.
func sqlSchema(d dialect.Dialect, schema string) string {
	if d == dialect.SQLite {
		return ""
	}
	return schema
}
