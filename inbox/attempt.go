package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/postrider/postrider"
)

// Attempt is what the database knows of the tries to process one message.
type Attempt struct {
	Count     int           // tries begun or failed, this one included
	Dead      bool          // given up: skip it and acknowledge
	Wait      time.Duration // > 0: not due for so long; the try was not counted
	LastError string        // of the last try that failed, "" if none did

	// Orphan says that the last try was begun by another owner and has not
	// ended: that process died, or it lives and still works on the message. The
	// new try was not counted; see Try.TakeOver.
	Orphan bool
	// Alone says that the last try ran alone: see Try.Alone.
	Alone bool
}

// Try is an attempt about to begin.
type Try struct {
	Origin string // where the message stands, for people: "orders/3@1041"
	// Owner names the running process, anew after every start: 1 to 255 bytes.
	// An owner that begins again what it had begun itself is alive, so that try
	// is not counted twice.
	Owner string
	// Alone says that nothing else runs in the process that could take it down:
	// if it dies now, this message did it.
	Alone bool
	// TakeOver counts the try also when that of another owner has not ended.
	TakeOver bool
}

// BeginAttempt counts one more try of m. Commit it before the handler runs, in
// a transaction of its own: then a handler that takes the process down with it
// is counted too. Every try must end in one of FailAttempt, Bury,
// ForgetAttempts and ReturnAttempt; one that does not is an orphan.
func (in *Inbox) BeginAttempt(ctx context.Context, c Conn, m postrider.Message, try Try) (Attempt, error) {
	if err := in.usable(&m); err != nil {
		return Attempt{}, err
	}
	var (
		a            Attempt
		state, owner string
		wait         int64
	)
	takeOver := 0
	if try.TakeOver {
		takeOver = 1
	}
	args := append(in.head(&m, try.Origin), try.Owner, try.Alone, takeOver)
	row := c.QueryRow(ctx, in.sql.begin, args...)
	if err := row.Scan(&a.Count, &state, &wait, &owner, &a.Alone, &a.LastError); err != nil {
		return Attempt{}, in.wrap("count an attempt of", m.ID, err)
	}
	a.Dead = state == "dead"
	a.Wait = max(0, time.Duration(wait)*time.Microsecond)
	a.Orphan = !a.Dead && a.Wait == 0 && owner != try.Owner
	return a, nil
}

// ReturnAttempt takes back the try of m that owner has begun: it did not fail,
// the database did, or the process was asked to end. It does nothing when that
// try has ended already.
func (in *Inbox) ReturnAttempt(ctx context.Context, c Conn, m postrider.Message, owner string) error {
	if _, err := c.ExecContext(ctx, in.sql.unbegin, in.consumer, m.ID, owner); err != nil {
		return in.wrap("take back an attempt of", m.ID, err)
	}
	return nil
}

// FailAttempt records why a try of m failed and that the next one is due after
// delay. counted says whether BeginAttempt has counted this try. The first 500
// bytes of cause are kept as they are: its author answers for what they reveal.
func (in *Inbox) FailAttempt(ctx context.Context, c Conn, m postrider.Message, origin string, counted bool, delay time.Duration, cause string) (Attempt, error) {
	if err := in.usable(&m); err != nil {
		return Attempt{}, err
	}
	more := 1
	if counted {
		more = 0
	}
	var (
		a     Attempt
		state string
	)
	args := append(in.head(&m, origin), clean(cause, maxCause), delay.Microseconds(), more)
	if err := c.QueryRow(ctx, in.sql.fail, args...).Scan(&a.Count, &state); err != nil {
		return Attempt{}, in.wrap("record the failure of", m.ID, err)
	}
	a.Dead = state == "dead"
	return a, nil
}

// Bury makes a dead letter of m, body included, and claims it, in one
// transaction: a later delivery is skipped. It reports false when m has been
// processed already; then nothing is buried.
func (in *Inbox) Bury(ctx context.Context, c Conn, m postrider.Message, origin string, attempts int, cause string) (buried bool, err error) {
	fresh, err := in.Claim(ctx, c, m)
	if err != nil {
		return false, err
	}
	if !fresh {
		return false, in.ForgetAttempts(ctx, c, m)
	}
	return true, in.writeDead(ctx, c, &m, origin, attempts, cause)
}

func (in *Inbox) writeDead(ctx context.Context, c Conn, m *postrider.Message, origin string, attempts int, cause string) error {
	headers, err := json.Marshal(cleanHeaders(m.Headers))
	if err != nil {
		return in.wrap("encode the headers of", m.ID, err)
	}
	args := append(in.head(m, origin), attempts, clean(cause, maxCause), append([]byte{}, m.Payload...),
		clean(m.ContentType, postrider.MaxContentTypeLen), string(headers), m.Version, int64(m.SchemaVersion))
	if _, err := c.ExecContext(ctx, in.sql.bury, args...); err != nil {
		return in.wrap("bury", m.ID, err)
	}
	return in.became(ctx, c, m.ID, Died)
}

// ForgetAttempts removes the count of a message that was processed in this
// transaction. A dead letter stays.
func (in *Inbox) ForgetAttempts(ctx context.Context, c Conn, m postrider.Message) error {
	if _, err := c.ExecContext(ctx, in.sql.forget, in.consumer, m.ID); err != nil {
		return in.wrap("forget the attempts of", m.ID, err)
	}
	return nil
}

// maxCause bounds the error text that is kept, in bytes.
const maxCause = 500

func (in *Inbox) head(m *postrider.Message, origin string) []any {
	return []any{
		in.consumer, m.ID, in.topic(m), in.key(m),
		clean(m.Type, postrider.MaxTypeLen), clean(origin, 255),
	}
}

func cleanHeaders(h map[string]string) map[string]string {
	out := make(map[string]string, len(h))
	for name, value := range h {
		out[clean(name, postrider.MaxHeaderBytes)] = clean(value, postrider.MaxHeaderBytes)
	}
	return out
}

// DeadLetter is a message that the consumer has given up.
type DeadLetter struct {
	Message  postrider.Message
	Origin   string    // where it stood: "orders/3@1041"
	Attempts int       // how often it was tried
	Cause    string    // the last error
	DiedAt   time.Time // by the database's clock
}

// DeadLetters returns at most limit dead letters of the consumer in the order
// of their ids, from behind the id after ("" for the first page). db is an
// *sql.DB or an *sql.Tx.
func (in *Inbox) DeadLetters(ctx context.Context, db Querier, after string, limit int) ([]DeadLetter, error) {
	if in.err != nil {
		return nil, in.err
	}
	rows, err := db.QueryContext(ctx, in.sql.dead, in.consumer, after, limit)
	if err != nil {
		return nil, fmt.Errorf("inbox %q: list dead letters: %w", in.consumer, err)
	}
	defer rows.Close()
	var out []DeadLetter
	for rows.Next() {
		d, err := scanDead(rows)
		if err != nil {
			return nil, fmt.Errorf("inbox %q: read a dead letter: %w", in.consumer, err)
		}
		out = append(out, d)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("inbox %q: list dead letters: %w", in.consumer, err)
	}
	return out, nil
}

func scanDead(row Row) (DeadLetter, error) {
	var (
		d       DeadLetter
		m       = &d.Message
		died    int64
		headers string
	)
	err := row.Scan(&m.ID, &m.Topic, &m.Key, &m.Type, &d.Origin, &d.Attempts, &d.Cause, &died,
		&m.Payload, &m.ContentType, &headers, &m.Version, &m.SchemaVersion)
	if err != nil {
		return d, err
	}
	d.DiedAt = time.UnixMicro(died).UTC()
	return d, json.Unmarshal([]byte(headers), &m.Headers)
}
