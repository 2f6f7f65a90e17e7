package console

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/console/internal/count"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// outbox is an outbox with the pipes of it that were looked at.
type outbox struct {
	Outbox
	main   *place // the default pipe
	mu     sync.Mutex
	places map[string]*place // the others that were looked at, by name; under mu, as what follows
	known  map[string]bool   // pipes that exist
	asked  time.Time         // when they were listed
	failed error             // of the last listing
	fell   time.Time         // when it failed
}

func newOutbox(o Outbox) *outbox {
	box := &outbox{Outbox: o, places: map[string]*place{}}
	box.main = &place{outbox: box, store: o.Store, office: o.Office, keptOf: map[string]keptSpan{}}
	return box
}

// place is one pipe of one outbox, with what was seen of it.
type place struct {
	outbox *outbox
	pipe   string // "": the default one
	store  store.Store
	office *ops.Office

	looking sync.Mutex // one look at a time, however many pages are open
	seen    sight
	history history

	keysMu sync.Mutex
	keys   keysSeen

	exam examination

	counts count.Counts

	keptMu sync.Mutex
	keptOf map[string]keptSpan // what the store has kept, by span

	recording sync.Mutex
	recorder  *admin.History
	recordAt  time.Time // not before
}

// sight is what the last look has seen.
type sight struct {
	Status ops.Status
	At     time.Time // zero: never
	Err    error     // of the last look, whose figures are older then
	ErrAt  time.Time // since when looks fail
}

// name is the place in paths: "shop", or "shop@audit".
func (p *place) name() string {
	if p.pipe == "" {
		return p.outbox.Name
	}
	return p.outbox.Name + "@" + p.pipe
}

// lookEvery is how old the figures of a page may be, and lookFor how long a look may take.
const (
	lookEvery = time.Second
	lookFor   = 5 * time.Second
)

// look returns the figures of the pipe, at most lookEvery old. It asks the database for all pages
// together, and returns the older figures with the error when that fails.
func (p *place) look(ctx context.Context) sight {
	seen := p.see(ctx)
	p.record(ctx, seen)
	return seen
}

func (p *place) see(ctx context.Context) sight {
	p.looking.Lock()
	defer p.looking.Unlock()
	if time.Since(p.seen.At) < lookEvery || !p.seen.ErrAt.IsZero() && time.Since(p.seen.ErrAt) < lookEvery {
		return p.seen
	}
	// Every page that waits takes the answer: the reader of one may go away.
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookFor)
	defer cancel()
	status, err := p.office.Admin.Status(limited)
	if err != nil {
		p.seen.Err, p.seen.ErrAt = err, time.Now()
		return p.seen
	}
	p.seen = sight{Status: status, At: time.Now()}
	p.history.add(sampleOf(&status, p.seen.At))
	return p.seen
}

// samples returns the history of a pipe as of now.
func (p *place) samples() []sample {
	p.looking.Lock()
	defer p.looking.Unlock()
	return slices.Clone(p.history.all)
}

// sample is one look as the charts need it.
type sample struct {
	at        time.Time
	lag       time.Duration
	pending   int64
	capped    bool
	delivered int64
	dead      int64
	blocked   int64 // -1: unknown
	drawn     int64 // 0: unknown
}

func sampleOf(s *ops.Status, at time.Time) sample {
	return sample{at: at, lag: s.Lag, pending: s.Pending, capped: s.Capped, delivered: s.Delivered, dead: s.Parked[store.Dead.String()], blocked: -1}
}

// history is what was seen in this process, the oldest first: close together for the last minutes
// and a sample a minute for two hours before.
type history struct{ all []sample }

// How far the history goes back. Samples of the first fineFor are kept as they come.
const (
	fineFor   = 10 * time.Minute
	coarseFor = 2 * time.Hour
	coarse    = time.Minute
	gapAfter  = 45 * time.Second // from here on nobody was looking
)

func (h *history) add(s sample) {
	h.all = append(h.all, s)
	keep := h.all[:0]
	var last time.Time
	for _, old := range h.all {
		age := s.at.Sub(old.at)
		if age > coarseFor || age > fineFor && old.at.Sub(last) < coarse {
			continue
		}
		last = old.at
		keep = append(keep, old)
	}
	h.all = keep
}

// rates are messages per second between the samples of the last window, which are -1 when there
// are not two of them.
func rates(all []sample, window time.Duration) (in, out float64) {
	if len(all) < 2 {
		return -1, -1
	}
	last := all[len(all)-1]
	first := last
	for _, s := range slices.Backward(all) {
		if last.at.Sub(s.at) > window {
			break
		}
		first = s
	}
	return between(first, last)
}

// between returns the rates from one sample to another. What came in is what went out and what is
// there more; it is -1 while the count of pending messages is a lower bound.
func between(a, b sample) (in, out float64) {
	seconds := b.at.Sub(a.at).Seconds()
	if seconds < 0.2 {
		return -1, -1
	}
	out = max(float64(b.delivered-a.delivered)/seconds, 0)
	if a.capped || b.capped {
		if a.drawn > 0 && b.drawn >= a.drawn { // also of transactions that were rolled back
			return float64(b.drawn-a.drawn) / seconds, out
		}
		return -1, out
	}
	return max(float64(b.delivered-a.delivered+b.pending-a.pending+b.dead-a.dead)/seconds, 0), out
}

// pipesFor is how long the list of pipes is believed.
const pipesFor = 5 * time.Second

// at returns a pipe of the outbox, or an error that matches store.ErrNoPipe. Only a pipe that
// the outbox lists is opened: opening makes one in some stores.
func (o *outbox) at(ctx context.Context, pipe string) (*place, error) {
	if pipe == "" {
		return o.main, nil // whatever the listing of the others waits for
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.Office.Need(ops.CanPipe); err != nil {
		return nil, fmt.Errorf("pipe %q: %w", pipe, err)
	}
	if o.known == nil || time.Since(o.asked) > pipesFor {
		if time.Since(o.fell) < pipesFor {
			return nil, o.failed
		}
		// Every page that waits takes the answer: the reader of one may go away.
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookFor)
		defer cancel()
		all, err := o.Office.Pipes.Pipes(limited)
		if err != nil {
			o.failed, o.fell = err, time.Now()
			return nil, err
		}
		o.known, o.asked = map[string]bool{}, time.Now()
		for _, p := range all {
			o.known[p.Name] = true
		}
	}
	if !o.known[pipe] {
		delete(o.places, pipe)
		return nil, fmt.Errorf("pipe %q: %w", pipe, store.ErrNoPipe)
	}
	if o.places[pipe] == nil {
		st, office := o.Office.Pipe(pipe)
		o.places[pipe] = &place{outbox: o, pipe: pipe, store: st, office: office, keptOf: map[string]keptSpan{}}
	}
	return o.places[pipe], nil
}

// defaultPipe is the name of the pipe that a place without one has.
func (p *place) defaultPipe() string { return p.store.Info().Pipe }
