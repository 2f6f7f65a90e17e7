package core

import (
	"time"

	"github.com/postrider/postrider/relay/internal/captive"
)

// Fixed proportions. A heartbeat is sent every third of the TTL and the lease
// counts as lost an eighth before the database would give it away.
const (
	heartbeatShare = 3
	marginShare    = 8
	readsInFlight  = 2
	parkedTurns    = 1               // parked cycles in a row before a normal batch gets its turn
	actTurns       = 8               // parked cycles before acts of people get theirs
	viewAge        = 2 * time.Minute // after which a lane's whole view is read again
	unknownRounds  = 3               // rounds in which everything unresolved is sent together, or parked reads fail
	leftovers      = 16              // messages of unknown fate that may step aside from a batch
	outageProofs   = 3               // outages of one message among acknowledged others that make an attempt
	asideMost      = 8               // messages that may step aside in an outage with no acknowledgement
	asideBehind    = 4               // windows of records that may stand behind them in a lane
	blindAfter     = 5 * time.Second // after which messages of a destination that is down make way unseen
	lazySettle     = 3               // an empty batch waits so many SettleAtMax
	never          = captive.Never   // the year 9999, or infinity, and no overflow
)
