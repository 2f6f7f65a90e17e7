package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/claim"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// KeyPolicy is the treatment of a key whose head is dead.
type KeyPolicy = port.Policy

// The policies.
const (
	// Block keeps the key's later messages waiting until a person retries or
	// discards the dead one.
	Block = port.Block
	// Skip sets the dead message aside and continues with the key.
	Skip = port.Skip
)

// Retry sets when a failed message is tried again. Outages and throttling use
// no attempt.
type Retry struct {
	// Delays lists the delays after the first, second ... failure; the last one repeats. If
	// empty, the delay starts at Base and doubles up to Max.
	Delays []time.Duration
	Base   time.Duration // 0: 1 s
	Max    time.Duration // 0: 5 min
	// Jitter is the random share of a delay, up to 1.
	// 0: a half; negative: none.
	Jitter float64
	// MaxAttempts is the number of failures after which a message is dead. 0: 10.
	MaxAttempts int
}

// Options tune a relay. The zero value of every field is a good default.
type Options struct {
	Instance string // a name for people; "": [DefaultInstance]
	Version  string // of the program, shown beside Instance
	// Lanes are the only lanes to work on, when not empty. Relays share no lanes of these: the
	// first one of several with the same Lanes takes all, or MaxLanes, and the others stand by.
	Lanes    []store.Lane
	MaxLanes int // most lanes to hold; 0: the fair share, or all of Lanes

	// LeaseTTL is how long a dead instance keeps its lanes. 0: 2 s, with
	// which another instance takes over within 3 s.
	LeaseTTL       time.Duration
	DeliverTimeout time.Duration // of one call to the sink; 0: 10 s
	StoreTimeout   time.Duration // of one call to the store; 0: 10 s
	DrainTimeout   time.Duration // for calls in flight when ctx ends; 0: 25 s

	// Window is the most unsettled messages of a lane: the most duplicates per lane
	// after a crash. 0: 1024.
	Window      int
	WindowBytes int // the same in bytes; 0: 4 MiB
	Page        int // most messages read and delivered at once per lane; 0: 256
	MaxMessages int // most messages in memory over all lanes; 0: what keeps the sink busy, at most 24576
	MaxBytes    int // the same in bytes; 0: 16 MiB
	// ParkedKeys is the number of parked keys at which a lane
	// pauses. 0: 1000.
	ParkedKeys int
	// Rate limits the messages per second of the pipe, retries included; 0: no limit. Give
	// all instances the same one: each uses the part of the lanes that it holds, so together
	// they stay below it, except for a page of each.
	Rate float64

	PollMin time.Duration // pause between reads while messages arrive; 0: 3 ms
	PollMax time.Duration // longest pause of an idle outbox; 0: 40 ms

	Retry Retry
	// OutageMax caps the pause between tries while a destination is down and
	// the delay that a throttling broker may ask for. 0: 15 s.
	OutageMax time.Duration
	// Brake is the number of rejections in a row with one code after which a
	// destination is held instead of making more dead letters. 0: 20; negative: never.
	Brake int
	// Route is the router of the sink, if it has one: then a destination that is
	// down delays only its own messages, not other messages of their topics. The engine
	// asks several times per message and waits for the answer: give it the rules
	// without their validation, and the validation to Claim.
	Route envelope.Router
	// Claim leaves large payloads in the database, for consumers to fetch; nil: none.
	// A message is sent whole if Route gives it a format without references. Without
	// Route, Validate refuses Claim for a sink with such a format.
	Claim *claim.Policy
	// Policy returns the key policy of a topic. nil: Block.
	Policy func(topic string) KeyPolicy

	Logger   *slog.Logger // state changes only, never payloads; nil: silent
	Observer *Observer    // nil: none
	// Tracer makes a span of every call to the sink; nil: none. See module otelpostrider.
	Tracer Tracer
}

// ErrOptions is wrapped by the error of [Options.Validate].
var ErrOptions = errors.New("relay options")

// OptionsError is the error of [Options.Validate]. It wraps [ErrOptions].
type OptionsError struct{ Problems []*OptionError }

// Error implements error.
func (e *OptionsError) Error() string {
	text := ErrOptions.Error() + ": "
	for i, p := range e.Problems {
		if i > 0 {
			text += "\n"
		}
		text += p.Error()
	}
	return text
}

// Unwrap returns [ErrOptions].
func (e *OptionsError) Unwrap() error { return ErrOptions }

// OptionError is one problem with an option.
type OptionError struct {
	Option string // the field of Options, such as "Retry.Base"
	Value  string // as the field has it
	Why    string // such as "must not be negative"
}

// Error implements error.
func (e *OptionError) Error() string { return e.Option + " is " + e.Value + ": " + e.Why }

func wrong(option string, value any, why string) *OptionError {
	return &OptionError{Option: option, Value: fmt.Sprint(value), Why: why}
}

// Validate returns all problems in one error, nil if there are none.
func (o *Options) Validate() error {
	if o == nil {
		return nil
	}
	var errs []*OptionError
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"LeaseTTL", o.LeaseTTL},
		{"DeliverTimeout", o.DeliverTimeout},
		{"StoreTimeout", o.StoreTimeout},
		{"DrainTimeout", o.DrainTimeout},
		{"PollMin", o.PollMin},
		{"PollMax", o.PollMax},
		{"Retry.Base", o.Retry.Base},
		{"Retry.Max", o.Retry.Max},
		{"OutageMax", o.OutageMax},
	} {
		if f.value < 0 {
			errs = append(errs, wrong(f.name, f.value, "must not be negative"))
		}
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"MaxLanes", o.MaxLanes},
		{"Window", o.Window},
		{"WindowBytes", o.WindowBytes},
		{"Page", o.Page},
		{"MaxMessages", o.MaxMessages},
		{"MaxBytes", o.MaxBytes},
		{"ParkedKeys", o.ParkedKeys},
		{"Retry.MaxAttempts", o.Retry.MaxAttempts},
	} {
		if f.value < 0 {
			errs = append(errs, wrong(f.name, f.value, "must not be negative"))
		}
	}
	errs = append(errs, o.relations()...)
	if len(errs) == 0 {
		return nil
	}
	return &OptionsError{Problems: errs}
}

func (o *Options) relations() []*OptionError {
	var errs []*OptionError
	if o.LeaseTTL > 0 && o.LeaseTTL < 100*time.Millisecond {
		errs = append(errs, wrong("LeaseTTL", o.LeaseTTL, "must be at least 100ms"))
	}
	if o.PollMax > 0 && o.PollMin > o.PollMax {
		errs = append(errs, wrong("PollMin", o.PollMin, fmt.Sprintf("must be at most the longest pause, %v", o.PollMax)))
	}
	if o.Retry.Max > 0 && o.Retry.Base > o.Retry.Max {
		errs = append(errs, wrong("Retry.Base", o.Retry.Base, fmt.Sprintf("must be at most the longest delay, %v", o.Retry.Max)))
	}
	if !(o.Rate >= 0) || o.Rate > 0 && o.Rate < 0.01 || math.IsInf(o.Rate, 1) {
		errs = append(errs, wrong("Rate", o.Rate, "must be 0, for no limit, or at least 0.01 messages a second"))
	}
	if o.Retry.Jitter > 1 {
		errs = append(errs, wrong("Retry.Jitter", o.Retry.Jitter, "must be at most 1"))
	}
	for i, d := range o.Retry.Delays {
		if d < 0 {
			errs = append(errs, wrong(fmt.Sprintf("Retry.Delays[%d]", i), d, "must not be negative"))
		}
	}
	if o.Page > 0 && o.Window > 0 && o.Page > o.Window {
		errs = append(errs, wrong("Page", o.Page, fmt.Sprintf("must be at most the window, %d", o.Window)))
	}
	return errs
}

// config returns the engine's form of the options.
func (o *Options) config() port.Config {
	c := port.Config{
		Instance: o.Instance, Only: o.Lanes, MaxLanes: o.MaxLanes,
		TTL: o.LeaseTTL, DeliverTimeout: o.DeliverTimeout, StoreTimeout: o.StoreTimeout, DrainTimeout: o.DrainTimeout,
		Window: o.Window, WindowBytes: o.WindowBytes, Page: o.Page, MaxMessages: o.MaxMessages, MaxBytes: o.MaxBytes,
		ParkedKeys: o.ParkedKeys, Rate: o.Rate, PollMin: o.PollMin, PollMax: o.PollMax,
		Retry:     port.Backoff(o.Retry),
		OutageMax: o.OutageMax, Brake: o.Brake, Policy: o.Policy,
	}
	if c.Instance == "" {
		c.Instance = DefaultInstance()
	}
	if o.Claim != nil {
		c.Claim = claimer(o.Claim, o.Route)
	}
	if route := o.Route; route != nil {
		c.Place = func(m *postrider.Message) string {
			r, err := route(m)
			if err != nil || r.Topic == "" { // the sink rejects it
				return m.Topic
			}
			return r.Topic
		}
	}
	return c
}

// DefaultInstance returns the name of an instance whose [Options] have none: the
// host's name and the process id, as in "vm/4711".
func DefaultInstance() string {
	host, err := os.Hostname()
	if err != nil {
		host = "relay"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// claimer applies policy to messages that may be sent by reference. Messages in a format
// without references are sent whole, and so are messages that the router refuses.
func claimer(policy *claim.Policy, route envelope.Router) port.ClaimFunc {
	return func(lane store.Lane, seq int64, m *postrider.Message) string {
		if len(m.Payload) <= policy.Above {
			return ""
		}
		if r, err := route.Of(m); err != nil || !r.Format.CanRefer() {
			return "" // sent whole: the sink's router then refuses it with its own error
		}
		return policy.Ref(int(lane), seq, m)
	}
}
