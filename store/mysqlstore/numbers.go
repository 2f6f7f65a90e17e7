package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// alarmReset says that numbers began again below a position. It is the outbox's, and stays
// until the outbox is adopted.
const alarmReset = "reset"

// setBack reports whether numbers began again below a position, and the highest number that
// any pipe has passed.
func (s *Store) setBack(ctx context.Context, q db.Querier) (top int64, is bool, err error) {
	var noted sql.NullInt64
	err = q.QueryRowContext(ctx, `SELECT (SELECT n FROM postrider_alarm WHERE pipe = '' AND kind = ?), COALESCE(MAX(pos), 0) FROM postrider_progress`, alarmReset).Scan(&noted, &top)
	if err != nil || noted.Valid {
		return noted.Int64, noted.Valid, err
	}
	next, err := db.Counter(ctx, q)
	return top, err == nil && next <= top, err
}

// numbering refuses an outbox whose numbers began again.
func (s *Store) numbering(ctx context.Context, q db.Querier) error {
	top, is, err := s.setBack(ctx, q)
	if err == nil && is {
		err = s.refuseReset(ctx, q, top)
	}
	return err
}

// refuseReset notes it, so that it is not forgotten when the numbers have come up again.
func (s *Store) refuseReset(ctx context.Context, q db.Querier, top int64) error {
	_, err := q.ExecContext(ctx, `INSERT INTO postrider_alarm (pipe, kind, n, at) VALUES ('', ?, ?, `+db.Now+`) ON DUPLICATE KEY UPDATE n = GREATEST(n, VALUES(n))`, alarmReset, top)
	if err != nil {
		return err
	}
	return resetError(top)
}

func resetError(top int64) error {
	return &store.UnusableError{
		What: fmt.Sprintf("the numbers of postrider_outbox began again below %d, which relays have passed (TRUNCATE, a restore or a failover): new messages would be passed over", top),
		Fix:  "stop all relays and run `postrider migrate --adopt`",
	}
}

// adopt moves the rows of an outbox whose numbers began again behind every position, in
// their order, and lets numbers continue behind them. What was sent already and is still
// there is sent again. Every step can be repeated.
func (s *Store) adopt(ctx context.Context, conn *sql.Conn, actor string) (*ops.Step, error) {
	start := time.Now()
	top, is, err := s.setBack(ctx, conn)
	if err != nil || !is {
		return nil, err
	}
	alive, err := db.List[string](ctx, conn, `SELECT instance FROM postrider_relay WHERE alive_until > `+db.Now+` AND alive_until <= `+db.Now+` + 2 * ttl ORDER BY instance`)
	if err == nil && len(alive) > 0 {
		err = &store.UnusableError{What: "relays are at work: " + strings.Join(alive, ", "), Fix: "stop them, then adopt the outbox"}
	}
	if err != nil {
		return nil, err
	}
	if err := s.refuseReset(ctx, conn, top); !errors.Is(err, store.ErrUnusable) {
		return nil, err
	}
	next, err := db.Counter(ctx, conn)
	if err != nil {
		return nil, err
	}
	// Numbers that are drawn from here on are above those of all moved rows.
	const drawnMeanwhile = 10_000_000
	behind := top + next + drawnMeanwhile
	for _, st := range []db.Statement{
		{Query: fmt.Sprintf(`ALTER TABLE postrider_outbox AUTO_INCREMENT = %d`, behind)},
		{Query: `UPDATE postrider_outbox SET seq = seq + ? WHERE seq < ? ORDER BY seq DESC`, Args: []any{top, behind}},
		{Query: `UPDATE postrider_info SET epoch = epoch + ?`, Args: []any{epochStep()}},
		{Query: `DELETE FROM postrider_alarm WHERE pipe = '' AND kind = ?`, Args: []any{alarmReset}},
	} {
		if _, err := conn.ExecContext(ctx, st.Query, st.Args...); err != nil {
			return nil, err
		}
	}
	if _, err := s.box.Note(ctx, conn, &ops.JournalEntry{Actor: actor, Act: "adopt"}, sql.NullInt64{}); err != nil {
		return nil, err
	}
	return &ops.Step{Version: Version, Name: "adopt", Took: time.Since(start)}, nil
}
