package memstore

// Defect names a way to break the database, one rule each.
type Defect uint8

// The defects. Those of the cursor (BareCursor to SequenceLate) change something in the
// family Cursor only, and those of holes (NoHoles to ProbeFirst) in Holes only.
const (
	None Defect = iota

	// BareCursor reads seq > last and remembers nothing else.
	BareCursor
	// XidOrder delivers in the order of transaction ids below the oldest running one.
	XidOrder
	// IgnoreInflight keeps the set of running transactions and never looks at it again.
	IgnoreInflight
	// InflightNotSaved drops the set when a position is settled.
	InflightNotSaved
	// OnlyXip leaves the ids between xmax and the next id out of the set.
	OnlyXip
	// SequenceLate reads the sequence after the page instead of before it.
	SequenceLate

	// NoHoles takes numbers that were not seen for dead at once.
	NoHoles
	// HolesExpire takes them for dead after a time.
	HolesExpire
	// NoBarrier takes them for dead as soon as a read without isolation misses them.
	NoBarrier
	// NoNet has no barrier either, and never looks again for what it took for dead.
	NoNet
	// ProbeFirst looks for them before it lists new numbers.
	ProbeFirst

	// AheadOfCommit delivers records of transactions that are still open.
	AheadOfCommit
	// Reversed delivers each batch backwards.
	Reversed
	// LaneByInstances computes the lane from the number of live instances.
	LaneByInstances

	// IgnoreLease hands out lanes that a live instance holds.
	IgnoreLease
	// SharedLease hands a lane to several instances, with one epoch for all.
	SharedLease
	// ClientClock judges heartbeats by the clock of the client that sent them.
	ClientClock
	// EpochKept takes a lane without raising its epoch.
	EpochKept
	// ReleaseAnyEpoch gives a lane back though the release has an old epoch.
	ReleaseAnyEpoch

	// NoFence settles whoever asks, whatever the epoch.
	NoFence
	// RepeatLost reports a repeated settlement as lost.
	RepeatLost
	// RepeatTwice applies a repeated settlement again.
	RepeatTwice
	// HalfSettle applies the good settlements of a call one by one and forgets the last.
	HalfSettle
	// SplitSettle moves the position in one transaction and parks in a second one.
	SplitSettle
	// ParkBeforeFence parks and unparks although the lane is lost.
	ParkBeforeFence

	// LoseParked forgets what a settlement parks.
	LoseParked
	// KnownForEver leaves out what is parked in a lane that the caller has named,
	// also when the lane was another's since.
	KnownForEver
	// ForgetCaptured grants lanes without their captured keys.
	ForgetCaptured
	// DueIgnoresHead returns every captured record whose time has come.
	DueIgnoresHead
	// DueIgnoresTime returns the head of a key before its time.
	DueIgnoresTime
	// DeadIsDue returns dead records as if they were due.
	DeadIsDue
	// ActAtOnce executes an act when it is requested, beside the owner.
	ActAtOnce
	// RetryKeepsAttempts leaves attempts and generation of a retried record.
	RetryKeepsAttempts
	// RetryFreesKey lets a key continue beside a skipped record that is retried.
	RetryFreesKey
	// ForgetGaps says nothing of versions that were skipped.
	ForgetGaps
	// DueHeadsOnly returns one due record per key.
	DueHeadsOnly
	// DuePageReversed returns a key's due records last one first.
	DuePageReversed
	// DueBehindDead returns what waits behind a dead record or a later retry
	// together with the head.
	DueBehindDead
	// RepeatAnything takes any settlement under a settled epoch for its repetition.
	RepeatAnything
	// ForgetHolds does not tell a lane's owner what people have paused.
	ForgetHolds
	// DueIgnoresNotBefore schedules a record by its owner's clock.
	DueIgnoresNotBefore
	// LastTooEarly calls every record of a queue its last one.
	LastTooEarly
	// LaneBytesOnly bounds the bytes of each batch and not of the call.
	LaneBytesOnly
	// CrashesNeverReset counts the owners of a lane that died also when it moved on since.
	CrashesNeverReset
	// ForgetCode leaves the code of a parked record out.
	ForgetCode
	// LagForgetsParked leaves what is parked out of the lag.
	LagForgetsParked
	// NextDueSkips announces no record that becomes due within two milliseconds.
	NextDueSkips

	// The defects of what goes ahead of the table: see [Options].Log.

	// AheadWithoutBase ignores what ran when the stream began.
	AheadWithoutBase
	// AheadSkips says nothing of transactions that are too large to go ahead.
	AheadSkips
	// AheadOfPages goes ahead while more stands behind a read.
	AheadOfPages
	// AheadTwice tells what reads have brought.
	AheadTwice
	// AheadAfterBreak continues with a new stream as if it were the old one.
	AheadAfterBreak
	// AheadOfHistory reads the log of a history that has ended.
	AheadOfHistory
	// AheadUnnumbered takes every read for the one behind the read before.
	AheadUnnumbered
)

var defectNames = [...]string{
	"None", "BareCursor", "XidOrder", "IgnoreInflight", "InflightNotSaved", "OnlyXip", "SequenceLate",
	"NoHoles", "HolesExpire", "NoBarrier", "NoNet", "ProbeFirst",
	"AheadOfCommit", "Reversed", "LaneByInstances",
	"IgnoreLease", "SharedLease", "ClientClock", "EpochKept", "ReleaseAnyEpoch",
	"NoFence", "RepeatLost", "RepeatTwice", "HalfSettle", "SplitSettle", "ParkBeforeFence",
	"LoseParked", "KnownForEver", "ForgetCaptured", "DueIgnoresHead", "DueIgnoresTime", "DeadIsDue", "ActAtOnce", "RetryKeepsAttempts",
	"RetryFreesKey", "ForgetGaps", "DueHeadsOnly", "DuePageReversed", "DueBehindDead",
	"RepeatAnything", "ForgetHolds", "DueIgnoresNotBefore", "LastTooEarly", "LaneBytesOnly",
	"CrashesNeverReset", "ForgetCode", "LagForgetsParked", "NextDueSkips",
	"AheadWithoutBase", "AheadSkips", "AheadOfPages", "AheadTwice", "AheadAfterBreak", "AheadOfHistory", "AheadUnnumbered",
}

func (d Defect) String() string {
	if int(d) < len(defectNames) {
		return defectNames[d]
	}
	return "invalid"
}
