package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/cmd/postrider/internal/desk"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// What the demo's own broker takes at first, what it takes once a person has raised its
// limit, and what an order with a long note needs.
const (
	smallMessages, largeMessages = 4 << 10, 64 << 10
	longNote                     = 8 << 10
)

// firstReject is when the first order is placed that the broker rejects.
const firstReject = 5 * time.Second

// live is the demo with the console: orders travel until a person ends it.
type live struct {
	*run
	ctx     context.Context // of the demo
	console *console.Console
	desk    *desk.Desk
	watched chan struct{}
	acts    atomic.Int64
	rejects chan struct{} // asks for one more order that the broker rejects
}

// live runs the demo with the console until ctx ends, and counts.
func (d *run) live(ctx context.Context) error {
	after := context.WithoutCancel(ctx)
	if err := d.start(ctx); err != nil {
		return err
	}
	l, err := d.serve(ctx)
	if err != nil {
		return err
	}
	drawn := make(chan struct{})
	drawing, stopDrawing := context.WithCancel(after)
	go func() { defer close(drawn); d.watch(drawing) }()
	err = l.place(ctx)
	l.end()
	d.killing.Lock() // a kill that was begun has its next relay
	d.ended = true
	d.killing.Unlock()
	d.kills.Wait()
	if err == nil {
		err = l.finish(after)
	}
	stopDrawing()
	<-drawn
	if err != nil {
		return err
	}
	d.stopChildren()
	answer, err := d.count(after)
	if err != nil {
		return err
	}
	return l.report(after, answer)
}

// serve starts the console beside the run and says where it is.
func (d *run) serve(ctx context.Context) (*live, error) {
	l := &live{run: d, ctx: ctx, watched: make(chan struct{}), rejects: make(chan struct{}, 1)}
	stock := d.set
	stock.Store = d.stock
	house, err := open.Inboxes(&stock)
	if err != nil {
		return nil, err
	}
	d.undo = append(d.undo, house.Close)
	box := console.Outbox{Name: "shop", Store: d.st.Store, Office: d.st.Office, Consumers: &house.Inboxes}
	set := desk.Settings{Listen: desk.DefaultListen, Role: string(console.Admin), Actor: d.opts.Actor, Logger: slog.New(slog.DiscardHandler)}
	address := ""
	for _, set.Listen = range []string{desk.DefaultListen, "127.0.0.1:0"} { // a console may run already
		if l.desk, err = desk.New(set); err != nil {
			return nil, err
		}
		opts := l.desk.Options()
		opts.NoteRead = func(context.Context, console.Read) error { return nil } // the payloads are the demo's own
		opts.Extras = l.buttons()
		l.console = console.New([]console.Outbox{box}, &opts)
		if err := l.console.Check(); err != nil {
			return nil, err
		}
		if address, err = l.desk.Start(l.counted(l.console)); err == nil {
			break
		} else if set.Listen != desk.DefaultListen {
			return nil, fmt.Errorf("demo: %w", err)
		}
	}
	d.view.say("console: " + address + "  (Ctrl-C ends the demo and counts)")
	go func() { defer close(l.watched); l.console.Run(ctx) }()
	return l, nil
}

// end ends the console: nobody acts from then on.
func (l *live) end() {
	l.desk.Stop()
	l.console.Close()
	<-l.watched
}

func (l *live) buttons() []console.Extra {
	all := []console.Extra{{
		Label: "Kill the relay", Explain: "SIGKILL, in the middle of its work; another one takes over when the lease has expired (1.5 s)",
		Do: func(context.Context, string) error { return l.killRelay() },
	}}
	if l.opts.Broker != "" { // somebody else's broker keeps its limits
		return all
	}
	return append(all, console.Extra{
		Label: "Place an order that the broker rejects", Explain: fmt.Sprintf("its messages are larger than the %d KiB that the broker takes: a dead letter, and its key waits", smallMessages>>10),
		Do: func(context.Context, string) error {
			select {
			case l.rejects <- struct{}{}:
			default: // one is asked for already
			}
			return nil
		},
	}, console.Extra{
		Label: "Raise the broker's limit", Explain: fmt.Sprintf("to %d KiB: retry the dead letters then", largeMessages>>10),
		Do: func(ctx context.Context, _ string) error { return l.limit(ctx, largeMessages) },
	})
}

// killRelay kills the relay, and starts another one, which waits for the lease.
func (l *live) killRelay() error {
	l.killing.Lock()
	defer l.killing.Unlock()
	if l.ended {
		return errors.New("the demo is ending")
	}
	status, err := l.st.Admin.Status(l.ctx)
	victim := l.relay.current()
	killed := time.Now()
	if err := victim.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill the relay: %w", err)
	}
	<-victim.done
	l.view.killed(err == nil && status.Pending > 0)
	if err := l.relay.restart(); err != nil {
		return err
	}
	l.kills.Go(func() {
		if before, err := l.lastWords(l.ctx); err == nil && l.ctx.Err() == nil {
			_ = l.awaitPublish(l.ctx, before, killed) // a pause of a person's makes no take-over
		}
	})
	return nil
}

// limit sets how large a message the demo's own broker takes.
func (d *run) limit(ctx context.Context, bytes int32) error {
	ctx, cancel := context.WithTimeout(ctx, open.Timeout)
	defer cancel()
	address, _, _ := strings.Cut(d.set.Broker, "?")
	nc, err := nats.Connect(address, nats.Name("postrider demo"))
	if err != nil {
		return fmt.Errorf("reach the broker: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	name, err := js.StreamNameBySubject(ctx, d.topic)
	if err != nil {
		return fmt.Errorf("find the stream: %w", err)
	}
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("find the stream: %w", err)
	}
	conf := stream.CachedInfo().Config
	conf.MaxMsgSize = bytes
	if _, err = js.UpdateStream(ctx, conf); err != nil {
		return fmt.Errorf("change the stream: %w", err)
	}
	return nil
}

// place places orders until ctx ends, and lets those that were begun reach their end.
func (l *live) place(ctx context.Context) error {
	if l.opts.Broker == "" {
		if err := l.limit(ctx, smallMessages); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		time.AfterFunc(firstReject, func() {
			select {
			case l.rejects <- struct{}{}:
			default:
			}
		})
	}
	return l.load.until(ctx, l.rejects)
}

// finish waits for what is under way, as far as a person has left it free to move.
func (l *live) finish(ctx context.Context) error {
	l.view.say("waiting for what is under way")
	for last, moved := -1, time.Now(); time.Since(moved) < patience/3; {
		want, err := l.tables.committed(ctx)
		if err != nil {
			return err
		}
		status, err := l.st.Admin.Status(ctx)
		effects, effectsErr := l.tables.effects(ctx)
		if err == nil && effectsErr == nil && status.Pending == status.Parked[store.Waiting.String()] && effects+left(status) >= want {
			return nil
		}
		if effects > last {
			last, moved = effects, time.Now()
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

// left counts what the outbox has not sent.
func left(status ops.Status) int { return int(status.Pending + status.Parked[store.Dead.String()]) }

// counted counts what people do to messages, which the demo's books cannot judge. Its own
// buttons are no such acts, nor is a payload that is read.
func (l *live) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/do/") {
			l.acts.Add(1)
		}
		next.ServeHTTP(w, r)
	})
}

// report is the end of a run with the console.
func (l *live) report(ctx context.Context, answer Answer) error {
	status, err := l.st.Admin.Status(ctx)
	if err != nil {
		return err
	}
	acts := l.acts.Load()
	answer.Left = left(status)
	answer.Lost = max(0, answer.Lost-answer.Left)
	if err := l.opts.Answer.Print(answer, func(w *tabwriter.Writer) {
		l.reportText(w, answer)
		if acts > 0 {
			output.Row(w, "You acted "+plural.Of(acts, "time")+": what you discarded, edited, skipped or replayed is in these numbers.")
		}
	}); err != nil {
		return err
	}
	if answer.DoubleEffects > 0 || acts == 0 && !answer.kept() {
		return brokenPromise(answer)
	}
	return nil
}

// goods are those of an order; with a long note they are more than the demo's broker takes at first.
func goods(i int64, long bool) string {
	sku := fmt.Sprintf("sku-%d", i%10)
	if long {
		sku += " " + strings.Repeat("note ", longNote/5)
	}
	return sku
}
