package housekeeping

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/xids"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

const (
	auditTimeout = 10 * time.Minute
	// pendingLimit is the number of pending rows that an audit counts per lane. Above it the
	// lane is behind, and its book is closed again when the lane has caught up.
	pendingLimit = 20_000
	// repeatedLimit is that number for audits that a relay repeats: in a backlog each row that
	// they count is in a block of its own.
	repeatedLimit = 500
	// explainLanes is the number of lanes for which an audit names candidates. Candidates are
	// expensive, and if more lanes differ the cause is not one message.
	explainLanes = 8
)

// booksLock begins the name of the advisory lock of an audit.
const booksLock = "postrider books "

// errLook reports that another audit ran in between: nothing was recorded.
var errLook = errors.New("another process has audited in the meantime: run the audit again")

// Audit compares the two books; see [ops.Retainer]. Audits of several instances run one
// after the other.
func (s *Retainer) Audit(ctx context.Context, req ops.AuditRequest) (ops.Books, error) {
	if s.Bad != nil {
		return ops.Books{}, s.Bad
	}
	a := &auditing{store: s, req: req, limit: pendingLimit}
	a.req.Full = req.Full || req.Reopen // or missing rows could not be found later
	switch {
	case a.req.Full:
		a.limit = math.MaxInt64
	case a.req.MaxAge > 0 || a.req.Count: // the first count opens the books
		a.limit = repeatedLimit
	}
	err := s.LookingAnew(ctx, func(tx pgx.Tx) error {
		a.tx = tx
		ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
		if _, err := tx.Exec(ctx, s.sql.retainSession, ms(time.Minute), ms(auditTimeout), ms(time.Minute)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, s.sql.bookTurn, booksLock+s.Schema); err != nil {
			return err
		}
		return a.run(ctx)
	})
	return a.out, s.Wrap("audit", err)
}

// auditing is one audit.
type auditing struct {
	store *Retainer
	tx    pgx.Tx
	req   ops.AuditRequest
	limit int64 // of pending rows counted in a lane
	out   ops.Books

	pos             int64 // of the books' cursor
	running         string
	same            bool // the history has not changed since the last audit
	epoch, floor    int64
	deleted         int64
	strange         int64
	removed         int64 // by retention, at the last audit and now
	nowRemoved      int64
	opened          bool // a book was opened earlier
	look            xids.Look
	lanes           map[store.Lane]laneCount
	changed         []store.Lane // lanes whose count changed
	books           []pipeBook
	explained       int // number of lanes with candidates
	lookedAt        db.Time
	comparedAt      db.Time
	nowDeleted, top int64
}

// laneCount has the counts of a lane's rows.
type laneCount struct {
	fresh, top, present, committed, base, removed int64
	missing                                       *int64
}

// pipeBook is a lane of a pipe as found by the audit.
type pipeBook struct {
	ops.LaneBook
	opened                bool
	counted, base         int64
	fresh                 int64 // new rows that pass the pipe's filter; below 0: the pipe has no filter
	pos, checked          int64
	oldDiff, oldFrom, old int64
}

func (a *auditing) run(ctx context.Context) error {
	recent, err := a.begin(ctx)
	if err != nil {
		return err
	}
	if recent && !a.req.Full && !a.req.Reopen && !a.req.Count {
		a.out.At = a.comparedAt.UTC()
		return a.stored(ctx)
	}
	if err := a.read(ctx); err != nil {
		return err
	}
	a.count()
	if a.req.Count {
		return a.saveCount(ctx)
	}
	for i := range a.books {
		a.compare(&a.books[i])
	}
	if err := a.save(ctx); err != nil {
		return err
	}
	if a.req.Reopen {
		if _, err := a.store.journal.Write(ctx, a.tx, ops.JournalEntry{Actor: a.req.Actor, Act: "audit reopen", Reason: a.req.Reason}); err != nil {
			return err
		}
	}
	return a.explain(ctx)
}

// begin reads the books' cursor and the sequence, before the audit's snapshot.
func (a *auditing) begin(ctx context.Context) (recent bool, err error) {
	err = a.tx.QueryRow(ctx, a.store.sql.bookOpen, a.req.MaxAge.Seconds()).Scan(&a.pos, &a.running, &a.same, &a.epoch, &a.floor,
		&a.deleted, &a.strange, &a.removed, &a.opened, &recent, &a.lookedAt, &a.comparedAt)
	if err != nil {
		return false, err
	}
	if err := a.tx.QueryRow(ctx, a.store.sql.bookFloor).Scan(&a.top, &a.nowDeleted); err != nil {
		return false, err
	}
	if !a.same || a.req.Reopen || !a.opened { // earlier rows are not counted
		a.pos, a.running, a.opened = a.top, "{}", false
	}
	if a.pos == 0 && a.floor == 0 && a.running == "{}" { // nothing was counted: every transaction is new
		a.running = "{[3,4)}"
	}
	return recent, nil
}

// read reads all counts in one snapshot.
func (a *auditing) read(ctx context.Context) error {
	err := a.tx.QueryRow(ctx, a.store.Render(`SELECT coalesce(sum(removed), 0)::bigint FROM {{schema}}.book_lane`)).Scan(&a.nowRemoved)
	if err != nil {
		return err
	}
	a.suspect()
	a.req.Count = a.req.Count && a.opened && !a.req.Full
	rows, err := a.tx.Query(ctx, a.store.sql.bookLook, a.pos, a.running, a.floor, a.limit, a.req.Full, a.req.Count, a.running != "{}")
	if err != nil {
		return err
	}
	defer rows.Close()
	a.lanes = map[store.Lane]laneCount{}
	for rows.Next() {
		var kind int
		var pipe, snapshot string
		var lane store.Lane
		var at db.Time
		var v []int64
		if err := rows.Scan(&kind, &pipe, &lane, &snapshot, &at, &v); err != nil {
			return err
		}
		switch kind {
		case 0:
			a.out.At = at.UTC()
			if a.look, err = xids.NewLook(snapshot, v[0]); err != nil {
				return err
			}
		case 1:
			a.lanes[lane] = laneCount{fresh: v[0], top: v[1], present: v[2], committed: v[3], base: v[4], removed: v[5]}
		default:
			b := pipeBook{
				opened: v[0] == 1 && a.opened, counted: v[1], base: v[2], pos: v[9],
				oldDiff: v[10], oldFrom: v[11], old: v[12], checked: v[13], fresh: v[14],
			}
			b.Pipe, b.Lane, b.Sent, b.Parked, b.Gone, b.Again, b.Pending = pipe, lane, v[3], v[4], v[5], v[6], v[7]
			b.Behind = v[8] == 1
			a.books = append(a.books, b)
		}
	}
	return rows.Err()
}

// suspect demands a full count if the server has counted deletions that retention did not
// make. The server's statistics are late: a count below retention's proves nothing until both
// counts stop changing; then a partition was dropped.
func (a *auditing) suspect() {
	strange := a.nowDeleted - a.nowRemoved
	if a.nowDeleted < a.deleted || a.nowDeleted == a.deleted && a.nowRemoved == a.removed {
		a.strange = min(a.strange, strange)
	}
	if strange > a.strange {
		a.strange, a.req.Full = strange, a.req.Full || a.opened
	}
}

// count adds the lanes' new rows to the book of rows.
func (a *auditing) count() {
	a.out.Full = a.req.Full
	for lane, c := range a.lanes {
		a.top = max(a.top, c.top)
		a.out.Counted += c.fresh
		c.committed += c.fresh
		if a.req.Full {
			ever := c.present + c.removed
			if c.base < 0 || !a.opened {
				c.base = ever - c.committed
			}
			missing := c.base + c.committed - ever
			c.missing = &missing
			a.out.Counted += c.present
		} else if !a.opened {
			none := int64(0)
			c.base, c.missing = -1, &none
		}
		a.lanes[lane] = c
		a.changed = append(a.changed, lane)
	}
	slices.Sort(a.changed)
}

// compare closes one lane of one pipe.
func (a *auditing) compare(b *pipeBook) {
	settled := b.Sent + b.Parked + b.Gone - b.Again
	b.counted += a.freshOf(b)
	if !b.opened {
		// Earlier differences are accepted. The book of a lane that is behind is opened
		// with the counted part, and again at every audit until the lane has caught up.
		b.counted, b.base = 0, -settled-b.Pending
		a.out.Opened = true
		b.oldDiff = 0
	}
	b.Committed = b.counted - b.base
	b.Difference = b.Committed - settled - b.Pending
	if b.Behind && b.Difference > 0 { // more rows are pending than were counted
		b.Difference = 0
	}
	switch {
	case b.Difference == 0:
		b.From, b.To = 0, 0
	case b.Difference == b.oldDiff:
		b.From, b.To = b.oldFrom, b.old
	default:
		b.From, b.To = b.checked, a.top
	}
	if !b.Behind || b.Difference != 0 {
		b.checked = min(b.pos, a.top)
	}
}

// saveCount records the counts without a comparison.
func (a *auditing) saveCount(ctx context.Context) error {
	var pipes []string
	var lanes, committed []int64
	for i := range a.books {
		if b := &a.books[i]; b.opened {
			pipes, lanes, committed = append(pipes, b.Pipe), append(lanes, int64(b.Lane)), append(committed, b.counted+a.freshOf(b))
		}
	}
	if _, err := a.tx.Exec(ctx, a.store.sql.bookCount, pipes, lanes, committed); err != nil {
		return err
	}
	return a.move(ctx)
}

// freshOf returns how many of the new rows are for the pipe.
func (a *auditing) freshOf(b *pipeBook) int64 {
	if b.fresh < 0 {
		return a.lanes[b.Lane].fresh
	}
	return b.fresh
}

func (a *auditing) save(ctx context.Context) error {
	if err := a.saveBooks(ctx); err != nil {
		return err
	}
	return a.move(ctx)
}

func (a *auditing) saveBooks(ctx context.Context) error {
	cols := make([][]int64, 12)
	var pipes []string
	var behind []bool
	for i := range a.books {
		b := &a.books[i]
		if !b.opened && b.Behind {
			continue // opened when its pending rows can be counted
		}
		pipes, behind = append(pipes, b.Pipe), append(behind, b.Behind)
		for j, v := range []int64{int64(b.Lane), b.counted, b.base, b.Sent, b.Parked, b.Gone, b.Again, b.Pending, b.Difference, b.From, b.To, b.checked} {
			cols[j] = append(cols[j], v)
		}
	}
	if len(pipes) > 0 {
		_, err := a.tx.Exec(ctx, a.store.sql.bookSave, pipes, cols[0], cols[1], cols[2], cols[3], cols[4], cols[5], cols[6], cols[7],
			behind, cols[8], cols[9], cols[10], cols[11])
		if err != nil {
			return err
		}
	}
	return nil
}

// move records the lanes' counts and the new cursor.
func (a *auditing) move(ctx context.Context) error {
	var ids, committed, bases []int64
	var missing []*int64
	for _, lane := range a.changed {
		c := a.lanes[lane]
		ids, committed, bases = append(ids, int64(lane)), append(committed, c.committed), append(bases, c.base)
		missing = append(missing, c.missing)
	}
	if _, err := a.tx.Exec(ctx, a.store.sql.bookLanes, ids, committed, bases, missing); err != nil {
		return err
	}
	// With the next transaction the set ends where those that begin now follow, also when none runs.
	running := a.look.Running.Union(xids.Set{{Lo: a.look.Next, Hi: a.look.Next + 1}})
	moved, err := a.tx.Exec(ctx, a.store.sql.bookMove, a.top, running.String(), a.epoch, a.nowDeleted, a.strange, a.out.At, a.lookedAt, a.req.Count, a.nowRemoved)
	if err == nil && moved.RowsAffected() == 0 {
		err = errLook
	}
	return err
}

// explain lists the lanes, and names candidates for lanes that differ.
func (a *auditing) explain(ctx context.Context) error {
	for i := range a.books {
		b := &a.books[i].LaneBook
		if err := a.candidates(ctx, b); err != nil {
			return err
		}
		a.out.Lanes = append(a.out.Lanes, *b)
	}
	slices.SortFunc(a.out.Lanes, func(x, y ops.LaneBook) int {
		if x.Pipe != y.Pipe {
			if x.Pipe < y.Pipe {
				return -1
			}
			return 1
		}
		return int(x.Lane) - int(y.Lane)
	})
	return a.missing(ctx)
}

func (a *auditing) candidates(ctx context.Context, b *ops.LaneBook) (err error) {
	if b.Difference == 0 || a.explained >= explainLanes {
		return nil
	}
	a.explained++
	if b.IDs, err = listed[string](ctx, a.tx, a.store.sql.bookIDs, b.Lane, b.From, b.To); err != nil {
		return err
	}
	b.Unused, err = listed[int64](ctx, a.tx, a.store.sql.bookUnused, b.From, b.To)
	return err
}

// missing lists the missing rows of the last full count.
func (a *auditing) missing(ctx context.Context) error {
	rows, err := a.tx.Query(ctx, a.store.sql.bookMissing)
	if err != nil {
		return err
	}
	a.out.Missing, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (g ops.LaneGap, err error) {
		err = row.Scan(&g.Lane, &g.Rows)
		return g, err
	})
	if err != nil {
		return err
	}
	if len(a.out.Missing) == 0 {
		return nil
	}
	var oldest int64 // below, retention has made gaps
	if err := a.tx.QueryRow(ctx, a.store.sql.bookOldest).Scan(&oldest); err != nil {
		return err
	}
	for i := range min(len(a.out.Missing), explainLanes) {
		if a.out.Missing[i].Unused, err = listed[int64](ctx, a.tx, a.store.sql.bookUnused, oldest, max(a.top, a.pos)); err != nil {
			return err
		}
	}
	return nil
}

// stored returns the result of an audit that another instance made a moment ago.
func (a *auditing) stored(ctx context.Context) error {
	rows, err := a.tx.Query(ctx, a.store.sql.bookStored)
	if err != nil {
		return err
	}
	a.out.Lanes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (b ops.LaneBook, err error) {
		err = row.Scan(&b.Pipe, &b.Lane, &b.Committed, &b.Sent, &b.Parked, &b.Gone, &b.Again, &b.Pending, &b.Behind, &b.Difference, &b.From, &b.To)
		return b, err
	})
	if err != nil {
		return err
	}
	for i := range a.out.Lanes {
		if err := a.candidates(ctx, &a.out.Lanes[i]); err != nil {
			return err
		}
	}
	return a.missing(ctx)
}

// listed runs a query with one column.
func listed[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return values, nil
}
