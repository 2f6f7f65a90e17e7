package ops

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

// Retainer removes what is settled. A store that keeps no settled rows has no
// Retainer. Its methods are safe for concurrent use, also by several processes.
type Retainer interface {
	// Prune removes one batch of rows that every pipe has settled, oldest
	// numbers first in each lane, under the lease of the only runner. It never
	// removes a row that some pipe has not settled: a straggler that committed
	// behind a cursor stays. Rows removed are counted in the same transaction.
	// When another runner holds the lease nothing is done and Pruned.Runner
	// names it.
	Prune(ctx context.Context, req PruneRequest) (Pruned, error)
	// Tidy keeps the other tables within their limits: progress, acts that are
	// done, instances long gone. Parked records stay until a person has acted.
	Tidy(ctx context.Context, req TidyRequest) (Tidied, error)
}

// Auditor proves that nothing got lost: it keeps the outbox's two books. Its method
// is safe for concurrent use, also by several processes.
type Auditor interface {
	// Audit compares the two books at one snapshot: what was committed, counted
	// from rows, and what became of it, taken from the counters of the pipes.
	Audit(ctx context.Context, req AuditRequest) (Books, error)
}

// PruneRequest asks for one batch.
type PruneRequest struct {
	Runner string        // random, made anew by every process; required unless DryRun
	TTL    time.Duration // how long the lease counts without another call; 0: 10 s
	// Take takes the lease from another runner, after its batch: a person asks.
	// The other runner finds its lease lost at its next batch.
	Take bool
	// OlderThan is how long ago every pipe must have settled a row, to the minute; 0: at
	// once. The age of the row does not count: after an outage it is kept as long.
	OlderThan time.Duration
	// MaxBytes, when above 0, makes settled rows go before their age while the
	// rows of the outbox take more than this, indexes included (an estimate).
	MaxBytes int64
	Limit    int // most rows of the batch; 0: 1000
	// HoldRows and HoldBytes are the cap on what a single pipe may hold back;
	// 0: no cap. Above it Pruned.Held says Over, and still nothing is removed
	// that the pipe has not settled.
	HoldRows, HoldBytes int64
	// Payloads removes the payloads of settled rows instead of the rows: such a
	// row is not replayed, and a pipe that begins before it sends it empty, with
	// postrider.ErasedHeader. It goes neither by size nor with an archive. It is an
	// *MissingError where Office.Empties is false.
	Payloads bool
	// Actor and Reason are who prunes and why, for the journal of a store that keeps
	// one; an empty Actor is a runner that works by itself. The first batch that
	// removes something writes an entry, and the last one of the sweep writes what
	// was removed in all. Entry is that of the batches before, as Pruned has it, and
	// Removed what they removed.
	Actor, Reason  string
	Entry, Removed int64
	DryRun         bool // count what is due and remove nothing; needs no lease
	Leave          bool // give the lease back and do nothing else
	// Archive gets the rows before they are removed, in the order of lane and
	// number. Only when it returns nil are exactly these rows removed. A crash
	// between the two hands the same rows out again. nil: no archive.
	Archive func(ctx context.Context, rows []ArchivedRow) error
	// Lanes are those to look at; nil: all. With an archive one of them is
	// looked at by a call.
	Lanes []store.Lane
	// After is up to which number each lane was looked at already, as Pruned
	// said; nil: from the first row on. Rows that a pipe had not settled then
	// were passed over: begin with nil again from time to time.
	After map[store.Lane]int64
}

// ArchivedRow is one settled row that is about to be removed.
type ArchivedRow struct {
	Lane    store.Lane
	Seq     int64
	Message postrider.Message
}

// Pruned is what one call did.
type Pruned struct {
	Runner string               // who holds the lease when it is not the caller, else ""
	Rows   int64                // removed, or with DryRun those due
	Lanes  map[store.Lane]int64 // the same by lane
	Bytes  int64                // of their payloads, an estimate with DryRun
	// Estimated reports that Rows is an estimate too: with DryRun and MaxBytes it
	// follows from the size of a few rows.
	Estimated bool
	Left      []store.Lane         // lanes in which another batch may be due; empty: the sweep is over
	After     map[store.Lane]int64 // how far each lane was looked at
	Entry     int64                // of the journal that this sweep wrote first, 0: none
	Held      Held                 // who holds most rows back; filled when Left is empty
}

// Held says which pipe holds back most rows of the outbox: rows that it has
// not settled and that are therefore kept whatever their age.
type Held struct {
	Pipe  string // "" when nobody holds anything
	Rows  int64
	Bytes int64 // an estimate
	Over  bool  // above HoldRows or HoldBytes: a person must act
}

// TidyRequest limits the other tables. A zero age is the default.
type TidyRequest struct {
	Acts    time.Duration // how long acts that are done stay; 0: 7 days
	Journal time.Duration // how long entries of the journal of acts stay; 0: 400 days
}

// Tidied counts the rows that Tidy removed, by table.
type Tidied map[string]int64

// AuditRequest says how to look.
type AuditRequest struct {
	// Count counts the rows that are new and compares nothing: retention removes
	// only what was counted, and asks for this before each sweep.
	Count bool
	// Full counts every row again: it also finds rows that were removed after
	// they had been counted and settled.
	Full bool
	// MaxAge, when above 0, is satisfied with a look that somebody took so
	// recently: several relays of one outbox do not count the same rows. It also counts
	// fewer pending rows of a lane: a lane with more of them is compared when it has
	// caught up.
	MaxAge time.Duration
	// Reopen accepts the present state: differences found until now are
	// forgotten, and the books begin anew with a full count. For a person who has found the cause.
	Reopen bool
	Actor  string // who reopens, for the journal; must not be empty then
	Reason string // why
}

// Books is one look at the two books.
type Books struct {
	At      time.Time // by the database's clock
	Counted int64     // rows that this look counted
	Full    bool      // every row was counted
	Opened  bool      // at least one book began with this look
	Lanes   []LaneBook
	Missing []LaneGap // of a full count: rows that are neither there nor removed by retention
}

// Difference is 0 when the books balance. Else it is the sum of the lanes'
// differences, without their signs, of the pipe that has most of them, or of
// what is missing: one row that disappeared shows in every pipe and there.
func (b *Books) Difference() int64 {
	pipes, missing := map[string]int64{}, int64(0)
	for i := range b.Lanes {
		pipes[b.Lanes[i].Pipe] += abs(b.Lanes[i].Difference)
	}
	for i := range b.Missing {
		missing += abs(b.Missing[i].Rows)
	}
	for _, sum := range pipes {
		missing = max(missing, sum)
	}
	return missing
}

func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}

// LaneBook is both sides of one lane of one pipe since its book was opened:
// Committed = Sent + Parked + Gone - Again + Pending + Difference.
type LaneBook struct {
	Pipe      string
	Lane      store.Lane
	Committed int64 // from rows
	Sent      int64 // from the progress counter
	Parked    int64 // set aside now
	Gone      int64 // parked records that people removed unsent
	Again     int64 // settled records that people parked once more
	Pending   int64 // from rows
	// Behind says that more is pending than is counted at every look: Pending is
	// a lower bound, and Difference shows only what exceeds it.
	Behind bool
	// Difference is above 0 when committed rows are neither sent nor parked nor
	// pending, below 0 when more was sent than committed.
	Difference int64
	// From < seq <= To is the window in which the difference arose; stragglers
	// of transactions that ran during it may lie below.
	From, To int64
	// IDs are messages of the window, Unused numbers of it that no row has:
	// rolled back, or removed. At most 20 of each, and of the first lanes only
	// when many differ.
	IDs    []string
	Unused []int64
}

// LaneGap is what a full count found missing in a lane (above 0), or too much.
type LaneGap struct {
	Lane   store.Lane `json:"lane"`
	Rows   int64      `json:"rows"`
	Unused []int64    `json:"candidate_numbers,omitempty"` // that no row has, newest first, at most 20
}

// RunnerError says that another runner's lease has taken over in the middle of
// a batch: nothing was removed.
type RunnerError struct{ Epoch int64 }

func (e *RunnerError) Error() string {
	return fmt.Sprintf("retention: the lease (epoch %d) was taken over by another runner: nothing was removed", e.Epoch)
}
