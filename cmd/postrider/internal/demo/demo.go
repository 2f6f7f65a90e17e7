// Package demo runs a shop, a relay and a warehouse as processes of their own, kills the relay,
// and counts what became of every message.
package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/store/ops"
)

// Answer is the one object that `demo --output json` prints.
type Answer struct {
	Orders        int `json:"orders"`
	Messages      int `json:"messages"`
	Delivered     int `json:"delivered"` // every copy published
	Duplicates    int `json:"duplicates"`
	Effects       int `json:"effects"`
	Lost          int `json:"lost"`
	Phantom       int `json:"phantom"`
	OutOfOrder    int `json:"out_of_order"`
	DoubleEffects int `json:"double_effects"`
	Kills         int `json:"kills"`
	KillsInFlight int `json:"kills_in_flight"`
	MaxGapMS      int `json:"max_gap_ms"`
	Left          int `json:"left"` // in the outbox at the end: dead letters, what waits behind them, what is paused
}

func (d Answer) kept() bool {
	return d.Lost == 0 && d.Phantom == 0 && d.OutOfOrder == 0 && d.DoubleEffects == 0 && d.Effects+d.Left == d.Messages
}

// The demo's outbox has few lanes and its relay a small window: what a kill may
// send twice is at most their product.
const (
	lanes  = 8
	window = 16
)

// Options are what a user asked for.
type Options struct {
	Store, Broker       string // "": of the demo's own
	Orders, Rate, Kills int
	Keep                bool   // the files and the schema of the run
	Console             bool   // serve the console, and place orders until ctx ends
	Actor               string // of the console's acts
	Answer              output.Printer
	ErrOut              io.Writer
	Logger              *slog.Logger
}

// run is a shop, a relay and a warehouse as processes of their own,
// and what the parent needs to watch them.
type run struct {
	opts   Options
	dir    string
	set    open.Settings // of the run: URLs that the children get
	topic  string
	stock  string // URL of the warehouse's database
	st     *open.Outbox
	broker broker
	// houseBroker is what the warehouse receives from where that is another URL
	// than the relay's; "" otherwise.
	houseBroker string
	tables      *tables
	shop        *child
	relay       *relayChild
	house       *child
	load        *load
	view        *view
	undo        []func()
	killing     sync.Mutex     // one person kills at a time
	ended       bool           // nobody kills any more; under killing
	kills       sync.WaitGroup // looks for the next relay's first message
}

// Run runs the demo and prints what it counted. An error says that a promise was broken,
// or what kept the demo from running.
func Run(ctx context.Context, o Options) error {
	if o.Console {
		o.Orders, o.Kills = math.MaxInt32, 0
	}
	if o.Orders < 1 || o.Rate < 1 || o.Kills < 0 || o.Kills >= o.Orders {
		return exit.Usagef("orders and rate must be above zero, and kill below orders")
	}
	d := &run{opts: o, set: open.Settings{Store: o.Store, Broker: o.Broker, Format: "plain"}}
	d.view = newView(o)
	d.view.say("starting a shop, a relay, a warehouse" + map[bool]string{true: " and a broker"}[o.Broker == ""])
	defer d.close()
	if err := d.open(ctx); err != nil {
		return err
	}
	if o.Console {
		return d.live(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := d.start(ctx); err != nil {
		return err
	}
	watched := make(chan struct{})
	go func() { defer close(watched); d.watch(ctx) }()
	err := d.drive(ctx)
	cancel()
	<-watched
	if err != nil {
		return err
	}
	d.stopChildren()
	answer, err := d.count(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	return d.report(answer)
}

// open makes the databases, the schema and the broker's topic.
func (d *run) open(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "postrider-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	d.dir = dir
	d.undo = append(d.undo, func() {
		if !d.opts.Keep {
			_ = os.RemoveAll(dir)
		}
	})
	run := strings.ToLower(rand.Text()[:8])
	d.topic = "orders"
	if d.set.Broker != "" {
		d.topic = "postrider-demo-" + run
	}
	if d.set.Store == "" {
		d.set.Store = "sqlite:" + filepath.Join(dir, "shop.db")
		d.stock = "sqlite:" + filepath.Join(dir, "warehouse.db")
	} else if err := d.ownSchema(ctx, "postrider_demo_"+run); err != nil {
		return err
	}
	d.set.Lanes = lanes
	if d.st, err = open.Store(&d.set); err != nil {
		return err
	}
	d.undo = append(d.undo, d.st.Close)
	if _, _, err := open.Reach(ctx, d.st); err != nil {
		return err
	}
	if _, err := d.st.Migrator.Migrate(ctx, ops.MigrateRequest{Lanes: d.set.Lanes}); err != nil {
		return fmt.Errorf("demo: make the outbox: %w", err)
	}
	if d.broker, err = openBroker(ctx, d); err != nil {
		return err
	}
	d.undo = append(d.undo, d.broker.close)
	d.tables, err = openTables(d.set.Store, d.stock)
	if err != nil {
		return err
	}
	d.undo = append(d.undo, d.tables.close)
	return nil
}

func (d *run) close() {
	d.stopChildren()
	for i := len(d.undo) - 1; i >= 0; i-- {
		d.undo[i]()
	}
	d.undo = nil
}

// drive places the orders, kills the relay and waits until everything has arrived.
func (d *run) drive(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		if err := d.killer(ctx); err != nil {
			cancel(err)
		}
	}()
	if err := d.load.run(ctx); err != nil {
		cancel(err)
	}
	<-killed
	if err := context.Cause(ctx); err != nil {
		if errors.Is(err, context.Canceled) {
			return errors.New("demo: interrupted")
		}
		return err
	}
	return d.settleDown(ctx)
}

// patience is how long nothing may move before the demo takes it for stuck.
const patience = 30 * time.Second

// settleDown waits until nothing is pending and the warehouse has caught up.
// What does not arrive while nothing moves is what the count will call lost.
func (d *run) settleDown(ctx context.Context) error {
	want, err := d.tables.committed(ctx)
	if err != nil {
		return err
	}
	last, moved := 0, time.Now()
	for time.Since(moved) < patience {
		status, err := d.st.Admin.Status(ctx)
		effects, effectsErr := d.tables.effects(ctx)
		if err == nil && effectsErr == nil && status.Pending == 0 && effects >= want {
			return nil
		}
		if effects > last {
			last, moved = effects, time.Now()
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return errors.New("demo: interrupted")
		}
	}
	return nil
}

func (d *run) report(answer Answer) error {
	if err := d.opts.Answer.Print(answer, func(w *tabwriter.Writer) { d.reportText(w, answer) }); err != nil {
		return err
	}
	if !answer.kept() {
		return brokenPromise(answer)
	}
	return nil
}

func brokenPromise(answer Answer) error {
	return fmt.Errorf("demo: a promise was broken: lost %d, phantom %d, out of order %d, double effects %d, effects %d of %d messages",
		answer.Lost, answer.Phantom, answer.OutOfOrder, answer.DoubleEffects, answer.Effects, answer.Messages)
}

func (d *run) reportText(w *tabwriter.Writer, r Answer) {
	output.Row(w)
	output.Row(w, "Counted in the order table, the broker and the stock table:")
	output.Row(w)
	output.Row(w, "  orders", r.Orders)
	output.Row(w, "  messages committed", r.Messages)
	output.Row(w, "  copies published", fmt.Sprintf("%d, %d of them duplicates (a kill may make up to %d: the relay's window)", r.Delivered, r.Duplicates, lanes*window))
	output.Row(w, "  effects", r.Effects)
	if r.Left > 0 {
		output.Row(w, "  left in the outbox", fmt.Sprintf("%d: dead letters, and what waits behind them", r.Left))
	}
	output.Row(w, "  lost / phantom", fmt.Sprintf("%d / %d", r.Lost, r.Phantom))
	output.Row(w, "  out of order / applied twice", fmt.Sprintf("%d / %d", r.OutOfOrder, r.DoubleEffects))
	output.Row(w, "  relay killed", fmt.Sprintf("%d times, %d with messages in flight", r.Kills, r.KillsInFlight))
	output.Row(w, "  longest silence", fmt.Sprintf("%d ms (promised after a kill: 3 s)", r.MaxGapMS))
	output.Row(w)
	switch {
	case r.kept() && r.Left == 0:
		output.Row(w, "Every message counted once.")
		output.Row(w)
	case r.kept():
		output.Row(w, "Every message that was sent counted once; the others are in the outbox.")
		output.Row(w)
	}
	output.Row(w, "Next:")
	me := invocation(os.Args[0], os.Executable, exec.LookPath)
	for _, next := range Next() {
		output.Row(w, "  "+me+" "+next[0], next[1])
	}
	if d.opts.Keep {
		output.Row(w, "Files of this run: "+d.dir)
	}
}

// Next lists the commands that the demo ends with, without the program's name, and what
// each is for.
func Next() [][2]string {
	return [][2]string{
		{"demo --orders 5000 --kill 20", "the same, harder"},
		{"migrate --store sqlite:shop.db", "an outbox of your own"},
		{"relay --help", "deliver its messages to your broker"},
	}
}

// invocation is how to call this program again by hand: what `go run` has built
// is gone by then, and what is not on the PATH needs its own.
func invocation(arg0 string, executable func() (string, error), lookPath func(string) (string, error)) string {
	file, err := executable()
	if err != nil {
		return arg0
	}
	if strings.Contains(filepath.ToSlash(file), "/go-build") {
		return "go run ./cmd/postrider"
	}
	name := filepath.Base(arg0)
	if found, err := lookPath(name); err == nil {
		a, errA := filepath.EvalSymlinks(found)
		b, errB := filepath.EvalSymlinks(file)
		if errA == nil && errB == nil && a == b {
			return name
		}
	}
	return arg0
}

// sleep waits for d; false means that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
