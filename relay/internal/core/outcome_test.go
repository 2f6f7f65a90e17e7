package core

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/health"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

var (
	failed       = broker.Failed(errTest, "f1", "")
	rejected     = broker.Rejected(errTest, "r1", "")
	unknown      = broker.Unknown(errTest, "u1", "")
	outage       = broker.Outage(errTest, "o1", "")
	errNotTried  = broker.Failed(broker.ErrNotTried, "", "")
	errOrdersOut = broker.Outage(errTest, "o2", "orders")
)

// TestOutcomes is the table of DESIGN section 6: one call with the answers
// given, and what is parked or sent again by it.
func TestOutcomes(t *testing.T) {
	type sent = []string
	for _, c := range []struct {
		name   string
		cfg    port.Config
		keys   []string
		errs   []error
		again  string // ids of the second call, "" for none
		parked string
	}{
		{
			"failed counts an attempt and captures its key",
			port.Config{},
			sent{"a", "b", "a"},
			[]error{failed, nil, errNotTried},
			"", "m1 retry captures #1, m3 waiting",
		},
		{"failed without a key captures nothing", port.Config{}, sent{"", ""}, []error{failed, nil}, "", "m1 retry #1"},
		{"an unclassified error is failed", port.Config{}, sent{"a"}, []error{errTest}, "", "m1 retry captures #1"},
		{
			"dead after the last attempt",
			port.Config{Retry: port.Backoff{MaxAttempts: 1}},
			sent{"a", "a"},
			[]error{failed, errNotTried},
			"", "m1 dead captures #1, m2 waiting",
		},
		{
			"rejected is dead at once and blocks",
			port.Config{},
			sent{"a", "b", "a"},
			[]error{rejected, nil, errNotTried},
			"", "m1 dead captures #1, m3 waiting",
		},
		{
			"rejected under skip holds the key until that is recorded",
			port.Config{Policy: skip},
			sent{"a", "b", "a"},
			[]error{rejected, nil, errNotTried},
			"", "m1 dead #1, m3 waiting",
		},
		{"outage keeps what is unresolved", port.Config{}, sent{"a", "b", "a"}, []error{outage, nil, errNotTried}, "[m1 m3]", ""},
		{"unknown is sent again", port.Config{}, sent{"a", "b", "a"}, []error{unknown, nil, errNotTried}, "[m1 m3]", ""},
		{"throttled is sent again", port.Config{}, sent{"a", "b"}, []error{broker.Throttled(errTest, "", "", time.Second), nil}, "[m1]", ""},
		{"not tried behind an unknown head stays whatever its class", port.Config{}, sent{"a", "a"}, []error{unknown, failed}, "[m1 m2]", ""},
		{
			"a destination that is down while others work",
			port.Config{},
			sent{"a", "b@other", "a@other"},
			[]error{errOrdersOut, nil, errNotTried},
			"", "m1 retry captures, m3 waiting",
		},
		{"a destination that is down alone", port.Config{}, sent{"a", "b"}, []error{errOrdersOut, errOrdersOut}, "[m1 m2]", ""},
		{
			"too many parked keys for an outage",
			port.Config{ParkedKeys: 1},
			sent{"a", "b", "c@other"},
			[]error{errOrdersOut, errOrdersOut, nil},
			"[m2]", "m1 retry captures",
		},
		{"an answer of the wrong length is unknown", port.Config{}, sent{"a", "b"}, []error{failed}, "[m1 m2]", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.cfg)
			r.lead(1)
			r.read(r.batch(0, "p1", c.keys...))
			d := take[port.Deliver](r)
			r.step(port.Delivered{ID: d.ID, Errs: c.errs})
			if c.again != "" {
				r.pass(time.Second)
				none[port.Settle](r) // a batch is settled whole
				again := take[port.Deliver](r)
				wantEqual(t, "sent again", fmt.Sprint(ids(again)), c.again)
				r.step(port.Delivered{ID: again.ID})
			}
			s := r.settle(0)
			wantEqual(t, "parked", drawn(s.Park), c.parked)
			wantEqual(t, "delivered and parked", s.Delivered+len(s.Park), len(c.keys))
			wantEqual(t, "position", string(s.Position), "p1")
		})
	}
}

func TestParkTellsWhy(t *testing.T) {
	r := newRig(t, port.Config{Retry: port.Backoff{Delays: []time.Duration{10 * time.Second}, Jitter: -1}})
	r.lead(1)
	r.read(r.batch(0, "p1", "a"))
	r.deliver(broker.Failed(errors.New("zero\x00byte"), "f1", ""))
	r.pass(150 * time.Millisecond)
	p := r.settle(0).Park[0]
	wantEqual(t, "class", p.Class, "failed")
	wantEqual(t, "code", p.Code, "f1")
	wantEqual(t, "error", p.Error, "zerobyte")
	if p.DueIn <= 8*time.Second || p.DueIn >= 10*time.Second {
		t.Errorf("due in %v: want what is left of 10 s", p.DueIn)
	}
}

// TestTheSinkDecidesWhatIsTooLarge: a limit is raised or lowered while a relay
// runs, and what the sink rejects passes the brake.
func TestTheSinkDecidesWhatIsTooLarge(t *testing.T) {
	r := newRig(t, port.Config{Sink: broker.Info{MaxMessageBytes: 100}})
	r.lead(1)
	b := r.batch(0, "p1", "a", "b", "a")
	b.Messages[0].Payload = make([]byte, 200)
	r.read(b)
	wantEqual(t, "sent", fmt.Sprint(ids(r.deliver(broker.Rejected(errors.New("too large"), "TOO_LARGE", ""), nil, broker.NotTried(errors.New("too large"))))), "[m1 m2 m3]")
	wantEqual(t, "parked", drawn(r.settle(0).Park), "m1 dead captures #1, m3 waiting")
}

func TestNotYetDueIsScheduledAndCapturesNothing(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	b := r.batch(0, "p1", "a", "a")
	b.Meta[0].DueIn = time.Hour
	r.read(b)
	wantEqual(t, "sent", fmt.Sprint(ids(r.deliver())), "[m2]")
	s := r.settle(0)
	wantEqual(t, "parked", drawn(s.Park), "m1 scheduled")
	if d := s.Park[0].DueIn; d > time.Hour || d < time.Hour-2*time.Second {
		t.Errorf("due in %v", d)
	}
}

func TestAnOutageStopsAllLanesAndProbesWithOne(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(3)
	r.read(r.batch(0, "p1", "a"), r.batch(1, "p1", "b"), r.batch(2, "p1", "c"))
	for range 3 {
		r.deliver(outage)
	}
	calls, read := 0, 0
	for range 100 {
		r.pass(100 * time.Millisecond)
		if rd, ok := maybe[port.Read](r); ok { // what came meanwhile may show that the sink works
			read += rd.Reads[0].MaxRecords
			wantEqual(t, "most records to read", rd.Reads[0].MaxRecords < leftovers, true)
			r.step(port.ReadDone{ID: rd.ID})
		}
		if d, ok := maybe[port.Deliver](r); ok {
			calls++
			none[port.Deliver](r) // one probe at a time
			r.step(port.Delivered{ID: d.ID, Errs: []error{outage}})
		}
	}
	if calls < 3 || calls > 15 {
		t.Errorf("%d probes in 10 s of outage", calls)
	}
	wantEqual(t, "reads", read > 0, true)
	r.pass(16 * time.Second)
	d := take[port.Deliver](r)
	r.step(port.Delivered{ID: d.ID})
	take[port.Deliver](r) // the others at once
	take[port.Deliver](r)
	h := factsOf[port.HealthChanged](r)
	if len(h) != 2 || h[0].Part != "sink" || !h[0].Down || h[1].Down {
		t.Errorf("health changes %+v", h)
	}
}

// A broken connection is the first sign of a password that was taken away: the
// reason is told when it comes, each once and not without end.
func TestAnOutageTellsItsOtherReasonsToo(t *testing.T) {
	for _, destination := range []string{"", "orders"} {
		r := newRig(t, port.Config{OutageMax: 100 * time.Millisecond})
		r.lead(1)
		r.read(r.batch(0, "p1", "a"))
		say := func(text string) {
			r.pass(200 * time.Millisecond)
			r.deliver(broker.Outage(errors.New(text), "", destination))
		}
		say("connection 4711 reset")
		say("connection 4712 reset") // the same
		for range 3 {
			say("wrong password")
			say("connection 17 reset")
		}
		told := factsOf[port.ReasonChanged](r)
		if len(told) != 1 || !strings.Contains(told[0].Err.Error(), "wrong password") {
			t.Fatalf("%q: told %+v, want the wrong password once", destination, told)
		}
		wantEqual(t, "health changes", len(factsOf[port.HealthChanged](r)), 1)
		for i := range 10 {
			say(strings.Repeat("x", i))
		}
		wantEqual(t, "reasons at the most", len(factsOf[port.ReasonChanged](r)), health.ReasonsMost-1)
	}
}

func TestAThrottleIsHonouredAndCapped(t *testing.T) {
	r := newRig(t, port.Config{OutageMax: 20 * time.Second})
	r.lead(1)
	r.read(r.batch(0, "p1", "a"))
	r.deliver(broker.Throttled(errTest, "429", "", 5*time.Second))
	r.pass(4900 * time.Millisecond)
	none[port.Deliver](r)
	r.pass(200 * time.Millisecond)
	r.deliver(broker.Throttled(errTest, "429", "", 365*24*time.Hour))
	r.pass(20100 * time.Millisecond)
	take[port.Deliver](r)
}

func TestTheBrakeHoldsADestinationThatRejectsEverything(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.read(r.batch(0, "p1", keys(100)...))
	errs := make([]error, 100)
	for i := range errs {
		errs[i] = rejected
	}
	r.deliver(errs...)
	none[port.Deliver](r)
	b := factsOf[port.BrakeChanged](r)
	if len(b) != 1 || !b[0].On || b[0].Destination != "orders" || b[0].Code != "r1" {
		t.Fatalf("brake %+v", b)
	}
	r.pass(time.Second)
	d := take[port.Deliver](r)
	wantEqual(t, "kept", len(d.Msgs), 80)
	r.step(port.Delivered{ID: d.ID, Errs: errs[:80]}) // still rejecting: nothing more dies
	r.pass(time.Second)
	d = take[port.Deliver](r)
	wantEqual(t, "kept", len(d.Msgs), 80)
	r.step(port.Delivered{ID: d.ID})
	s := r.settle(0)
	wantEqual(t, "dead", len(s.Park), 20)
	wantEqual(t, "delivered", s.Delivered, 80)
	if b = factsOf[port.BrakeChanged](r); len(b) != 2 || b[1].On {
		t.Errorf("brake %+v", b)
	}
}

func TestAKnownBadDestinationIsNotAskedByEveryBatch(t *testing.T) {
	r := newRig(t, port.Config{OutageBase: 10 * time.Second})
	r.lead(1)
	b := r.batch(0, "p1", "a", "b@other")
	b.More = true
	r.read(b)
	r.read(r.batch(0, "p2", "c", "d@other"))
	r.deliver(errOrdersOut, nil)
	wantEqual(t, "second call", fmt.Sprint(ids(r.deliver())), "[m4]")
	wantEqual(t, "parked", drawn(r.settle(0).Park), "m1 retry captures, m3 retry captures")
}

// Promises: S
func TestAPoisonousMessageIsFoundBySendingSingly(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.read(r.batch(0, "p1", "a", "b", "c"))
	var calls []string
	for range 400 {
		r.pass(100 * time.Millisecond)
		d, ok := maybe[port.Deliver](r)
		if !ok {
			continue
		}
		calls = append(calls, fmt.Sprint(ids(d)))
		var errs []error
		for range d.Msgs {
			errs = append(errs, unknown)
		}
		if d.Msgs[0].ID != "m2" && len(d.Msgs) == 1 {
			errs = nil
		}
		r.step(port.Delivered{ID: d.ID, Errs: errs})
		if s, ok := maybe[port.Settle](r); ok {
			wantEqual(t, "parked", drawn(s.Settlements[0].Park), "m2 retry captures #1")
			wantEqual(t, "calls", fmt.Sprint(calls), "[[m1 m2 m3] [m1 m2 m3] [m1 m2 m3] [m1] [m2] [m3] [m2]]")
			return
		}
		if s, ok := r.e.lanes[0], true; ok && s.done == 1 {
			s := r.settle(0)
			wantEqual(t, "parked", drawn(s.Park), "m2 retry captures #1")
			wantEqual(t, "calls", fmt.Sprint(calls), "[[m1 m2 m3] [m1 m2 m3] [m1 m2 m3] [m1] [m2] [m3] [m2]]")
			return
		}
	}
	t.Fatalf("the lane is stuck after %v", calls)
}

func TestAPoisonousMessageAloneLetsTheNextBatchProveIt(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	b := r.batch(0, "p1", "a")
	b.More = true
	r.read(b)
	r.read(r.batch(0, "p2", "b"))
	for range 600 {
		r.pass(100 * time.Millisecond)
		if d, ok := maybe[port.Deliver](r); ok {
			var errs []error
			if d.Msgs[0].ID == "m1" {
				errs = []error{unknown}
			}
			r.step(port.Delivered{ID: d.ID, Errs: errs})
		}
		if r.e.lanes[0].done > 0 {
			s := r.settle(0)
			wantEqual(t, "parked", drawn(s.Park), "m1 retry captures #1")
			wantEqual(t, "position", string(s.Position), "p2")
			return
		}
	}
	t.Fatal("the lane is stuck behind a message whose fate stays unknown")
}

func TestWhenNothingIsAcknowledgedUnknownBurnsNoAttempt(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	r.read(r.batch(0, "p1", "a", "b"))
	for range 600 {
		r.pass(100 * time.Millisecond)
		if d, ok := maybe[port.Deliver](r); ok {
			errs := make([]error, len(d.Msgs))
			for i := range errs {
				errs[i] = unknown
			}
			r.step(port.Delivered{ID: d.ID, Errs: errs})
		}
	}
	wantEqual(t, "parked", len(factsOf[port.RecordParked](r)), 0)
	h := factsOf[port.HealthChanged](r)
	if len(h) != 1 || h[0].Part != "sink" || !h[0].Down {
		t.Errorf("health changes %+v", h)
	}
}

func TestRetryDelays(t *testing.T) {
	list := New(port.Config{Retry: port.Backoff{Delays: []time.Duration{10 * time.Second, 30 * time.Second, 2 * time.Minute}, Jitter: -1}}, 1)
	for attempts, want := range map[int]time.Duration{1: 10 * time.Second, 2: 30 * time.Second, 3: 2 * time.Minute, 9: 2 * time.Minute} {
		wantEqual(t, fmt.Sprint("list, attempt ", attempts), list.retryDelay(attempts), want)
	}
	e := New(port.Config{Retry: port.Backoff{Base: time.Second, Max: time.Minute}}, 1)
	seen := map[time.Duration]bool{}
	for range 100 {
		d := e.retryDelay(3)
		if d < 2*time.Second || d > 4*time.Second {
			t.Fatalf("third delay %v: want 2 s to 4 s", d)
		}
		seen[d] = true
		if d := e.retryDelay(60); d > time.Minute {
			t.Fatalf("delay %v is above the cap", d)
		}
	}
	if len(seen) < 50 {
		t.Errorf("only %d different delays of 100", len(seen))
	}
}

func TestOneSeedGivesOneTranscript(t *testing.T) {
	run := func(seed uint64) (out string) {
		e := New(port.Config{BootID: "b"}, seed)
		now := time.Hour
		for range 50 {
			for _, a := range e.Step(now, port.Start{}) {
				out += fmt.Sprintf("%T %+v\n", a, a)
				if l, ok := a.(port.Lease); ok {
					for _, a := range e.Step(now, port.Leased{ID: l.ID, Err: errTest}) {
						out += fmt.Sprintf("%T %+v\n", a, a)
					}
					break
				}
			}
			now += 300 * time.Millisecond
		}
		return out
	}
	first := run(7)
	if again := run(7); first != again {
		t.Error("the same seed gave two transcripts")
	}
	if first == run(8) {
		t.Error("the seed draws nothing")
	}
}

// A rejection at a topic that never acknowledges slows no other batch, and as many
// such topics as there may be take no memory for ever.
func TestRejectionsElsewhereSlowNoBatch(t *testing.T) {
	const most = 1000
	r := newRig(t, port.Config{})
	r.lead(1)
	for i := range 3 * most {
		b := r.batch(0, fmt.Sprint("p", i), fmt.Sprintf("@topic-%d", i))
		b.More = true
		for {
			if s, ok := maybe[port.Settle](r); ok {
				r.step(port.Settled{ID: s.ID})
			} else if rd, ok := maybe[port.Read](r); ok {
				r.step(port.ReadDone{ID: rd.ID, Batches: []store.Batch{b}})
				break
			} else {
				r.pass(100 * time.Millisecond)
			}
		}
		r.deliver(broker.Rejected(errTest, "invalid", ""))
		r.facts = nil
	}
	wantEqual(t, "a batch is looked at message by message", r.e.hasOpenDestination(), false)
	if n := len(r.e.scopes) + r.e.rows.Len(); n == 0 || n > most {
		t.Errorf("%d destinations are remembered", n)
	}
}
