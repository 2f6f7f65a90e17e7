package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// examinePipes looks for what people have paused and stopped.
func (p *patient) examinePipes(ctx context.Context) ([]ops.Finding, error) {
	st, err := p.lookAt(ctx)
	if err != nil {
		return nil, err
	}
	at, err := p.box.Clock(ctx, p.box.DB)
	if err != nil {
		return nil, err
	}
	age := func(since time.Time) time.Duration {
		return max(0, time.UnixMicro(at).Sub(since)).Round(time.Second)
	}
	var found []ops.Finding
	var since sql.NullInt64
	var by, reason string
	err = p.box.DB.QueryRowContext(ctx, `SELECT paused_at, paused_by, pause_reason FROM postrider_pipe WHERE name = ?`, p.box.Pipe).Scan(&since, &by, &reason)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, err
	}
	if since.Valid {
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("pipe %q was paused by %s %s ago: %s", p.box.Pipe, by, age(db.Moment(since)), reason),
			Why: "it delivers nothing, and retention keeps every row that it has yet to read", Fix: "postrider pipe resume " + p.box.Pipe, Data: map[string]any{"by": by},
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
			Severity: ops.Warning, What: fmt.Sprintf("%s and %s of pipe %q are paused by people, the first for %s", plural.Of(lanes, "lane"), plural.Of(keys, "key"), p.box.Pipe, oldest),
			Why: "their messages wait", Fix: "postrider status names them, postrider journal who paused them; postrider resume", Data: map[string]any{"lanes": lanes, "keys": keys},
		})
	}
	for _, s := range st.Stops {
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("endpoint %q of pipe %q was stopped by %s %s ago: %s", s.Destination, p.box.Pipe, s.Actor, age(s.Since), s.Reason),
			Why:  "its messages are set aside, and at the cap of parked keys the lanes that have them pause",
			Fix:  fmt.Sprintf("postrider resume --pipe %s --endpoint %s --reason WHY, when it takes messages again; or give its topics another endpoint", p.box.Pipe, s.Destination),
			Data: map[string]any{"endpoint": s.Destination, "by": s.Actor},
		})
	}
	if len(found) == 0 {
		return fine("no pipe, lane or key is paused", nil), nil
	}
	return found, nil
}
