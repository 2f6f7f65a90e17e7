package mysqlstore

import (
	"context"
	"slices"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/records"
	"github.com/postrider/postrider/store/mysqlstore/internal/views"
)

// readParked reads what is due; of each queue that the read names, or that is due, its share.
func (s *Store) readParked(ctx context.Context, q db.Querier, p *records.Page) error {
	r, b := p.Read, p.Batch
	keys, most := r.Keys, limit(r)
	if keys == nil {
		if err := s.views.Of(ctx, q, r.Lane, &b.Parked); err != nil {
			return err
		}
		keys = views.DueKeys(&b.Parked)
		keys = keys[:min(len(keys), most)]
	}
	due, err := s.views.Due(ctx, q, r.Lane, keys, max((most-1)/max(len(keys), 1), 1), most)
	if err != nil {
		return err
	}
	const atOnce = 200 // records
	for some := range slices.Chunk(due.Records, atOnce) {
		if err := s.readBodies(ctx, q, p, some); err != nil {
			return err
		}
		if b.More {
			break
		}
	}
	if r.Keys != nil {
		b.Parked.HasDue, b.Parked.NextDue = due.HasNext, due.Next
		if b.More { // records that were cut off may be in no queue
			b.Parked.HasDue, b.Parked.NextDue = true, 0
		}
	}
	b.More = b.More || due.More
	return nil
}

// readBodies adds records to a page, in their order, until it is full.
func (s *Store) readBodies(ctx context.Context, q db.Querier, p *records.Page, due []views.Record) error {
	parts := make([]string, 0, len(due))
	var args []any
	last := map[int64]bool{}
	for i, r := range due {
		part := "SELECT ?,?"
		if i == 0 {
			part = "SELECT ? AS nth, ? AS seq"
		}
		parts, args = append(parts, part), append(args, i, r.Seq)
		last[r.Seq] = r.Last
	}
	// The numbers are sorted, and not the records, which may be large.
	rows, err := q.QueryContext(ctx, db.SelectUntil(ctx)+` k.seq, k.state, k.attempts, k.generation, k.code, `+prefixed(db.MessageColumns)+
		` FROM (`+strings.Join(parts, " UNION ALL ")+`) AS c STRAIGHT_JOIN postrider_parked k ON k.pipe = ? AND k.seq = c.seq ORDER BY c.nth`, append(args, s.box.Pipe)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() && !p.Batch.More {
		var meta store.Meta
		var state string
		m, err := db.ScanMessage(rows, &meta.Seq, &state, &meta.Attempts, &meta.Generation, &meta.Code)
		if err != nil {
			return err
		}
		meta.State, meta.Last = db.StateOf(state), last[meta.Seq]
		p.Add(m, meta)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return rows.Close() // the next queries may need its connection
}

// prefixed names the columns of the parked table, k.
func prefixed(columns string) string { return "k." + strings.ReplaceAll(columns, ", ", ", k.") }
