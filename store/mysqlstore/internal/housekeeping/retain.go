package housekeeping

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

const (
	pruneLimit  = 1000 // rows of a batch
	pruneTTL    = 10 * time.Second
	batchBytes  = 16 << 20 // payloads of a batch
	rowOverhead = 200      // bytes of a row beside its texts: columns and indexes
	heldLimit   = 1_000_000
)

// Retainer removes settled rows. It is safe for concurrent use; its fields are set before
// its first use.
type Retainer struct {
	*db.Outbox
	Need func(ops.Ability) error // the error for an ability that the store lacks
	// Sound fails where the numbers of the outbox began again: positions say nothing then.
	Sound func(ctx context.Context, q db.Querier) error
}

// Prune implements ops.Retainer. A batch is one short transaction, and beside it no pipe
// is made.
func (s *Retainer) Prune(ctx context.Context, req ops.PruneRequest) (ops.Pruned, error) {
	switch {
	case req.Payloads:
		return ops.Pruned{}, s.Need(ops.CanEmpty)
	case req.Runner == "" && !req.DryRun:
		return ops.Pruned{}, errors.New("mysql: prune: missing runner: name the process that removes rows")
	case len(req.Runner) > 255:
		return ops.Pruned{}, errors.New("mysql: prune: the name of the runner is too long: use at most 255 bytes")
	case req.Leave:
		err := db.Again(ctx, func() error {
			_, err := s.DB.ExecContext(ctx, `UPDATE postrider_retention SET alive_until = 0 WHERE runner = ?`, req.Runner)
			return err
		})
		return ops.Pruned{}, s.Wrap("give the lease of retention back", err)
	}
	if req.Limit <= 0 {
		req.Limit = pruneLimit
	}
	if req.TTL <= 0 {
		req.TTL = pruneTTL
	}
	conn, err := s.DB.Conn(ctx)
	if err != nil {
		return ops.Pruned{}, s.Wrap("prune", err)
	}
	p := &pruning{Retainer: s, req: req, q: conn}
	err = p.run(ctx)
	return p.out, s.Wrap("prune", errors.Join(err, conn.Close()))
}

func (p *pruning) run(ctx context.Context) error {
	var err error
	switch {
	case p.req.DryRun:
		err = p.dryRun(ctx)
	case p.req.Archive != nil:
		err = p.archive(ctx)
	default:
		err = p.underLease(ctx, p.remove)
	}
	if err == nil && p.out.Runner == "" && len(p.out.Left) == 0 {
		err = p.held(ctx)
	}
	return err
}

// pruning is one call of Prune.
type pruning struct {
	*Retainer
	req    ops.PruneRequest
	q      *sql.Conn
	out    ops.Pruned
	cutoff int64 // what was settled then or earlier is due
	epoch  int64 // of the lease, once taken
	lanes  []store.Lane
	limit  int // rows of a lane
	pipes  []*progress
}

// begin starts a transaction's work anew.
func (p *pruning) begin(ctx context.Context) error {
	at, err := p.Clock(ctx, p.q)
	if err != nil {
		return err
	}
	p.cutoff = at - p.req.OlderThan.Microseconds()
	p.out = ops.Pruned{Lanes: map[store.Lane]int64{}, After: map[store.Lane]int64{}, Entry: p.req.Entry}
	for lane, seq := range p.req.After {
		p.out.After[lane] = seq
	}
	return p.choose(ctx)
}

// underLease runs one part of a batch, unless another runner has the lease.
func (p *pruning) underLease(ctx context.Context, work func(context.Context) error) error {
	return p.Alone(ctx, p.q, func() error {
		return db.Again(ctx, func() error {
			return db.InTransaction(ctx, p.q, func() error {
				if free, err := p.lease(ctx); err != nil || !free {
					return err
				}
				return work(ctx)
			})
		})
	})
}

// lease takes or renews the lease, and reports whether it is the caller's.
func (p *pruning) lease(ctx context.Context) (bool, error) {
	var runner string
	var epoch, until, ttl, at int64
	err := p.q.QueryRowContext(ctx, `SELECT runner, epoch, alive_until, ttl, `+db.Now+` FROM postrider_retention WHERE one = 1 FOR UPDATE`).Scan(&runner, &epoch, &until, &ttl, &at)
	if err != nil {
		return false, err
	}
	mine := runner == p.req.Runner
	if p.epoch > 0 && (!mine || epoch != p.epoch) {
		return false, &ops.RunnerError{Epoch: p.epoch}
	}
	if !mine && !p.req.Take && at < until && until <= at+2*ttl {
		p.out.Runner = runner
		return false, nil
	}
	if !mine {
		epoch++
	}
	_, err = p.q.ExecContext(ctx, `UPDATE postrider_retention SET runner = ?, epoch = ?, ttl = ?, alive_until = `+db.Now+` + ? WHERE one = 1`,
		p.req.Runner, epoch, p.req.TTL.Microseconds(), p.req.TTL.Microseconds())
	return err == nil, err
}

// choose lists the lanes to look at, shares the limit between them, and reads where the
// pipes are.
func (p *pruning) choose(ctx context.Context) (err error) {
	if p.lanes = p.req.Lanes; p.lanes == nil {
		var n store.Lane
		if err := p.q.QueryRowContext(ctx, `SELECT lanes FROM postrider_info`).Scan(&n); err != nil {
			return err
		}
		for lane := range n {
			p.lanes = append(p.lanes, lane)
		}
	}
	if p.req.Archive != nil && len(p.lanes) > 1 {
		p.out.Left, p.lanes = slices.Clone(p.lanes[1:]), p.lanes[:1]
	}
	p.limit = max((p.req.Limit+len(p.lanes)-1)/max(len(p.lanes), 1), 1)
	p.pipes, err = progresses(ctx, p.q, p.cutoff)
	if err != nil || len(p.pipes) == 0 {
		p.lanes = nil // nobody has settled anything
		return err
	}
	// A table that is in use cannot be truncated until the transaction ends.
	if _, err := db.List[int64](ctx, p.q, `SELECT seq FROM postrider_outbox ORDER BY seq LIMIT 1`); err != nil {
		return err
	}
	if err := p.Sound(ctx, p.q); err != nil {
		return err
	}
	return p.bySize(ctx)
}

// bySize makes rows due before their age while there are more than MaxBytes hold.
func (p *pruning) bySize(ctx context.Context) error {
	excess, err := p.excess(ctx)
	if err != nil || excess == 0 || p.req.DryRun {
		return err
	}
	p.cutoff = math.MaxInt64 // no settlement is too young, nor dated in the future
	p.limit = int(min(int64(p.limit), max(excess/int64(max(len(p.lanes), 1)), 1)))
	return nil
}

// excess is how many rows there are above MaxBytes.
func (p *pruning) excess(ctx context.Context) (int64, error) {
	if p.req.MaxBytes <= 0 {
		return 0, nil
	}
	rows, each, err := p.size(ctx)
	return max(rows-p.req.MaxBytes/each, 0), err
}

// size counts the rows by an index that has their sizes.
func (p *pruning) size(ctx context.Context) (rows, each int64, err error) {
	var bytes int64
	err = p.q.QueryRowContext(ctx, `SELECT COUNT(*), COALESCE(SUM(size), 0) FROM postrider_outbox FORCE INDEX (lane_seq)`).Scan(&rows, &bytes)
	return rows, bytes/max(rows, 1) + rowOverhead, err
}

// due is the number up to which a lane may be removed.
func (p *pruning) due(lane store.Lane) int64 {
	last := int64(math.MaxInt64)
	for _, pipe := range p.pipes {
		last = min(last, pipe.old(lane, p.cutoff))
	}
	return last
}

// page returns the rows of the lane's next page, and up to which number it looked.
func (p *pruning) page(ctx context.Context, lane store.Lane, limit int) (seqs []int64, last int64, full bool, err error) {
	last = p.due(lane)
	first := p.out.After[lane]
	if last <= first {
		return nil, first, false, nil
	}
	seen, full, err := p.some(ctx, lane, first, last, limit)
	if err != nil || len(seen) == 0 {
		return nil, first, false, err
	}
	if full {
		last = seen[len(seen)-1]
	}
	keep, err := p.kept(ctx, lane, seen[0], last)
	if err != nil {
		return nil, first, false, err
	}
	for _, seq := range seen {
		if !keep.Has(seq) {
			seqs = append(seqs, seq)
		}
	}
	return seqs, last, full, nil
}

// some lists the first numbers of a lane, up to a limit and to its share of the bytes of a batch,
// at least one. full: there may be more.
func (p *pruning) some(ctx context.Context, lane store.Lane, first, last int64, limit int) (seqs []int64, full bool, err error) {
	rows, err := p.q.QueryContext(ctx, `SELECT seq, size FROM postrider_outbox FORCE INDEX (lane_seq) WHERE lane = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?`, lane, first, last, limit)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	share := int64(batchBytes / max(len(p.lanes), 1))
	for bytes := int64(0); rows.Next(); {
		var seq, size int64
		if err := rows.Scan(&seq, &size); err != nil {
			return nil, false, err
		}
		if bytes >= share && len(seqs) > 0 {
			full = true
			break
		}
		seqs, bytes = append(seqs, seq), bytes+size
	}
	return seqs, full || len(seqs) == limit, errors.Join(rows.Err(), rows.Close())
}

// kept are numbers of a lane that came late: a pipe has yet to read their rows.
func (p *pruning) kept(ctx context.Context, lane store.Lane, first, last int64) (holes.Set, error) {
	var names []string
	for _, pipe := range p.pipes {
		names = append(names, pipe.pipe)
	}
	keep, err := p.Dropped(ctx, p.q, names, first-1, last)
	for _, pipe := range p.pipes {
		keep = keep.Or(pipe.settled[lane].Open)
	}
	return keep, err
}

// remove removes one page of each lane.
func (p *pruning) remove(ctx context.Context) error {
	if err := p.begin(ctx); err != nil {
		return err
	}
	for _, lane := range p.lanes {
		seqs, last, full, err := p.page(ctx, lane, p.limit)
		if err != nil {
			return err
		}
		if full {
			p.out.Left = append(p.out.Left, lane)
		}
		p.out.After[lane] = last
		if err := p.delete(ctx, lane, seqs); err != nil {
			return err
		}
	}
	return p.end(ctx)
}

// delete removes rows by number, which locks them and no gap.
func (p *pruning) delete(ctx context.Context, lane store.Lane, seqs []int64) error {
	if len(seqs) == 0 {
		return nil
	}
	// By its primary key: another index leads past rows that writers have just inserted, which
	// ends the transaction where the server keeps snapshots apart (MariaDB 11.8).
	in := ` FROM postrider_outbox AS o FORCE INDEX (PRIMARY) WHERE o.seq IN (` + db.Numbers(seqs) + `) AND o.lane = ?`
	var bytes int64
	if err := p.q.QueryRowContext(ctx, `SELECT COALESCE(SUM(size), 0)`+in, lane).Scan(&bytes); err != nil {
		return err
	}
	res, err := p.q.ExecContext(ctx, `DELETE o`+in, lane)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	p.removed(lane, n, bytes)
	if err != nil {
		return err
	}
	return p.forget(ctx, seqs)
}

// forget removes the times of messages that had been set aside and whose rows were removed.
func (p *pruning) forget(ctx context.Context, seqs []int64) error {
	for _, pipe := range p.pipes {
		if _, err := p.q.ExecContext(ctx, `DELETE FROM postrider_unparked WHERE pipe = ? AND seq IN (`+db.Numbers(seqs)+`)`, pipe.pipe); err != nil {
			return err
		}
	}
	return nil
}

func (p *pruning) removed(lane store.Lane, n, bytes int64) {
	if n > 0 {
		p.out.Lanes[lane] += n
		p.out.Rows += n
		p.out.Bytes += bytes
	}
}

// end ends a batch in its transaction: times that neither a message nor a later sweep needs go,
// and a person's prune has an entry in the journal.
func (p *pruning) end(ctx context.Context) error {
	first, err := firstRow(ctx, p.q)
	if err != nil {
		return err
	}
	for _, pipe := range p.pipes {
		if len(p.out.Left) > 0 || pipe.sample == 0 {
			continue
		}
		_, err := p.q.ExecContext(ctx, `DELETE m FROM postrider_times AS m FORCE INDEX (PRIMARY) WHERE m.pipe = ? AND m.at < ? AND m.high < ?`, pipe.pipe, pipe.sample, first)
		if err != nil {
			return err
		}
	}
	total, last := p.req.Removed+p.out.Rows, len(p.out.Left) == 0
	if p.req.Actor == "" || total == 0 || p.req.Entry > 0 && !last {
		return nil
	}
	link := db.NewLink()
	e := ops.JournalEntry{Actor: p.req.Actor, Act: "prune", Reason: p.req.Reason, Result: db.ResultAsked}
	if last {
		e.Result, e.Count = ops.ResultDone, &total
	}
	target := map[string]any{"older_than": p.req.OlderThan.String()}
	if p.req.MaxBytes > 0 {
		target["max_bytes"] = p.req.MaxBytes
	}
	if p.req.Archive != nil {
		target["archive"] = true
	}
	if e.Target, err = json.Marshal(target); err != nil {
		return err
	}
	if p.req.Entry > 0 {
		if link, err = db.LinkOf(ctx, p.q, p.req.Entry); err != nil {
			return err
		}
	}
	id, err := p.Note(ctx, p.q, &e, link)
	if p.out.Entry == 0 {
		p.out.Entry = id
	}
	return err
}

// dryRun counts instead of removing.
func (p *pruning) dryRun(ctx context.Context) error {
	if err := p.begin(ctx); err != nil {
		return err
	}
	excess, err := p.excess(ctx)
	if err != nil {
		return err
	}
	if err := p.countDue(ctx); err != nil || excess <= p.out.Rows {
		return err
	}
	p.out.Rows, p.out.Bytes, p.cutoff = 0, 0, math.MaxInt64
	clear(p.out.Lanes)
	if err := p.countDue(ctx); err != nil || p.out.Rows <= excess {
		return err
	}
	part := float64(excess) / float64(p.out.Rows)
	for lane, n := range p.out.Lanes {
		p.out.Lanes[lane] = int64(float64(n) * part)
	}
	p.out.Rows, p.out.Bytes, p.out.Estimated = excess, int64(float64(p.out.Bytes)*part), true
	return nil
}

// countDue counts rows that came late with the others, unless they are holes.
func (p *pruning) countDue(ctx context.Context) error {
	for _, lane := range p.lanes {
		first, last := p.req.After[lane], p.due(lane)
		keep, err := p.kept(ctx, lane, first+1, last)
		if err != nil {
			return err
		}
		rows, err := p.q.QueryContext(ctx, `SELECT seq, size FROM postrider_outbox FORCE INDEX (lane_seq) WHERE lane = ? AND seq > ? AND seq <= ?`, lane, first, last)
		if err != nil {
			return err
		}
		for rows.Next() {
			var seq, size int64
			if err = rows.Scan(&seq, &size); err != nil {
				break
			}
			if !keep.Has(seq) {
				p.removed(lane, 1, size)
			}
		}
		if err := errors.Join(err, rows.Err(), rows.Close()); err != nil { //nolint:sqlclosecheck // one of a loop
			return err
		}
	}
	return nil
}

// archive reads a batch of one lane, hands it out, and removes exactly these rows in
// a second transaction under the same lease. The database may be another one by then: only
// the same rows, settled there too, go.
func (p *pruning) archive(ctx context.Context) error {
	var found []ops.ArchivedRow
	err := p.underLease(ctx, func(ctx context.Context) (err error) {
		if err := p.begin(ctx); err != nil || len(p.lanes) == 0 {
			return err
		}
		lane := p.lanes[0]
		seqs, last, full, err := p.page(ctx, lane, p.limit)
		if err != nil {
			return err
		}
		if found, err = p.collect(ctx, lane, seqs); err != nil {
			return err
		}
		if len(found) < len(seqs) { // by bytes, or rows went meanwhile: the rest is for the next call
			full = len(found) > 0
			if last = p.out.After[lane]; full {
				last = found[len(found)-1].Seq
			}
		}
		if p.out.After[lane] = last; full {
			p.out.Left = append([]store.Lane{lane}, p.out.Left...)
		}
		p.epoch, err = p.leased(ctx)
		return err
	})
	if err != nil || p.out.Runner != "" || len(found) == 0 {
		return err
	}
	if err := p.req.Archive(ctx, found); err != nil {
		return fmt.Errorf("archive %d rows of lane %d: %w", len(found), p.lanes[0], err)
	}
	after, left := p.out.After, p.out.Left
	return p.underLease(ctx, func(ctx context.Context) error {
		if err := p.begin(ctx); err != nil {
			return err
		}
		p.out.After, p.out.Left = after, left
		if err := p.deleteExactly(ctx, found); err != nil {
			return err
		}
		return p.end(ctx)
	})
}

// leased is the epoch of the lease.
func (p *pruning) leased(ctx context.Context) (epoch int64, err error) {
	err = p.q.QueryRowContext(ctx, `SELECT epoch FROM postrider_retention WHERE one = 1 FOR UPDATE`).Scan(&epoch)
	return epoch, err
}

// deleteExactly removes rows that were archived, if they are the same and settled.
func (p *pruning) deleteExactly(ctx context.Context, rows []ops.ArchivedRow) error {
	lane := rows[0].Lane
	keep, err := p.kept(ctx, lane, rows[0].Seq, rows[len(rows)-1].Seq)
	if err != nil {
		return err
	}
	var gone []int64
	for i := range rows {
		r := &rows[i]
		settled := !slices.ContainsFunc(p.pipes, func(pipe *progress) bool { return !pipe.settled[lane].Settled(r.Seq) })
		if !settled || keep.Has(r.Seq) {
			continue
		}
		res, err := p.q.ExecContext(ctx, `DELETE FROM postrider_outbox WHERE seq = ? AND lane = ? AND id = ?`, r.Seq, lane, []byte(r.Message.ID))
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if err != nil {
			return err
		}
		p.removed(lane, n, int64(len(r.Message.Payload)))
		if gone = append(gone, r.Seq); n == 0 {
			gone = gone[:len(gone)-1]
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return p.forget(ctx, gone)
}

// collect reads the rows of a page, as many as fit.
func (p *pruning) collect(ctx context.Context, lane store.Lane, seqs []int64) (found []ops.ArchivedRow, err error) {
	rows, err := p.q.QueryContext(ctx, `SELECT seq, `+db.MessageColumns+` FROM postrider_outbox WHERE seq IN (`+db.Numbers(seqs)+`) AND lane = ? ORDER BY seq`, lane)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for size := 0; rows.Next() && size < batchBytes; {
		r := ops.ArchivedRow{Lane: lane}
		if r.Message, err = db.ScanMessage(rows, &r.Seq); err != nil {
			return nil, err
		}
		size += len(r.Message.Payload)
		found = append(found, r)
	}
	return found, errors.Join(rows.Err(), rows.Close())
}

// held finds, at the end of a sweep, which pipe holds most rows back. Each lane of a
// pipe is counted as far as the cap, and at least to a million.
func (p *pruning) held(ctx context.Context) error {
	pipes, err := progresses(ctx, p.q, 0)
	if err != nil {
		return err
	}
	h := &p.out.Held
	for _, pipe := range pipes {
		above := map[store.Lane]int64{}
		for lane, settled := range pipe.settled {
			above[lane] = settled.At
		}
		behind, err := db.Behind(ctx, p.q, above)
		if err != nil {
			return err
		}
		total := int64(0)
		for lane := range behind {
			var n int64
			err := p.q.QueryRowContext(ctx, `SELECT COUNT(*) FROM (SELECT 1 FROM postrider_outbox FORCE INDEX (lane_seq) WHERE lane = ? AND seq > ? LIMIT ?) AS x`,
				lane, above[lane], max(heldLimit, p.req.HoldRows+1)).Scan(&n)
			if err != nil {
				return err
			}
			total += n
		}
		if total > h.Rows {
			h.Pipe, h.Rows = pipe.pipe, total
		}
	}
	if h.Rows == 0 {
		return nil
	}
	var each int64
	err = p.q.QueryRowContext(ctx, `SELECT COALESCE(AVG(size), 0) DIV 1 + ? FROM (SELECT size FROM postrider_outbox ORDER BY seq DESC LIMIT 100) AS x`, rowOverhead).Scan(&each)
	h.Bytes = h.Rows * each
	h.Over = p.req.HoldRows > 0 && h.Rows > p.req.HoldRows || p.req.HoldBytes > 0 && h.Bytes > p.req.HoldBytes
	return err
}
