package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/claim"
	"github.com/postrider/postrider/seal"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// Bodies fetches payloads that a relay left in the outbox. It is safe for
// concurrent use. Its role needs SELECT on lane, seq, id, payload, emptied_at and
// headers of outbox, on pipe and the first four of parked, and on name of pipe.
type Bodies struct{ pool *pgxpool.Pool }

var _ claim.Bodies = (*Bodies)(nil)

// NewBodies returns a Bodies on the database of pool, which the caller closes.
func NewBodies(pool *pgxpool.Pool) *Bodies { return &Bodies{pool: pool} }

// Fetch implements claim.Bodies. It also looks in the parked table: a parked message may
// have been sent, with a lost answer, and retention may since have removed its row
// or payload. A payload removed by retention is gone, which is an error for the consumer;
// an erased payload is erased, even while its dead letter is not discarded yet.
func (b *Bodies) Fetch(ctx context.Context, ref claim.Ref) ([]byte, error) {
	if !db.Identifier.MatchString(ref.Schema) {
		return nil, fmt.Errorf("%w: its schema is not an identifier", seal.ErrTampered)
	}
	schema := pgx.Identifier{ref.Schema}.Sanitize()
	var payload []byte
	var emptied string
	err := b.pool.QueryRow(ctx, `SELECT payload, emptied FROM (
 SELECT payload, CASE WHEN emptied_at IS NULL THEN '' WHEN headers->>$4::text LIKE '%' || $5::text THEN 'retention' ELSE 'person' END AS emptied
 FROM `+schema+`.outbox WHERE lane = $1 AND seq = $2 AND id = $3
 UNION ALL
 SELECT k.payload, '' FROM `+schema+`.pipe p CROSS JOIN LATERAL (
  SELECT k.payload FROM `+schema+`.parked k WHERE k.pipe = p.name AND k.lane = $1 AND k.seq = $2 AND k.id = $3) k) f ORDER BY emptied <> 'person', emptied LIMIT 1`,
		ref.Lane, ref.Seq, ref.ID, postrider.ErasedHeader, db.ByRetention).Scan(&payload, &emptied)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("%w: row %d of lane %d was removed: keep rows longer than consumers lag (--retention)", claim.ErrGone, ref.Seq, ref.Lane)
	case err != nil:
		return nil, fmt.Errorf("fetch a payload: %w", err)
	case emptied == "retention":
		return nil, fmt.Errorf("%w: row %d of lane %d lost its payload by age: keep payloads longer than consumers lag (--payload-retention)", claim.ErrGone, ref.Seq, ref.Lane)
	case emptied != "":
		return nil, seal.ErrErased
	}
	return payload, nil
}
