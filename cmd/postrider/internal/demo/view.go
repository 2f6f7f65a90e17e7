package demo

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/output"
)

// view shows the run: a block that is redrawn on a terminal, a line per second elsewhere.
type view struct {
	out   io.Writer
	tty   bool
	total int
	begun time.Time

	mu       sync.Mutex
	drawn    bool
	kills    int
	inFlight int
	planned  int
	down     bool          // the relay is dead and nobody has taken over yet
	took     time.Duration // the last take-over
}

func newView(o Options) *view {
	v := &view{out: o.Answer.Out, tty: output.IsTerminal(o.Answer.Out), total: o.Orders, planned: o.Kills, begun: time.Now()}
	if o.Answer.Structured() {
		v.out, v.tty = o.ErrOut, false // stdout holds the one object
	}
	if o.Console { // without an end
		v.total = 0
	}
	return v
}

// of is the part of a total after a number; "" without one.
func of(word string, total int) string {
	if total == 0 {
		return ""
	}
	return word + strconv.Itoa(total)
}

func (v *view) say(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	fmt.Fprintln(v.out, text)
}

func (v *view) killed(inFlight bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.kills++
	v.down = true
	if inFlight {
		v.inFlight++
	}
	if !v.tty {
		fmt.Fprintf(v.out, "%5.1fs  relay killed (%d%s)\n", time.Since(v.begun).Seconds(), v.kills, of(" of ", v.planned))
	}
}

// takenOver says how long it took from the kill to the next message at the broker.
func (v *view) takenOver(took time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.down, v.took = false, took
	if !v.tty {
		fmt.Fprintf(v.out, "%5.1fs  taken over after %s\n", time.Since(v.begun).Seconds(), output.Short(took))
	}
}

// relayNow is what the relay is doing, for the terminal.
func (v *view) relayNow() string {
	switch {
	case v.down:
		return "dead: its lease runs out"
	case v.took > 0:
		return "taken over after " + output.Short(v.took)
	}
	return ""
}

func (v *view) counts() (kills, inFlight int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.kills, v.inFlight
}

// look is one frame.
type look struct {
	orders, pending, sent, effects int64
	lag                            time.Duration
}

func (v *view) draw(l look) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.tty {
		fmt.Fprintf(v.out, "%5.1fs  orders %d%s  pending %d  sent %d  lag %s  effects %d  kills %d\n",
			time.Since(v.begun).Seconds(), l.orders, of("/", v.total), l.pending, l.sent, output.Short(l.lag), l.effects, v.kills)
		return
	}
	if v.drawn {
		fmt.Fprint(v.out, "\x1b[7A")
	}
	v.drawn = true
	const width = 40
	done := int(l.orders) * width / max(v.total, 1)
	bar := make([]byte, width)
	for i := range bar {
		bar[i] = '.'
		if i < done {
			bar[i] = '#'
		}
	}
	progress := "[" + string(bar) + "]"
	if v.total == 0 {
		progress = ""
	}
	fmt.Fprintf(v.out, "\x1b[2K\n\x1b[2K  orders   %6d  %s\n", l.orders, progress)
	fmt.Fprintf(v.out, "\x1b[2K  pending  %6d  in the outbox\n", l.pending)
	fmt.Fprintf(v.out, "\x1b[2K  sent     %6d  at the broker\n", l.sent)
	fmt.Fprintf(v.out, "\x1b[2K  lag      %6s\n", output.Short(l.lag))
	fmt.Fprintf(v.out, "\x1b[2K  effects  %6d  in the stock\n", l.effects)
	fmt.Fprintf(v.out, "\x1b[2K  kills    %6d  %s  %s\n", v.kills, of("of ", v.planned), v.relayNow())
}

// watch feeds the view until ctx ends. A look that fails is left out: the next one will do.
func (d *run) watch(ctx context.Context) {
	every := time.Second
	if d.view.tty {
		every = 200 * time.Millisecond
	}
	for {
		if l, ok := d.look(ctx); ok {
			d.view.draw(l)
		}
		if !sleep(ctx, every) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			if l, ok := d.look(ctx); ok {
				d.view.draw(l)
			}
			return
		}
	}
}

func (d *run) look(ctx context.Context) (look, bool) {
	status, err := d.st.Admin.Status(ctx)
	if err != nil {
		return look{}, false
	}
	sent, err := d.broker.published(ctx)
	if err != nil {
		return look{}, false
	}
	effects, err := d.tables.effects(ctx)
	if err != nil {
		return look{}, false
	}
	return look{orders: d.load.finished.Load(), pending: status.Pending, sent: int64(sent), effects: int64(effects), lag: status.Lag}, true
}
