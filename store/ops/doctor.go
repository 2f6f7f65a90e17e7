package ops

import (
	"context"
	"fmt"
	"time"
)

// Doctor looks for what is wrong with an outbox, or will be. It is a contract of
// its own: not every store has something to look at.
type Doctor interface {
	// Examine makes every check and returns at least one finding of each, OK where
	// nothing is wrong and Skipped where it makes no sense as things are, in the order of the checks. It changes nothing, works when
	// no relay lives, and with fewer privileges than a relay: what it may not look
	// at is a Warning that says how it may. A check that gives no answer in time is
	// one too. It returns an error, and the findings so far, only when the database
	// cannot be asked at all.
	Examine(ctx context.Context, req ExamineRequest) ([]Finding, error)
}

// ExamineRequest says how to look. The zero value of every field is its default.
type ExamineRequest struct {
	// Only names the checks to make; empty: all. A name that a doctor does not know
	// is for another one.
	Only []string
	// Pipes to examine; empty: all that no person has paused.
	Pipes []string
	// Role is whose privileges and settings are judged: the relay's. Default: the
	// role of the connection.
	Role string
	// Timeout of one check: 5 s.
	Timeout time.Duration
	// Again is the time between two looks at what repairs itself while relays come
	// and go, such as a lane without an owner. The second look is taken only when
	// the first found something. Default: 3 s, which is above a lease.
	Again  time.Duration
	Limits Limits
}

// Limits are from where on something is worth a finding. What is ten times over a
// limit is Critical, unless said otherwise.
type Limits struct {
	Transaction time.Duration // age of an open or prepared transaction: 5 min
	Lag         time.Duration // age of the oldest pending message: 1 min
	Skew        time.Duration // between the clocks of database and instance: 1 s
	Dead        int64         // dead rows of a table, when they are a fifth of it too: 100,000; never Critical
	XIDs        int64         // transactions that somebody keeps vacuum from: 1,000,000; never Critical
	Bloat       int64         // bytes of a table that has a few rows only: 64 MiB; never Critical
	WAL         int64         // bytes of the log that an unused replication slot holds: 1 GiB
	Claims      time.Duration // age of the oldest message that an inbox remembers: 90 days; never Critical
	Inbox       int64         // bytes of the inbox tables: 10 GiB; never Critical
}

// WithDefaults fills what is zero.
func (r ExamineRequest) WithDefaults() ExamineRequest {
	orDefault(&r.Timeout, 5*time.Second)
	orDefault(&r.Again, 3*time.Second)
	orDefault(&r.Limits.Transaction, 5*time.Minute)
	orDefault(&r.Limits.Lag, time.Minute)
	orDefault(&r.Limits.Skew, time.Second)
	orDefault(&r.Limits.Dead, 100_000)
	orDefault(&r.Limits.XIDs, 1_000_000)
	orDefault(&r.Limits.Bloat, 64<<20)
	orDefault(&r.Limits.WAL, 1<<30)
	orDefault(&r.Limits.Claims, 90*24*time.Hour)
	orDefault(&r.Limits.Inbox, 10<<30)
	return r
}

func orDefault[T ~int64](v *T, standard T) {
	if *v <= 0 {
		*v = standard
	}
}

// Severity of a finding.
type Severity uint8

// The severities. Critical: messages are lost, delayed or forged now, or soon
// will be. Warning: it works, and a person should act in daylight.
const (
	OK Severity = iota
	Warning
	Critical
	// Skipped: the check was not made, and What is the reason. It is neither good nor bad,
	// and is never the worst of a diagnosis.
	Skipped
)

func (s Severity) String() string {
	switch s {
	case OK:
		return "ok"
	case Warning:
		return "warning"
	case Critical:
		return "critical"
	case Skipped:
		return "skipped"
	}
	return "invalid"
}

// MarshalText makes a severity a word in JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the word.
func (s *Severity) UnmarshalText(text []byte) error {
	for known := OK; known <= Skipped; known++ {
		if string(text) == known.String() {
			*s = known
			return nil
		}
	}
	return fmt.Errorf("severity %q: use ok, warning or critical", text)
}

// Finding is what one check found. No field holds a payload or a key.
type Finding struct {
	Check    string   `json:"check"` // which one: a short name that does not change
	Severity Severity `json:"severity"`
	What     string   `json:"what"`          // what is so
	Why      string   `json:"why,omitempty"` // what it leads to
	Fix      string   `json:"fix,omitempty"` // what a person does about it, or the command
	// SQL does it, statement by statement and outside a transaction, when it is
	// run by the owner of the outbox or a superuser. Empty: no SQL does.
	SQL  []string       `json:"sql,omitempty"`
	Data map[string]any `json:"data,omitempty"` // strings, numbers, and lists of them
}
