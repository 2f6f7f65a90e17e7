package operations

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// Parked are the records of one pipe that are set aside. It is safe for concurrent use.
type Parked struct{ *db.Outbox }

// List returns records by their numbers.
func (s Parked) List(ctx context.Context, query ops.ParkedQuery) ([]ops.ParkedRecord, error) {
	key, where, args := "PRIMARY", []string{"pipe = ?", "seq > ?"}, []any{s.Pipe, query.AfterSeq}
	if query.State != store.Pending {
		key, where, args = "of_state", append(where, "state = ?"), append(args, query.State.String())
	}
	for _, f := range []struct {
		column, value, key string
		any                bool // of any state
	}{
		{"code", query.Code, "of_code", false}, {"topic", query.Topic, "of_topic", false}, {"`key`", query.Key, "of_key", false}, {"id", query.ID, "of_id", true},
	} {
		if f.value == "" {
			continue
		}
		if !utf8.ValidString(f.value) && f.column != "`key`" {
			return nil, nil // no record has it
		}
		if f.any || query.State != store.Pending {
			key = f.key
		}
		if f.column == "topic" && key == "of_topic" && query.Code != "" {
			key = "of_cause"
		}
		// And as bytes: texts compare equal with blanks at their end.
		where, args = append(where, f.column+" = ?", "CAST("+f.column+" AS BINARY) = ?"), append(args, f.value, []byte(f.value))
	}
	most := query.Limit
	if most <= 0 {
		most = 100
	}
	found, err := s.records(ctx, query.Bare, key, strings.Join(where, " AND ")+` ORDER BY seq LIMIT ?`, append(args, most)...)
	if err == nil && len(found) == 0 {
		err = s.Knows(ctx, s.DB, seePipes)
	}
	return found, s.Wrap("list parked records", err)
}

// records reads records by one key of their table; bare leaves out the payloads.
func (s Parked) records(ctx context.Context, bare bool, key, where string, args ...any) (out []ops.ParkedRecord, err error) {
	columns := db.MessageColumns
	if bare {
		columns = strings.Replace(columns, "payload", "''", 1)
	}
	rows, err := s.DB.QueryContext(ctx, `SELECT lane, seq, state, captures, attempts, generation, due_at, `+db.Now+`, class, code, error,
		first_failed, last_attempt, history, `+columns+` FROM postrider_parked FORCE INDEX (`+key+`) WHERE `+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r ops.ParkedRecord
		var name, history string
		var due, at int64
		var first, last sql.NullInt64
		r.Message, err = db.ScanMessage(rows,
			&r.Lane, &r.Seq, &name, &r.Captures, &r.Attempts, &r.Generation, &due, &at,
			&r.Class, &r.Code, &r.Error, &first, &last, &history,
		)
		if err == nil {
			r.History, err = attemptsOf(history)
		}
		if err != nil {
			return nil, err
		}
		r.State, r.DueIn, r.FirstFailed, r.LastAttempt = db.StateOf(name), db.Until(at, due), db.Moment(first), db.Moment(last)
		out = append(out, r)
	}
	return out, errors.Join(rows.Err(), rows.Close())
}

// attemptsOf reads the column history.
func attemptsOf(history string) (all []ops.Attempt, err error) {
	if history == "[]" {
		return nil, nil
	}
	var kept []struct {
		At                 int64 // microseconds since 1970
		Attempt            int
		Class, Code, Error string
	}
	if err := json.Unmarshal([]byte(history), &kept); err != nil {
		return nil, fmt.Errorf("attempts of a parked record: %w", err)
	}
	for _, a := range kept {
		all = append(all, ops.Attempt{At: time.UnixMicro(a.At).UTC(), Attempt: a.Attempt, Class: a.Class, Code: a.Code, Error: a.Error})
	}
	return all, nil
}
