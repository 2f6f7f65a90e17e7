package port

import (
	"time"

	"github.com/postrider/postrider/store"
)

// Fact is an event for observers. No fact contains a payload.
type Fact interface{ fact() }

// The facts.
type (
	// LaneGained: the engine works on the lane from now on.
	LaneGained struct {
		Lane  store.Lane
		Epoch int64
	}
	// LaneLost: the engine no longer works on the lane. Reason is "released", "taken" or
	// "identity changed".
	LaneLost struct {
		Lane   store.Lane
		Reason string
	}
	// HistoryChanged: the database has another history (after a crash, a failover or a
	// restore), and the state of Lanes lanes in memory was dropped. Outage: during
	// a reported outage of the store, whose end reports it too.
	HistoryChanged struct {
		Lanes  int
		Outage bool
	}
	// LeaseLapsed: the lease on Lanes lanes expired, and nothing is sent
	// or settled until a heartbeat is answered. Reason is "lease expired" or
	// "clock jumped". Since is the age of the last answered heartbeat,
	// Late the time between expiry and its detection. Outage: during a
	// reported outage of the store.
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
	// the sink has acknowledged: the next owner of their lanes sends them again.
	DrainCutOff struct{ Messages int }
	// SettleDone: settlements were recorded.
	SettleDone struct {
		Lanes, Messages, Parked, Unparked int
		Took                              time.Duration
	}
	// RecordParked: a record was parked, or a parked record was changed.
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
	// started to work. Sent once per change. For a store that recovers, After is
	// the length of the outage, and NewHistory reports a changed history. Untried:
	// nothing was sent there for minutes, so nobody knows whether it works.
	HealthChanged struct {
		Part       string
		Down       bool
		Err        error
		After      time.Duration
		NewHistory bool
		Untried    bool
	}
	// StoreAnswers: the store works, or fails with Err, as probes should see it.
	// HealthChanged reports the end of a frequent outage later.
	StoreAnswers struct {
		Works bool
		Err   error
	}
	// ReasonChanged: a part that is down since a HealthChanged now fails for a
	// reason not reported since. Sent at most a few times per outage.
	ReasonChanged struct {
		Part string
		Err  error
	}
	// BrakeChanged: a destination is held (On) because it rejected Rejections
	// messages in a row with Code, or is released (On false).
	BrakeChanged struct {
		Destination string
		Code        string
		Rejections  int
		On          bool
	}
	// PipePaused: a person has paused the pipe (On), or resumed it.
	PipePaused struct{ On bool }
	// LanePaused: the lane is paused (On) because its parked keys or records reached their
	// cap or a person has paused it, or is resumed (On false).
	LanePaused struct {
		Lane   store.Lane
		Keys   int
		Reason string // PausedByPerson, or the reached cap
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
func (StoreAnswers) fact()   {}
func (ReasonChanged) fact()  {}
func (BrakeChanged) fact()   {}
func (LanePaused) fact()     {}
func (PipePaused) fact()     {}

// PausedByPerson is the Reason of a LanePaused that a person must resume.
const PausedByPerson = "paused by a person"

// PauseReason returns the Reason of a lane's pause, "": it is not paused. byPerson, keys and
// records say whether a person has paused it, and which caps it has reached.
func PauseReason(byPerson, keys, records bool) string {
	switch {
	case byPerson:
		return PausedByPerson
	case keys:
		return "parked keys reached the cap"
	case records:
		return "parked records reached the cap"
	}
	return ""
}
