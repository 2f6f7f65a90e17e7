package ops

import (
	"context"
	"encoding/json"
	"time"

	"github.com/postrider/postrider/store"
)

// Journal is the record of what people did to an outbox: who, when, what and
// why. Each store writes an entry in the transaction of the act itself; nothing
// in it ever changes.
type Journal interface {
	// Entries lists what was done, the newest first, at most q.Limit. An act that
	// a lane's owner carries out has an entry when it is asked for and one for
	// each lane in which it was carried out.
	Entries(ctx context.Context, q JournalQuery) ([]JournalEntry, error)
}

// Recorder writes what changes nothing and is to be remembered all the same into the
// journal, such as the reading of a payload. What changes something has an entry
// already.
type Recorder interface {
	// Record writes an entry and returns its id. Actor, Act and Reason must not be
	// empty; ID and At are the store's, and Pipe is the pipe of the office.
	Record(ctx context.Context, e JournalEntry) (int64, error)
}

// JournalQuery filters entries; zero fields do not filter.
type JournalQuery struct {
	ID     int64 // this entry, and what was done because of it
	Actor  string
	Act    string
	Pipe   string
	Key    string
	Since  time.Time
	Before int64 // only entries with a lower id: the next page
	Limit  int   // 0: 100
}

// JournalEntry is one thing that a person did or asked for.
type JournalEntry struct {
	ID     int64
	At     time.Time   // by the database's clock
	Actor  string      // who, as they said; never empty
	Act    string      // what: "retry", "discard", "pause", "pipe remove" ...
	Pipe   string      // "" when the act is about the whole outbox
	Lane   *store.Lane // nil: not about one lane
	Seq    int64       // 0: not about one record
	Key    string
	Target json.RawMessage // an object with what else says which records were meant; nil: nothing. Never a payload
	Reason string          // why
	Result string          // "asked", "done" or what came of it
	Count  *int64          // records concerned; nil: not counted
	Ask    int64           // the entry that asked for this one, 0: none
}
