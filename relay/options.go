package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/claim"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/relay/internal/core"
	"github.com/postrider/postrider/store"
)

// KeyPolicy says what becomes of a key whose head is dead.
type KeyPolicy = core.Policy

// The policies.
const (
	// Block keeps the key's later messages waiting until a person retries or
	// discards the dead one.
	Block = core.Block
	// Skip sets the dead message aside and continues with the key.
	Skip = core.Skip
)

// Retry says when a failed message is tried again. Outages and throttling burn
// no attempt.
type Retry struct {
	// Delays after the first, second ... failure; the last one repeats. When
	// empty the delay starts at Base and doubles up to Max.
	Delays []time.Duration
	Base   time.Duration // 0: 1 s
	Max    time.Duration // 0: 5 min
	// Jitter is the share of a delay that is drawn at random, up to 1.
	// 0: a half; negative: none.
	Jitter float64
	// MaxAttempts is the number of failures after which a message is dead. 0: 10.
	MaxAttempts int
}

// Options tune a relay. The zero value of every field is a good default.
type Options struct {
	Instance string       // a name for people; "": [DefaultInstance]
	Version  string       // of the program, told to people beside Instance
	Lanes    []store.Lane // when not empty, only these lanes are worked on
	MaxLanes int          // most lanes to hold; 0: the fair share

	// LeaseTTL is how long a dead instance's lanes stay its own. 0: 2 s, with
	// which another instance continues within 3 s.
	LeaseTTL       time.Duration
	DeliverTimeout time.Duration // of one call to the sink; 0: 10 s
	StoreTimeout   time.Duration // of one call to the store; 0: 10 s
	DrainTimeout   time.Duration // for calls in flight when ctx ends; 0: 25 s

	// Window is how many messages of a lane may be unsettled: the most that a
	// crash delivers twice per lane. 0: 1024.
	Window      int
	WindowBytes int // the same in bytes; 0: 4 MiB
	Page        int // most messages read and delivered at once per lane; 0: 256
	MaxMessages int // most messages in memory over all lanes; 0: 24576
	MaxBytes    int // the same in bytes; 0: 16 MiB
	// ParkedKeys is how many keys of a lane may be set aside before the lane
	// pauses. 0: 1000.
	ParkedKeys int

	PollMin time.Duration // pause between reads while messages come; 0: 3 ms
	PollMax time.Duration // and when none do; 0: 40 ms

	Retry Retry
	// OutageMax caps the pause between tries while a destination is down and
	// the delay that a throttling broker may ask for. 0: 15 s.
	OutageMax time.Duration
	// Brake is the number of rejections in a row with one code after which a
	// destination is held instead of making more dead letters. 0: 20; negative: never.
	Brake int
	// Route is the router of the sink, where it has one: a destination that is
	// down then holds up what goes there, and not the other messages of a topic.
	Route envelope.Router
	// Claim leaves large payloads in the database, for consumers to fetch; nil: none.
	// What Route gives a format whose readers know of no reference travels whole; a
	// sink that has such a format without Route refuses it.
	Claim *claim.Policy
	// Policy gives the key policy of a topic. nil: Block.
	Policy func(topic string) KeyPolicy

	Logger   *slog.Logger // state changes only, never payloads; nil: silent
	Observer *Observer    // nil: none
	// Tracer makes a span of every call to the sink; nil: none. See module otelpostrider.
	Tracer Tracer
}

// ErrOptions is matched by the error of [Options.Validate].
var ErrOptions = errors.New("relay options")

// Validate reports all problems at once, nil if there are none.
func (o *Options) Validate() error {
	if o == nil {
		return nil
	}
	var errs []error
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
			errs = append(errs, fmt.Errorf("%s is %v: must not be negative", f.name, f.value))
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
			errs = append(errs, fmt.Errorf("%s is %d: must not be negative", f.name, f.value))
		}
	}
	errs = append(errs, o.relations()...)
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrOptions, errors.Join(errs...))
}

func (o *Options) relations() []error {
	var errs []error
	if o.LeaseTTL > 0 && o.LeaseTTL < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("LeaseTTL is %v: must be at least 100ms", o.LeaseTTL))
	}
	if o.PollMax > 0 && o.PollMin > o.PollMax {
		errs = append(errs, fmt.Errorf("PollMin %v is above PollMax %v", o.PollMin, o.PollMax))
	}
	if o.Retry.Max > 0 && o.Retry.Base > o.Retry.Max {
		errs = append(errs, fmt.Errorf("Retry.Base %v is above Retry.Max %v", o.Retry.Base, o.Retry.Max))
	}
	if o.Retry.Jitter > 1 {
		errs = append(errs, fmt.Errorf("Retry.Jitter is %g: must be at most 1", o.Retry.Jitter))
	}
	for i, d := range o.Retry.Delays {
		if d < 0 {
			errs = append(errs, fmt.Errorf("Retry.Delays[%d] is %v: must not be negative", i, d))
		}
	}
	if o.Page > 0 && o.Window > 0 && o.Page > o.Window {
		errs = append(errs, fmt.Errorf("option Page is %d, above Window %d", o.Page, o.Window))
	}
	return errs
}

// config is the engine's form of the options.
func (o *Options) config() core.Config {
	c := core.Config{
		Instance: o.Instance, Only: o.Lanes, MaxLanes: o.MaxLanes,
		TTL: o.LeaseTTL, DeliverTimeout: o.DeliverTimeout, StoreTimeout: o.StoreTimeout, DrainTimeout: o.DrainTimeout,
		Window: o.Window, WindowBytes: o.WindowBytes, Page: o.Page, MaxMessages: o.MaxMessages, MaxBytes: o.MaxBytes,
		ParkedKeys: o.ParkedKeys, PollMin: o.PollMin, PollMax: o.PollMax,
		Retry:     core.Backoff(o.Retry),
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
			if err != nil { // the sink rejects it
				return m.Topic
			}
			return r.Topic
		}
	}
	return c
}

// DefaultInstance returns the name of an instance whose [Options] give none: the
// host's name and the process id, as in "vm/4711".
func DefaultInstance() string {
	host, err := os.Hostname()
	if err != nil {
		host = "relay"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// claimer leaves to policy what can be left: a format whose readers know of no
// reference has its messages whole.
func claimer(policy *claim.Policy, route envelope.Router) core.ClaimFunc {
	return func(lane store.Lane, seq int64, m *postrider.Message) string {
		if len(m.Payload) <= policy.Above {
			return ""
		}
		if r, err := route.Of(m); err == nil && !r.Format.CanRefer() {
			return ""
		}
		return policy.Ref(int(lane), seq, m)
	}
}
