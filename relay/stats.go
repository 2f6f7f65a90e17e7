package relay

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/core"
	"github.com/postrider/postrider/store"
)

// Stats are counters since New and a look at now.
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
	Parked         map[string]int64 // records set aside by store.State.String(), every change counted
	Settles        int64            // answered settlements
	LanesLost      int64            // lanes lost otherwise than by release
	LeaseLapses    int64            // times that the lease ran out with lanes held

	DeliveriesInFlight int
	Paused             bool              // the pipe, by a person
	PausedLanes        []store.Lane      // at the cap of parked keys
	Braked             []string          // destinations held by the brake
	Down               map[string]string // part -> error of what does not work now
	LastErrorClass     string            // of the last failed delivery, "" if none
	LastLease          time.Time         // when the last lease was granted
}

// Health answers probes. A liveness probe must look at Alive alone.
type Health struct {
	Running  bool
	Draining bool
	Alive    bool              // the event loop moves, or Run was not called
	Ready    bool              // a lease was granted lately, store and sink work, and not every known destination is down
	Partial  bool              // not Ready, and that only because no message was acknowledged beside destinations that are down
	Down     map[string]string // part -> error
}

// recorder keeps the figures. The loop writes, anybody reads.
type recorder struct {
	mu       sync.Mutex
	s        Stats
	lanes    map[store.Lane]struct{}
	paused   map[store.Lane]struct{}
	braked   map[string]struct{}
	classes  [5]int64
	parked   [store.Dead + 1]int64
	running  bool
	draining bool
	lapsed   bool      // the lanes are held by nobody we know of
	silent   bool      // whether the broker answers is unknown yet
	works    bool      // a message was acknowledged in this Run
	beat     time.Time // of the loop
	ttl      time.Duration
}

func newRecorder(ttl time.Duration) *recorder {
	if ttl == 0 {
		ttl = 2 * time.Second
	}
	return &recorder{
		ttl:   ttl,
		s:     Stats{Down: map[string]string{}},
		lanes: map[store.Lane]struct{}{}, paused: map[store.Lane]struct{}{}, braked: map[string]struct{}{},
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
	clear(r.braked)
	clear(r.s.Down)
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

func (r *recorder) tell(f core.Fact) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch f := f.(type) {
	case core.DeliveryDone:
		r.delivered(f)
	case core.SettleDone:
		r.s.Settles++
		r.s.Settled += int64(f.Messages)
	case core.RecordParked:
		r.parked[f.State]++
	case core.LaneGained:
		r.lanes[f.Lane] = struct{}{}
	case core.LaneLost:
		delete(r.lanes, f.Lane)
		delete(r.paused, f.Lane)
		if f.Reason != "released" {
			r.s.LanesLost++
		}
	case core.LeaseLapsed:
		r.s.LeaseLapses++
		r.lapsed = true
	case core.LeaseRenewed:
		r.lapsed = false
		r.s.LanesTotal, r.s.Instances, r.s.LastLease = f.Total, f.Instances, time.Now()
	case core.HealthChanged:
		delete(r.s.Down, f.Part)
		if f.Down {
			r.s.Down[f.Part] = f.Err.Error()
		}
	case core.ReasonChanged:
		r.s.Down[f.Part] = f.Err.Error()
	case core.BrakeChanged:
		mark(r.braked, f.Destination, f.On)
	case core.PipePaused:
		r.s.Paused = f.On
	case core.LanePaused:
		mark(r.paused, f.Lane, f.On)
	}
}

// mustAsk notes that the broker is being asked whether it answers.
func (r *recorder) mustAsk() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent = true
}

// asked notes that the answer is known.
func (r *recorder) asked() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent = false
}

func (r *recorder) delivered(f core.DeliveryDone) {
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

// trouble says in words what does not work now, for people who see the database
// only. It holds no error's text: that stays in the log.
func (r *recorder) trouble() []string {
	const most, longest = 8, 200
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	say := func(text string) {
		if len(all) < most {
			all = append(all, strings.ToValidUTF8(text[:min(len(text), longest)], ""))
		}
	}
	if n := len(r.paused); n > 0 {
		say(fmt.Sprintf("%d lanes are paused: too many keys are set aside", n))
	}
	for _, part := range slices.Sorted(maps.Keys(r.s.Down)) {
		if part != "store" { // who hears of it hears through the store
			say(part + " is down")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.braked)) {
		say(fmt.Sprintf("destination %q is held: it rejects everything", name))
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
