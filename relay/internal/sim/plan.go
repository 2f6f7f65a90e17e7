package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/store/memstore"
)

// faultsEnd is when the world heals, settleBy the latest moment at which every
// key must have moved on, both in virtual time.
const (
	faultsEnd = 8 * time.Second
	settleBy  = faultsEnd + 90*time.Second
	provenBy  = faultsEnd + 300*time.Second // where messages must be found out among others
	leaseTTL  = 2 * time.Second
	// restWithin is how long a state may be reported that nothing is left to end.
	restWithin = 150 * time.Second
)

// opKind says what happens.
type opKind uint8

const (
	opStart     opKind = iota // a node starts
	opTx                      // a writer's transaction
	opCrash                   // SIGKILL, started again after Dur
	opPause                   // SIGSTOP for Dur
	opSuspend                 // the node's machine sleeps for Dur, its monotonic clock with it
	opJump                    // the node's wall clock steps by Dur
	opDrain                   // SIGTERM, started again after Dur
	opStoreDown               // calls of the store fail before they do anything
	opStoreLost               // calls of the store succeed and the answer is lost
	opStoreLate               // calls of the store hang and are carried out after the timeout
	opOutage                  // topic N (negative: the whole sink) is down
	opThrottle                // topic N answers "later"
	opAckLost                 // messages are accepted and the answer is lost
	opSinkFail                // messages fail
	opSinkHang                // the sink stalls until the timeout
	opAct                     // a person retries or discards a parked record
	opFailover                // the database gets another identity and is away for Dur
	opHold                    // a person pauses key N (negative: lane -N-1) for Dur
	opStop                    // a person pauses the whole pipe for Dur
	opSilent                  // topic N takes nothing and answers nothing
	opRefuse                  // topic N rejects everything
	opStep                    // the database's clock steps by Dur
)

var opNames = [...]string{
	"start", "tx", "crash", "pause", "suspend", "jump", "drain", "store-down", "store-lost", "store-late",
	"outage", "throttle", "ack-lost", "sink-fail", "sink-hang", "act", "failover", "hold", "stop", "silent", "refuse", "step",
}

// op is one operation of a plan.
type op struct {
	Kind opKind
	At   time.Duration
	Dur  time.Duration
	Node int
	N    int // share of a thousand, topic, or rank of a record
	Tx   txPlan
}

func (o op) String() string {
	s := fmt.Sprintf("%8v %-10s node=%d dur=%v n=%d", o.At, opNames[o.Kind], o.Node, o.Dur, o.N)
	if o.Kind == opTx {
		s = fmt.Sprintf("%8v %-10s early=%v rollback=%v hold=%v %v", o.At, opNames[o.Kind], o.Tx.Early, o.Tx.Rollback, o.Dur, o.Tx.Inserts)
	}
	return s
}

// txPlan is a transaction: its id may be taken long before the first insert.
type txPlan struct {
	Early    bool
	Rollback bool
	Inserts  []insert
}

type insert struct {
	Key  int // negative: no key
	Kind msgKind
}

func (i insert) String() string { return fmt.Sprintf("k%d:%s", i.Key, kindNames[i.Kind]) }

// msgKind says what the sink makes of a message.
type msgKind uint8

const (
	msgGood      msgKind = iota
	msgRejected          // can never succeed
	msgFailing           // fails twice
	msgHangup            // makes the broker hang up, always
	msgScheduled         // has a NotBefore
	msgDown              // is answered as if its destination were down, always
	msgDeadly            // ends the node that sends it, always
)

var kindNames = [...]string{"good", "rejected", "failing", "hangup", "scheduled", "down", "deadly"}

// plan is a whole run.
type plan struct {
	Seed        uint64
	Family      memstore.Family
	Lanes       int
	Nodes       int
	Window      int
	Page        int
	MaxAttempts int
	Skip        bool
	Brake       int // 0: the core's default
	ParkedKeys  int // 0: the core's default
	Latency     time.Duration
	Ahead       bool  // nodes read the log
	Drift       int   // how far apart the nodes' clocks run, in percent; 0: 1
	Wide        *wide // nil: two topics, small messages and short faults
	Ops         []op
}

// tail is how long a run continues at least when the faults have ended: in most for
// as long as a lease and what may come late, in some much longer.
func (p plan) tail() time.Duration {
	if p.Seed%4 == 0 {
		return 8 * time.Second
	}
	return 4 * time.Second
}

func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed=%d family=%d lanes=%d nodes=%d window=%d page=%d attempts=%d skip=%v brake=%d keys=%d latency=%v drift=%d ahead=%v",
		p.Seed, p.Family, p.Lanes, p.Nodes, p.Window, p.Page, p.MaxAttempts, p.Skip, p.Brake, p.ParkedKeys, p.Latency, p.Drift, p.Ahead)
	if p.Wide != nil {
		b.WriteString(p.Wide.String())
	}
	b.WriteByte('\n')
	for _, o := range p.Ops {
		fmt.Fprintln(&b, " ", o)
	}
	return b.String()
}

// familyOf returns the family of stores that a seed runs on: half of the seeds have PostgreSQL's.
func familyOf(seed uint64) memstore.Family {
	return [...]memstore.Family{memstore.Cursor, memstore.Rows, memstore.Cursor, memstore.Holes}[seed%4]
}

// makePlan draws a world and which faults it has, each with its own intensity
// (swarm testing): a world with every fault at once hides more than it shows.
func makePlan(seed uint64) plan {
	rng := rand.New(rand.NewPCG(seed, 0x706c616e))
	d := drawer{rng: rng, p: plan{
		Seed: seed, Family: familyOf(seed), Lanes: 1 + rng.IntN(4), Nodes: 1 + rng.IntN(4),
		Window: 2 + rng.IntN(12), Page: 1 + rng.IntN(6), MaxAttempts: 2 + rng.IntN(3), Skip: rng.IntN(4) == 0,
		Latency: time.Duration(1+rng.IntN(60)) * time.Millisecond,
	}}
	d.p.Page = min(d.p.Page, d.p.Window)
	for n := range d.p.Nodes {
		at := time.Duration(0)
		if n > 0 {
			at = d.upTo(faultsEnd / 2)
		}
		d.add(op{Kind: opStart, At: at, Node: n})
	}
	d.transactions()
	if rng.IntN(12) > 0 { // one in twelve has no fault but rolling restarts
		d.nodeFaults()
		d.storeFaults()
		d.sinkFaults()
	}
	for range d.some(3, 2) {
		d.add(op{Kind: opDrain, At: d.time(), Node: d.node(), Dur: d.upTo(time.Second)})
	}
	for range d.some(2, 4) {
		d.add(op{Kind: opAct, At: d.time(), N: rng.IntN(8)})
	}
	d.rarities()
	d.holds()
	d.collisions()
	d.stops()
	d.silences()
	d.impostors()
	d.meetings()
	d.deadly()
	d.gentle()
	slices.SortStableFunc(d.p.Ops, func(a, b op) int { return int(a.At - b.At) })
	return d.p
}

// rarities draws from a source of its own, so that the rest of a plan stays what
// it is: failovers, and limits so low that they are reached.
func (d *drawer) rarities() {
	d.rng = rand.New(rand.NewPCG(d.p.Seed, 0x72617265))
	for range d.some(5, 2) {
		d.add(op{Kind: opFailover, At: d.time(), Dur: d.upTo(leaseTTL)})
	}
	d.p.Brake, d.p.ParkedKeys = d.some(4, 3), d.some(4, 3)
	if d.p.Brake == 0 && d.p.ParkedKeys == 0 {
		return
	}
	for range 1 + d.rng.IntN(3) { // what reaches them
		o := op{Kind: opTx, At: d.time()}
		for range 2 + d.rng.IntN(4) {
			o.Tx.Inserts = append(o.Tx.Inserts, insert{Key: d.rng.IntN(6), Kind: msgRejected + msgKind(d.rng.IntN(2))})
		}
		d.add(o)
	}
}

// holds draws from a source of its own, too: people who pause a key or a lane.
func (d *drawer) holds() {
	d.rng = rand.New(rand.NewPCG(d.p.Seed, 0x686f6c64))
	for range d.some(4, 3) {
		o := op{Kind: opHold, At: d.time(), Dur: d.upTo(4 * time.Second), N: d.rng.IntN(6)}
		if d.rng.IntN(3) == 0 {
			o.N = -1 - d.rng.IntN(d.p.Lanes)
		}
		d.add(o)
	}
}

// stops draws from a source of its own, too: people who pause the whole pipe.
func (d *drawer) stops() {
	d.rng = rand.New(rand.NewPCG(d.p.Seed, 0x73746f70))
	for range d.some(4, 3) {
		d.add(op{Kind: opStop, At: d.time(), Dur: d.upTo(4 * time.Second)})
	}
}

// silences draws from a source of its own, too: one destination of several that
// confirms nothing, for so long that every attempt would be used up.
func (d *drawer) silences() {
	d.rng = rand.New(rand.NewPCG(d.p.Seed, 0x73696c66))
	for range d.some(8, 1) {
		at, topic := d.upTo(faultsEnd/2), d.rng.IntN(topics)
		end := d.between(at, faultsEnd)
		d.add(op{Kind: opSilent, At: at, Dur: end - at, N: topic})
		d.p.MaxAttempts = 2 + d.rng.IntN(2)
		for i := range 12 { // what is nearly given up meets the silence and its end
			o := op{Kind: opTx, Tx: txPlan{Inserts: []insert{{topic + topics*d.rng.IntN(8), msgGood}}}}
			switch {
			case i < 4:
				o.At, o.Tx.Inserts[0].Kind = max(at-d.upTo(600*time.Millisecond), 0), msgFailing
			case i < 10:
				o.At = max(end-d.upTo(300*time.Millisecond), 0)
			default:
				o.At = d.between(at, end)
			}
			d.add(o)
		}
	}
}

// settled is the latest moment at which every key must have moved on.
func (p *plan) settled() time.Duration {
	if p.Wide != nil {
		end := p.Wide.Faults + (settleBy - faultsEnd) + 6*p.Wide.OutageMax
		if p.Wide.Rate > 0 {
			end += 5 * time.Minute
		}
		return end
	}
	for _, o := range p.Ops {
		for _, i := range o.Tx.Inserts {
			if i.Kind == msgDown || i.Kind == msgDeadly {
				return provenBy
			}
		}
	}
	return settleBy
}

// impostors draws from a source of its own, too: messages that their destination
// always answers as if it were down, few of them or many.
func (d *drawer) impostors() {
	d.rng = rand.New(rand.NewPCG(d.p.Seed, 0x646f776e))
	for range d.some(8, 3) {
		o := op{Kind: opTx, At: d.time()}
		for range 1 + d.rng.IntN(3) {
			o.Tx.Inserts = append(o.Tx.Inserts, insert{Key: d.rng.IntN(6), Kind: msgDown})
		}
		d.add(o)
	}
}

// deadly draws from a source of its own, too: a message that ends whoever sends it.
func (d *drawer) deadly() {
	d.rng = rand.New(rand.NewPCG(d.p.Seed, 0x64656164))
	for range d.some(12, 1) {
		o := op{Kind: opTx, At: d.upTo(faultsEnd / 2)}
		o.Tx.Inserts = []insert{{d.rng.IntN(6), msgGood}, {d.rng.IntN(7) - 1, msgDeadly}, {d.rng.IntN(6), msgGood}}
		d.add(o)
	}
}

// collisions puts together, from a source of its own, what seldom meets: a key
// that is set aside by a call of the store that is carried out after a failover,
// and continues; and several acts on the dead letters of one key.
func (d *drawer) collisions() {
	d.rng = rand.New(rand.NewPCG(d.p.Seed, 0x636f6c6c))
	for i, o := range d.p.Ops {
		if o.Kind != opFailover || d.rng.IntN(3) == 0 {
			continue
		}
		o.Dur = d.upTo(200 * time.Millisecond)
		d.p.Ops[i].Dur = o.Dur
		d.add(op{Kind: opStoreLate, At: max(o.At-400*time.Millisecond, 0), Dur: 2500 * time.Millisecond, N: 500})
		if n := d.node(); n > 0 && d.rng.IntN(2) == 0 { // lanes are given to a node that comes and goes just then
			d.p.Ops[d.started(n)].At = max(o.At-d.between(400*time.Millisecond, time.Second), 0)
			d.add(op{Kind: opDrain, At: max(o.At-d.upTo(300*time.Millisecond), 0), Node: n, Dur: d.upTo(time.Second)})
			for range 10 {
				d.add(op{Kind: opTx, At: o.At + d.upTo(3*time.Second), Tx: txPlan{Inserts: []insert{{d.rng.IntN(12), msgGood}}}})
			}
		}
		key := d.quarrel(max(o.At-700*time.Millisecond, 0))
		for range 6 {
			d.add(op{Kind: opTx, At: o.At + o.Dur + d.upTo(3*time.Second), Tx: txPlan{Inserts: []insert{{key, msgGood}}}})
		}
	}
	if d.some(6, 1) > 0 {
		at := d.time()
		d.quarrel(at)
		for range 4 {
			d.add(op{Kind: opAct, At: d.between(at, faultsEnd), N: d.rng.IntN(4)})
		}
	}
}

// meetings puts operations of all kinds close together in time, from a source of
// its own: each alone is harmless, what is found late is two or three at once. Half
// of them are where a node starts, because lanes change hands there.
func (d *drawer) meetings() {
	d.rng = rand.New(rand.NewPCG(d.p.Seed, 0x6d656574))
	if d.rng.IntN(5) == 0 { // a clock that runs wrong shows where the network is quick
		d.p.Drift, d.p.Latency = 10, min(d.p.Latency, time.Duration(1+d.rng.IntN(4))*time.Millisecond)
		for range 3 {
			d.add(op{Kind: opTx, At: d.time(), Tx: txPlan{Inserts: []insert{{d.rng.IntN(6), msgScheduled}}}})
		}
	}
	for range d.some(2, 2) {
		at := d.time()
		if n := d.node(); n > 0 && d.rng.IntN(2) == 0 {
			at = d.p.Ops[d.started(n)].At + d.upTo(time.Second)
		}
		near := func() time.Duration {
			return min(max(at+d.upTo(800*time.Millisecond)-400*time.Millisecond, 0), faultsEnd-time.Millisecond)
		}
		key := d.rng.IntN(4)
		for range 2 + d.rng.IntN(4) {
			o := op{Kind: opTx, At: near()}
			for range 1 + d.rng.IntN(3) {
				i := insert{Key: key + d.rng.IntN(3) - 1}
				if d.rng.IntN(4) == 0 {
					i.Kind = msgRejected + msgKind(d.rng.IntN(4))
				}
				o.Tx.Inserts = append(o.Tx.Inserts, i)
			}
			d.add(o)
		}
		for range 2 + d.rng.IntN(4) {
			d.add(d.anything(near()))
		}
	}
}

// gentle makes some worlds ones in which nothing is ever lost on its way: there, no
// duplicate is allowed at all. Destinations that hold messages back meet drains and
// other hand-overs instead.
func (d *drawer) gentle() {
	d.rng = rand.New(rand.NewPCG(d.p.Seed, 0x67656e74))
	if d.rng.IntN(6) > 0 {
		return
	}
	loses := []opKind{opCrash, opPause, opSuspend, opJump, opStoreLate, opFailover, opAckLost, opSinkHang, opSilent}
	d.p.Ops = slices.DeleteFunc(d.p.Ops, func(o op) bool {
		hangsUp := slices.ContainsFunc(o.Tx.Inserts, func(i insert) bool { return i.Kind == msgHangup })
		return hangsUp || slices.Contains(loses, o.Kind)
	})
	for range 1 + d.rng.IntN(3) {
		at := d.time()
		d.add(op{Kind: opOutage + opKind(d.rng.IntN(2)), At: at, Dur: d.between(200*time.Millisecond, 2*time.Second), N: d.rng.IntN(3) - 1})
		for range 1 + d.rng.IntN(3) {
			o := op{Kind: opTx, At: max(at+d.upTo(400*time.Millisecond)-200*time.Millisecond, 0)}
			for range 2 + d.rng.IntN(4) {
				o.Tx.Inserts = append(o.Tx.Inserts, insert{Key: d.rng.IntN(6) - 1})
			}
			d.add(o)
		}
		d.add(op{Kind: opDrain, At: at + d.upTo(700*time.Millisecond), Node: d.node(), Dur: d.upTo(time.Second)})
	}
}

// started is the operation that starts a node first.
func (d *drawer) started(node int) (index int) {
	return slices.IndexFunc(d.p.Ops, func(o op) bool { return o.Kind == opStart && o.Node == node })
}

// anything draws one operation of any kind, most often those in which an answer is
// late or a lane changes hands.
func (d *drawer) anything(at time.Duration) op {
	short := d.between(50*time.Millisecond, 1500*time.Millisecond)
	switch d.rng.IntN(16) {
	case 0, 1, 2:
		return op{Kind: opStoreLate, At: at, Dur: d.between(200*time.Millisecond, 2500*time.Millisecond), N: d.share()}
	case 3, 4:
		return op{Kind: opFailover, At: at, Dur: d.upTo(300 * time.Millisecond)}
	case 5, 6:
		return op{Kind: opDrain, At: at, Node: d.node(), Dur: d.upTo(time.Second)}
	case 7:
		return op{Kind: opCrash, At: at, Node: d.node(), Dur: d.upTo(time.Second)}
	case 8:
		return op{Kind: opPause + opKind(d.rng.IntN(2)), At: at, Node: d.node(), Dur: d.between(leaseTTL/2, 2*leaseTTL)}
	case 9, 10:
		return op{Kind: opOutage + opKind(d.rng.IntN(2)), At: at, Dur: short, N: d.rng.IntN(3) - 1}
	case 11, 12:
		return op{Kind: opAckLost + opKind(d.rng.IntN(3)), At: at, Dur: short, N: d.share()}
	case 13:
		return op{Kind: opStoreDown + opKind(d.rng.IntN(2)), At: at, Dur: short, N: d.share()}
	case 14:
		return op{Kind: opAct, At: at, N: d.rng.IntN(4)}
	}
	if d.rng.IntN(2) == 0 {
		return op{Kind: opStop, At: at, Dur: short}
	}
	return op{Kind: opHold, At: at, Dur: short, N: d.rng.IntN(4)}
}

// quarrel draws transactions of one key in which the first message fails.
func (d *drawer) quarrel(at time.Duration) (key int) {
	key = d.rng.IntN(4)
	for range 4 {
		kind := msgRejected + msgKind(d.rng.IntN(2))
		d.add(op{Kind: opTx, At: at + d.upTo(600*time.Millisecond), Tx: txPlan{Inserts: []insert{{key, kind}, {key, msgGood}}}})
	}
	return key
}

type drawer struct {
	rng *rand.Rand
	p   plan
}

func (d *drawer) add(o op)                                 { d.p.Ops = append(d.p.Ops, o) }
func (d *drawer) upTo(t time.Duration) time.Duration       { return time.Duration(d.rng.Int64N(int64(t))) }
func (d *drawer) time() time.Duration                      { return d.upTo(faultsEnd * 9 / 10) }
func (d *drawer) node() int                                { return d.rng.IntN(d.p.Nodes) }
func (d *drawer) between(a, b time.Duration) time.Duration { return a + d.upTo(b-a) }

// some returns 0 in most worlds: one world in n has 1 to most of a kind.
func (d *drawer) some(n, most int) int {
	if d.rng.IntN(n) > 0 {
		return 0
	}
	return 1 + d.rng.IntN(most)
}

func (d *drawer) transactions() {
	rng := d.rng
	keys := 1 + rng.IntN(6)
	spoiled := rng.IntN(3) == 0 // most worlds have only good messages
	for range 6 + rng.IntN(14) {
		o := op{Kind: opTx, At: d.time()}
		o.Tx.Rollback = rng.IntN(8) == 0
		o.Tx.Early = rng.IntN(3) == 0
		if rng.IntN(3) == 0 {
			o.Dur = d.upTo(2 * time.Second)
		}
		for range 1 + rng.IntN(4) {
			i := insert{Key: rng.IntN(keys)}
			if rng.IntN(10) == 0 {
				i.Key = -1
			}
			if spoiled && rng.IntN(6) == 0 {
				i.Kind = msgKind(1 + rng.IntN(4))
			}
			o.Tx.Inserts = append(o.Tx.Inserts, i)
		}
		d.add(o)
	}
}

func (d *drawer) nodeFaults() {
	for range d.some(2, 3) {
		d.add(op{Kind: opCrash, At: d.time(), Node: d.node(), Dur: d.upTo(3 * time.Second)})
	}
	for range d.some(3, 2) {
		d.add(op{Kind: opPause, At: d.time(), Node: d.node(), Dur: d.between(leaseTTL/2, 2*leaseTTL)})
	}
	for range d.some(6, 2) {
		d.add(op{Kind: opSuspend, At: d.time(), Node: d.node(), Dur: d.between(leaseTTL/2, 2*leaseTTL)})
	}
	for range d.some(6, 2) {
		jump := d.between(leaseTTL/2, 2*leaseTTL)
		if d.rng.IntN(2) == 0 {
			jump = -jump
		}
		d.add(op{Kind: opJump, At: d.time(), Node: d.node(), Dur: jump})
	}
}

func (d *drawer) storeFaults() {
	for _, k := range []opKind{opStoreDown, opStoreLost, opStoreLate} {
		for range d.some(4, 2) {
			d.add(op{Kind: k, At: d.time(), Dur: d.between(50*time.Millisecond, 2*time.Second), N: d.share()})
		}
	}
}

func (d *drawer) sinkFaults() {
	for _, k := range []opKind{opOutage, opThrottle} {
		for range d.some(5, 2) {
			d.add(op{Kind: k, At: d.time(), Dur: d.between(50*time.Millisecond, 2*time.Second), N: d.rng.IntN(3) - 1})
		}
	}
	for _, k := range []opKind{opAckLost, opSinkFail, opSinkHang} {
		for range d.some(3, 2) {
			d.add(op{Kind: k, At: d.time(), Dur: d.between(50*time.Millisecond, 3*time.Second), N: d.share()})
		}
	}
}

func (d *drawer) share() int { return []int{50, 200, 500, 1000}[d.rng.IntN(4)] }
