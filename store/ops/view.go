package ops

import (
	"time"

	"github.com/postrider/postrider/store"
)

// ViewRow is one row of a store's view of messages. The view has the same columns, names
// of states and reasons on every store; docs/reference/views.md explains each. A zero
// time and an empty text are NULL in SQL.
type ViewRow struct {
	Pipe       string
	Lane       store.Lane
	Seq        int64
	ID         string
	Topic, Key string
	Type       string
	Version    int64

	State    string // Pending, InProgress, Sent, Failed or DeadLetter
	Parked   string // how it was set aside
	WaitsFor string // who or what must act before it is sent

	CreatedAt, NotBefore, SentAt          time.Time
	Attempts                              int // -1: NULL
	FirstFailed, LastAttempt, NextAttempt time.Time
	ErrorClass, ErrorCode, Error          string
	LockOwner                             string
	LockedUntil                           time.Time
	Generation                            int
	ContentType                           string
	SchemaVersion                         int32
	Headers                               map[string]string
	PayloadBytes                          int64
}

// The states of a ViewRow.
const (
	ViewPending    = "Pending"
	ViewInProgress = "InProgress"
	ViewSent       = "Sent"
	ViewFailed     = "Failed"
	ViewDeadLetter = "DeadLetter"
)

// ViewColumns are the columns of the view in the order of ViewRow, for a SELECT.
const ViewColumns = `pipe, lane, seq, id, topic, key, type, version, state, parked, waits_for, created_at, not_before, sent_at,
 attempts, first_failed, last_attempt, next_attempt, error_class, error_code, error, lock_owner, locked_until,
 generation, content_type, schema_version, headers, payload_bytes`
