package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// wide is what a world has that is larger and lives longer: many lanes and destinations,
// destinations that are not topics, large messages, low caps, and faults of one destination
// that last for minutes while the others work.
type wide struct {
	Topics    int           // of messages
	Places    int           // that routes send them to, at least as many
	Hooks     int           // destinations that places share; 0: each place is one
	Faults    time.Duration // when they end
	OutageMax time.Duration
	Size      int  // of the largest payload
	Bytes     int  // Config.MaxBytes
	Messages  int  // Config.MaxMessages; 0: the core's default
	Batch     int  // of the sink; 0: any
	Rate      int  // Config.Rate; 0: none
	Own       int  // how lanes are bound to nodes: ownAny, ownOnly or ownMost
	Odd       bool // topics with odd numbers skip dead letters, the others block
	Delays    bool // retries have a list of delays, and the sink answers pings
}

// How lanes are bound to nodes.
const (
	ownAny  = iota // by the fair share
	ownOnly        // each node takes lanes of its own
	ownMost        // each node takes its share at most, however many there are
)

func (x *wide) String() string {
	return fmt.Sprintf(" topics=%d places=%d hooks=%d faults=%v outage=%v size=%d bytes=%d messages=%d batch=%d rate=%d own=%d odd=%v delays=%v",
		x.Topics, x.Places, x.Hooks, x.Faults, x.OutageMax, x.Size, x.Bytes, x.Messages, x.Batch, x.Rate, x.Own, x.Odd, x.Delays)
}

// makeWide draws a wide world. In one of eight nodes read the log, in half of these with a rate.
func makeWide(seed uint64) plan {
	rng := rand.New(rand.NewPCG(seed, 0x77696465))
	x := &wide{
		Topics: 2 + rng.IntN(4), Faults: time.Duration(1+rng.IntN(4)) * time.Minute,
		OutageMax: []time.Duration{time.Second, 15 * time.Second, time.Minute, 3 * time.Minute}[rng.IntN(4)],
		Size:      8, Bytes: 16 << 20,
	}
	d := drawer{rng: rng, p: plan{
		Seed: seed, Family: familyOf(seed), Lanes: 4 + rng.IntN(13), Nodes: 1 + rng.IntN(3),
		Window: 4 + rng.IntN(5), Page: 2 + rng.IntN(14), MaxAttempts: 2 + rng.IntN(3), Skip: rng.IntN(4) == 0,
		Latency: time.Duration(1+rng.IntN(20)) * time.Millisecond, Wide: x,
	}}
	d.p.Window *= d.p.Page // pages, as a relay has them
	if rng.IntN(8) == 0 {
		d.p.Lanes = 64
	}
	if x.Places = x.Topics + d.some(2, 4); rng.IntN(3) == 0 {
		x.Hooks = 2 + rng.IntN(x.Places-1)
	}
	if rng.IntN(3) == 0 {
		x.Size, x.Bytes = 1<<(8+rng.IntN(7)), 1<<(16+rng.IntN(4))
	}
	if rng.IntN(3) == 0 {
		x.Messages = d.p.Lanes * (2 + rng.IntN(6))
	}
	if rng.IntN(4) == 0 {
		x.Batch = 1 + rng.IntN(4)
	}
	for n := range d.p.Nodes {
		at := time.Duration(0)
		if n > 0 {
			at = d.upTo(x.Faults / 4)
		}
		d.add(op{Kind: opStart, At: at, Node: n})
	}
	d.traffic()
	d.partial()
	if rng.IntN(2) == 0 {
		d.short()
	}
	d.people()
	d.settings()
	slices.SortStableFunc(d.p.Ops, func(a, b op) int { return int(a.At - b.At) })
	if seed%8 != 4 {
		return d.p
	}
	if x.Rate == 0 && seed%16 == 4 { // a rate bounds how far ahead a lane is read
		x.Rate = 5 + int(seed/16%40)
	}
	return d.p.goesAhead()
}

// traffic draws transactions at a pace: many, or so few that nothing of one destination
// shows for long that the sink works.
func (d *drawer) traffic() {
	pace := []time.Duration{400 * time.Millisecond, 2 * time.Second, 20 * time.Second}[d.rng.IntN(3)]
	keys, spoiled := 8+d.rng.IntN(60), d.rng.IntN(3) == 0
	for at := d.upTo(pace); at < d.p.Wide.Faults; at += d.upTo(2*pace) + time.Millisecond {
		o := op{Kind: opTx, At: at}
		o.Tx.Rollback, o.Tx.Early = d.rng.IntN(16) == 0, d.rng.IntN(4) == 0
		if d.rng.IntN(8) == 0 {
			o.Dur = d.upTo(2 * time.Second)
		}
		for range 1 + d.rng.IntN(3) {
			i := insert{Key: d.rng.IntN(keys)}
			switch {
			case d.rng.IntN(8) == 0:
				i.Key = -1 - d.rng.IntN(d.p.Wide.Places)
			case spoiled && d.rng.IntN(8) == 0:
				i.Kind = []msgKind{msgRejected, msgFailing, msgScheduled}[d.rng.IntN(3)]
			}
			o.Tx.Inserts = append(o.Tx.Inserts, i)
		}
		d.add(o)
	}
}

// partial draws faults of single destinations, each with what stands in its queue then.
func (d *drawer) partial() {
	x := d.p.Wide
	dests := x.Places
	if x.Hooks > 0 {
		dests = min(x.Hooks, x.Places)
	}
	for range 1 + d.rng.IntN(3) {
		o := op{Kind: []opKind{opOutage, opOutage, opThrottle, opRefuse, opSilent}[d.rng.IntN(5)], N: d.rng.IntN(dests)}
		o.At = d.upTo(x.Faults / 2)
		o.Dur = d.between(5*time.Second, x.Faults-o.At+time.Second)
		d.add(o)
		at := max(o.At-d.upTo(2*time.Second), 0)
		for n := d.rng.IntN(40); n > 0; n -= 4 {
			tx := op{Kind: opTx, At: at + d.upTo(4*time.Second)}
			for range 4 {
				tx.Tx.Inserts = append(tx.Tx.Inserts, insert{Key: o.N + dests*d.rng.IntN(64)})
			}
			d.add(tx)
		}
	}
}

// short draws faults of everything, which end soon.
func (d *drawer) short() {
	for range 1 + d.rng.IntN(3) {
		at, dur := d.upTo(d.p.Wide.Faults), d.between(100*time.Millisecond, 5*time.Second)
		switch d.rng.IntN(9) {
		case 0:
			d.add(op{Kind: opCrash, At: at, Node: d.node(), Dur: dur})
		case 1:
			d.add(op{Kind: opPause + opKind(d.rng.IntN(2)), At: at, Node: d.node(), Dur: dur})
		case 2:
			d.add(op{Kind: opDrain, At: at, Node: d.node(), Dur: dur})
		case 3:
			d.add(op{Kind: opFailover, At: at, Dur: dur})
		case 4, 5:
			d.add(op{Kind: opStoreDown + opKind(d.rng.IntN(3)), At: at, Dur: dur, N: d.share()})
		case 6:
			d.add(op{Kind: opOutage, At: at, Dur: dur, N: -1})
		case 7:
			d.add(op{Kind: opAckLost + opKind(d.rng.IntN(3)), At: at, Dur: dur, N: d.share()})
		case 8:
			d.add(op{Kind: opStop, At: at, Dur: dur})
		}
	}
}

// people draws acts, which are executed whatever is down.
func (d *drawer) people() {
	for range d.some(2, 6) {
		d.add(op{Kind: opAct, At: d.upTo(d.p.Wide.Faults), N: d.rng.IntN(16)})
	}
	for range d.some(2, 3) {
		o := op{Kind: opHold, At: d.upTo(d.p.Wide.Faults), Dur: d.between(time.Second, 40*time.Second), N: d.rng.IntN(60)}
		if d.rng.IntN(3) == 0 {
			o.N = -1 - d.rng.IntN(d.p.Lanes)
		}
		d.add(o)
	}
}

// settings draws from a source of its own what a person may set, and the steps of the
// database's clock.
func (d *drawer) settings() {
	d.rng = rand.New(rand.NewPCG(d.p.Seed, 0x73657474))
	x := d.p.Wide
	x.Odd, x.Delays = d.rng.IntN(3) == 0, d.rng.IntN(3) == 0
	if d.rng.IntN(6) == 0 {
		x.Rate = 5 + d.rng.IntN(20)
	}
	if d.rng.IntN(4) == 0 {
		x.Own = ownOnly + d.rng.IntN(2)
		for n := range d.p.Nodes { // lanes have no owner before
			d.p.Ops[d.started(n)].At = 0
		}
	}
	for range d.some(5, 2) {
		o := op{Kind: opStep, At: d.upTo(x.Faults), Dur: d.between(time.Second, 30*time.Second)}
		if d.rng.IntN(2) == 0 {
			o.Dur = -o.Dur
		}
		d.add(o)
	}
}

// RunWide runs one seed of the wide worlds.
func RunWide(ctx context.Context, seed uint64) Result {
	return runPlan(ctx, makeWide(seed), mutant{}, true)
}

// ReplayWide runs one seed of the wide worlds and returns its plan and trace.
func ReplayWide(ctx context.Context, seed uint64) (Result, string) {
	return replay(ctx, makeWide(seed))
}

// configure sets what a relay of such a world has.
func (x *wide) configure(c *port.Config, p *plan, node int) {
	if share := (p.Lanes + p.Nodes - 1) / p.Nodes; x.Own == ownMost {
		c.MaxLanes = share
	}
	for l := node; x.Own == ownOnly && l < p.Lanes; l += p.Nodes {
		c.Only = append(c.Only, store.Lane(l))
	}
	if c.Rate = float64(x.Rate); x.Delays {
		c.Retry.Delays = []time.Duration{50 * time.Millisecond, 200 * time.Millisecond, time.Second}
		c.Sink.Ping = func(context.Context) error { return nil }
	}
	if x.Odd {
		c.Policy = func(topic string) port.Policy {
			if oddTopic(topic) {
				return port.Skip
			}
			return port.Block
		}
	}
	c.OutageBase, c.OutageMax, c.PollMax = 100*time.Millisecond, x.OutageMax, 2*time.Second
	c.MaxBytes, c.MaxMessages, c.Sink.MaxBatch = x.Bytes, x.Messages, x.Batch
	if x.Places > x.Topics {
		c.Place = func(m *postrider.Message) string { return m.Type }
	}
}

// rests reports whether the run continues until all that was reported has ended, which is dear.
func (p *plan) rests() bool { return p.Wide != nil || p.Seed/4%4 == 0 }

// rest is how long a state may be reported that nothing is left to end.
func (p *plan) rest() time.Duration {
	if p.Wide != nil {
		return restWithin + 4*p.Wide.OutageMax
	}
	return restWithin
}

// faults is when the faults of the plan end.
func (p *plan) faults() time.Duration {
	if p.Wide != nil {
		return p.Wide.Faults
	}
	return faultsEnd
}

// place is where routes send the messages of a key, dest the destination there.
func (p *plan) place(key int) int {
	if p.Wide != nil {
		return modulo(key, p.Wide.Places)
	}
	return modulo(key, topics)
}

func (p *plan) dest(key int) int {
	if p.Wide != nil && p.Wide.Hooks > 0 {
		return p.place(key) % p.Wide.Hooks
	}
	return p.place(key)
}

func (p *plan) topicName(key int) string {
	if p.Wide != nil {
		return "t" + strconv.Itoa(p.place(key)%p.Wide.Topics)
	}
	return [topics]string{"t0", "t1"}[p.place(key)]
}

// placeName is the topic, unless routes send its messages to several places.
func (p *plan) placeName(key int) string {
	if p.Wide != nil && p.Wide.Places > p.Wide.Topics {
		return "place-" + strconv.Itoa(p.place(key))
	}
	return p.topicName(key)
}

func (p *plan) destName(key int) string {
	if p.Wide != nil && p.Wide.Hooks > 0 {
		return "hook-" + strconv.Itoa(p.dest(key))
	}
	return p.placeName(key)
}

// skips reports whether a dead letter of the key releases it.
func (p *plan) skips(key int) bool {
	if p.Wide != nil && p.Wide.Odd {
		return oddTopic(p.topicName(key))
	}
	return p.Skip
}

func oddTopic(name string) bool { return name[len(name)-1]%2 == 1 }

func modulo(a, n int) int { return (a%n + n) % n }
