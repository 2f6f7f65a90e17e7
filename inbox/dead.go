package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/inboxsql"
)

// DeadLetter is a message that the consumer has given up.
type DeadLetter struct {
	Message  postrider.Message // a key that is no text is shown as a digest; Revive brings it back
	Origin   string            // its position: "orders/3@1041"
	Attempts int               // how often it was tried
	Cause    string            // the last error
	DiedAt   time.Time         // by the database's clock
}

// DeadLetters returns at most limit dead letters of the consumer in the order
// of their ids, beginning after the id after ("" for the first page). db is an
// *sql.DB or an *sql.Tx.
func (in *Inbox) DeadLetters(ctx context.Context, db Querier, after string, limit int) ([]DeadLetter, error) {
	if in.who.Err != nil {
		return nil, in.who.Err
	}
	rows, err := in.sql.dead.Query(ctx, db, in.who.Consumer, after, limit)
	if err != nil {
		return nil, fmt.Errorf("inbox %q: list dead letters: %w", in.who.Consumer, err)
	}
	defer rows.Close()
	var out []DeadLetter
	for rows.Next() {
		d, err := scanDead(rows)
		if err != nil {
			return nil, fmt.Errorf("inbox %q: read a dead letter: %w", in.who.Consumer, err)
		}
		out = append(out, d)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("inbox %q: list dead letters: %w", in.who.Consumer, err)
	}
	return out, nil
}

func scanDead(row Row) (DeadLetter, error) {
	var (
		d       DeadLetter
		m       = &d.Message
		died    int64
		created int64
		headers string
	)
	err := row.Scan(&m.ID, &m.Topic, &m.Key, &m.Type, &d.Origin, &d.Attempts, &d.Cause, &died,
		&m.Payload, &m.ContentType, &headers, &m.Version, &m.SchemaVersion, &created)
	if err != nil {
		return d, err
	}
	d.DiedAt, m.Time = time.UnixMicro(died).UTC(), micros(created)
	return d, json.Unmarshal([]byte(headers), &m.Headers)
}

// ErrNotDead means that the consumer has no dead letter with this id.
var ErrNotDead = errors.New("no such dead letter")

// Revive retries a dead letter as if it had just been delivered: a running consumer
// of this name handles it within seconds. A record that could not be decoded
// becomes a dead letter again. The caller commits tx. The error matches
// [ErrNotDead] if the message is not a dead letter.
func (in *Inbox) Revive(ctx context.Context, tx Conn, id string) error {
	if in.who.Err != nil {
		return in.who.Err
	}
	res, err := in.sql.revive.Exec(ctx, tx, in.who.Consumer, id)
	if err != nil {
		return in.wrap("revive", id, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, in.notDead(id))
	}
	if err := in.dropDead(ctx, tx, id); err != nil {
		return err
	}
	return in.became(ctx, tx, id, Waiting)
}

// Discard removes a dead letter permanently. Its claim stays: a later delivery is
// skipped. If its key waits for its version, the version counts as applied, and
// the key resumes. The caller commits tx. The error matches [ErrNotDead] if the message is
// not a dead letter.
func (in *Inbox) Discard(ctx context.Context, tx Conn, id string) error {
	if in.who.Err != nil {
		return in.who.Err
	}
	m, n := postrider.Message{ID: id}, 0
	if err := inboxsql.QueryRow(ctx, tx, in.sql.deadPlace, in.who.Consumer, id).Scan(&n, &m.Topic, &m.Key, &m.Version); err != nil {
		return in.wrap("look up dead letter", id, err)
	}
	if n == 0 {
		return in.notDead(id)
	}
	if m.Key != "" && m.Version > 0 {
		if _, err := in.sql.mark.Move(ctx, tx, in.who.Consumer, m.Topic, m.Key, m.Version, m.Version-1); err != nil {
			return in.wrap("move the mark for", id, err)
		}
	}
	if err := in.dropDead(ctx, tx, id); err != nil {
		return err
	}
	return in.became(ctx, tx, id, Discarded)
}

func (in *Inbox) notDead(id string) error {
	return fmt.Errorf("inbox %q: message %s: %w", in.who.Consumer, id, ErrNotDead)
}

func (in *Inbox) dropDead(ctx context.Context, tx Conn, id string) error {
	res, err := in.sql.dropDead.Exec(ctx, tx, in.who.Consumer, id)
	if err != nil {
		return in.wrap("remove dead letter", id, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 { // another transaction was faster
		return errors.Join(err, in.notDead(id))
	}
	return nil
}
