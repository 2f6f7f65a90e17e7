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
	Count int           // tries begun or failed, this one included
	Open  int           // of these, the ones that did not come to an end, this one included
	Dead  bool          // given up: skip it and acknowledge
	Wait  time.Duration // > 0: not due for so long; the try was not counted
}

// BeginAttempt counts one more try of m. Commit it before the handler runs, in
// a transaction of its own: then a handler that takes the process down with it
// is counted too. first is the count when nothing is known of m yet; origin
// says where the message stood, for people.
func (in *Inbox) BeginAttempt(ctx context.Context, c Conn, m postrider.Message, origin string, first int) (Attempt, error) {
	if err := in.usable(&m); err != nil {
		return Attempt{}, err
	}
	var (
		a     Attempt
		state string
		wait  int64
	)
	args := append(in.head(&m, origin), first)
	if err := c.QueryRow(ctx, in.sql.begin, args...).Scan(&a.Count, &a.Open, &state, &wait); err != nil {
		return Attempt{}, in.wrap("count an attempt of", m.ID, err)
	}
	a.Dead = state == "dead"
	a.Wait = max(0, time.Duration(wait)*time.Microsecond)
	return a, nil
}

// UndoAttempt takes back what BeginAttempt counted: the try was broken off
// through no fault of the message.
func (in *Inbox) UndoAttempt(ctx context.Context, c Conn, m postrider.Message) error {
	if err := in.usable(&m); err != nil {
		return err
	}
	if _, err := c.ExecContext(ctx, in.sql.undo, in.consumer, m.ID); err != nil {
		return in.wrap("take back an attempt of", m.ID, err)
	}
	return nil
}

// FailAttempt records why a try of m failed and that the next one is due after
// delay. counted says whether BeginAttempt has counted this try.
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
	headers, err := json.Marshal(cleanHeaders(m.Headers))
	if err != nil {
		return false, in.wrap("encode the headers of", m.ID, err)
	}
	args := append(in.head(&m, origin), attempts, clean(cause, maxCause), append([]byte{}, m.Payload...),
		clean(m.ContentType, postrider.MaxContentTypeLen), string(headers), m.Version, int64(m.SchemaVersion))
	if _, err := c.ExecContext(ctx, in.sql.bury, args...); err != nil {
		return false, in.wrap("bury", m.ID, err)
	}
	return true, nil
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
		in.consumer, m.ID, clean(m.Topic, postrider.MaxTopicLen), clean(m.Key, postrider.MaxKeyLen),
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
