package demo

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/telemetry"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/examples/orders"
	"github.com/postrider/postrider/otelpostrider"
	"github.com/postrider/postrider/relay"
)

// child is this binary started again with another command. It ends with its parent.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
	done  chan struct{} // closed when the process has ended
}

// spawn starts args. URLs go through the environment: flags are visible to all.
func (d *run) spawn(name string, set open.Settings, args ...string) (*child, error) {
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
	cmd.Env = config.Environ(map[string]string{
		config.Env("store"): set.Store, config.Env("broker"): set.Broker, config.Env("schema"): set.Schema,
		WithParent: "1",
	})
	cmd.Stderr = log
	apart(cmd)
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
func (d *run) start(ctx context.Context) error {
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
			"--window", strconv.Itoa(window))
	}}
	if err := d.relay.restart(); err != nil {
		return err
	}
	d.load = newLoad(strings.TrimSpace(address), d.opts)
	return ctx.Err()
}

func (d *run) stopChildren() {
	if d.relay != nil {
		d.relay.stop()
	}
	d.house.stop()
	d.shop.stop()
	d.relay, d.house, d.shop = nil, nil, nil
}

// lastLog is the last line that a child logged.
func (d *run) lastLog(name string) string {
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

// Part is what the shop and the warehouse are told.
type Part struct {
	Store, Schema string
	Broker        string // of the warehouse
	Topic         string
	Pause         time.Duration // each of the shop's transactions stays open up to this long
	Out           io.Writer     // gets one line when the process is ready
	Logger        *slog.Logger
	LookupEnv     func(string) (string, bool)
}

// telemetry exports what a process of the demo does where the environment asks for it: one
// trace leads from a request to the shop to the effect in the warehouse.
func (p *Part) telemetry(service string) (*telemetry.Export, error) {
	return telemetry.Start(telemetry.Source{LookupEnv: p.LookupEnv, Service: service, Instance: relay.DefaultInstance(), Logger: p.Logger, Parent: true})
}

// Shop is the process of the shop until ctx ends.
func Shop(ctx context.Context, p Part) error {
	db, d, err := open.SQL(p.Store, customers)
	if err != nil {
		return err
	}
	defer db.Close() // nothing is written any more
	export, err := p.telemetry("shop")
	if err != nil {
		return err
	}
	defer export.Stop(true)
	opts := &orders.Options{Schema: sqlSchema(d, p.Schema), Topic: p.Topic}
	if export.Tracer != nil {
		opts.Tracer = export.Tracer
	}
	if p.Pause > 0 {
		opts.Pause = func() time.Duration { return rand.N(p.Pause) }
	}
	shop := orders.NewShop(db, d, opts)
	if err := shop.Migrate(ctx); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("demo: listen: %w", err)
	}
	api := shop.Handler(p.Logger)
	if export.Tracer != nil {
		api = otelhttp.NewHandler(api, "shop", otelhttp.WithTracerProvider(export.Spans), otelhttp.WithPropagators(propagation.TraceContext{}),
			otelhttp.WithMeterProvider(noop.NewMeterProvider()))
	}
	srv := &http.Server{Handler: api, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	if _, err := fmt.Fprintln(p.Out, l.Addr()); err != nil {
		return err
	}
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("demo: serve: %w", err)
	}
	return nil
}

// Warehouse is the process of the warehouse until ctx ends.
func Warehouse(ctx context.Context, p Part) error {
	db, d, err := open.SQL(p.Store, customers)
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
	house := orders.NewWarehouse(db, d, sqlSchema(d, p.Schema), p.Logger)
	if err := house.Migrate(ctx); err != nil {
		return err
	}
	export, err := p.telemetry("warehouse")
	if err != nil {
		return err
	}
	defer export.Stop(true)
	if export.Tracer != nil {
		house.Use(otelpostrider.Process[*sql.Tx](export.Tracer))
	}
	src, err := open.Source(&open.Settings{Broker: p.Broker}, orders.Consumer, p.Topic)
	if err != nil {
		return err
	}
	defer src.Close()
	if _, err := fmt.Fprintln(p.Out, "ready"); err != nil {
		return err
	}
	return house.Run(ctx, src)
}

// sqlSchema is the schema where the dialect has schemas.
func sqlSchema(d dialect.Dialect, schema string) string {
	if d != dialect.Postgres {
		return ""
	}
	return schema
}

// WithParent makes the process end when its stdin closes: the demo's
// processes must not outlive it, however it ends.
const WithParent = "POSTRIDER_WITH_PARENT"

// UntilClosed returns a context that ends when in does, or with ctx.
func UntilClosed(ctx context.Context, in io.Reader) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return ctx
}
