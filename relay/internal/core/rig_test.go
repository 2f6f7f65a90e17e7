package core

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

var errTest = errors.New("test: it broke")

// rig steps an engine and keeps the actions that wait for an answer.
type rig struct {
	t     testing.TB
	e     *Engine
	now   time.Duration
	acts  []port.Action
	facts []port.Fact
	seq   int64

	others   int             // instances that want lanes too
	requests []store.Request // of people, which a heartbeat brings
	kept     store.Batch
}

func newRig(tb testing.TB, cfg port.Config) *rig {
	tb.Helper()
	cfg.BootID = "boot"
	return &rig{t: tb, e: New(cfg, 1), now: time.Hour}
}

func (r *rig) step(ev port.Event) {
	r.t.Helper()
	for _, a := range r.e.Step(r.now, ev) {
		if n, ok := a.(port.Notify); ok {
			r.facts = append(r.facts, n.Fact)
			continue
		}
		r.acts = append(r.acts, a)
	}
}

// pass lets time go by in small ticks and answers heartbeats meanwhile.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	for end := r.now + d; r.now < end; {
		r.now += min(10*time.Millisecond, end-r.now)
		r.step(port.Tick{})
		if l, ok := maybe[port.Lease](r); ok && !l.Req.Leave {
			r.step(port.Leased{ID: l.ID, Grant: r.grant(r.requests...)})
		} else if ok {
			r.acts = append(r.acts, l)
		}
	}
}

// grant renews exactly what the engine holds.
func (r *rig) grant(requests ...store.Request) store.Grant {
	g := store.Grant{Identity: "db", Total: len(r.e.held), Instances: 1 + r.others, Requests: requests}
	for _, l := range r.e.held {
		g.Lanes = append(g.Lanes, store.LaneGrant{Lane: l.id, Epoch: l.epoch})
	}
	return g
}

func maybe[T port.Action](r *rig) (found T, ok bool) {
	for i, a := range r.acts {
		if v, is := a.(T); is {
			r.acts = append(r.acts[:i:i], r.acts[i+1:]...)
			return v, true
		}
	}
	return found, false
}

func take[T port.Action](r *rig) T {
	r.t.Helper()
	v, ok := maybe[T](r)
	if !ok {
		r.t.Fatalf("no %T among %v", v, r.acts)
	}
	return v
}

func none[T port.Action](r *rig) {
	r.t.Helper()
	if v, ok := maybe[T](r); ok {
		r.t.Fatalf("unexpected %T: %+v", v, v)
	}
}

func factsOf[T port.Fact](r *rig) (out []T) {
	for _, f := range r.facts {
		if v, ok := f.(T); ok {
			out = append(out, v)
		}
	}
	return out
}

func lanes(n int, view store.ParkedView) (g store.Grant) {
	g = store.Grant{Identity: "db", Total: n, Instances: 1}
	for i := range n {
		g.Lanes = append(g.Lanes, store.LaneGrant{Lane: store.Lane(i), Epoch: 10, Position: store.Position("p0"), Parked: view})
	}
	return g
}

// lead starts the engine with n lanes.
func (r *rig) lead(n int) { r.t.Helper(); r.leadWith(lanes(n, store.ParkedView{})) }

func (r *rig) leadWith(g store.Grant) {
	r.t.Helper()
	r.step(port.Start{})
	r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: g})
}

// batch makes a batch of lane whose messages have these keys ("a" or "a@topic").
func (r *rig) batch(lane store.Lane, pos string, keys ...string) store.Batch {
	b := store.Batch{Lane: lane, Position: store.Position(pos)}
	for _, key := range keys {
		topic := "orders"
		for i := range key {
			if key[i] == '@' {
				key, topic = key[:i], key[i+1:]
				break
			}
		}
		r.seq++
		b.Messages = append(b.Messages, postrider.Message{ID: fmt.Sprint("m", r.seq), Topic: topic, Key: key})
		b.Meta = append(b.Meta, store.Meta{Seq: r.seq})
	}
	return b
}

// read answers the oldest Read.
func (r *rig) read(bs ...store.Batch) {
	r.t.Helper()
	r.step(port.ReadDone{ID: take[port.Read](r).ID, Batches: bs})
}

// parkedRead takes the next Read of parked records and answers those of the log
// before it: they find nothing.
func (r *rig) parkedRead() port.Read {
	r.t.Helper()
	for {
		rd := take[port.Read](r)
		if rd.Reads[0].Parked {
			return rd
		}
		r.step(port.ReadDone{ID: rd.ID})
	}
}

// deliver answers the oldest Deliver, one error per message or none at all.
func (r *rig) deliver(errs ...error) port.Deliver {
	r.t.Helper()
	d := take[port.Deliver](r)
	if len(errs) > 0 && len(errs) != len(d.Msgs) {
		r.t.Fatalf("%d errors for %v", len(errs), ids(d))
	}
	r.step(port.Delivered{ID: d.ID, Errs: errs})
	return d
}

func ids(d port.Deliver) (out []string) {
	for _, m := range d.Msgs {
		out = append(out, m.ID)
	}
	return out
}

// settle waits for a Settle, answers it and returns what it held for the lane.
func (r *rig) settle(lane store.Lane) store.Settlement {
	r.t.Helper()
	r.pass(1100 * time.Millisecond)
	s := take[port.Settle](r)
	r.step(port.Settled{ID: s.ID})
	for _, st := range s.Settlements {
		if st.Lane == lane {
			return st
		}
	}
	r.t.Fatalf("lane %d is not in %+v", lane, s)
	return store.Settlement{}
}

// drawn renders parks as "m1 dead captures, m2 waiting".
func drawn(parks []store.Park) (out string) {
	for i, p := range parks {
		if i > 0 {
			out += ", "
		}
		out += p.Message.ID + " " + p.State.String()
		if p.Captures {
			out += " captures"
		}
		if p.Attempts > 0 {
			out += fmt.Sprint(" #", p.Attempts)
		}
	}
	return out
}

func wantEqual[T comparable](tb testing.TB, what string, got, want T) {
	tb.Helper()
	if got != want {
		tb.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func (r *rig) laneIDs() []store.Lane {
	var ids []store.Lane
	for _, l := range r.e.held {
		ids = append(ids, l.id)
	}
	return ids
}
