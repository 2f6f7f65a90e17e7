package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/blame"
	"github.com/postrider/postrider/relay/internal/captive"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/relay/internal/solo"
	"github.com/postrider/postrider/store"
)

// aheadRig leads a lane whose table was read, and which may be asked ahead.
func aheadRig(t *testing.T, cfg port.Config) *rig {
	t.Helper()
	cfg.Store.Ahead = true
	r := newRig(t, cfg)
	r.lead(1)
	if rd := r.asked(); rd.Ahead || rd.Known != 0 || rd.Number == 0 {
		t.Fatalf("the first read asks ahead: %+v", rd)
	}
	r.read()
	r.woken()
	return r
}

// woken ends the pending Wait.
func (r *rig) woken() {
	r.t.Helper()
	r.step(port.Woke{ID: take[port.Wait](r).ID})
}

// asked is the only lane of the oldest Read, which stays.
func (r *rig) asked() store.LaneRead {
	r.t.Helper()
	rd := take[port.Read](r)
	r.acts = append(r.acts, rd)
	return rd.Reads[0]
}

// goes answers the oldest Read ahead with messages of these keys.
func (r *rig) goes(keys ...string) store.Batch {
	r.t.Helper()
	rd := r.asked()
	if !rd.Ahead {
		r.t.Fatalf("the table is asked: %+v", rd)
	}
	b := r.batch(0, "", keys...)
	b.Position, b.Ahead = rd.After, true
	r.read(b)
	return b
}

// table waits for a read of the table, which is not answered.
func (r *rig) table() store.LaneRead {
	r.t.Helper()
	for range 100 {
		if rd, ok := maybe[port.Read](r); ok && !rd.Reads[0].Ahead {
			r.acts = append(r.acts, rd)
			return rd.Reads[0]
		} else if ok {
			r.step(port.ReadDone{ID: rd.ID})
		}
		r.pass(10 * time.Millisecond)
		if w, ok := maybe[port.Wait](r); ok {
			r.step(port.Woke{ID: w.ID})
		}
	}
	r.t.Fatal("the table is never read")
	return store.LaneRead{}
}

// brought is the batch of the table with messages that went ahead.
func brought(b store.Batch, pos string) store.Batch {
	return store.Batch{Lane: b.Lane, Messages: b.Messages, Meta: b.Meta, Position: store.Position(pos)}
}

// What was acknowledged ahead of the table settles nothing, is not sent again when the table
// brings it, and is counted then.
//
// Promises: O, Q
func TestAheadIsSettledByTheTable(t *testing.T) {
	r := aheadRig(t, port.Config{})
	b := r.goes("a", "b")
	wantEqual(t, "sent", fmt.Sprint(ids(r.deliver())), "[m1 m2]")
	none[port.Settle](r)
	rd := r.table()
	if rd.Known == 0 || string(rd.After) != "p0" {
		t.Errorf("the table's read forgets: %+v", rd)
	}
	r.read(brought(b, "p1"))
	none[port.Deliver](r)
	s := r.settle(0)
	wantEqual(t, "settled", fmt.Sprintf("%s %d %d", s.Position, s.Delivered, len(s.Park)), "p1 2 0")
	if r.e.held[0].owes() || r.e.msgs != 0 || r.e.bytes != 0 {
		t.Errorf("left: %+v", r.e.held[0])
	}
}

// A message ahead that is not acknowledged is forgotten, with all behind it: no attempt is
// counted and nothing parked. The next read goes to the table, which knows nothing of it.
//
// Promises: O, Q
func TestAheadThatFailsIsForgotten(t *testing.T) {
	for name, err := range map[string]error{
		"failed": failed, "unknown": unknown, "rejected": rejected, "not tried": broker.ErrNotTried,
		"outage": broker.Outage(errTest, "down", ""), "throttled": broker.Throttled(errTest, "slow", "", time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			r := aheadRig(t, port.Config{})
			b := r.goes("a", "b", "a")
			r.woken()
			behind := r.goes("b")
			r.deliver(err, nil, err)
			none[port.Deliver](r) // behind is forgotten too
			wantEqual(t, "parked", len(factsOf[port.RecordParked](r)), 0)
			rd := r.table()
			wantEqual(t, "known", rd.Known, uint64(0))
			r.read(brought(store.Batch{Messages: append(b.Messages, behind.Messages...), Meta: append(b.Meta, behind.Meta...)}, "p1"))
			wantEqual(t, "sent again", fmt.Sprint(ids(r.deliver(failed, broker.ErrNotTried, nil))), "[m1 m3 m4]")
			s := r.settle(0)
			wantEqual(t, "parked", drawn(s.Park), "m1 retry captures #1, m3 waiting")
			wantEqual(t, "delivered", s.Delivered, 2)
		})
	}
}

// What may not go as it is goes by way of the table: of a captured key, scheduled, told twice,
// and everything while something does not work.
//
// Promises: O, C
func TestWhatMayNotGoAheadIsForgotten(t *testing.T) {
	for name, spoil := range map[string]func(*rig, *store.Batch){
		"captured":  func(r *rig, b *store.Batch) { r.e.held[0].captured["b"] = captive.Key{} },
		"scheduled": func(r *rig, b *store.Batch) { b.Meta[1].DueIn = time.Minute },
		"brake": func(r *rig, b *store.Batch) {
			r.e.rows.Rejected(r.now, "orders", "", 20, func(string) bool { return false })
		},
		"outage":    func(r *rig, b *store.Batch) { r.e.scope("elsewhere") },
		"hold":      func(r *rig, b *store.Batch) { r.e.held[0].hold.until = r.now - 1 },
		"stopped":   func(r *rig, b *store.Batch) { r.e.held[0].stopped = true },
		"crashes":   func(r *rig, b *store.Batch) { r.e.held[0].crashes = 1 },
		"narrow":    func(r *rig, b *store.Batch) { r.e.held[0].narrow = 1 },
		"suspect":   func(r *rig, b *store.Batch) { r.e.held[0].suspects = blame.Suspects{9: {}} },
		"twice":     func(r *rig, b *store.Batch) { r.e.held[0].ahead.Note(2, r.now, true) },
		"forgotten": func(r *rig, b *store.Batch) { r.e.forgetAhead(r.e.held[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			r := aheadRig(t, port.Config{})
			rd := take[port.Read](r)
			b := r.batch(0, "p0", "a", "b")
			b.Ahead = true
			spoil(r, &b)
			r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{b}})
			none[port.Deliver](r)
			if r.e.msgs != 0 || r.e.held[0].msgs != 0 {
				t.Errorf("%d messages are held", r.e.msgs)
			}
		})
	}
	r := newRig(t, port.Config{})
	r.lead(1)
	r.read()
	r.woken()
	if r.asked().Ahead {
		t.Error("a store that cannot answer ahead is asked to")
	}
	r = newRig(t, port.Config{Store: store.Info{Ahead: true}, Claim: func(store.Lane, int64, *postrider.Message) string { return "" }})
	r.lead(1)
	r.read()
	r.woken()
	if r.asked().Ahead {
		t.Error("a payload may be fetched before its row is visible")
	}
}

// A rejection keeps messages from going ahead for a minute, not for ever: a topic that does not
// exist never acknowledges what would end its count.
func TestAnOldRejectionKeepsNothingFromGoingAhead(t *testing.T) {
	r := aheadRig(t, port.Config{})
	held := func(string) bool { return false }
	r.e.rows.Rejected(r.e.now-time.Minute, "typo", "", 20, held)
	wantEqual(t, "a minute after a rejection", r.e.mayAhead(r.e.held[0]), true)
	r.e.rows.Rejected(r.e.now-time.Second, "typo", "", 20, held)
	wantEqual(t, "a second after one", r.e.mayAhead(r.e.held[0]), false)
}

// Behind a batch whose fate is open nothing is asked for ahead: what comes behind it shows whether
// its destination works, and the table must bring that. Neither is it while some message is to be sent
// alone, in any lane.
//
// Promises: O, S
func TestNothingGoesAheadBehindAnOpenFate(t *testing.T) {
	for name, spoil := range map[string]func(*Engine, *batch){
		"unknown": func(_ *Engine, b *batch) { b.rounds = 1 },
		"outage":  func(_ *Engine, b *batch) { b.outages = 1 },
		"alone":   func(_ *Engine, b *batch) { b.alone = solo.New() },
		"wary":    func(e *Engine, _ *batch) { e.wary = true },
	} {
		t.Run(name, func(t *testing.T) {
			r := aheadRig(t, port.Config{})
			l, b := r.e.held[0], &batch{}
			l.queue = append(l.queue, b)
			if !r.e.mayAhead(l) {
				t.Fatal("nothing may go ahead although nothing is wrong")
			}
			if spoil(r.e, b); r.e.mayAhead(l) {
				t.Error("messages may go ahead")
			}
		})
	}
}

// In a drain, in a pause and before a lane is given back nothing new goes ahead, also where the lane
// works on for what it owes: neither an answer that was on its way nor the next read.
//
// Promises: D, C
func TestNothingNewGoesAheadAtAnEnd(t *testing.T) {
	for name, end := range map[string]func(*rig){
		"drain":    func(r *rig) { r.step(port.Drain{}) },
		"pipe":     func(r *rig) { r.e.paused = true },
		"lane":     func(r *rig) { r.e.obey(r.e.held[0], true) },
		"released": func(r *rig) { r.e.held[0].releasing = true },
	} {
		t.Run(name, func(t *testing.T) {
			r := aheadRig(t, port.Config{})
			r.goes("a")
			r.deliver()
			r.woken()
			late := take[port.Read](r)
			if !late.Reads[0].Ahead || !r.e.held[0].owes() {
				t.Fatalf("asked %+v", late)
			}
			end(r)
			b := r.batch(0, "", "b")
			b.Position, b.Ahead = late.Reads[0].After, true
			r.step(port.ReadDone{ID: late.ID, Batches: []store.Batch{b}})
			none[port.Deliver](r)
			for range 20 {
				r.pass(10 * time.Millisecond)
				if w, ok := maybe[port.Wait](r); ok {
					r.step(port.Woke{ID: w.ID})
				}
				if rd, ok := maybe[port.Read](r); ok {
					if rd.Reads[0].Ahead {
						t.Errorf("asked ahead: %+v", rd)
					}
					r.step(port.ReadDone{ID: rd.ID})
				}
				none[port.Deliver](r)
			}
		})
	}
}

// What an answer is lost of, or what is no longer wanted, is not asked for again ahead.
//
// Promises: O
func TestALostAnswerIsNotContinuedAhead(t *testing.T) {
	r := aheadRig(t, port.Config{})
	r.step(port.ReadDone{ID: take[port.Read](r).ID, Err: errTest})
	wantEqual(t, "known", r.table().Known, uint64(0))
}

// A lane has at most half of its window ahead, and a read of the table finds room beside it.
//
// Promises: G
func TestAheadHasHalfOfTheWindow(t *testing.T) {
	r := aheadRig(t, port.Config{Window: 4, Page: 4})
	wantEqual(t, "asked", r.asked().MaxRecords, 2)
	r.goes("a", "b")
	r.deliver()
	r.woken()
	if rd := r.asked(); rd.Ahead || rd.MaxRecords != 2 {
		t.Errorf("asked %+v", rd)
	}
}

// A drain with messages that went ahead reads on until the table has brought them: the next
// owner sends none again.
//
// Promises: D
func TestADrainSettlesWhatWentAhead(t *testing.T) {
	r := aheadRig(t, port.Config{})
	b := r.goes("a")
	r.deliver()
	r.step(port.Drain{})
	none[port.Lease](r)
	rd := r.table()
	wantEqual(t, "asked for", rd.MaxRecords, 1)
	r.read() // it is not visible yet
	r.table()
	late := r.batch(0, "", "c")
	r.read(brought(store.Batch{Messages: append(late.Messages, b.Messages...), Meta: append(late.Meta, b.Meta...)}, "p1"))
	wantEqual(t, "sent", fmt.Sprint(ids(r.deliver())), "[m2]")
	s := take[port.Settle](r)
	wantEqual(t, "settled", s.Settlements[0].Delivered, 2)
	r.step(port.Settled{ID: s.ID})
	wantEqual(t, "leave", take[port.Lease](r).Req.Leave, true)
	if len(factsOf[port.DrainCutOff](r)) > 0 {
		t.Error("the drain was cut off")
	}
}

// A drain waits for a row that somebody has removed for as long as another read might bring it, which is
// five leases, and not for ever.
//
// Promises: D
func TestADrainWaitsForARowThatIsGone(t *testing.T) {
	r := aheadRig(t, port.Config{})
	r.goes("a")
	r.deliver()
	r.step(port.Drain{})
	for began := r.now; ; {
		if rd, ok := maybe[port.Read](r); ok {
			r.step(port.ReadDone{ID: rd.ID}) // the table has nothing
		}
		if w, ok := maybe[port.Wait](r); ok {
			r.step(port.Woke{ID: w.ID})
		}
		r.pass(100 * time.Millisecond)
		if l, ok := maybe[port.Lease](r); ok {
			wantEqual(t, "leave", l.Req.Leave, true)
			if took, keep := r.now-began, 5*r.e.cfg.TTL; took < keep || took > keep+time.Second {
				t.Errorf("the drain took %v", took)
			}
			wantEqual(t, "cut off", len(factsOf[port.DrainCutOff](r)), 0)
			return
		}
		if r.now-began > r.e.cfg.DrainTimeout {
			t.Fatal("the drain waits for ever")
		}
	}
}

// A drain that cannot learn of the table's row says what will be sent again.
//
// Promises: D
func TestADrainSaysWhatWentAheadForNothing(t *testing.T) {
	r := aheadRig(t, port.Config{DrainTimeout: time.Second})
	r.goes("a")
	r.deliver()
	r.step(port.Drain{})
	r.pass(1100 * time.Millisecond)
	said := factsOf[port.DrainCutOff](r)
	if len(said) != 1 || said[0].Messages != 1 {
		t.Errorf("said %+v", said)
	}
	wantEqual(t, "leave", take[port.Lease](r).Req.Leave, true)
}

// A sink that answers too little has acknowledged nothing: what it did not answer for is sent
// again when the table brings it.
//
// Promises: L
func TestAShortAnswerAheadAcknowledgesNothing(t *testing.T) {
	for name, errs := range map[string][]error{"one": {nil}, "none": {}, "three": {nil, nil, nil}} {
		t.Run(name, func(t *testing.T) {
			r := aheadRig(t, port.Config{})
			b := r.goes("a", "b")
			r.step(port.Delivered{ID: take[port.Deliver](r).ID, Errs: errs})
			wantEqual(t, "owed", r.e.held[0].ahead.Owes(), 0)
			r.table()
			r.read(brought(b, "p1"))
			wantEqual(t, "sent again", fmt.Sprint(ids(r.deliver())), "[m1 m2]")
		})
	}
}

// What was acknowledged ahead is remembered as long as the table may bring it, however long a
// person, an outage or a backlog keeps it away, and forgotten once its row is gone.
//
// Promises: D
func TestWhatWentAheadIsRemembered(t *testing.T) {
	for name, keep := range map[string]func(*rig){
		"paused lane": func(r *rig) {
			r.e.held[0].stopped = true
			r.pass(time.Minute)
			r.e.held[0].stopped, r.e.held[0].idle = false, false
			r.step(port.Tick{})
		},
		"outage": func(r *rig) {
			for range 30 {
				if rd, ok := maybe[port.Read](r); ok {
					r.step(port.ReadDone{ID: rd.ID, Err: errTest})
				}
				r.pass(time.Second)
			}
		},
		"backlog": func(r *rig) {
			for i := range 30 {
				r.table()
				b := r.batch(0, fmt.Sprint("b", i), "z")
				b.More = true
				r.read(b)
				r.deliver()
				r.pass(time.Second)
			}
		},
		"stuck": func(r *rig) { // it stands behind a message that the sink does not take
			r.table()
			late := r.batch(0, "b", "y")
			late.More = true
			r.read(late)
			if rd, ok := maybe[port.Read](r); ok {
				r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{brought(store.Batch{Messages: r.kept.Messages, Meta: r.kept.Meta}, "p1")}})
				r.kept = store.Batch{}
			}
			for range 30 {
				if d, ok := maybe[port.Deliver](r); ok {
					r.step(port.Delivered{ID: d.ID, Errs: []error{unknown}})
				}
				if rd, ok := maybe[port.Read](r); ok {
					r.step(port.ReadDone{ID: rd.ID})
				}
				r.pass(time.Second)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := aheadRig(t, port.Config{})
			r.kept = r.goes("a", "b")
			r.deliver()
			r.pass(100 * time.Millisecond)
			keep(r)
			if r.kept.Messages != nil {
				r.table()
				r.read(brought(r.kept, "p1"))
			}
			for range 20 {
				if d, ok := maybe[port.Deliver](r); ok {
					if got := fmt.Sprint(ids(d)); got != "[m3]" {
						t.Errorf("sent again: %s", got)
					}
					r.step(port.Delivered{ID: d.ID})
				}
				r.pass(time.Second)
			}
			if r.e.held[0].owes() {
				t.Error("something is still owed")
			}
		})
	}
	r := aheadRig(t, port.Config{})
	r.goes("a")
	r.deliver()
	for range 300 {
		if rd, ok := maybe[port.Read](r); ok {
			r.step(port.ReadDone{ID: rd.ID})
		}
		if w, ok := maybe[port.Wait](r); ok {
			r.step(port.Woke{ID: w.ID})
		}
		r.pass(100 * time.Millisecond)
	}
	if r.e.held[0].owes() {
		t.Error("a row that is gone is owed for ever")
	}
}

// In a pause a lane that owes is read for what it owes, which is settled. Nothing new is sent: where
// that stands in front, reading ends, and who leaves says what will be sent again.
//
// Promises: C, D
func TestAPauseOfALaneThatOwes(t *testing.T) {
	for name, pause := range map[string]func(*rig){
		"pipe": func(r *rig) {
			g := r.grant()
			g.Paused = true
			r.now += 700 * time.Millisecond
			r.step(port.Tick{})
			r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: g})
		},
		"lane": func(r *rig) { r.e.obey(r.e.held[0], true) },
	} {
		for _, barred := range []bool{false, true} {
			t.Run(fmt.Sprint(name, barred), func(t *testing.T) {
				r := aheadRig(t, port.Config{})
				b := r.goes("a", "b")
				r.deliver()
				pause(r)
				r.acts = nil
				r.step(port.Woke{ID: r.e.waiting})
				other := r.batch(0, "", "c")
				all := store.Batch{Messages: append(other.Messages, b.Messages...), Meta: append(other.Meta, b.Meta...)}
				if !barred { // what is new stands behind
					all = store.Batch{Messages: append(b.Messages[:1:1], other.Messages...), Meta: append(b.Meta[:1:1], other.Meta...)}
				}
				for id, op := range r.e.reads {
					wantEqual(t, "asked for", op.reads[0].MaxRecords, 2)
					r.step(port.ReadDone{ID: id, Batches: []store.Batch{brought(all, "p2")}})
				}
				if !barred {
					for id, op := range r.e.reads {
						wantEqual(t, "asked for", op.reads[0].MaxRecords, 1)
						r.step(port.ReadDone{ID: id, Batches: []store.Batch{brought(store.Batch{Messages: b.Messages[:1], Meta: b.Meta[:1]}, "p1")}})
					}
					if name == "lane" {
						r.pass(1100 * time.Millisecond)
					}
					if s, ok := maybe[port.Settle](r); !ok || s.Settlements[0].Delivered != 1 {
						t.Errorf("settled %+v", s)
					}
					return
				}
				wantEqual(t, "reads", len(r.e.reads), 0)
				none[port.Deliver](r)
				none[port.Settle](r)
				r.step(port.Drain{})
				wantEqual(t, "reads", len(r.e.reads), 0)
				said := factsOf[port.DrainCutOff](r)
				if len(said) != 1 || said[0].Messages != 2 {
					t.Errorf("said %+v", said)
				}
			})
		}
	}
}

// A lane that owes is given back as soon as the table has brought it, and works until then.
//
// Promises: D
func TestAHandOverWaitsForTheTable(t *testing.T) {
	r := aheadRig(t, port.Config{})
	b := r.goes("a")
	r.deliver()
	r.e.held[0].releasing = true
	r.step(port.Tick{})
	wantEqual(t, "lanes", len(r.e.held), 1)
	for !r.e.held[0].idle || r.e.waiting != 0 {
		if w, ok := maybe[port.Wait](r); ok {
			r.step(port.Woke{ID: w.ID})
			break
		}
	}
	rd := take[port.Read](r)
	if rd.Reads[0].Ahead {
		t.Error("a lane that is given back asks ahead")
	}
	r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{brought(b, "p1")}})
	s := take[port.Settle](r)
	wantEqual(t, "settled", s.Settlements[0].Delivered, 1)
	r.step(port.Settled{ID: s.ID})
	wantEqual(t, "released", fmt.Sprint(take[port.Lease](r).Req.Release), "[{0 11}]")
}

// Once a lane has executed what people ask, it takes nothing new until it knows what is paused: also
// where it reads on for what it owes, to be given back or drained.
//
// Promises: C
func TestALaneThatOwesTakesNothingNewAfterActs(t *testing.T) {
	for name, end := range map[string]func(*rig){
		"given back": func(r *rig) { r.e.held[0].releasing = true },
		"drained":    func(r *rig) { r.step(port.Drain{}) },
	} {
		t.Run(name, func(t *testing.T) {
			r := aheadRig(t, port.Config{})
			b := r.goes("a")
			r.deliver()
			r.step(port.Woke{ID: r.e.waiting})
			r.step(port.ReadDone{ID: take[port.Read](r).ID})
			r.now += 700 * time.Millisecond
			r.step(port.Tick{})
			r.step(port.Leased{ID: take[port.Lease](r).ID, Grant: r.grant(store.Request{ID: 7, Act: store.Act{Kind: store.ActPause, Lane: 0}})})
			s := take[port.Settle](r)
			wantEqual(t, "requests", fmt.Sprint(s.Settlements[0].Requests), "[7]")
			end(r)
			r.step(port.Settled{ID: s.ID})
			r.table()
			other := r.batch(0, "", "c")
			all := store.Batch{Messages: append(other.Messages, b.Messages...), Meta: append(other.Meta, b.Meta...)}
			r.read(brought(all, "p2"))
			none[port.Deliver](r)
		})
	}
}

// At the cap of parked keys a lane that owes and is to be given back is read all the same: else
// nobody would ever work on it again.
//
// Promises: S
func TestALaneAtItsCapIsGivenBack(t *testing.T) {
	r := aheadRig(t, port.Config{ParkedKeys: 1})
	r.goes("a")
	r.deliver()
	r.e.held[0].captured["x"] = captive.Key{}
	r.e.held[0].releasing = true
	if rd := r.table(); rd.Ahead {
		t.Errorf("asked %+v", rd)
	}
}
