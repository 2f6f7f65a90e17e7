package sqlitestore

import (
	"cmp"
	"context"
	"fmt"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// renumber moves the rows of an outbox whose numbers began again behind every number that was
// ever settled or set aside, in their order, and has numbers continue there: below, every pipe
// would pass them over. The file has another history then, so relays drop what they have read.
func (s *Store) renumber(ctx context.Context, q db.Querier, req store.LeaseRequest, g *store.Grant) error {
	newest, err := s.box.Newest(ctx, q)
	if err != nil {
		return err
	}
	var top int64
	err = q.QueryRowContext(ctx, `SELECT coalesce(max(pos), 0) FROM postrider_progress`).Scan(&top)
	if err != nil || newest >= top {
		return err
	}
	if err := q.QueryRowContext(ctx, `SELECT max(?, coalesce(max(seq), 0)) FROM postrider_parked`, top).Scan(&top); err != nil {
		return err
	}
	res, err := q.ExecContext(ctx, `UPDATE postrider_outbox SET seq = seq + ?`, top)
	if err != nil {
		return err
	}
	moved, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if _, err := q.ExecContext(ctx, `DELETE FROM sqlite_sequence WHERE name = 'postrider_outbox'`); err != nil {
		return err
	}
	if _, err := q.ExecContext(ctx, `INSERT INTO sqlite_sequence (name, seq) VALUES ('postrider_outbox', ?)`, top+newest); err != nil {
		return err
	}
	if err := q.QueryRowContext(ctx, `UPDATE postrider_info SET identity = lower(hex(randomblob(16))) RETURNING identity`).Scan(&g.Identity); err != nil {
		return err
	}
	_, err = s.box.Note(ctx, q, &ops.JournalEntry{
		Actor: cmp.Or(req.Instance, req.BootID), Act: "renumber", Count: &moved,
		Reason: fmt.Sprintf("numbers of postrider_outbox began again below %d, which relays had passed", top),
	})
	return err
}
