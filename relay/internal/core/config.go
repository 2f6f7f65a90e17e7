package core

import "time"

// Fixed proportions. A heartbeat is sent every third of the TTL and the lease
// counts as lost an eighth before the database would give it away.
const (
	heartbeatShare = 3
	marginShare    = 8
	readsInFlight  = 2
	parkedTurns    = 1                      // parked cycles in a row before a normal batch gets its turn
	actTurns       = 8                      // parked cycles before acts of people get theirs
	parkedMost     = 2048                   // records that one parked read may bring over all lanes
	parkedViews    = 8                      // lanes whose view one parked read may ask for
	queueDepth     = 8                      // records of one queue that a parked read takes before the next queue
	queueDepthFull = 24                     // the same in a lane at its cap, which pauses until a queue is empty
	unknownRounds  = 3                      // rounds in which everything unresolved is sent together
	leftovers      = 16                     // messages of unknown fate that may step aside from a batch
	outageProofs   = 3                      // outages of one message among acknowledged others that make an attempt
	blamedMost     = 16                     // messages of one place that outages there may make dead letters
	asideMost      = 8                      // messages that may step aside in an outage with no acknowledgement
	asideBehind    = 4                      // windows of records that may stand behind them in a lane
	lazySettle     = 3                      // an empty batch waits so many SettleAtMax
	othersWindow   = 30 * time.Second       // for how long an acknowledgement shows that a topic works
	clockSlack     = 100 * time.Millisecond // a lesser difference to the database's clock does not count
	maxErrorText   = 500
	maxCode        = 100
	never          = 100 * 365 * 24 * time.Hour // the year 9999, or infinity, and no overflow
	gapsPerMessage = 100                        // the newest runs of missing versions that a message names
	recordsPerKey  = 16                         // parked records per parked key before outages stop parking
)

func or[T int | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// maxParked is how many parked records of a lane are enough for outages to set
// aside no more; nobody needs to know of more.
func (c *Config) maxParked() int { return recordsPerKey * c.ParkedKeys }

func (c Config) withDefaults() Config {
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
	c.SettleAfter = or(c.SettleAfter, 100*time.Millisecond)
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
