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
)

var opNames = [...]string{
	"start", "tx", "crash", "pause", "suspend", "jump", "drain", "store-down", "store-lost", "store-late",
	"outage", "throttle", "ack-lost", "sink-fail", "sink-hang", "act", "failover", "hold", "stop", "silent",
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
)

var kindNames = [...]string{"good", "rejected", "failing", "hangup", "scheduled", "down"}

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
	Ops         []op
}

func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed=%d family=%d lanes=%d nodes=%d window=%d page=%d attempts=%d skip=%v brake=%d keys=%d latency=%v\n",
		p.Seed, p.Family, p.Lanes, p.Nodes, p.Window, p.Page, p.MaxAttempts, p.Skip, p.Brake, p.ParkedKeys, p.Latency)
	for _, o := range p.Ops {
		fmt.Fprintln(&b, " ", o)
	}
	return b.String()
}

// makePlan draws a world and which faults it has, each with its own intensity
// (swarm testing): a world with every fault at once hides more than it shows.
func makePlan(seed uint64) plan {
	rng := rand.New(rand.NewPCG(seed, 0x706c616e))
	d := drawer{rng: rng, p: plan{
		Seed: seed, Family: memstore.Family(seed % 2), Lanes: 1 + rng.IntN(4), Nodes: 1 + rng.IntN(4),
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
// confirms nothing, for so long that every attempt would be used up. The source is
// one that leaves the seeds of TestRegressions as they are.
func (d *drawer) silences() {
	d.rng = rand.New(rand.NewPCG(d.p.Seed, 0x73696c66))
	for range d.some(12, 1) {
		at := d.upTo(faultsEnd / 2)
		d.add(op{Kind: opSilent, At: at, Dur: d.between(at, faultsEnd) - at, N: d.rng.IntN(topics)})
	}
}

// settled is the latest moment at which every key must have moved on.
func (p *plan) settled() time.Duration {
	for _, o := range p.Ops {
		for _, i := range o.Tx.Inserts {
			if i.Kind == msgDown {
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

// collisions puts together, from a source of its own, what seldom meets: a key
// that is set aside by a call of the store that is carried out after a failover,
// and goes on; and several acts on the dead letters of one key.
func (d *drawer) collisions() {
	d.rng = rand.New(rand.NewPCG(d.p.Seed, 0x636f6c6c))
	for i, o := range d.p.Ops {
		if o.Kind != opFailover || d.rng.IntN(3) == 0 {
			continue
		}
		o.Dur = d.upTo(200 * time.Millisecond)
		d.p.Ops[i].Dur = o.Dur
		d.add(op{Kind: opStoreLate, At: max(o.At-400*time.Millisecond, 0), Dur: 2500 * time.Millisecond, N: 500})
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
