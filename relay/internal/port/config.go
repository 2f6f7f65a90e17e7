package port

import (
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/store"
)

// Policy is the treatment of a key whose head is dead.
type Policy uint8

// The policies.
const (
	Block Policy = iota // later messages of the key wait for a person
	Skip                // the dead letter is isolated and the key continues
)

// Backoff sets when a failed message is tried again.
type Backoff struct {
	Delays []time.Duration // after the 1st, 2nd ... failure, the last one repeated; if empty, Base and Max apply
	Base   time.Duration   // 0: 1 s; doubled per failure
	Max    time.Duration   // 0: 5 min
	Jitter float64         // share of the delay that is random, 0..1; 0: 0.5, negative: none
	// MaxAttempts is the number of failures after which a message is dead. 0: 10.
	MaxAttempts int
}

// ClaimFunc returns the reference of a payload that stays in the database,
// and "" for a message that is sent whole.
type ClaimFunc func(lane store.Lane, seq int64, m *postrider.Message) string

// Config is the configuration of an engine. Zero values take the defaults in the comments.
type Config struct {
	BootID   string // required
	Instance string
	Only     []store.Lane // if not empty, only these lanes
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
	// Rate limits the messages per second of the pipe, retries included; an instance
	// uses the part of the lanes that it holds. 0: no limit.
	Rate float64

	PollMin, PollMax         time.Duration // 0: 3 ms, 40 ms
	SettleAfter, SettleAtMax time.Duration // 0: 200 ms, 1 s

	Retry      Backoff
	OutageBase time.Duration                   // first pause of an outage; 0: 100 ms, doubled, full jitter
	OutageMax  time.Duration                   // 0: 15 s; also caps the RetryAfter of a throttle
	Brake      int                             // rejections in a row; 0: 20, negative: never
	Policy     func(topic string) Policy       // nil: Block
	Place      func(*postrider.Message) string // the topic that a message is sent to; nil: its own
	Claim      ClaimFunc                       // selects payloads that stay in the database; nil: none

	Store store.Info
	Sink  broker.Info
}

func or[T int | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// WithDefaults returns the configuration with the defaults in place of zero values.
func (c Config) WithDefaults() Config {
	c.TTL = or(c.TTL, 2*time.Second)
	c.DeliverTimeout = or(c.DeliverTimeout, 10*time.Second)
	c.StoreTimeout = or(c.StoreTimeout, 10*time.Second)
	c.DrainTimeout = or(c.DrainTimeout, 25*time.Second)
	c.Window = or(c.Window, 1024)
	c.WindowBytes = or(c.WindowBytes, 4<<20)
	c.Page = or(c.Page, 256)
	if c.Store.MaxRead > 0 {
		c.Page = min(c.Page, c.Store.MaxRead)
	}
	c.Page = min(c.Page, c.Window)
	c.MaxMessages = or(c.MaxMessages, 24576)
	c.MaxBytes = or(c.MaxBytes, 16<<20)
	c.ParkedKeys = or(c.ParkedKeys, 1000)
	c.PollMax = or(c.PollMax, 40*time.Millisecond)
	c.PollMin = min(or(c.PollMin, 3*time.Millisecond), c.PollMax)
	c.SettleAfter = or(c.SettleAfter, 200*time.Millisecond)
	c.SettleAtMax = max(or(c.SettleAtMax, time.Second), c.SettleAfter)
	c.Retry.Base = or(c.Retry.Base, time.Second)
	c.Retry.Max = max(or(c.Retry.Max, 5*time.Minute), c.Retry.Base)
	c.Retry.MaxAttempts = or(c.Retry.MaxAttempts, 10)
	switch {
	case c.Retry.Jitter == 0:
		c.Retry.Jitter = 0.5
	case c.Retry.Jitter < 0:
		c.Retry.Jitter = 0
	}
	c.OutageBase = or(c.OutageBase, 100*time.Millisecond)
	c.OutageMax = max(or(c.OutageMax, 15*time.Second), c.OutageBase)
	c.Brake = or(c.Brake, 20)
	if c.Policy == nil {
		c.Policy = func(string) Policy { return Block }
	}
	return c
}

// recordsPerKey is how many records of a lane are parked per parked key before outages park no more.
const recordsPerKey = 16

// MaxParked is how many parked records of a lane are enough for outages to set aside no more; nobody
// needs to know of more.
func (c *Config) MaxParked() int { return recordsPerKey * c.ParkedKeys }
