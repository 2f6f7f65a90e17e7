package relay

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// Stats has counters since New, and the present state.
type Stats struct {
	Instance string
	BootID   string // of the latest Run
	Lanes    []store.Lane
	// LanesTotal and Instances are as of the last lease.
	LanesTotal int
	Instances  int

	Delivered      int64            // messages acknowledged by the sink
	DeliveredBytes int64            // their Message.Size
	Settled        int64            // messages settled as delivered
	Errors         map[string]int64 // failed deliveries by broker.Class.String()
	Parked         map[string]int64 // parked records by store.State.String(), every change counted
	Settles        int64            // answered settlements
	LanesLost      int64            // lanes lost for other reasons than a release
	LeaseLapses    int64            // how often the lease expired while lanes were held

	DeliveriesInFlight int
	Paused             bool              // the pipe, by a person
	PausedLanes        []store.Lane      // at the cap of parked keys or records, or paused by a person
	Braked             []string          // destinations held by the brake
	Down               map[string]string // parts that are down now -> error
	LastErrorClass     string            // of the last failed delivery, "" if none
	LastLease          time.Time         // when the last lease was granted
}

// Health is the state for probes. A liveness probe must use Alive alone.
type Health struct {
	Running  bool
	Draining bool
	Alive    bool              // the event loop makes progress, or Run was not called
	Ready    bool              // a lease was granted lately, store and sink work, and not every known destination is down
	Partial  bool              // not Ready, only because destinations are down and no message of others was acknowledged
	Down     map[string]string // part -> error
}

// recorder keeps the figures. The loop writes them, any goroutine may read them.
type recorder struct {
	mu       sync.Mutex
	s        Stats
	lanes    map[store.Lane]struct{}
	paused   map[store.Lane]struct{}
	capped   map[store.Lane]struct{} // paused at a cap, and not by a person
	braked   map[string]struct{}
	classes  [5]int64
	parked   [store.Dead + 1]int64
	running  bool
	draining bool
	lapsed   bool                  // the lease has lapsed
	silent   bool                  // whether the broker answers is unknown yet
	works    bool                  // a message was acknowledged in this Run
	beat     time.Time             // of the loop
	held     map[string]store.Held // by part
	ttl      time.Duration
}

func newRecorder(ttl time.Duration) *recorder {
	if ttl == 0 {
		ttl = 2 * time.Second
	}
	return &recorder{
		ttl:   ttl,
		s:     Stats{Down: map[string]string{}},
		lanes: map[store.Lane]struct{}{}, paused: map[store.Lane]struct{}{}, capped: map[store.Lane]struct{}{}, braked: map[string]struct{}{}, held: map[string]store.Held{},
	}
}

func (r *recorder) start(instance, bootID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running, r.draining, r.lapsed, r.beat = true, false, false, time.Now()
	r.silent, r.works = false, false
	r.s.Instance, r.s.BootID = instance, bootID
	clear(r.lanes)
	clear(r.paused)
	clear(r.capped)
	clear(r.braked)
	clear(r.s.Down)
	clear(r.held)
}

func (r *recorder) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running, r.draining = false, false
	r.s.DeliveriesInFlight, r.s.Paused = 0, false
	clear(r.lanes)
}

func (r *recorder) moved(inFlight int, draining bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beat, r.draining, r.s.DeliveriesInFlight = time.Now(), draining, inFlight
}

func (r *recorder) tell(f port.Fact) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch f := f.(type) {
	case port.DeliveryDone:
		r.delivered(f)
	case port.SettleDone:
		r.s.Settles++
		r.s.Settled += int64(f.Messages)
	case port.RecordParked:
		r.parked[f.State]++
	case port.LaneGained:
		r.lanes[f.Lane] = struct{}{}
	case port.LaneLost:
		delete(r.lanes, f.Lane)
		delete(r.paused, f.Lane)
		delete(r.capped, f.Lane)
		if f.Reason != "released" {
			r.s.LanesLost++
		}
	case port.LeaseLapsed:
		r.s.LeaseLapses++
		r.lapsed = true
	case port.LeaseRenewed:
		r.lapsed = false
		r.s.LanesTotal, r.s.Instances, r.s.LastLease = f.Total, f.Instances, time.Now()
	case port.StoreAnswers:
		if delete(r.s.Down, "store"); !f.Works {
			r.s.Down["store"] = f.Err.Error()
		}
	case port.HealthChanged:
		if f.Part == "store" { // the log may show one outage while probes see the store come and go
			return
		}
		delete(r.s.Down, f.Part)
		delete(r.held, f.Part)
		if f.Down {
			r.s.Down[f.Part] = f.Err.Error()
			r.hold(f.Part, f.Err)
		}
	case port.ReasonChanged:
		if f.Part == "store" && r.s.Down[f.Part] == "" {
			return
		}
		r.s.Down[f.Part] = f.Err.Error()
		r.hold(f.Part, f.Err)
	case port.BrakeChanged:
		mark(r.braked, f.Destination, f.On)
	case port.PipePaused:
		r.s.Paused = f.On
	case port.LanePaused:
		mark(r.paused, f.Lane, f.On)
		mark(r.capped, f.Lane, f.On && f.Reason != port.PausedByPerson)
	}
}

// mustAsk records that the broker is being pinged.
func (r *recorder) mustAsk() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent = true
}

// asked records that the ping has ended.
func (r *recorder) asked() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent = false
}

func (r *recorder) delivered(f port.DeliveryDone) {
	if f.Acked > 0 {
		r.silent, r.works = false, true
	}
	r.s.Delivered += int64(f.Acked)
	r.s.DeliveredBytes += int64(f.Bytes)
	for c, n := range f.Classes {
		r.classes[c] += int64(n)
		if n > 0 {
			r.s.LastErrorClass = broker.Class(c).String()
		}
	}
}

func mark[K comparable](set map[K]struct{}, k K, on bool) {
	if on {
		set[k] = struct{}{}
	} else {
		delete(set, k)
	}
}

func (r *recorder) stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.s
	s.Down = maps.Clone(s.Down)
	if !r.lapsed {
		s.Lanes = slices.Sorted(maps.Keys(r.lanes))
	}
	s.PausedLanes = slices.Sorted(maps.Keys(r.paused))
	s.Braked = slices.Sorted(maps.Keys(r.braked))
	s.Errors = make(map[string]int64, len(r.classes))
	for c, n := range r.classes {
		s.Errors[broker.Class(c).String()] = n
	}
	s.Parked = make(map[string]int64, len(r.parked))
	for st := store.Scheduled; st <= store.Dead; st++ {
		s.Parked[st.String()] = r.parked[st]
	}
	return s
}

// hold records that nothing is sent to a part of the sink, and why. The time is that of
// the outage's first reason.
func (r *recorder) hold(part string, err error) {
	name, of := strings.CutPrefix(part, "destination ")
	switch {
	case part == "store":
		return
	case !of:
		name = "" // the whole sink
	}
	h := store.Held{Destination: cut(name, 255), Since: r.held[part].Since, Error: cut(err.Error(), 500)}
	if h.Since.IsZero() {
		h.Since = time.Now().UTC()
	}
	var known *broker.Error
	if errors.As(err, &known) {
		h.Code = cut(known.Code, 100)
		if known.Err != nil {
			h.Error = cut(known.Err.Error(), 500)
		}
	}
	r.held[part] = h
}

// cut shortens a text to at most this many bytes of UTF-8 that is valid for every database.
func cut(text string, most int) string {
	return strings.ToValidUTF8(strings.ReplaceAll(text[:min(len(text), most)], "\x00", ""), "")
}

// heldMost is the most destinations in a heartbeat.
const heldMost = 16

// report returns the content of a heartbeat.
func (r *recorder) report(opts *Options) store.Report {
	rep := store.Report{Version: opts.Version, Trouble: r.trouble(), Reach: opts.Window}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, part := range slices.Sorted(maps.Keys(r.held)) {
		if len(rep.Held) < heldMost {
			rep.Held = append(rep.Held, r.held[part])
		}
	}
	return rep
}

// trouble returns texts about the parts that are down now, for people who see the database
// only. The errors are in held.
func (r *recorder) trouble() []string {
	const most, longest = 8, 200
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	say := func(text string) {
		if len(all) < most {
			all = append(all, cut(text, longest))
		}
	}
	if n := len(r.capped); n > 0 {
		say(plural.Of(n, "lane is paused", "lanes are paused") + ": too many keys are set aside")
	}
	for _, part := range slices.Sorted(maps.Keys(r.s.Down)) {
		if part != "store" { // this text is read through the store
			say(part + " is down")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.braked)) {
		say(fmt.Sprintf("destination %q is held: it rejects all messages", name))
	}
	return all
}

func (r *recorder) health() Health {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	part, destination := false, false
	for name := range r.s.Down {
		if strings.HasPrefix(name, "destination ") {
			destination = true
		} else {
			part = true
		}
	}
	fine := r.running && !r.draining && now.Sub(r.s.LastLease) < 2*r.ttl && !part && !r.silent
	return Health{
		Running:  r.running,
		Draining: r.draining,
		Alive:    !r.running || now.Sub(r.beat) < 5*r.ttl,
		Ready:    fine && (!destination || r.works),
		Partial:  fine && destination && !r.works,
		Down:     maps.Clone(r.s.Down),
	}
}
