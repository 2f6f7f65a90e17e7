package mysqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/inboxsql"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// guards refuse changes of the journal. A user with the privilege DROP can still truncate
// it.
func guards() []string {
	const refuse = "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the journal is append-only: rows are removed by age, after 7 days at the earliest'"
	return []string{
		inboxsql.MySQLTrigger + "postrider_journal_update BEFORE UPDATE ON postrider_journal FOR EACH ROW " + refuse,
		inboxsql.MySQLTrigger + "postrider_journal_delete BEFORE DELETE ON postrider_journal FOR EACH ROW IF OLD.at >= " + db.Now + " - 604800000000 THEN " + refuse + "; END IF",
	}
}

// guard makes the guards that the user sees missing, unless the user may make no
// triggers: then rights alone keep the journal. A guard that is there is not made again,
// since that waits for all transactions that have read the table.
func (s *Store) guard(ctx context.Context, conn *sql.Conn) error {
	there, err := db.List[string](ctx, conn, `SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE() AND EVENT_OBJECT_TABLE = 'postrider_journal'`)
	if err != nil || len(there) == len(guards()) {
		return err
	}
	for _, text := range guards() {
		if err := inboxsql.MySQLMakeTrigger(ctx, conn, text); err != nil && !inboxsql.MySQLDenied(err) {
			return err
		}
	}
	return nil
}

// Record implements ops.Recorder.
func (s desk) Record(ctx context.Context, e ops.JournalEntry) (int64, error) {
	const doing = "write into the journal"
	if strings.TrimSpace(e.Actor) == "" || e.Act == "" || strings.TrimSpace(e.Reason) == "" {
		return 0, fmt.Errorf("%s: missing actor, act or reason: give all three", doing)
	}
	e.Pipe = s.box.Pipe
	id, err := s.box.Note(ctx, s.box.DB, &e, sql.NullInt64{})
	return id, s.box.Wrap(doing, err)
}

// Entries implements ops.Journal.
func (s desk) Entries(ctx context.Context, q ops.JournalQuery) ([]ops.JournalEntry, error) {
	where, args := []string{"1 = 1"}, []any{}
	only := func(condition string, values ...any) {
		where, args = append(where, condition), append(args, values...)
	}
	if q.ID != 0 {
		only("(j.id = ? OR a.id = ?)", q.ID, q.ID)
	}
	// As bytes: texts compare equal with blanks at their end.
	for _, f := range []struct{ column, value string }{{"actor", q.Actor}, {"act", q.Act}, {"pipe", q.Pipe}, {"`key`", q.Key}} {
		if f.value != "" {
			only("CAST(j."+f.column+" AS BINARY) = ?", []byte(f.value))
		}
	}
	if !q.Since.IsZero() {
		only("j.at >= ?", q.Since.UnixMicro())
	}
	if q.Before != 0 {
		only("j.id < ?", q.Before)
	}
	limit := q.Limit
	if limit <= 0 {
		limit = 100
	}
	rows, err := s.box.DB.QueryContext(ctx, "SELECT j.id, j.at, j.actor, j.act, j.pipe, j.lane, j.seq, j.`key`, j.target, j.reason, j.result, j.records, COALESCE(a.id, 0)"+
		` FROM postrider_journal j LEFT JOIN postrider_journal a ON a.request = j.request AND a.result = '`+db.ResultAsked+`' AND j.result <> '`+db.ResultAsked+`'
		WHERE `+strings.Join(where, " AND ")+` ORDER BY j.id DESC LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, s.box.Wrap("read the journal", err)
	}
	defer rows.Close()
	var entries []ops.JournalEntry
	for rows.Next() {
		var e ops.JournalEntry
		var at int64
		var lane sql.NullInt32
		var count sql.NullInt64
		var target sql.NullString
		if err := rows.Scan(&e.ID, &at, &e.Actor, &e.Act, &e.Pipe, &lane, &e.Seq, &e.Key, &target, &e.Reason, &e.Result, &count, &e.Ask); err != nil {
			return nil, s.box.Wrap("read the journal", err)
		}
		e.At = time.UnixMicro(at).UTC()
		if lane.Valid {
			one := store.Lane(lane.Int32)
			e.Lane = &one
		}
		if count.Valid {
			e.Count = &count.Int64
		}
		if target.Valid {
			e.Target = json.RawMessage(target.String)
		}
		entries = append(entries, e)
	}
	return entries, s.box.Wrap("read the journal", rows.Err())
}
