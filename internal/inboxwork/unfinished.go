package inboxwork

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider/inbox"
)

// Unfinished lists the messages that the consumer has tried or stashed and not finished,
// in the order of their ids, at most limit of them, from behind the id after ("" for the
// first page). A message whose first attempt still runs is not among them: that attempt
// is not counted.
func (in *Inbox) Unfinished(ctx context.Context, db inbox.Querier, after string, limit int) ([]inbox.Unfinished, error) {
	if in.who.Err != nil {
		return nil, in.who.Err
	}
	rows, err := in.sql.unfinished.Query(ctx, db, in.who.Consumer, after, limit)
	if err != nil {
		return nil, inbox.Classify(fmt.Errorf("inbox %q: list unfinished messages: %w", in.who.Consumer, err))
	}
	defer rows.Close()
	var out []inbox.Unfinished
	for rows.Next() {
		var (
			u        inbox.Unfinished
			next, at int64
		)
		err := rows.Scan(&u.ID, &u.Topic, &u.Key, &u.Type, &u.Origin, &u.State, &u.Attempts, &u.Error, &next, &at, &u.Version, &u.Needs, &u.Mark, &u.Running)
		if err != nil {
			return nil, fmt.Errorf("inbox %q: read an unfinished message: %w", in.who.Consumer, err)
		}
		u.Code, u.NextAttempt, u.Since = codeOf(u.Error), micros(next), micros(at)
		out = append(out, u)
	}
	if err := rows.Err(); err != nil {
		return nil, inbox.Classify(fmt.Errorf("inbox %q: list unfinished messages: %w", in.who.Consumer, err))
	}
	return out, nil
}

func micros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// codeOf returns the code that an error's text begins with, as those of this module do:
// capitals with an underscore, before a colon.
func codeOf(text string) string {
	code, _, found := strings.Cut(text, ":")
	if !found || !strings.Contains(code, "_") || strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" {
		return ""
	}
	return code
}

// Each half stops at the limit, in the order of its primary key.
const unfinishedSQL = `SELECT x.message_id, x.topic, x.key, x.type, x.origin, x.state, x.attempts, x.error, x.next_at, x.at, x.version, x.needs, x.mark, x.running FROM (
SELECT * FROM (SELECT a.message_id, a.topic, a.key, a.type, a.origin, a.state, a.attempts, coalesce(a.last_error, '') AS error,
CASE WHEN a.state = 'retry' AND a.begun_by IS NULL THEN {us}a.next_at{usend} ELSE 0 END AS next_at, {us}a.updated_at{usend} AS at,
coalesce(a.version, 0) AS version, 0 AS needs, 0 AS mark, a.begun_by IS NOT NULL AS running
FROM {attempt} AS a WHERE a.consumer = $1 AND a.message_id > $2 ORDER BY a.message_id LIMIT $3) AS tried
UNION ALL
SELECT * FROM (SELECT s.message_id, s.topic, s.key, s.type, s.origin, 'waiting' AS state, 0 AS attempts, '' AS error, 0 AS next_at, {us}s.stashed_at{usend} AS at, s.version, s.needs,
coalesce((SELECT m.version FROM {mark} AS m WHERE m.consumer = s.consumer AND m.topic = s.topic AND m.key = s.key), 0) AS mark, 1 = 0 AS running
FROM {stash} AS s WHERE s.consumer = $1 AND s.message_id > $2
AND NOT EXISTS (SELECT 1 FROM {attempt} AS a WHERE a.consumer = s.consumer AND a.message_id = s.message_id) ORDER BY s.message_id LIMIT $3) AS waits
) AS x ORDER BY x.message_id LIMIT $3`
