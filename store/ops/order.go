package ops

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

// Orders are acts on many records. What an order concerns is counted first and
// then carried out by the lanes' owners, page by page and each page in a
// settlement, so that no act races the relay and a million records are neither
// one transaction nor in anybody's memory.
type Orders interface {
	// PlanOrder counts what the order would concern now and changes nothing.
	PlanOrder(ctx context.Context, o Order) (OrderPlan, error)
	// Order stores the order for the owners of the lanes and returns its id, which
	// is that of its entry in the journal. It concerns what matches when its page has its turn,
	// between the first and the last number that PlanOrder counts at this moment: what changed
	// until then is left out, and a replay sends what was settled until then too. It returns
	// ErrNotFound when nothing matches.
	Order(ctx context.Context, o Order) (int64, OrderPlan, error)
	// OrderState reports how far an order has come, or ErrNotFound.
	OrderState(ctx context.Context, id int64) (OrderState, error)
	// CancelOrder ends an order: what it has not moved yet stays as it is. It
	// returns ErrNotFound when no such order is open.
	CancelOrder(ctx context.Context, id int64, actor, reason string) error
}

// Order is an act on every record that matches. Retry and Discard concern Dead
// records, Skip those in state Dead or Retry that capture their key, Replay
// settled ones that are not parked.
//
// A record that is replayed is sent after every message of its lane that was
// committed when its page was taken up, and after everything that stands in its
// key's queue: it never overtakes what was live then. A page is taken up when the
// one before has been handed over, the first when the order is stored. With
// Overtake it goes at once, also where its key is captured.
type Order struct {
	Kind     store.ActKind
	Match    Match
	Edit     Edit    // Retry only
	Rate     float64 // most records per second over all lanes; 0: as fast as pages go
	Overtake bool    // Replay only
	Actor    string  // who; must not be empty
	Reason   string  // why; must not be empty
}

// Match says which records; zero fields do not filter, and all that are set must fit.
type Match struct {
	Seqs         []int64
	IDs          []string // UUIDs in canonical text
	Topic        string
	Key          string
	Type         string
	Versions     Versions
	Class        string // of the last error; not for Replay
	Code         string // not for Replay
	Error        string // a part of the error's text; not for Replay
	Lane         *store.Lane
	Since, Until time.Time // of the message's time: at or after, and before
	// IdleFor is how long a record was neither parked nor tried, by the
	// database's clock; not for Replay.
	IdleFor time.Duration
	All     bool // must be set when nothing else is
}

// Versions are those from First to Last, both included, and of messages that have
// one; the zero value is all. Last 0: only First.
type Versions struct{ First, Last int64 }

// Edit changes records before they are sent again. Payload, key and id stay.
type Edit struct {
	Topic        string            // "": stays
	SetHeaders   map[string]string // added or replaced
	UnsetHeaders []string
}

// Empty reports whether the edit changes nothing.
func (e Edit) Empty() bool {
	return e.Topic == "" && len(e.SetHeaders) == 0 && len(e.UnsetHeaders) == 0
}

// OrderPlan is what an order concerns.
type OrderPlan struct {
	Records int64
	Lanes   []LanePlan // those with records, ascending
}

// LanePlan is what an order concerns in one lane.
type LanePlan struct {
	Lane    store.Lane `json:"lane"`
	Records int64      `json:"records"`
	First   int64      `json:"first_seq,string"` // the lowest number
	Last    int64      `json:"last_seq,string"`  // the highest number
}

// OrderState is how far an order has come.
type OrderState struct {
	ID      int64
	Kind    store.ActKind
	Planned int64        // counted when it was stored
	Moved   int64        // records so far
	Open    []store.Lane // lanes that have not carried it out
	Done    bool
}

// ErrInvalidOrder is matched by every error of Order.Validate.
var ErrInvalidOrder = errors.New("invalid order")

// Validate says what is wrong with an order, before a store is asked.
func (o Order) Validate() error {
	parkedOnly := o.Match.Class != "" || o.Match.Code != "" || o.Match.Error != "" || o.Match.IdleFor != 0
	m := o.Match
	nothing := len(m.Seqs) == 0 && len(m.IDs) == 0 && m.Topic == "" && m.Key == "" && m.Type == "" && !parkedOnly &&
		m.Versions == Versions{} && m.Lane == nil && m.Since.IsZero() && m.Until.IsZero()
	switch {
	case o.Kind != store.ActRetry && o.Kind != store.ActDiscard && o.Kind != store.ActSkip && o.Kind != store.ActReplay:
		return fmt.Errorf("%w: unknown action %q: use retry, discard, skip or replay", ErrInvalidOrder, o.Kind)
	case o.Actor == "":
		return fmt.Errorf("%w: missing actor", ErrInvalidOrder)
	case strings.TrimSpace(o.Reason) == "":
		return fmt.Errorf("%w: missing reason: give one for the journal", ErrInvalidOrder)
	case nothing && !m.All:
		return fmt.Errorf("%w: no records selected: give a filter, or all", ErrInvalidOrder)
	case !nothing && m.All:
		return fmt.Errorf("%w: all records and a filter are both given: leave one out", ErrInvalidOrder)
	case o.Kind == store.ActReplay && parkedOnly:
		return fmt.Errorf("%w: replayed records have no error: leave class, code, error and idle time out", ErrInvalidOrder)
	case m.Versions != Versions{} && (m.Versions.First < 1 || m.Versions.Last != 0 && m.Versions.Last < m.Versions.First):
		return fmt.Errorf("%w: versions %d to %d: use two numbers above 0, the smaller one first", ErrInvalidOrder, m.Versions.First, m.Versions.Last)
	case m.IdleFor < 0:
		return fmt.Errorf("%w: idle for %s: use a time above 0", ErrInvalidOrder, m.IdleFor)
	case o.Kind != store.ActReplay && o.Overtake:
		return fmt.Errorf("%w: only a replay can overtake", ErrInvalidOrder)
	case o.Kind != store.ActRetry && !o.Edit.Empty():
		return fmt.Errorf("%w: only a retry can change records", ErrInvalidOrder)
	case o.Rate < 0 || math.IsNaN(o.Rate) || math.IsInf(o.Rate, 0):
		return fmt.Errorf("%w: rate is %v: use records per second, or 0 for no limit", ErrInvalidOrder, o.Rate)
	}
	for _, id := range m.IDs {
		if err := (&postrider.Message{ID: id, Topic: "t"}).Validate(); err != nil {
			return fmt.Errorf("%w: %q: %w", ErrInvalidOrder, id, err)
		}
	}
	for _, name := range o.Edit.UnsetHeaders {
		if name == "" {
			return fmt.Errorf("%w: a header to remove has no name", ErrInvalidOrder)
		}
	}
	probe := postrider.Message{Topic: "t", Headers: o.Edit.SetHeaders}
	if o.Edit.Topic != "" {
		probe.Topic = o.Edit.Topic
	}
	if err := probe.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidOrder, err)
	}
	return nil
}
