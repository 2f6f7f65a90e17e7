package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// facts is what one boot has told its observers, and how much it asked for.
type facts struct {
	on map[string]bool // states that were reported as begun and not yet as ended

	acked  int               // by the facts of this step
	done   []port.SettleDone // of this step
	calls  map[port.ID]sent  // deliveries of this boot
	settle map[port.ID][]store.Settlement

	second           time.Duration // where the counts below began
	actions, reports int
}

// sent is what is known of a Deliver.
type sent struct {
	lane      store.Lane
	size      int
	cancelled bool
}

// The most that one engine may ask for, by lane, and report as changes within a second:
// two to four times what the busiest of some thousand does.
const (
	actionsMost = 800
	reportsMost = 100
)

func newFacts() facts {
	return facts{on: map[string]bool{}, calls: map[port.ID]sent{}, settle: map[port.ID][]store.Settlement{}}
}

// States of the parts that have no name of their own.
const (
	storeDown   = "store down"
	storeSilent = "store silent"
	leaseLapsed = "lease lapsed"
	pipePaused  = "pipe paused"
)

// state names the state that a fact begins or ends; "" if it does neither.
func state(f port.Fact) (name string, on, once bool) {
	switch f := f.(type) {
	case port.HealthChanged:
		return f.Part + " down", f.Down, true
	case port.BrakeChanged:
		return "brake on " + f.Destination, f.On, true
	case port.LanePaused:
		return pausedLane(f.Lane), f.On, false // by its cap and by a person at once
	case port.PipePaused:
		return pipePaused, f.On, true
	case port.StoreAnswers:
		return storeSilent, !f.Works, true
	case port.LeaseLapsed:
		return leaseLapsed, true, false
	case port.LeaseRenewed:
		return leaseLapsed, false, false
	case port.LaneLost:
		return pausedLane(f.Lane), false, false
	}
	return "", false, false
}

func pausedLane(l store.Lane) string { return fmt.Sprintf("lane %d paused", l) }

// tells keeps what a fact says, and checks that a state begins and ends in turn.
func (n *node) tells(f port.Fact) {
	switch f := f.(type) {
	case port.DeliveryDone:
		n.told.acked += f.Acked
	case port.SettleDone:
		n.told.done = append(n.told.done, f)
	case port.HealthChanged, port.ReasonChanged, port.BrakeChanged, port.LanePaused:
		n.told.reports++
	}
	name, on, once := state(f)
	if name == "" {
		return
	}
	if once && n.told.on[name] == on {
		n.w.check.fail("F", "node %d told twice of %q: %+v", n.index, name, f)
	}
	if on {
		n.told.on[name] = true
	} else {
		delete(n.told.on, name)
	}
}

// asks counts what the engine asks for.
func (n *node) asks() {
	t := &n.told
	if n.w.now-t.second >= time.Second {
		t.second, t.actions, t.reports = n.w.now, 0, 0
	}
	t.actions++
	if t.actions > actionsMost*(n.w.plan.Lanes+1) || t.reports > reportsMost {
		n.w.check.fail("R", "node %d asked for %d actions and reported %d changes within a second", n.index, t.actions, t.reports)
	}
}

// counted compares what a step reported with the answer that it was given.
func (n *node) counted(ev port.Event) {
	t := &n.told
	acked, done := t.acked, t.done
	t.acked, t.done = 0, t.done[:0]
	switch ev := ev.(type) {
	case port.Delivered:
		c, known := t.calls[ev.ID]
		if !known {
			break
		}
		delete(t.calls, ev.ID)
		want := c.size
		for _, err := range ev.Errs {
			if err != nil {
				want--
			}
		}
		if acked != want && !(c.cancelled && acked == 0) {
			n.w.check.fail("F", "node %d reported %d acknowledged messages of lane %d, the sink acknowledged %d", n.index, acked, c.lane, want)
		}
		return
	case port.Settled:
		given := t.settle[ev.ID]
		delete(t.settle, ev.ID)
		if len(done) > 0 && ev.Err == nil {
			n.settledAs(ev, given, done)
			return
		}
	}
	if acked != 0 || len(done) != 0 {
		n.w.check.fail("F", "node %d reported %d acknowledged messages and %d settlements without an answer", n.index, acked, len(done))
	}
}

func (n *node) settledAs(ev port.Settled, given []store.Settlement, done []port.SettleDone) {
	var want port.SettleDone
	for _, st := range given {
		if !slices.Contains(ev.Lost, st.Lane) {
			want.Lanes++
			want.Messages += st.Delivered
			want.Parked += len(st.Park)
			want.Unparked += len(st.Unpark)
		}
	}
	want.Took = done[0].Took
	if len(done) != 1 || done[0] != want {
		n.w.check.fail("F", "node %d reported the settlements %+v, the database was given %+v", n.index, done, want)
	}
}

// restless names a state that a node still reports though it has ended, or returns "".
func (c *checker) restless() string {
	for _, n := range c.w.nodes {
		if n.boot == "" || len(n.told.on) == 0 {
			continue
		}
		recs, err := c.w.admin.Parked(c.w.ctx, ops.ParkedQuery{Limit: 1 << 20})
		if err != nil {
			return err.Error()
		}
		for _, name := range slices.Sorted(maps.Keys(n.told.on)) {
			if !c.holds(name, recs) {
				return fmt.Sprintf("node %d still reports %q", n.index, name)
			}
		}
	}
	return ""
}

// holds reports whether what is reported can be so at rest: a lane stays at its cap, and
// records of it are sent again and again that nothing proves to be at fault.
func (c *checker) holds(name string, recs []ops.ParkedRecord) bool {
	for l := range c.w.plan.Lanes {
		if l := store.Lane(l); name == pausedLane(l) {
			return c.w.db.Paused(l, "") || c.capped(l, recs)
		}
	}
	return slices.ContainsFunc(recs, c.unproven) && !slices.Contains([]string{storeDown, storeSilent, leaseLapsed, pipePaused}, name)
}

// capped reports whether the lane has as many captured keys as it may have.
func (c *checker) capped(l store.Lane, recs []ops.ParkedRecord) bool {
	keys := map[string]bool{}
	for _, r := range recs {
		if r.Lane == l && r.Message.Key != "" && r.Captures {
			keys[r.Message.Key] = true
		}
	}
	return c.w.plan.ParkedKeys > 0 && len(keys) >= c.w.plan.ParkedKeys
}
