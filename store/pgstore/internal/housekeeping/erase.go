package housekeeping

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/journal"
)

// Eraser removes the content of settled messages. It is safe for concurrent use.
type Eraser struct {
	*db.Outbox
	journal *journal.Journal
	keeper  *Retainer // an erasure needs its locks and checks
	sql     eraseTexts
}

type eraseTexts struct{ erasable, erase string }

// NewEraser returns the eraser of keeper's outbox. It does no I/O.
func NewEraser(keeper *Retainer) *Eraser {
	s := &Eraser{Outbox: keeper.Outbox, journal: keeper.journal, keeper: keeper}
	s.sql.eraseSQL(s.Render)
	return s
}

var errNoKey = errors.New("erase: the key is empty: messages without a key cannot be erased by key")

// Erasable counts the messages of a key; see [ops.Eraser].
func (s *Eraser) Erasable(ctx context.Context, q ops.EraseQuery) (ops.Erasable, error) {
	found := ops.Erasable{Pending: map[string]int64{}, Dead: map[string]int64{}}
	switch {
	case s.Bad != nil:
		return found, s.Bad
	case q.Key == "":
		return found, errNoKey
	}
	err := s.Ask(ctx, func(rows pgx.Rows) error {
		for rows.Next() {
			var what, pipe string
			var n int64
			if err := rows.Scan(&what, &pipe, &n); err != nil {
				return err
			}
			switch what {
			case "rows":
				found.Rows = n
			case "erased":
				found.Erased = n
			case "pending":
				found.Pending[pipe] += n
			case "dead":
				found.Dead[pipe] += n
			}
		}
		return rows.Err()
	}, s.sql.erasable, q.Key, q.Topic)
	if err != nil {
		return found, s.Wrap("look for messages of a key", err)
	}
	return found, nil
}

// Erase removes the content of settled messages; see [ops.Eraser]. The old
// versions of the rows lie in the table's files until it is vacuumed.
func (s *Eraser) Erase(ctx context.Context, req ops.EraseRequest, limit int) (n int64, err error) {
	switch {
	case s.Bad != nil:
		return 0, s.Bad
	case req.Key == "":
		return 0, errNoKey
	case req.Reason == "":
		return 0, errors.New("erase: the reason is empty: the journal needs one")
	case limit < 1:
		return 0, fmt.Errorf("erase: at most %d messages", limit)
	}
	err = s.LookingAnew(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, s.keeper.sql.retainSession, "2000", "600000", "10000"); err != nil {
			return err
		}
		// As in retention: a pipe that is being added may still need rows that look settled.
		if _, err := tx.Exec(ctx, s.keeper.sql.retainLock); err != nil {
			return err
		}
		if _, err := s.keeper.meansSettled(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, s.sql.erase, req.Key, req.Topic, limit, postrider.ErasedHeader)
		if err != nil {
			return err
		}
		if n = tag.RowsAffected(); n == 0 {
			return nil
		}
		e := ops.JournalEntry{Actor: req.Actor, Act: "erase", Key: req.Key, Reason: req.Reason, Count: &n}
		if req.Topic != "" {
			if e.Target, err = json.Marshal(map[string]string{"topic": req.Topic}); err != nil {
				return err
			}
		}
		_, err = s.journal.Write(ctx, tx, e)
		return err
	})
	if err != nil {
		return 0, s.Wrap("erase", err)
	}
	return n, nil
}

// eraseSQL returns the statements of erase. A key's messages are in one lane, which is
// scanned, because there is no index by key. The lane is a scalar, so that the planner can
// use the index.
func (st *eraseTexts) eraseSQL(q func(string) string) {
	const ofKey = `lane AS MATERIALIZED (SELECT (((hashtextextended($1, 0) & 9223372036854775807) % i.lanes))::smallint AS lane FROM {{schema}}.outbox_info i),
cursors AS MATERIALIZED (SELECT c.*, p.topics, p.types, p.keys, p.headers AS wanted FROM {{schema}}.lane_cursor c
  JOIN {{schema}}.pipe p ON p.name = c.pipe WHERE c.lane = (SELECT lane FROM lane))`
	const open = `NOT {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq)
  AND {{schema}}.passes(c.topics, c.types, c.keys, c.wanted, o.topic, o.type, o.key, o.headers)`
	st.erasable = q(`WITH ` + ofKey + `,
mine AS MATERIALIZED (SELECT o.seq, o.xid, o.topic, o.type, o.key, o.headers, o.emptied_at FROM {{schema}}.outbox o
  WHERE o.lane = (SELECT lane FROM lane) AND o.key = $1 AND ($2 = '' OR o.topic = $2))
SELECT CASE WHEN ` + filled + ` THEN 'rows' ELSE 'erased' END, '', count(*) FROM mine o
WHERE NOT EXISTS (SELECT FROM cursors c WHERE ` + open + `) GROUP BY 1
UNION ALL SELECT 'pending', c.pipe, count(*) FROM cursors c JOIN mine o ON ` + open + ` GROUP BY c.pipe
UNION ALL SELECT CASE k.state WHEN 'dead' THEN 'dead' ELSE 'pending' END, k.pipe, count(*)
FROM {{schema}}.parked k WHERE k.lane = (SELECT lane FROM lane) AND k.key = $1 AND ($2 = '' OR k.topic = $2) GROUP BY 1, 2`)
	// Headers in the filter of a pipe stay: the books count by them.
	st.erase = q(`WITH ` + ofKey + `,
page AS MATERIALIZED (SELECT o.lane, o.seq FROM {{schema}}.outbox o
  WHERE o.lane = (SELECT lane FROM lane) AND o.key = $1 AND ($2 = '' OR o.topic = $2) AND ` + filled + ` AND NOT EXISTS (SELECT FROM cursors c WHERE ` + open + `)
  AND EXISTS (SELECT FROM cursors) ORDER BY o.seq LIMIT $3)
UPDATE {{schema}}.outbox o SET payload = '', emptied_at = clock_timestamp(), headers = ` + filterHeaders("cursors", "wanted") + ` || ` + erasedMark("$4", "") + `
FROM page p WHERE o.lane = p.lane AND o.seq = p.seq AND ` + filled)
}

// erasedMark returns the header of a message without content, for pipes that are added later
// and begin before it. by follows the time: a reader of the payload must know whether a
// person erased it or retention removed it.
func erasedMark(name, by string) string {
	return `jsonb_build_object(` + name + `::text, to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z` + by + `"'))`
}

// filled is true for a row o that no person has erased. Retention removes only payloads, so
// the headers are still there.
const filled = `(o.emptied_at IS NULL OR o.headers->>'` + postrider.ErasedHeader + `' LIKE '%` + db.ByRetention + `')`

// filterHeaders returns the headers of row o that filters of pipes use.
func filterHeaders(table, column string) string {
	return `coalesce((SELECT jsonb_object_agg(h.key, h.value) FROM jsonb_each(o.headers) h
    WHERE h.key IN (SELECT jsonb_object_keys(f.` + column + `) FROM ` + table + ` f WHERE f.` + column + ` IS NOT NULL)), '{}')`
}
