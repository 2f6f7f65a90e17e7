package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// examinePipes looks for what people have paused and stopped.
func (s *Doctor) examinePipes(ctx context.Context, _ ops.ExamineRequest) ([]ops.Finding, error) {
	st, err := s.admin.Status(ctx)
	if err != nil {
		return nil, err
	}
	age := func(since time.Time) time.Duration { return max(0, s.Now().Sub(since)).Round(time.Second) }
	var found []ops.Finding
	var since sql.NullInt64
	var by, reason string
	err = s.DB.QueryRowContext(ctx, `SELECT paused_at, paused_by, pause_reason FROM postrider_pipe WHERE name = ?`, s.Pipe).Scan(&since, &by, &reason)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, err
	}
	if since.Valid {
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("pipe %q was paused by %s %s ago: %s", s.Pipe, by, age(db.Moment(since)), reason),
			Why: "it delivers nothing, and retention keeps every row that it has yet to read", Fix: "postrider pipe resume " + s.Pipe, Data: map[string]any{"by": by},
		})
	}
	lanes, oldest := 0, time.Duration(0)
	for _, h := range st.Holds {
		if oldest = max(oldest, age(h.Since)); h.Key == "" {
			lanes++
		}
	}
	if keys := len(st.Holds) - lanes; lanes+keys > 0 {
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("%s and %s of pipe %q are paused by people, the first for %s", plural.Of(lanes, "lane"), plural.Of(keys, "key"), s.Pipe, oldest),
			Why: "their messages wait", Fix: "postrider status names them, postrider journal who paused them; postrider resume", Data: map[string]any{"lanes": lanes, "keys": keys},
		})
	}
	for _, stop := range st.Stops {
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("endpoint %q of pipe %q was stopped by %s %s ago: %s", stop.Destination, s.Pipe, stop.Actor, age(stop.Since), stop.Reason),
			Why:  "its messages are set aside, and at the cap of parked keys the lanes that have them pause",
			Fix:  fmt.Sprintf("postrider resume --pipe %s --endpoint %s --reason WHY, when it takes messages again; or give its topics another endpoint", s.Pipe, stop.Destination),
			Data: map[string]any{"endpoint": stop.Destination, "by": stop.Actor},
		})
	}
	if len(found) == 0 {
		found = []ops.Finding{{What: "no pipe, lane or key is paused"}}
	}
	return found, nil
}
