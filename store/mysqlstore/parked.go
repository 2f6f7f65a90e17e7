package mysqlstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/views"
)

func (s *Store) readParked(ctx context.Context, q db.Querier, p *page) error {
	r, b := p.r, p.b
	if r.Keys != nil { // first: what becomes due between two queries is found by the second or announced
		if err := views.NextSingle(ctx, s.box, q, r.Lane, &b.Parked); err != nil {
			return err
		}
		return s.readDue(ctx, q, p)
	}
	if err := s.readDue(ctx, q, p); err != nil {
		return err
	}
	return s.views.Of(ctx, q, r.Lane, &b.Parked)
}

// readDue reads what is due; when the read names queues, of each its share.
func (s *Store) readDue(ctx context.Context, q db.Querier, p *page) error {
	r, b := p.r, p.b
	share, named, args := -1, "", []any{s.box.Pipe, r.Lane, s.box.Pipe, r.Lane}
	if r.Keys != nil {
		share = max(r.MaxRecords/max(len(r.Keys), 1), 1)
		keys := "NULL"
		if len(r.Keys) > 0 {
			keys = strings.TrimSuffix(strings.Repeat("?,", len(r.Keys)), ",")
		}
		named = fmt.Sprintf(" WHERE NOT due.chained OR place <= %d AND k.`key` IN (%s)", share+1, keys)
		for _, key := range r.Keys {
			args = append(args, []byte(key))
		}
	}
	rows, err := q.QueryContext(ctx, `SELECT k.seq, k.state, k.attempts, k.generation, k.code, due.chained, due.ends, due.place, `+prefixed(db.MessageColumns)+` FROM `+views.Due+`
		JOIN postrider_parked k ON k.pipe = due.pipe AND k.seq = due.seq`+named+fmt.Sprintf(` ORDER BY place, since, k.seq LIMIT %d`, limit(r)), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	more := false
	for rows.Next() && !b.More {
		var meta store.Meta
		var state string
		var chained, ends bool
		var place int
		m, err := db.ScanMessage(rows, &meta.Seq, &state, &meta.Attempts, &meta.Generation, &meta.Code, &chained, &ends, &place)
		if err != nil {
			return err
		}
		if share >= 0 && chained && place > share {
			more = true
			continue
		}
		meta.State, meta.Last = db.StateOf(state), ends
		p.add(m, meta)
	}
	if b.More && share >= 0 { // what was cut off may stand in no queue
		b.Parked.HasDue, b.Parked.NextDue = true, 0
	}
	b.More = b.More || more
	if err := rows.Err(); err != nil {
		return err
	}
	return rows.Close() // the next queries may need its connection
}

// prefixed names the columns of the parked table, k.
func prefixed(columns string) string { return "k." + strings.ReplaceAll(columns, ", ", ", k.") }
