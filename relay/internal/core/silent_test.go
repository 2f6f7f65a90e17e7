package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store/memstore"
)

// A destination that takes messages and never answers delays those of others by one call at a
// time, however many of its messages stand before them: in the log, or parked since an outage
// before. Each of its messages has its turn to be sent alone.
//
// Promises: D, S
func TestASilentDestinationHoldsNobodyUp(t *testing.T) {
	const silent = 32
	for _, tc := range []struct {
		name   string
		down   time.Duration // how long it answers with an outage first
		orders time.Duration // when messages of another destination begin to come
		later  bool          // all of them are due later
	}{
		{"parked", 20 * time.Second, 0, false},
		{"log", 0, 0, false},
		{"quiet log", 0, 5 * time.Minute, false},
		{"quiet log, due later", 0, 5 * time.Minute, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newSilentWorld(t, port.Config{})
			for i := range silent {
				w.write(postrider.Message{Payload: fmt.Append(nil, "silent", i), Topic: "silent", Key: fmt.Sprint(i)})
			}
			w.downUntil = w.start + tc.down
			for i := 0; w.r.now < w.start+20*time.Minute; i++ {
				if at := w.start + tc.orders + time.Duration(i)*time.Second; at > w.r.now {
					w.run(at)
				}
				w.order(i, tc.later)
			}
			if worst := w.worst(); worst > time.Minute {
				t.Errorf("a message of another destination waited for %v behind %d silent messages", worst, silent)
			}
			if len(w.alone) < silent {
				t.Errorf("%d of %d silent messages were sent alone: %v", len(w.alone), silent, w.alone)
			}
		})
	}
}

// Parked records of a destination that is down are set aside again, also when they are sent one
// by one: the lane does not wait with them for the end of the destination's pause.
//
// Promises: S
func TestALonePageDoesNotWaitForItsDestination(t *testing.T) {
	w := newSilentWorld(t, port.Config{OutageMax: 10 * time.Minute})
	w.loneDown, w.downUntil = true, w.start+20*time.Second
	for i := range 32 {
		w.write(postrider.Message{Payload: fmt.Append(nil, "silent", i), Topic: "silent"})
	}
	for i := range 3600 {
		w.run(w.start + time.Duration(i)*time.Second)
		w.order(i, false)
	}
	if worst := w.worst(); worst > time.Minute {
		t.Errorf("a message of another destination waited for %v", worst)
	}
}

// Messages of a destination that is down make way when they fill the window of their lane, also
// when no other destination has been acknowledged: what stands behind them may show that it works.
//
// Promises: S
func TestADestinationThatIsDownDoesNotFillTheWindow(t *testing.T) {
	w := newSilentWorld(t, port.Config{Window: 64, Page: 16})
	w.downUntil = w.start + time.Hour
	for i := range 100 {
		w.write(postrider.Message{Payload: fmt.Append(nil, "silent", i), Topic: "silent", Key: fmt.Sprint(i)})
	}
	w.order(0, false)
	w.run(w.start + time.Minute)
	if worst := w.worst(); worst > 30*time.Second {
		t.Errorf("a message of another destination waited for %v", worst)
	}
}

// silentWorld is a relay with one lane whose destination "silent" never answers, and "orders" do.
type silentWorld struct {
	t         *testing.T
	r         *rig
	db        *memstore.Store
	start     time.Duration
	downUntil time.Duration
	loneDown  bool // a message that is sent alone gets an answer: it is down
	committed map[string]time.Duration
	waited    time.Duration
	alone     map[string]int
	answer    *port.Delivered
	answerAt  time.Duration
}

func newSilentWorld(t *testing.T, cfg port.Config) *silentWorld {
	t.Helper()
	r := newRig(t, cfg)
	w := &silentWorld{t: t, r: r, start: r.now, committed: map[string]time.Duration{}, alone: map[string]int{}}
	w.db = memstore.New(&memstore.Options{Lanes: 1, Now: w.clock})
	r.step(port.Start{})
	return w
}

func (w *silentWorld) clock() time.Time { return time.Unix(0, 0).Add(w.r.now) }

func (w *silentWorld) write(msgs ...postrider.Message) {
	tx := w.db.Begin()
	if err := tx.Enqueue(msgs...); err != nil {
		w.t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		w.t.Fatal(err)
	}
}

// order writes one message that goes at once, unless later, and one that is due later.
func (w *silentWorld) order(i int, onlyLater bool) {
	const later = 5 * time.Second
	now, then := fmt.Sprint("now", i), fmt.Sprint("later", i)
	w.committed[then] = w.r.now + later
	w.write(postrider.Message{Payload: []byte(then), Topic: "orders", NotBefore: w.clock().Add(later)})
	if !onlyLater {
		w.committed[now] = w.r.now
		w.write(postrider.Message{Payload: []byte(now), Topic: "orders"})
	}
}

// worst is how long an order has waited at most.
func (w *silentWorld) worst() time.Duration {
	worst := w.waited
	for _, at := range w.committed { // order does not matter
		worst = max(worst, w.r.now-at)
	}
	return worst
}

func (w *silentWorld) deliver(d port.Deliver) {
	errs, took := make([]error, len(d.Msgs)), time.Millisecond
	for i, m := range d.Msgs {
		switch name := string(m.Payload); {
		case m.Topic == "orders":
			w.waited = max(w.waited, w.r.now-w.committed[name])
			delete(w.committed, name)
		case w.r.now < w.downUntil, w.loneDown && len(d.Msgs) == 1:
			errs[i] = broker.Outage(errTest, "o1", "silent")
		default:
			errs[i], took = unknown, d.Timeout
			if len(d.Msgs) == 1 {
				w.alone[name]++
			}
		}
	}
	w.answer, w.answerAt = &port.Delivered{ID: d.ID, Errs: errs}, w.r.now+took
}

// run lets time go by until then.
func (w *silentWorld) run(until time.Duration) {
	r := w.r
	for r.now < until {
		if ev := w.answer; ev != nil && r.now >= w.answerAt {
			w.answer = nil
			r.step(*ev)
		}
		if len(r.acts) == 0 {
			r.now += 50 * time.Millisecond
			r.step(port.Tick{})
			continue
		}
		a := r.acts[0]
		r.acts = r.acts[1:]
		switch a := a.(type) {
		case port.Lease:
			g, err := w.db.Lease(w.t.Context(), a.Req)
			r.step(port.Leased{ID: a.ID, Grant: g, Err: err})
		case port.Read:
			b, err := w.db.Read(w.t.Context(), a.Reads)
			r.step(port.ReadDone{ID: a.ID, Batches: b, Err: err})
		case port.Settle:
			lost, err := w.db.Settle(w.t.Context(), a.Settlements)
			r.step(port.Settled{ID: a.ID, Lost: lost, Err: err})
		case port.Wait:
			r.now += 50 * time.Millisecond
			r.step(port.Woke{ID: a.ID})
		case port.Deliver:
			w.deliver(a)
		}
	}
}
