package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/store/ops"
)

// demoAnswer is the one object that `demo --output json` prints.
type demoAnswer struct {
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
}

func (d demoAnswer) kept() bool {
	return d.Lost == 0 && d.Phantom == 0 && d.OutOfOrder == 0 && d.DoubleEffects == 0 && d.Effects == d.Messages
}

// The demo's outbox has few lanes and its relay a small window: what a kill may
// send twice is at most their product.
const (
	demoLanes  = 8
	demoWindow = 16
)

type demoOptions struct {
	orders, rate, kills int
	keep                bool
}

// demo is one run: a shop, a relay and a warehouse as processes of their own,
// and what the parent needs to watch them.
type demo struct {
	app    *app
	opts   demoOptions
	dir    string
	set    settings // of the run: URLs that the children get
	topic  string
	stock  string // URL of the warehouse's database
	st     *open.Outbox
	broker demoBroker
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
}

func (a *app) demoCommand() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See it work: orders travel while the relay is being killed",
		Long: "Starts a shop, a relay and a warehouse as processes of their own, with SQLite and a broker\n" +
			"inside this process, places orders, kills the relay with SIGKILL while messages are under\n" +
			"way, and counts at the end what the order table, the broker and the stock table hold.\n" +
			"The broker does not deduplicate: duplicates are real, and the inbox makes each count once.\n" +
			"--store and --broker run the same on PostgreSQL and on Kafka, NATS, RabbitMQ or Redis, or with\n" +
			"http://127.0.0.1:PORT/PATH with webhooks to an endpoint that the demo opens there. Only flags\n" +
			"count: the database and the broker of the environment and of the file are left alone.\n\n" +
			"Exits with 1 unless nothing was lost, invented, reordered or applied twice.",
		Example: "  postrider demo\n  postrider demo --orders 5000 --kill 20 --output json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// What the environment or a file names holds the user's own messages.
			given := settings{Settings: open.Settings{Format: "plain"}, output: a.set.output, logLevel: a.set.logLevel, logFormat: a.set.logFormat}
			for name, to := range map[string]*string{"store": &given.Store, "broker": &given.Broker} {
				if a.typed[name] {
					*to = cmd.Flags().Lookup(name).Value.String()
				}
			}
			a.set = given
			return a.runDemo(cmd.Context(), o)
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&o.orders, "orders", 600, "orders to place; each makes three messages")
	fs.IntVar(&o.rate, "rate", 60, "orders per second")
	fs.IntVar(&o.kills, "kill", 3, "how often the relay is killed")
	fs.BoolVar(&o.keep, "keep", false, "keep the files of the run and print where they are")
	return cmd
}

func (a *app) runDemo(ctx context.Context, o demoOptions) error {
	if o.orders < 1 || o.rate < 1 || o.kills < 0 || o.kills >= o.orders {
		return exit.Usagef("orders and rate must be above zero, and kill below orders")
	}
	d := &demo{app: a, opts: o, set: a.set}
	d.view = newView(a, o)
	d.view.say("starting a shop, a relay, a warehouse" + map[bool]string{true: " and a broker"}[a.set.Broker == ""])
	defer d.close()
	if err := d.open(ctx); err != nil {
		return err
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
func (d *demo) open(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "postrider-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	d.dir = dir
	d.undo = append(d.undo, func() {
		if !d.opts.keep {
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
	d.set.Lanes = demoLanes
	if d.st, err = open.Store(&d.set.Settings); err != nil {
		return err
	}
	d.undo = append(d.undo, d.st.Close)
	if _, _, err := open.Reach(ctx, d.st); err != nil {
		return err
	}
	if _, err := d.st.Migrator.Migrate(ctx, ops.MigrateRequest{Lanes: d.set.Lanes}); err != nil {
		return fmt.Errorf("demo: make the outbox: %w", err)
	}
	if d.broker, err = openDemoBroker(ctx, d); err != nil {
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

func (d *demo) close() {
	d.stopChildren()
	for i := len(d.undo) - 1; i >= 0; i-- {
		d.undo[i]()
	}
	d.undo = nil
}

// drive places the orders, kills the relay and waits until everything has arrived.
func (d *demo) drive(ctx context.Context) error {
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
func (d *demo) settleDown(ctx context.Context) error {
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

func (d *demo) report(answer demoAnswer) error {
	if d.app.set.output == "json" {
		if err := d.app.print(answer, nil); err != nil {
			return err
		}
	} else if err := d.app.print(answer, func(w *tabwriter.Writer) { d.reportText(w, answer) }); err != nil {
		return err
	}
	if !answer.kept() {
		return fmt.Errorf("demo: a promise was broken: lost %d, phantom %d, out of order %d, double effects %d, effects %d of %d messages",
			answer.Lost, answer.Phantom, answer.OutOfOrder, answer.DoubleEffects, answer.Effects, answer.Messages)
	}
	return nil
}

func (d *demo) reportText(w *tabwriter.Writer, r demoAnswer) {
	output.Row(w)
	output.Row(w, "Counted in the order table, the broker and the stock table:")
	output.Row(w)
	output.Row(w, "  orders", r.Orders)
	output.Row(w, "  messages committed", r.Messages)
	output.Row(w, "  copies published", fmt.Sprintf("%d, %d of them duplicates (a kill may make up to %d: the relay's window)", r.Delivered, r.Duplicates, demoLanes*demoWindow))
	output.Row(w, "  effects", r.Effects)
	output.Row(w, "  lost / phantom", fmt.Sprintf("%d / %d", r.Lost, r.Phantom))
	output.Row(w, "  out of order / applied twice", fmt.Sprintf("%d / %d", r.OutOfOrder, r.DoubleEffects))
	output.Row(w, "  relay killed", fmt.Sprintf("%d times, %d with messages in flight", r.Kills, r.KillsInFlight))
	output.Row(w, "  longest silence", fmt.Sprintf("%d ms (promised after a kill: 3 s)", r.MaxGapMS))
	output.Row(w)
	if r.kept() {
		output.Row(w, "Every message counted once.")
		output.Row(w)
	}
	output.Row(w, "Next:")
	me := invocation(os.Args[0], os.Executable, exec.LookPath)
	output.Row(w, "  "+me+" demo --orders 5000 --kill 20", "the same, harder")
	output.Row(w, "  "+me+" migrate --store sqlite:shop.db", "an outbox of your own")
	output.Row(w, "  "+me+" relay --help", "carry it to Kafka, NATS, RabbitMQ, Redis or webhooks")
	if d.opts.keep {
		output.Row(w, "Files of this run: "+d.dir)
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
