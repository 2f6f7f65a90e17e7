// Package ops is the office of a store: the contract of all that people do to
// an outbox, beside the road that its messages travel.
//
// The abilities of a store are data. An [Office] has one field for each, and a
// field that is nil or false means that this kind of store lacks the ability; none
// is found by a type assertion. [Office.Need] tells a person why it is missing.
package ops

import (
	"context"
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

// Office is all that people can do to one pipe of an outbox and to the outbox
// around it. Each store has a method Office that returns one without I/O. Its
// methods and those of its fields are safe for concurrent use.
type Office struct {
	Kind    string // of the store, as in store.Info.Name
	Version int    // of the schema that Migrator makes, the newest

	// Every store has these.
	Admin    Admin
	Migrator Migrator
	// Pipe opens another pipe of the same outbox without I/O: the first use
	// reports a pipe that does not exist.
	Pipe func(name string) (store.Store, *Office)

	// Abilities; nil or false: this kind of store lacks it.
	Books      Auditor
	Doctor     Doctor
	Eraser     Eraser
	Finder     Finder
	History    Historian
	Journal    Journal
	Orders     Orders
	Partitions Partitioner
	Pipes      Pipes
	Records    Recorder
	Retention  Retainer
	Roles      Roles
	Samples    Sampler
	Stops      Stops
	Strict     StrictKeys
	Empties    bool // Retention knows PruneRequest.Payloads
	Holds      bool // Admin knows store.ActPause and store.ActResume

	// Lacks says for each ability that is missing why, and what to do instead.
	Lacks map[Ability]string
}

// Ability names for people what a field of an [Office] may lack.
type Ability string

// The abilities.
const (
	CanAudit     Ability = "books"
	CanDiagnose  Ability = "diagnosis"
	CanEmpty     Ability = "removal of payloads before their rows"
	CanErase     Ability = "erasure"
	CanFind      Ability = "search for a message or a key"
	CanHistory   Ability = "history of figures"
	CanHold      Ability = "pauses of keys and lanes"
	CanJournal   Ability = "journal of acts"
	CanOrder     Ability = "acts on many records"
	CanPartition Ability = "partitions"
	CanPipe      Ability = "pipes"
	CanRecord    Ability = "journal of reads"
	CanRetain    Ability = "retention"
	CanRole      Ability = "roles"
	CanSample    Ability = "newest messages"
	CanStop      Ability = "stopped destinations"
	CanStrict    Ability = "strict keys"
)

// Abilities lists all of them.
func Abilities() []Ability {
	return []Ability{
		CanAudit, CanDiagnose, CanEmpty, CanErase, CanFind, CanHistory, CanHold, CanJournal, CanOrder, CanPartition, CanPipe, CanRecord, CanRetain, CanRole, CanSample, CanStop, CanStrict,
	}
}

// Has reports whether the office has an ability. It is false for an unknown one.
func (o *Office) Has(a Ability) bool {
	switch a {
	case CanAudit:
		return o.Books != nil
	case CanDiagnose:
		return o.Doctor != nil
	case CanEmpty:
		return o.Empties
	case CanErase:
		return o.Eraser != nil
	case CanFind:
		return o.Finder != nil
	case CanHistory:
		return o.History != nil
	case CanHold:
		return o.Holds
	case CanJournal:
		return o.Journal != nil
	case CanOrder:
		return o.Orders != nil
	case CanPartition:
		return o.Partitions != nil
	case CanPipe:
		return o.Pipes != nil
	case CanRecord:
		return o.Records != nil
	case CanRetain:
		return o.Retention != nil
	case CanRole:
		return o.Roles != nil
	case CanSample:
		return o.Samples != nil
	case CanStop:
		return o.Stops != nil
	case CanStrict:
		return o.Strict != nil
	}
	return false
}

// Need returns nil when the office has the ability, and otherwise a *MissingError.
func (o *Office) Need(a Ability) error {
	if o.Has(a) {
		return nil
	}
	return &MissingError{Kind: o.Kind, Ability: a, Why: o.Lacks[a]}
}

// MissingError says that a kind of store lacks an ability. It matches
// [ErrUnsupported].
type MissingError struct {
	Kind    string // of the store
	Ability Ability
	Why     string // and what to do instead
}

func (e *MissingError) Error() string {
	s := fmt.Sprintf("%s: %v (%s)", e.Ability, ErrUnsupported, e.Kind)
	if e.Why != "" {
		s += ": " + e.Why
	}
	return s
}

// Is makes errors.Is(err, ErrUnsupported) true.
func (e *MissingError) Is(target error) bool { return target == ErrUnsupported }

// Sampler shows what was enqueued last, so that a destination can be checked
// before it is needed.
type Sampler interface {
	// Topics lists the topics of the newest messages.
	Topics(ctx context.Context) ([]string, error)
	// Newest returns at most n of the newest messages that the pipe carries, with
	// payloads as long as all of them together take at most so many bytes.
	Newest(ctx context.Context, n, bytes int) ([]postrider.Message, error)
}

// Roles are the group roles of an outbox in its database.
type Roles interface {
	// RolesSQL returns the statements that make the roles and set their
	// privileges. prefix begins their names; "": the name of the schema.
	RolesSQL(prefix string) (string, error)
}
