// Package housekeeping keeps an outbox within its bounds: retention, the two books,
// partitions, and the removal of personal data.
package housekeeping

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/journal"
)

// actPrune is the name of the act in the journal.
const actPrune = "prune"

const (
	pruneLimit   = 1000 // rows per batch
	pruneTTL     = 10 * time.Second
	pruneTimeout = 30 * time.Second // of one statement of a batch
	batchBytes   = int64(16 << 20)  // payloads of a batch
)

// Retainer removes rows that every pipe has settled, and keeps the books. It is safe for
// concurrent use.
type Retainer struct {
	*db.Outbox
	journal *journal.Journal
	sql     retainTexts
}

// NewRetainer returns the retention of an outbox. It does no I/O.
func NewRetainer(o *db.Outbox) *Retainer {
	s := &Retainer{Outbox: o, journal: journal.New(o)}
	s.sql.retainSQL(o.Render)
	s.sql.bookSQL(o.Render)
	return s
}

// errReopen reports that the history has changed: an audit must run first and begin new books.
var errReopen = errors.New("the database's history has changed since the last audit: run an audit first")

// Prune removes one batch of settled rows; see [ops.Retainer].
func (s *Retainer) Prune(ctx context.Context, req ops.PruneRequest) (ops.Pruned, error) {
	if s.Bad != nil {
		return ops.Pruned{}, s.Bad
	}
	if req.Payloads && (req.Archive != nil || req.MaxBytes > 0) {
		return ops.Pruned{}, errors.New("prune: payloads are removed by age only, and never archived")
	}
	if req.Runner == "" && !req.DryRun {
		return ops.Pruned{}, errors.New("prune: the runner has no name")
	}
	if req.Limit <= 0 {
		req.Limit = pruneLimit
	}
	if req.TTL <= 0 {
		req.TTL = pruneTTL
	}
	if req.Leave {
		_, err := s.Pool.Exec(ctx, s.sql.retainLeave, req.Runner)
		return ops.Pruned{}, s.Wrap("give the lease of retention back", err)
	}
	p := &pruning{store: s, req: req}
	var err error
	switch {
	case req.DryRun:
		err = p.transaction(ctx, p.due)
	case req.Archive != nil:
		err = p.archive(ctx)
	default:
		err = p.transaction(ctx, p.batch)
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" && !strings.Contains(pg.Message, "row-level security") {
		return p.out, &store.UnusableError{
			What: "prune: " + pg.Message,
			Fix:  fmt.Sprintf("rows are removed by the role %s_relay (`postrider migrate --roles`), which a person may be granted too", s.Schema),
			Err:  err,
		}
	}
	return p.out, s.Wrap("prune", err)
}

// pruning is one call of Prune.
type pruning struct {
	store *Retainer
	req   ops.PruneRequest
	out   ops.Pruned

	epoch      int64 // of the lease, 0 before the first batch
	rowBytes   int64 // average size of a row of the outbox
	ids, after []int64
	age        float64
	limit      int // rows of a lane
	rows       []ops.ArchivedRow
}

// transaction takes lease and locks and runs one batch.
func (p *pruning) transaction(ctx context.Context, work func(context.Context, pgx.Tx) error) error {
	s := p.store
	return s.LookingAnew(ctx, func(tx pgx.Tx) error {
		ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
		timeout := pruneTimeout
		if p.req.DryRun {
			timeout = 10 * time.Minute
		}
		lock := s.LockWait
		if p.req.Take { // the batch of another runner ends first
			lock = pruneTimeout
		}
		if _, err := tx.Exec(ctx, s.sql.retainSession, ms(lock), ms(timeout), ms(p.req.TTL)); err != nil {
			return err
		}
		if !p.req.DryRun {
			if mine, err := p.lease(ctx, tx); err != nil || !mine {
				return err
			}
			if _, err := tx.Exec(ctx, s.sql.retainLock); err != nil {
				return err
			}
		}
		if err := p.safe(ctx, tx); err != nil {
			return err
		}
		return work(ctx, tx)
	})
}

// lease takes or renews the lease and keeps its row locked.
func (p *pruning) lease(ctx context.Context, tx pgx.Tx) (mine bool, err error) {
	s := p.store
	var epoch int64
	err = tx.QueryRow(ctx, s.sql.retainLease, p.req.Runner, p.req.TTL.Seconds(), p.req.Take).Scan(&epoch)
	if errors.Is(err, pgx.ErrNoRows) {
		if p.epoch > 0 {
			return false, &ops.RunnerError{Epoch: p.epoch}
		}
		return false, tx.QueryRow(ctx, s.sql.retainOwner).Scan(&p.out.Runner)
	}
	if err == nil && p.epoch > 0 && epoch != p.epoch {
		return false, &ops.RunnerError{Epoch: p.epoch}
	}
	p.epoch = epoch
	return err == nil, err
}

// meansSettled refuses a database in which rows may look settled that are not.
// counted is false until an audit has covered the present history.
func (s *Retainer) meansSettled(ctx context.Context, tx pgx.Tx) (counted bool, err error) {
	var secured, home, ascends bool
	if err := tx.QueryRow(ctx, s.sql.retainSafe).Scan(&secured, &home, &counted, &ascends); err != nil {
		return false, err
	}
	switch {
	case secured:
		return false, db.RowSecurity(s.Schema, "outbox", nil)
	case !home:
		return false, db.Moved(s.Schema)
	case !ascends:
		return false, fmt.Errorf("%w: the sequence was set back below a cursor; a relay lifts it, or `postrider migrate --adopt`", store.ErrIdentity)
	}
	return counted, nil
}

// safe refuses a database whose settled rows cannot be trusted or have not been counted, and
// determines the rows of the batch.
func (p *pruning) safe(ctx context.Context, tx pgx.Tx) error {
	counted, err := p.store.meansSettled(ctx, tx)
	if err != nil {
		return err
	}
	if !counted {
		return errReopen
	}
	p.age = p.req.OlderThan.Seconds()
	if err := p.choose(ctx, tx); err != nil {
		return err
	}
	if p.req.MaxBytes > 0 && !p.req.DryRun {
		return p.bySize(ctx, tx)
	}
	return nil
}

// choose lists the lanes of the batch and shares the limit between them.
func (p *pruning) choose(ctx context.Context, tx pgx.Tx) error {
	lanes := p.req.Lanes
	if lanes == nil {
		rows, err := tx.Query(ctx, p.store.Render(`SELECT lane FROM {{schema}}.book_lane ORDER BY lane`))
		if err != nil {
			return err
		}
		if lanes, err = pgx.CollectRows(rows, pgx.RowTo[store.Lane]); err != nil {
			return err
		}
	}
	p.out.After = map[store.Lane]int64{}
	for lane, seq := range p.req.After {
		p.out.After[lane] = seq
	}
	if p.req.Archive != nil && len(lanes) > 1 {
		p.out.Left, lanes = lanes[1:], lanes[:1]
	}
	for _, lane := range lanes {
		p.ids, p.after = append(p.ids, int64(lane)), append(p.after, p.req.After[lane])
	}
	p.limit = max((p.req.Limit+len(lanes)-1)/max(len(lanes), 1), 1)
	return nil
}

// bySize makes rows due early while the outbox is larger than MaxBytes.
func (p *pruning) bySize(ctx context.Context, tx pgx.Tx) error {
	present, err := p.size(ctx, tx)
	if err != nil || p.rowBytes == 0 {
		return err
	}
	if excess := present - p.req.MaxBytes/p.rowBytes; excess > 0 {
		p.age = 0
		p.limit = int(min(int64(p.limit), max(excess/int64(max(len(p.ids), 1)), 1)))
	}
	return nil
}

// size estimates the number of rows and the size of a row.
func (p *pruning) size(ctx context.Context, tx pgx.Tx) (present int64, err error) {
	err = tx.QueryRow(ctx, p.store.sql.retainSize).Scan(&p.rowBytes, &present)
	return present, err
}

// batch removes rows without reading their payloads.
func (p *pruning) batch(ctx context.Context, tx pgx.Tx) error {
	text, args := p.store.sql.prunePage, []any{p.ids, p.after, p.age, p.limit, max(batchBytes/int64(max(len(p.ids), 1)), 1)}
	if p.req.Payloads {
		text, args = p.store.sql.emptyPage, append(args, postrider.ErasedHeader)
	}
	rows, err := tx.Query(ctx, text, args...)
	if err != nil {
		return err
	}
	p.out.Lanes = map[store.Lane]int64{}
	for rows.Next() {
		var lane store.Lane
		var seen, removed, last, bytes int64
		if err := rows.Scan(&lane, &seen, &removed, &last, &bytes); err != nil {
			return err
		}
		p.sawPage(lane, seen, last)
		if removed > 0 {
			p.out.Lanes[lane] = removed
			p.out.Rows += removed
			p.out.Bytes += bytes
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return p.end(ctx, tx)
}

// sawPage records how far a lane was read. A page of rows that are all too young ends the
// lane's turn.
func (p *pruning) sawPage(lane store.Lane, seen, last int64) {
	if last < 0 {
		return
	}
	p.out.After[lane] = last
	if seen >= int64(p.limit) {
		p.out.Left = append(p.out.Left, lane)
	}
}

// due counts due rows and removes none.
func (p *pruning) due(ctx context.Context, tx pgx.Tx) error {
	if err := p.countDue(ctx, tx); err != nil {
		return err
	}
	if p.req.MaxBytes > 0 {
		present, err := p.size(ctx, tx)
		if err != nil {
			return err
		}
		if excess := present - p.req.MaxBytes/max(p.rowBytes, 1); excess > p.out.Rows { // more than the rows that are old enough
			p.age = 0
			if err := p.countDue(ctx, tx); err != nil {
				return err
			}
			p.share(excess)
		}
	}
	return p.held(ctx, tx)
}

func (p *pruning) countDue(ctx context.Context, tx pgx.Tx) error {
	text := p.store.sql.pruneDue
	if p.req.Payloads {
		text = p.store.sql.emptyDue
	}
	rows, err := tx.Query(ctx, text, p.ids, p.after, p.age)
	if err != nil {
		return err
	}
	defer rows.Close()
	p.out.Lanes, p.out.Rows, p.out.Bytes = map[store.Lane]int64{}, 0, 0
	for rows.Next() {
		var lane store.Lane
		var n, bytes int64
		if err := rows.Scan(&lane, &n, &bytes); err != nil {
			return err
		}
		p.out.Lanes[lane] = n
		p.out.Rows += n
		p.out.Bytes += bytes
	}
	return rows.Err()
}

// share distributes a number of rows over the lanes, in proportion to their removable rows.
func (p *pruning) share(n int64) {
	if n >= p.out.Rows {
		return
	}
	part := float64(n) / float64(p.out.Rows)
	for lane, rows := range p.out.Lanes {
		p.out.Lanes[lane] = int64(float64(rows) * part)
	}
	p.out.Rows, p.out.Bytes, p.out.Estimated = n, int64(float64(p.out.Bytes)*part), true
}

// end records the result of the batch in its transaction.
func (p *pruning) end(ctx context.Context, tx pgx.Tx) error {
	if err := p.write(ctx, tx); err != nil {
		return err
	}
	return p.held(ctx, tx)
}

// write records a person's prune in the journal: the first batch that removes rows and, at
// the end of the sweep, the total.
func (p *pruning) write(ctx context.Context, tx pgx.Tx) (err error) {
	total, last := p.req.Removed+p.out.Rows, len(p.out.Left) == 0
	p.out.Entry = p.req.Entry
	if p.req.Actor == "" || total == 0 || p.req.Entry > 0 && !last {
		return nil
	}
	e := ops.JournalEntry{Actor: p.req.Actor, Act: actPrune, Reason: p.req.Reason, Result: journal.Asked, Ask: p.req.Entry}
	if last {
		e.Result, e.Count = journal.Done, &total
	}
	target := map[string]any{"older_than": p.req.OlderThan.String()}
	if p.req.MaxBytes > 0 {
		target["max_bytes"] = p.req.MaxBytes
	}
	if p.req.Payloads {
		target["payloads"] = true
	}
	if p.req.Archive != nil {
		target["archive"] = true
	}
	if e.Target, err = json.Marshal(target); err != nil {
		return err
	}
	id, err := p.store.journal.Write(ctx, tx, e)
	if p.out.Entry == 0 {
		p.out.Entry = id
	}
	return err
}

// held finds, at the end of a sweep, the pipe that holds back most rows, and stores it for
// status and doctor.
func (p *pruning) held(ctx context.Context, tx pgx.Tx) error {
	if len(p.out.Left) > 0 {
		return nil
	}
	if p.rowBytes == 0 {
		if _, err := p.size(ctx, tx); err != nil {
			return err
		}
	}
	h := &p.out.Held
	err := tx.QueryRow(ctx, p.store.sql.retainHeld).Scan(&h.Pipe, &h.Rows)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && h.Rows <= 0 {
		*h, err = ops.Held{}, nil
	}
	if err != nil {
		return err
	}
	h.Bytes = h.Rows * p.rowBytes
	h.Over = p.req.HoldRows > 0 && h.Rows > p.req.HoldRows || p.req.HoldBytes > 0 && h.Bytes > p.req.HoldBytes
	if p.req.DryRun {
		return nil
	}
	_, err = tx.Exec(ctx, p.store.sql.retainNote, p.req.Runner, h.Pipe, h.Rows, h.Bytes, h.Over)
	return err
}

// archive reads a batch of one lane, passes it to the archive, and removes exactly these rows
// in a second transaction under the same lease.
func (p *pruning) archive(ctx context.Context) error {
	if err := p.transaction(ctx, p.collect); err != nil || p.out.Runner != "" || len(p.rows) == 0 {
		return err
	}
	if err := p.req.Archive(ctx, p.rows); err != nil {
		return fmt.Errorf("archive %d rows of lane %d: %w", len(p.rows), p.rows[0].Lane, err)
	}
	after, left := p.out.After, p.out.Left
	p.ids, p.after = nil, nil
	return p.transaction(ctx, func(ctx context.Context, tx pgx.Tx) error {
		lanes, seqs := make([]int64, len(p.rows)), make([]int64, len(p.rows))
		for i, r := range p.rows {
			lanes[i], seqs[i] = int64(r.Lane), r.Seq
			p.out.Bytes += int64(len(r.Message.Payload))
		}
		if err := tx.QueryRow(ctx, p.store.sql.pruneExact, lanes, seqs).Scan(&p.out.Rows); err != nil {
			return err
		}
		p.out.Lanes = map[store.Lane]int64{p.rows[0].Lane: p.out.Rows}
		p.out.After, p.out.Left = after, left
		return p.end(ctx, tx)
	})
}

// collect reads the rows of an archive's batch.
func (p *pruning) collect(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, p.store.sql.pruneRows, p.ids, p.after, p.age, p.limit, batchBytes)
	if err != nil {
		return err
	}
	seen, last := int64(0), int64(-1)
	for rows.Next() {
		var r ops.ArchivedRow
		var old, free bool
		var headers []byte
		var notBefore, created db.Time
		m := &r.Message
		if err := rows.Scan(&r.Lane, &r.Seq, &old, &free, &m.ID, &m.Topic, &m.Key, &m.Type, &m.Payload, &m.ContentType,
			&headers, &m.Version, &m.SchemaVersion, &notBefore, &created); err != nil {
			return err
		}
		seen++
		if old {
			last = r.Seq
		}
		if !old || !free || created == nil {
			continue
		}
		if err := json.Unmarshal(headers, &m.Headers); err != nil {
			return fmt.Errorf("headers of row %d: %w", r.Seq, err)
		}
		if notBefore != nil {
			m.NotBefore = notBefore.UTC()
		}
		m.Time = created.UTC()
		p.rows = append(p.rows, r)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if len(p.rows) > 0 {
		seen = math.MaxInt64 // the limit of bytes may have cut the page; the next call continues
	}
	if len(p.ids) > 0 {
		p.sawPage(store.Lane(p.ids[0]), seen, last)
	}
	if len(p.rows) == 0 {
		return p.end(ctx, tx)
	}
	return nil
}

// Tidy removes old rows of the other tables.
func (s *Retainer) Tidy(ctx context.Context, req ops.TidyRequest) (ops.Tidied, error) {
	if s.Bad != nil {
		return nil, s.Bad
	}
	if req.Acts <= 0 {
		req.Acts = 7 * 24 * time.Hour
	}
	if req.Journal <= 0 {
		req.Journal = 400 * 24 * time.Hour
	}
	var journal bool // with roles, only the owner may
	if err := s.Pool.QueryRow(ctx, s.sql.mayTidyJournal).Scan(&journal); err != nil {
		return nil, s.Wrap("tidy", err)
	}
	steps := []struct {
		table, sql string
		args       []any
	}{
		{"progress", s.sql.tidyProgress, []any{int64(db.KeepProgress)}},
		{"running", s.sql.pruneRunning, []any{time.Now().Add(-time.Hour).UnixMilli() << 20}},
		{"settlement", s.sql.tidySettlements, nil},
		{"minute", s.sql.tidyMinutes, nil},
		{"unparked", s.sql.tidyUnparked, nil},
		{"relay", s.sql.tidyRelays, nil},
		{"request", s.sql.tidyActs, []any{req.Acts.Seconds()}},
	}
	if journal {
		steps = append(steps, struct {
			table, sql string
			args       []any
		}{"audit", s.sql.tidyJournal, []any{req.Journal.Seconds()}})
	}
	done := ops.Tidied{}
	for _, step := range steps {
		b := &pgx.Batch{}
		s.QueueSession(b, s.Limits().Lock)
		n := int64(0)
		b.Queue(step.sql, step.args...)
		res := s.Pool.SendBatch(ctx, b)
		_, err := res.Exec()
		if err == nil {
			var tag interface{ RowsAffected() int64 }
			tag, err = res.Exec()
			n = tag.RowsAffected()
		}
		if err = errors.Join(err, res.Close()); err != nil {
			return done, s.Wrap("tidy table "+step.table, err)
		}
		if n > 0 {
			done[step.table] = n
		}
	}
	return done, nil
}
