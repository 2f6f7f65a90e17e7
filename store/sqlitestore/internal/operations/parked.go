package operations

import (
	"context"
	"database/sql"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// Parked implements ops.Admin.
func (s *Admin) Parked(ctx context.Context, query ops.ParkedQuery) ([]ops.ParkedRecord, error) {
	where, args := s.which(query)
	found, err := s.parked(ctx, query.Bare, where, args...)
	if err == nil && len(found) == 0 {
		err = s.Wrap("list parked records", s.Knows(ctx, s.DB, db.Pipes))
	}
	return found, err
}

// which is the condition for the records of a query, with its arguments. The planner has no
// figures of the table, so each condition leaves it one index that fits: that of states is
// on an expression, and a number is no reason to read all records in its order for one id.
func (s *Admin) which(query ops.ParkedQuery) (where string, args []any) {
	seq := "seq"
	if query.ID != "" {
		seq = "+seq"
	}
	where, args = "pipe = ? AND "+seq+" > ?", []any{s.Pipe, query.AfterSeq}
	dead := query.State == store.Dead && query.Topic+query.Code != ""
	switch name := query.State.String(); {
	case query.State == store.Pending:
	case query.ID+query.Key != "" || dead: // in the text: an index of dead letters is used only then
		where += " AND state = '" + name + "'"
	default:
		where += " AND state || '' = '" + name + "'"
	}
	for _, f := range []struct{ column, value string }{
		{"id", strings.ToLower(query.ID)}, {"topic", query.Topic}, {"key", query.Key}, {"code", query.Code},
	} {
		if f.value != "" {
			where, args = where+" AND "+f.column+" = ?", append(args, f.value)
		}
	}
	most := query.Limit
	if most <= 0 {
		most = 100
	}
	return where + " ORDER BY " + seq + " LIMIT ?", append(args, most)
}

// bare are the columns of a message without its payload.
const bare = "id, topic, key, type, x'', content_type, headers, version, schema_version, not_before, created_at"

// parked reads parked records.
func (s *Admin) parked(ctx context.Context, withoutPayload bool, where string, args ...any) ([]ops.ParkedRecord, error) {
	columns := db.MessageColumns
	if withoutPayload {
		columns = bare
	}
	rows, err := s.DB.QueryContext(ctx, `SELECT lane, seq, state, captures, attempts, generation, due_at, class, code, error,
		first_failed, last_attempt, history, `+columns+` FROM postrider_parked WHERE `+where, args...)
	if err != nil {
		return nil, s.Wrap("list parked records", err)
	}
	defer rows.Close()
	var out []ops.ParkedRecord
	for rows.Next() {
		var r ops.ParkedRecord
		var name, history string
		var due int64
		var first, last sql.NullInt64
		r.Message, err = db.ScanMessage(rows, []any{
			&r.Lane, &r.Seq, &name, &r.Captures, &r.Attempts, &r.Generation, &due,
			&r.Class, &r.Code, &r.Error, &first, &last, &history,
		}, nil)
		if err == nil {
			r.History, err = db.AttemptsOf(history)
		}
		if err != nil {
			return nil, s.Wrap("list parked records", err)
		}
		r.State, r.DueIn, r.FirstFailed, r.LastAttempt = db.StateOf(name), s.Until(due), db.Moment(first), db.Moment(last)
		out = append(out, r)
	}
	return out, s.Wrap("list parked records", rows.Err())
}
