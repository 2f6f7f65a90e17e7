package core

import (
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/store"
)

// ID names one action that is answered by one event. IDs are never reused.
type ID uint64

// Event is something that happened. Every action with an ID must be answered by
// exactly one event with that ID, also after a Cancel.
type Event interface{ event() }

// The events.
type (
	// Start is the first event of an engine.
	Start struct{}
	// Tick answers a Timer: its time has come. An extra Tick does no harm.
	Tick struct{}
	// Leased answers Lease.
	Leased struct {
		ID    ID
		Grant store.Grant
		Err   error
	}
	// ReadDone answers Read. With Err nil a lane without a batch found nothing.
	ReadDone struct {
		ID      ID
		Batches []store.Batch
		Err     error
	}
	// Delivered answers Deliver: nil, or one entry per message.
	Delivered struct {
		ID   ID
		Errs []error
	}
	// Settled answers Settle. A non-nil Err means that the outcome is unknown.
	Settled struct {
		ID   ID
		Lost []store.Lane
		Err  error
	}
	// Woke answers Wait, whatever ended it.
	Woke struct{ ID ID }
	// Pong reports that the broker answered a ping. A caller whose Config.Sink has
	// a Ping sends one from the start.
	Pong struct{}
	// Drain asks for an orderly end. Stopped follows within
	// Config.DrainTimeout and a second.
	Drain struct{}
	// ClockJump says that the monotonic and the wall clock disagree: the
	// process was suspended and every lease counts as lost.
	ClockJump struct{}
)

func (Start) event()     {}
func (Tick) event()      {}
func (Leased) event()    {}
func (ReadDone) event()  {}
func (Delivered) event() {}
func (Settled) event()   {}
func (Woke) event()      {}
func (Pong) event()      {}
func (Drain) event()     {}
func (ClockJump) event() {}

// Action is something to do now. Actions with an ID run concurrently with each
// other and with later steps; each must end within its Timeout.
type Action interface{ action() }

// The actions.
type (
	// Lease calls Store.Lease. The lease counts from the step that asked for it.
	Lease struct {
		ID      ID
		Req     store.LeaseRequest
		Timeout time.Duration
	}
	// Read calls Store.Read for many lanes at once.
	Read struct {
		ID      ID
		Reads   []store.LaneRead // the engine's again once the read is answered
		Timeout time.Duration
	}
	// Deliver calls Sink.Deliver; there is at most one per lane at any time.
	Deliver struct {
		ID      ID
		Lane    store.Lane
		Msgs    []postrider.Message
		Timeout time.Duration
	}
	// Cancel ends the context of a Deliver, whose answer no longer matters but
	// must still come: the lane delivers nothing before it has.
	Cancel struct{ ID ID }
	// Settle calls Store.Settle; there is at most one at any time.
	Settle struct {
		ID          ID
		Settlements []store.Settlement
		Timeout     time.Duration
	}
	// Wait calls Store.Wait.
	Wait struct {
		ID  ID
		Max time.Duration
	}
	// Timer asks for a Tick at that time. It replaces the Timer before.
	Timer struct{ At time.Duration }
	// Notify tells the observer a fact.
	Notify struct{ Fact Fact }
	// Stopped is the last action. Err is why the engine cannot work, nil after
	// a drain.
	Stopped struct{ Err error }
)

func (Lease) action()   {}
func (Read) action()    {}
func (Deliver) action() {}
func (Cancel) action()  {}
func (Settle) action()  {}
func (Wait) action()    {}
func (Timer) action()   {}
func (Notify) action()  {}
func (Stopped) action() {}

// Fact is what an observer may want to know. No fact holds a payload.
type Fact interface{ fact() }

// The facts.
type (
	// LaneGained: the engine works on the lane from now on.
	LaneGained struct {
		Lane  store.Lane
		Epoch int64
	}
	// LaneLost: it no longer does. Reason is "released", "taken", "identity
	// changed".
	LaneLost struct {
		Lane   store.Lane
		Reason string
	}
	// HistoryChanged: the database is not the one it was (a crash, a failover, a
	// restore), and what was held in memory of Lanes lanes was dropped. Outage: in
	// an outage of the store that was told, whose end tells it again.
	HistoryChanged struct {
		Lanes  int
		Outage bool
	}
	// LeaseLapsed: the right to work on Lanes lanes ran out, and nothing is sent
	// or settled until a heartbeat is answered. Reason is "lease expired" or
	// "clock jumped". Since is the age of the last heartbeat that was answered,
	// Late how long ago the lease had expired when this was noticed. Outage: in an
	// outage of the store that was told.
	LeaseLapsed struct {
		Lanes       int
		Reason      string
		Since, Late time.Duration
		Outage      bool
	}
	// LeaseRenewed: a heartbeat was answered.
	LeaseRenewed struct{ Lanes, Total, Instances int }
	// DeliveryDone: one Deliver call was answered. Classes counts the errors
	// by broker.Class.
	DeliveryDone struct {
		Lane    store.Lane
		Acked   int
		Bytes   int
		Took    time.Duration
		Classes [5]int
	}
	// DrainCutOff: the engine ends without having settled Messages messages that
	// the sink has acknowledged: whoever works on their lanes next sends them again.
	DrainCutOff struct{ Messages int }
	// SettleDone: settlements were recorded.
	SettleDone struct {
		Lanes, Messages, Parked, Unparked int
		Took                              time.Duration
	}
	// RecordParked: a record was set aside or changed where it stands aside.
	RecordParked struct {
		Lane     store.Lane
		Seq      int64
		ID       string
		Topic    string
		State    store.State
		Attempts int
		Class    string
		Code     string
		Error    string
	}
	// HealthChanged: "store", "sink" or "destination NAME" stopped (Down) or
	// started to work. Sent once per change. Of a store that recovers, After is
	// how long it did not, and NewHistory that it is not the one it was.
	HealthChanged struct {
		Part       string
		Down       bool
		Err        error
		After      time.Duration
		NewHistory bool
	}
	// ReasonChanged: what is down since a HealthChanged is now so for another
	// reason than any told since. Sent a few times per outage at the most.
	ReasonChanged struct {
		Part string
		Err  error
	}
	// BrakeChanged: a destination is held because it rejected Rejections
	// messages in a row with Code, or is free again (On false).
	BrakeChanged struct {
		Destination string
		Code        string
		Rejections  int
		On          bool
	}
	// PipePaused: a person has paused the pipe (On), or resumed it.
	PipePaused struct{ On bool }
	// LanePaused: the lane reads no more because its parked keys reached the
	// cap or a person has paused it, or reads again (On false).
	LanePaused struct {
		Lane   store.Lane
		Keys   int
		Reason string // PausedByPerson, or that it is the cap
		On     bool
	}
)

func (LaneGained) fact()     {}
func (LaneLost) fact()       {}
func (HistoryChanged) fact() {}
func (LeaseLapsed) fact()    {}
func (LeaseRenewed) fact()   {}
func (DeliveryDone) fact()   {}
func (DrainCutOff) fact()    {}
func (SettleDone) fact()     {}
func (RecordParked) fact()   {}
func (HealthChanged) fact()  {}
func (ReasonChanged) fact()  {}
func (BrakeChanged) fact()   {}
func (LanePaused) fact()     {}
func (PipePaused) fact()     {}

// PausedByPerson is the Reason of a LanePaused that ends when a person says so.
const PausedByPerson = "paused by a person"

// Policy says what becomes of a key whose head is dead.
type Policy uint8

// The policies.
const (
	Block Policy = iota // later messages of the key wait for a person
	Skip                // the dead letter is isolated and the key continues
)

// Backoff says when a failed message is tried again.
type Backoff struct {
	Delays []time.Duration // after the 1st, 2nd ... failure, the last one repeated; when empty Base and Max rule
	Base   time.Duration   // 0: 1 s; doubled per failure
	Max    time.Duration   // 0: 5 min
	Jitter float64         // share of the delay that is random, 0..1; 0: 0.5, negative: none
	// MaxAttempts is the number of failures after which a message is dead. 0: 10.
	MaxAttempts int
}

// ClaimFunc says where the payload of a message stands that travels without it;
// "" for one that travels whole.
type ClaimFunc func(lane store.Lane, seq int64, m *postrider.Message) string

// Config is everything an engine is told. Zero values take the defaults named.
type Config struct {
	BootID   string // required
	Instance string
	Only     []store.Lane // when not empty, only these lanes
	MaxLanes int          // 0: the fair share

	TTL            time.Duration // of the lease; 0: 2 s
	DeliverTimeout time.Duration // of one Deliver; 0: 10 s
	StoreTimeout   time.Duration // of one Read or Settle; 0: 10 s
	DrainTimeout   time.Duration // 0: 25 s

	Window      int // most messages unsettled per lane; 0: 1024
	WindowBytes int // 0: 4 MiB
	Page        int // most messages per batch; 0: 256
	MaxMessages int // most messages held over all lanes; 0: 24576
	MaxBytes    int // 0: 16 MiB
	ParkedKeys  int // most captured keys per lane; 0: 1000

	PollMin, PollMax         time.Duration // 0: 3 ms, 40 ms
	SettleAfter, SettleAtMax time.Duration // 0: 100 ms, 1 s

	Retry      Backoff
	OutageBase time.Duration                   // first pause of an outage; 0: 100 ms, doubled, full jitter
	OutageMax  time.Duration                   // 0: 15 s; also caps the RetryAfter of a throttle
	Brake      int                             // rejections in a row; 0: 20, negative: never
	Policy     func(topic string) Policy       // nil: Block
	Place      func(*postrider.Message) string // the topic that a message goes to; nil: its own
	Claim      ClaimFunc                       // whose payloads stay in the database; nil: nobody's

	Store store.Info
	Sink  broker.Info
}
