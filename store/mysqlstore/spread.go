package mysqlstore

import (
	"context"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/records"
)

// mostFound is how many rows a read fetches that a span has missed.
const mostFound = 1000

// spread gives the rows of a span to its lanes. A span misses the holes whose rows the probe found, which was later: they
// are read by number, or, where they are many, all lanes have pages.
func (s *Store) spread(ctx context.Context, q db.Querier, reads []store.LaneRead, lanes []scanned, v *sight) error {
	if v.span.Rows == 0 {
		return nil
	}
	upTo := v.Tip
	if v.full {
		upTo = min(upTo, v.last)
	}
	bytes := 0
	for _, r := range v.rows {
		bytes += r.Size
	}
	s.pace.Learn(v.span, len(v.rows), bytes, v.last, v.full)
	missing := missing(v, upTo)
	if missing.Count() > mostFound {
		return nil
	}
	if len(missing) > 0 {
		named, err := records.Query(ctx, q, v.span.Some(missing))
		if err != nil {
			return err
		}
		v.rows = append(v.rows, named...)
	}
	at := ofLog(reads)
	for lane, i := range at {
		if v.span.Has(lane) {
			lanes[i].spanned, lanes[i].upTo = true, upTo
		}
	}
	for _, r := range v.rows {
		i, read := at[r.Lane]
		if !read || !lanes[i].spanned || r.Meta.Seq > upTo || r.Meta.Seq <= lanes[i].from.At {
			continue
		}
		h := head{seq: r.Meta.Seq, size: r.Size, passes: true}
		if r.Whole {
			r.Due(v.now)
			h.body = r
		}
		lanes[i].rows = append(lanes[i].rows, h)
	}
	return nil
}

// missing returns the numbers up to one that the probe has found and the span has not.
func missing(v *sight, upTo int64) holes.Set {
	found := holes.Of(v.found)
	_, found = found.Split(v.span.Low)
	if found, _ = found.Split(upTo); len(found) == 0 {
		return nil
	}
	had := make([]int64, 0, len(v.rows))
	for _, r := range v.rows {
		had = append(had, r.Meta.Seq)
	}
	return found.Minus(holes.Of(had))
}
