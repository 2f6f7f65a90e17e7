package db

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/postrider/postrider/store"
)

// Everything is the filter, as the table keeps it, of a pipe that carries all messages.
const Everything = "{}"

// passes is [store.Filter.Match] in SQL. A pattern is compared as bytes. The view of migration
// 0010 has this text too, so it never changes.
const passes = `(F = '{}' OR (json_type(F, '$.topics') IS NULL OR EXISTS (SELECT 1 FROM json_each(F, '$.topics') w WHERE CASE WHEN w.value = '*' THEN TRUE WHEN substr(w.value, -1) = '*'
        THEN substr(CAST(O.topic AS BLOB), 1, length(CAST(w.value AS BLOB)) - 1) = substr(CAST(w.value AS BLOB), 1, length(CAST(w.value AS BLOB)) - 1)
        ELSE O.topic = w.value END))
    AND (json_type(F, '$.types') IS NULL OR EXISTS (SELECT 1 FROM json_each(F, '$.types') w WHERE CASE WHEN w.value = '*' THEN TRUE WHEN substr(w.value, -1) = '*'
        THEN substr(CAST(O.type AS BLOB), 1, length(CAST(w.value AS BLOB)) - 1) = substr(CAST(w.value AS BLOB), 1, length(CAST(w.value AS BLOB)) - 1)
        ELSE O.type = w.value END))
    AND (json_type(F, '$.keys') IS NULL OR EXISTS (SELECT 1 FROM json_each(F, '$.keys') w WHERE CASE WHEN w.value = '*' THEN TRUE WHEN substr(w.value, -1) = '*'
        THEN substr(CAST(O.key AS BLOB), 1, length(CAST(w.value AS BLOB)) - 1) = substr(CAST(w.value AS BLOB), 1, length(CAST(w.value AS BLOB)) - 1)
        ELSE O.key = w.value END))
    AND NOT EXISTS (SELECT 1 FROM json_each(F, '$.headers') w WHERE w.value IS NOT (
        SELECT h.value FROM json_each(O.headers) h WHERE h.key = w.key ORDER BY h.id DESC LIMIT 1)))`

// Passes is the condition that a row passes a filter. filter is a column or a numbered
// parameter with the filter's text, row an alias of the outbox.
func Passes(filter, row string) string {
	return strings.NewReplacer("F = ", filter+" = ", "(F, ", "("+filter+", ", "O.", row+".").Replace(passes)
}

// And is the same behind other conditions, and empty for a filter that lets everything pass: the
// planner then reads an index alone.
func And(text, filter, row string) string {
	if text == Everything {
		return ""
	}
	return " AND " + Passes(filter, row)
}

// Set reads what people have set for the pipe: its filter as text, and since when it is paused.
// A pipe without a row carries everything.
func (o *Outbox) Set(ctx context.Context, q Querier) (filter string, paused sql.NullInt64, err error) {
	err = q.QueryRowContext(ctx, `SELECT filter, paused_at FROM postrider_pipe WHERE name = ?`, o.Pipe).Scan(&filter, &paused)
	if errors.Is(err, sql.ErrNoRows) {
		return Everything, paused, nil
	}
	return filter, paused, err
}

// ParseFilter reads the column filter.
func ParseFilter(text string) (f store.Filter, err error) {
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return f, fmt.Errorf("filter %q: %w", text, err)
	}
	return f, nil
}
