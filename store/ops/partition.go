package ops

import (
	"context"
	"time"
)

// Partitioner tends an outbox that is kept in partitions by ranges of numbers,
// so that settled rows are removed by dropping tables. Its methods are safe for
// concurrent use, also by several processes: one works, the others find nothing
// to do. A store that keeps rows one by one has no Partitioner.
type Partitioner interface {
	// Partitions lists the partitions by Number. The outbox has none when it is
	// a plain table.
	Partitions(ctx context.Context) (Partitions, error)
	// Tend does what is due: makes partitions ahead, moves the writers on to the
	// next one when the one in use has stood long enough, and drops those in
	// which every pipe has settled every row and that are old enough. A lock that
	// a long transaction holds is not waited for: the next call tries again. On a
	// plain outbox it does nothing.
	Tend(ctx context.Context, req TendRequest) (Tended, error)
}

// TendRequest says how an outbox is to be kept in partitions.
type TendRequest struct {
	// OlderThan is how long a partition stays after the last number of it was
	// drawn; 0: at once. Below 0 nothing is dropped.
	OlderThan time.Duration
	// Every is how long a partition is in use; 0: a sixth of OlderThan, and at
	// least an hour. Rows thus go at most that much later than their age says.
	Every time.Duration
	// MaxBytes ends the use of a partition earlier, though not before a sixth of
	// Every; 0: 64 GiB, indexes included.
	MaxBytes int64
	// KeepBytes, when above 0, makes settled partitions go before their age while
	// all of them together take more.
	KeepBytes int64
	// OnlyEmpty keeps partitions that have rows: somebody else removes these one
	// by one, after having archived them.
	OnlyEmpty bool
	// Actor and Reason are who asks and why: the journal of a store that keeps one has
	// an entry for each partition that is dropped. An empty Actor is a runner that
	// works by itself.
	Actor, Reason string
	// DryRun changes nothing and answers with what would be dropped. With
	// OnlyEmpty that is not counted.
	DryRun bool
}

// Tended is what one call did.
type Tended struct {
	Made    int   `json:"made"`    // partitions made ahead
	Rolled  bool  `json:"rolled"`  // the writers moved on to the next partition
	Dropped int   `json:"dropped"` // partitions dropped
	Rows    int64 `json:"rows"`    // that were in them
	// HeldBy is the pipe that has not settled a row of the oldest partition that
	// is old enough, "" when nothing is held.
	HeldBy string `json:"held_by,omitempty"`
	// Busy says that somebody else tends, or that a transaction holds a lock that
	// is needed: call again in a while.
	Busy       bool `json:"busy,omitempty"`
	Partitions `json:"-"`
}

// Partitions is one look at the partitions of an outbox.
type Partitions struct {
	List []Partition // by Number; empty: the outbox is a plain table
	// Current is the number of the partition that writers use.
	Current int64
	// Ahead counts the partitions that wait behind it, and Room the numbers that
	// are left in all of them: an INSERT fails when Room is 0.
	Ahead int
	Room  int64
}

// What Alarm compares with.
const (
	// MaxPartitions is how many partitions an outbox has at the most: every read
	// looks into them. At the limit writers stay in their partition.
	MaxPartitions = 24
	// LowRoom is so many numbers that days remain at any rate.
	LowRoom = 50_000_000_000
)

// Bytes is what all partitions take, indexes included.
func (p Partitions) Bytes() int64 {
	sum := int64(0)
	for _, one := range p.List {
		sum += one.Bytes
	}
	return sum
}

// Alarm says what is wrong with the partitions and what a person does about it,
// or "". Until somebody acts nothing is lost.
func (p Partitions) Alarm() string {
	switch {
	case len(p.List) == 0:
		return ""
	case p.Room < LowRoom:
		return "numbers run out: an INSERT fails when none is left in the last partition; run `postrider partitions tend`"
	case p.Ahead == 0:
		return "no partition is made ahead: the one in use grows and is not dropped; run `postrider partitions tend`"
	case len(p.List) >= MaxPartitions:
		return "there are too many partitions to begin another: `postrider partitions tend --older-than AGE --dry-run`, with the age of the relay's retention, names the pipe that holds the oldest one"
	}
	return ""
}

// Partition is one table of the outbox.
type Partition struct {
	Number   int64     `json:"number"`
	Name     string    `json:"name"`
	Above    int64     `json:"above,string"`  // its numbers are below
	Bytes    int64     `json:"bytes"`         // of the table and its indexes
	Rows     int64     `json:"rows_estimate"` // of the server, below 0 when it has none
	OpenedAt time.Time `json:"opened_at,omitzero"`
	ClosedAt time.Time `json:"closed_at,omitzero"` // zero: a number of it may still be drawn
}
