// Package housekeeping removes what every pipe of an outbox has settled.
package housekeeping

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

const (
	pruneLimit  = 1000 // rows of a batch
	pruneTTL    = 10 * time.Second
	batchBytes  = 16 << 20 // payloads of a batch
	sampleRows  = 100      // rows whose size stands for that of all
	rowOverhead = 200      // bytes of a row beside its texts: columns, lane, both b-trees
	heldLimit   = 1_000_000
	actsKept    = db.Remembered
	journalKept = 400 * 24 * time.Hour
	tidyBatch   = 10_000 // rows of one transaction
)

// Retainer removes settled rows. It is safe for concurrent use.
type Retainer struct {
	*db.Outbox
	need    func(ops.Ability) error
	counted atomic.Int64 // when Tidy last counted the rows of the outbox, in nanoseconds since 1970
}

// NewRetainer returns the retainer of an outbox. need is the error for an ability that
// the store lacks. It does no I/O.
func NewRetainer(o *db.Outbox, need func(ops.Ability) error) *Retainer {
	return &Retainer{Outbox: o, need: need}
}

// Prune implements ops.Retainer. A batch is one short transaction: SQLite lets
// nobody write beside it, so nothing can change what is settled meanwhile.
func (s *Retainer) Prune(ctx context.Context, req ops.PruneRequest) (ops.Pruned, error) {
	switch {
	case req.Payloads:
		return ops.Pruned{}, s.need(ops.CanEmpty)
	case req.Runner == "" && !req.DryRun:
		return ops.Pruned{}, errors.New("sqlite: prune: missing runner: name the process that removes rows")
	case req.Leave:
		return ops.Pruned{}, s.Write(ctx, "give the lease of retention back", func(q db.Querier) error {
			_, err := q.ExecContext(ctx, `UPDATE postrider_retention SET alive_until = 0 WHERE runner = ?`, req.Runner)
			return err
		})
	}
	if req.Limit <= 0 {
		req.Limit = pruneLimit
	}
	if req.TTL <= 0 {
		req.TTL = pruneTTL
	}
	p := &pruning{Outbox: s.Outbox, req: req, cutoff: db.Micros(s.Now()) - req.OlderThan.Microseconds()}
	p.out.Lanes, p.out.After = map[store.Lane]int64{}, map[store.Lane]int64{}
	for lane, seq := range req.After {
		p.out.After[lane] = seq
	}
	var err error
	switch {
	case req.DryRun:
		err = p.due(ctx)
	case req.Archive != nil:
		err = p.archive(ctx)
	default:
		err = s.Write(ctx, "prune", func(q db.Querier) error { return p.underLease(ctx, q, p.remove) })
	}
	if err == nil && p.out.Runner == "" && len(p.out.Left) == 0 {
		err = p.held(ctx)
	}
	return p.out, err
}

// pruning is one call of Prune.
type pruning struct {
	*db.Outbox
	req    ops.PruneRequest
	out    ops.Pruned
	cutoff int64 // what was settled then or earlier is due
	epoch  int64 // of the lease, once taken
	lanes  []store.Lane
	limit  int // rows of a lane
}

// underLease runs one part of a batch, unless another runner has the lease.
func (p *pruning) underLease(ctx context.Context, q db.Querier, work func(context.Context, db.Querier) error) error {
	var runner string
	var epoch, until, ttl int64
	err := q.QueryRowContext(ctx, `SELECT runner, epoch, alive_until, ttl FROM postrider_retention`).Scan(&runner, &epoch, &until, &ttl)
	if err != nil {
		return err
	}
	now, mine := db.Micros(p.Now()), runner == p.req.Runner
	if p.epoch > 0 && (!mine || epoch != p.epoch) {
		return &ops.RunnerError{Epoch: p.epoch}
	}
	if !mine && !p.req.Take && now < until && until <= now+2*ttl {
		p.out.Runner = runner
		return nil
	}
	if !mine {
		epoch++
	}
	p.epoch = epoch
	_, err = q.ExecContext(ctx, `UPDATE postrider_retention SET runner = ?, epoch = ?, ttl = ?, alive_until = ?`,
		p.req.Runner, epoch, p.req.TTL.Microseconds(), p.After(p.req.TTL))
	if err != nil {
		return err
	}
	return work(ctx, q)
}

// choose lists the lanes to look at and shares the limit between them.
func (p *pruning) choose(ctx context.Context, q db.Querier) error {
	if p.lanes = p.req.Lanes; p.lanes == nil {
		var n store.Lane
		if err := q.QueryRowContext(ctx, `SELECT lanes FROM postrider_info`).Scan(&n); err != nil {
			return err
		}
		for lane := range n {
			p.lanes = append(p.lanes, lane)
		}
	}
	if p.req.Archive != nil && len(p.lanes) > 1 {
		p.out.Left, p.lanes = p.lanes[1:], p.lanes[:1]
	}
	p.limit = max((p.req.Limit+len(p.lanes)-1)/max(len(p.lanes), 1), 1)
	return nil
}

// remove removes one page of each lane.
func (p *pruning) remove(ctx context.Context, q db.Querier) error {
	if err := p.choose(ctx, q); err != nil {
		return err
	}
	if err := p.bySize(ctx, q); err != nil {
		return err
	}
	for _, lane := range p.lanes {
		last, err := p.page(ctx, q, lane)
		if err != nil {
			return err
		}
		if last < 0 {
			continue
		}
		sizes, err := db.List[int64](ctx, q, `DELETE FROM postrider_outbox WHERE lane = ? AND seq > ? AND seq <= ? RETURNING `+payloadBytes,
			lane, p.out.After[lane], last)
		if err != nil {
			return err
		}
		bytes := int64(0)
		for _, size := range sizes {
			bytes += size
		}
		p.out.After[lane] = last
		p.removed(lane, int64(len(sizes)), bytes)
		if err := p.forget(ctx, q, lane, last); err != nil {
			return err
		}
	}
	return p.book(ctx, q)
}

func (p *pruning) removed(lane store.Lane, n, bytes int64) {
	if n > 0 {
		p.out.Lanes[lane] += n
		p.out.Rows += n
		p.out.Bytes += bytes
	}
}

// payloadBytes is the size of a row's payload. Of a blob it is known without reading it.
const payloadBytes = `CASE typeof(payload) WHEN 'blob' THEN length(payload) ELSE length(CAST(payload AS BLOB)) END`

// forget removes the times of messages that are gone.
func (p *pruning) forget(ctx context.Context, q db.Querier, lane store.Lane, last int64) error {
	_, err := q.ExecContext(ctx, `DELETE FROM postrider_settled WHERE pipe IN (SELECT pipe FROM postrider_progress WHERE lane = ?1) AND lane = ?1 AND pos <= ?2`, lane, last)
	if err == nil {
		_, err = q.ExecContext(ctx, `DELETE FROM postrider_unparked WHERE lane = ? AND seq <= ?`, lane, last)
	}
	return err
}

// book counts what was removed, in the same transaction.
func (p *pruning) book(ctx context.Context, q db.Querier) error {
	if p.out.Rows == 0 {
		return nil
	}
	_, err := q.ExecContext(ctx, `UPDATE postrider_retention SET removed = removed + ?`, p.out.Rows)
	return err
}

// settledOf is the number up to which every pipe has settled a lane: the order of
// numbers is the order of commits. Parameter: the lane.
const settledOf = `coalesce((SELECT min(pos) FROM postrider_progress WHERE lane = ?), 0)`

// oldOf is the number up to which every pipe had settled a lane at a time. A cursor that
// was moved back, by a person or a restored file, counts as it is now. Parameters: the
// time, the lane.
const oldOf = `coalesce((SELECT min(CASE WHEN c.pos_at <= ?1 THEN c.pos ELSE coalesce((SELECT min(s.pos, c.pos) FROM postrider_settled s
	WHERE s.pipe = c.pipe AND s.lane = c.lane AND s.at <= ?1 ORDER BY s.at DESC, s.pos DESC LIMIT 1), 0) END) FROM postrider_progress c WHERE c.lane = ?2), 0)`

// page returns the last number of the lane's next page, or -1: nothing is due.
func (p *pruning) page(ctx context.Context, q db.Querier, lane store.Lane) (last int64, err error) {
	var seen int
	var more bool
	err = q.QueryRowContext(ctx, `SELECT count(*) FILTER (WHERE NOT beyond), coalesce(max(seq) FILTER (WHERE NOT beyond), -1), coalesce(max(beyond), 0) FROM (
		SELECT seq, coalesce(sum(bytes) OVER (ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) >= ?5 AS beyond FROM (
		SELECT seq, `+payloadBytes+` AS bytes FROM postrider_outbox WHERE lane = ?2 AND seq > ?3 AND seq <= `+oldOf+` ORDER BY seq LIMIT ?4))`,
		p.cutoff, lane, p.out.After[lane], p.limit, max(batchBytes/max(len(p.lanes), 1), 1)).Scan(&seen, &last, &more)
	if err == nil && last >= 0 && (more || seen >= p.limit) {
		p.out.Left = append(p.out.Left, lane)
	}
	return last, err
}

// size finds how many rows are there, and estimates what one takes. A lane that is stuck
// keeps its first row: the distance of numbers says nothing. The count is that of numbers
// given out and not removed again; Tidy counts what people deleted.
func (p *pruning) size(ctx context.Context, q db.Querier) (rows, each int64, err error) {
	err = q.QueryRowContext(ctx, `SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'postrider_outbox'), 0) - (SELECT removed FROM postrider_retention), 0),
		coalesce((SELECT CAST(avg(`+payloadBytes+` + length(headers) + length(topic) + length(key) + length(type) + length(content_type)) AS INTEGER) + ?
		FROM (SELECT * FROM postrider_outbox ORDER BY seq DESC LIMIT ?)), 1)`, rowOverhead, sampleRows).Scan(&rows, &each)
	return rows, each, err
}

// excess is how many rows there are above MaxBytes.
func (p *pruning) excess(ctx context.Context, q db.Querier) (int64, error) {
	if p.req.MaxBytes <= 0 {
		return 0, nil
	}
	rows, each, err := p.size(ctx, q)
	return max(rows-p.req.MaxBytes/each, 0), err
}

// bySize makes rows due before their age while there are more than MaxBytes hold.
func (p *pruning) bySize(ctx context.Context, q db.Querier) error {
	excess, err := p.excess(ctx, q)
	if err != nil || excess == 0 {
		return err
	}
	p.cutoff = math.MaxInt64 // no settlement is too young, nor dated in the future
	p.limit = int(min(int64(p.limit), max(excess/int64(max(len(p.lanes), 1)), 1)))
	return nil
}

// due counts instead of removing.
func (p *pruning) due(ctx context.Context) error {
	if err := p.choose(ctx, p.DB); err != nil {
		return p.Wrap("prune", err)
	}
	excess, err := p.excess(ctx, p.DB)
	if err != nil {
		return p.Wrap("prune", err)
	}
	if err := p.countDue(ctx); err != nil || excess <= p.out.Rows {
		return p.Wrap("prune", err)
	}
	p.out.Rows, p.out.Bytes, p.cutoff = 0, 0, math.MaxInt64
	clear(p.out.Lanes)
	if err := p.countDue(ctx); err != nil || p.out.Rows <= excess {
		return p.Wrap("prune", err)
	}
	part := float64(excess) / float64(p.out.Rows)
	for lane, n := range p.out.Lanes {
		p.out.Lanes[lane] = int64(float64(n) * part)
	}
	p.out.Rows, p.out.Bytes = excess, int64(float64(p.out.Bytes)*part)
	return nil
}

func (p *pruning) countDue(ctx context.Context) error {
	for _, lane := range p.lanes {
		var n, bytes int64
		err := p.DB.QueryRowContext(ctx, `SELECT count(*), coalesce(sum(`+payloadBytes+`), 0) FROM postrider_outbox
			WHERE lane = ?2 AND seq > ?3 AND seq <= `+oldOf, p.cutoff, lane, p.req.After[lane]).Scan(&n, &bytes)
		if err != nil {
			return err
		}
		p.removed(lane, n, bytes)
	}
	return nil
}

// archive reads a batch of one lane, hands it out, and removes exactly these rows in
// a second transaction under the same lease. The file may be another one by then, such
// as a backup that was put in its place: only the same rows, settled there too, go.
func (p *pruning) archive(ctx context.Context) error {
	var rows []ops.ArchivedRow
	last := int64(-1)
	err := p.Write(ctx, "prune", func(q db.Querier) error {
		return p.underLease(ctx, q, func(ctx context.Context, q db.Querier) error {
			err := p.choose(ctx, q)
			if err == nil {
				err = p.bySize(ctx, q)
			}
			if err != nil || len(p.lanes) == 0 {
				return err
			}
			if last, err = p.page(ctx, q, p.lanes[0]); err == nil && last >= 0 {
				rows, err = p.collect(ctx, q, p.lanes[0], last)
			}
			return err
		})
	})
	if err != nil || p.out.Runner != "" || last < 0 {
		return err
	}
	lane := p.lanes[0]
	if len(rows) > 0 {
		if err := p.req.Archive(ctx, rows); err != nil {
			return fmt.Errorf("archive %d rows of lane %d: %w", len(rows), lane, err)
		}
		if cut := rows[len(rows)-1].Seq; cut < last { // by bytes: the rest is for the next call
			last = cut
			p.out.Left = append([]store.Lane{lane}, p.out.Left...)
		}
	}
	p.out.After[lane] = last
	return p.Write(ctx, "prune", func(q db.Querier) error {
		return p.underLease(ctx, q, func(ctx context.Context, q db.Querier) error {
			for i := range rows {
				res, err := q.ExecContext(ctx, `DELETE FROM postrider_outbox WHERE seq = ? AND lane = ? AND id = ? AND seq <= `+settledOf,
					rows[i].Seq, lane, rows[i].Message.ID, lane)
				if err != nil {
					return err
				}
				n, err := res.RowsAffected()
				if err != nil {
					return err
				}
				p.removed(lane, n, n*int64(len(rows[i].Message.Payload)))
			}
			if _, err := q.ExecContext(ctx, `DELETE FROM postrider_unparked WHERE lane = ? AND seq <= ?
				AND NOT EXISTS (SELECT 1 FROM postrider_outbox o WHERE o.seq = postrider_unparked.seq)`, lane, last); err != nil {
				return err
			}
			return p.book(ctx, q)
		})
	})
}

// collect reads the rows of a page, as many as fit.
func (p *pruning) collect(ctx context.Context, q db.Querier, lane store.Lane, last int64) (found []ops.ArchivedRow, err error) {
	rows, err := q.QueryContext(ctx, `SELECT seq, `+db.MessageColumns+` FROM postrider_outbox
		WHERE lane = ? AND seq > ? AND seq <= ? ORDER BY seq`, lane, p.out.After[lane], last)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for size := 0; rows.Next() && size < batchBytes; {
		r := ops.ArchivedRow{Lane: lane}
		if r.Message, err = db.ScanMessage(rows, []any{&r.Seq}, nil); err != nil {
			return nil, err
		}
		size += len(r.Message.Payload)
		found = append(found, r)
	}
	return found, rows.Err()
}

// held finds, at the end of a sweep, which pipe holds most rows back. Each lane of a
// pipe is counted as far as the cap, and at least to a million.
func (p *pruning) held(ctx context.Context) error {
	rows, each, err := p.size(ctx, p.DB)
	if err != nil || rows == 0 {
		return p.Wrap("prune", err)
	}
	h := &p.out.Held
	err = p.DB.QueryRowContext(ctx, `SELECT p.pipe, sum((SELECT count(*) FROM (SELECT 1 FROM postrider_outbox o WHERE o.lane = p.lane AND o.seq > p.pos LIMIT ?))) AS n
		FROM postrider_progress p GROUP BY p.pipe ORDER BY n DESC, p.pipe LIMIT 1`, max(heldLimit, p.req.HoldRows+1)).Scan(&h.Pipe, &h.Rows)
	if errors.Is(err, sql.ErrNoRows) || err == nil && h.Rows == 0 {
		*h = ops.Held{}
		return nil
	}
	h.Bytes = h.Rows * each
	h.Over = p.req.HoldRows > 0 && h.Rows > p.req.HoldRows || p.req.HoldBytes > 0 && h.Bytes > p.req.HoldBytes
	return p.Wrap("prune", err)
}

// Tidy implements ops.Retainer. Relays and acts are also tidied by each heartbeat,
// and there is one row of progress for each lane of a pipe.
func (s *Retainer) Tidy(ctx context.Context, req ops.TidyRequest) (ops.Tidied, error) {
	if req.Acts <= 0 {
		req.Acts = actsKept
	}
	if req.Journal <= 0 {
		req.Journal = journalKept
	}
	gone, err := s.uncounted(ctx)
	if err != nil {
		return nil, s.Wrap("count the rows of the outbox", err)
	}
	done := ops.Tidied{}
	err = s.Write(ctx, "tidy", func(q db.Querier) error {
		acts, err := affected(q.ExecContext(ctx, `DELETE FROM postrider_request WHERE done_at < ?`, db.Micros(s.Now())-req.Acts.Microseconds()))
		if err != nil {
			return err
		}
		// Of messages that people deleted: those that retention removed took theirs along.
		times, err := affected(q.ExecContext(ctx, `DELETE FROM postrider_settled WHERE pos < (SELECT min(o.seq) FROM postrider_outbox o WHERE o.lane = postrider_settled.lane)`))
		if err != nil {
			return err
		}
		later, err := affected(q.ExecContext(ctx, `DELETE FROM postrider_unparked WHERE seq < coalesce((SELECT min(seq) FROM postrider_outbox), 9223372036854775807)`))
		if err != nil {
			return err
		}
		// Its trigger keeps the entries of a week, whatever is asked.
		entries, err := affected(q.ExecContext(ctx, `DELETE FROM postrider_journal WHERE id IN (
			SELECT id FROM (SELECT id, at FROM postrider_journal ORDER BY id LIMIT ?) WHERE at < ?)`, tidyBatch, db.Micros(s.Now())-max(req.Journal, actsKept).Microseconds()))
		if err != nil {
			return err
		}
		for table, n := range map[string]int64{"journal": entries, "request": acts, "settled": times, "unparked": later} {
			if n > 0 {
				done[table] = n
			}
		}
		if gone != 0 {
			_, err = q.ExecContext(ctx, `UPDATE postrider_retention SET removed = removed + ?`, gone)
		}
		return err
	})
	return done, err
}

func affected(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// uncounted is how many rows are gone that retention has not counted: people deleted
// them. It reads an index of the whole outbox, at most once an hour.
func (s *Retainer) uncounted(ctx context.Context) (n int64, err error) {
	now := s.Now().UnixNano()
	if last := s.counted.Load(); last > 0 && now-last < int64(time.Hour) && now >= last {
		return 0, nil
	}
	err = s.DB.QueryRowContext(ctx, `SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'postrider_outbox'), 0)
		- (SELECT count(*) FROM postrider_outbox) - (SELECT removed FROM postrider_retention)`).Scan(&n)
	if err == nil {
		s.counted.Store(now)
	}
	return n, err
}
