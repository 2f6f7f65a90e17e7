package pgstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/operations"
)

// Lease renews the heartbeat, gives lanes back and takes free ones, by the
// database's clock alone. The heartbeat is a transaction of its own: a lane that
// cannot be taken, because an unfinished settle of another instance holds its next number,
// affects no other lane.
func (s *Store) Lease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	if s.box.Bad != nil {
		return store.Grant{}, s.box.Bad
	}
	if req.BootID == "" {
		return store.Grant{}, errors.New("lease: the boot id is empty")
	}
	s.box.SetTTL(req.TTL)
	s.bell.Name(req.BootID)
	if err := s.checkWake(ctx); err != nil {
		return store.Grant{}, s.box.Wrap("lease lanes", err)
	}
	if err := s.giveBack(ctx, req); err != nil {
		return store.Grant{}, s.box.Wrap("release lanes", err)
	}
	g, err := s.lease(ctx, req)
	if errors.Is(err, store.ErrNoPipe) && s.opts.MakePipe && !s.box.KnowsPipe() {
		if err = s.makePipe(ctx); err == nil {
			g, err = s.lease(ctx, req)
		}
	}
	s.heard(err)
	return g, s.box.Wrap("lease lanes", err)
}

// silentLeases is the number of heartbeats in a row without an answer after
// which the connections of the pool count as broken.
const silentLeases = 2

// heard records how a heartbeat ended. A frozen or disconnected server leaves its
// connections open, and each would cost one more heartbeat before it is noticed.
func (s *Store) heard(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !errors.Is(err, context.DeadlineExceeded) {
		s.silent = 0
		return
	}
	if s.silent++; s.silent == silentLeases {
		s.box.Pool.Reset()
	}
}

// minuteDue reports whether this heartbeat records the lanes' positions: one a minute,
// and the last one.
func (s *Store) minuteDue(leaves bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return leaves || s.minute.IsZero() || time.Since(s.minute) >= time.Minute
}

// noteMinute records the lanes' positions, in a transaction of its own, so that its failure
// ends no lease. A missing minute leaves the sent time of some messages unknown.
func (s *Store) noteMinute(ctx context.Context, leaves bool) {
	b := &pgx.Batch{}
	s.box.QueueSession(b, s.box.Limits().Lock)
	b.Queue(s.sql.minute, s.opts.Pipe, leaves)
	_ = s.box.Pool.SendBatch(ctx, b).Close() // the next minute tries again
	s.mu.Lock()
	defer s.mu.Unlock()
	s.minute = time.Now()
}

// heldOf returns the destinations that an instance holds, in the form of the table.
func heldOf(held []store.Held) string {
	if len(held) == 0 {
		return "[]"
	}
	text, err := json.Marshal(held)
	if err != nil { // cannot happen with strings and times
		return "[]"
	}
	return string(text)
}

// leaseAnswer has the results of the statements of a lease.
type leaseAnswer struct {
	schema        db.Found
	lanes         int
	identity      string
	now           time.Time // by the database's clock
	secured, home bool
	pipe          *db.Row
	subscription  string // that writes into the outbox
	ascends       bool   // the sequence gives numbers out in the order they are asked for
	unlogged      string // a table that a crash empties
	stopped       []string
	standing
}

// standing is the state of an instance at a moment.
type standing struct {
	history  uint32 // of the positions
	live     int
	lapse    time.Duration
	grants   []store.LaneGrant
	requests []store.Request
	kinds    map[int64]string // of the requests, as the table has them
}

func (s *Store) lease(ctx context.Context, req store.LeaseRequest) (g store.Grant, err error) {
	var a leaseAnswer
	var found *string // the pipe as JSON
	pipe := s.opts.Pipe
	b := &pgx.Batch{}
	s.box.QueueSession(b, s.box.Limits().Lock)
	b.Queue(s.sql.info, pipe).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&a.schema.Version, &a.schema.Compatible, &a.lanes, &a.identity, &a.secured, &a.home, &a.subscription, &a.ascends, &a.unlogged, &a.now, &found)
		a.history = historyOf(a.identity)
		return err
	})
	b.Queue(s.sql.expired, pipe, req.BootID)
	if req.Leave {
		b.Queue(s.sql.leave, pipe, req.BootID)
	} else {
		trouble := append(append([]string{}, req.Report.Trouble...), s.views.Trouble()...) // never NULL
		if req.Report.Wake != "" {
			trouble = append(trouble, operations.WakeMark+req.Report.Wake)
		}
		b.Queue(s.sql.heartbeat, pipe, req.BootID, req.Instance, req.TTL.Seconds(), req.Report.Version, time.Now(), trouble, req.Report.Reach, heldOf(req.Report.Held))
	}
	if s.knownIdentity() == "" { // reveals a missing privilege at the start, even if no lane is free
		b.Queue(s.sql.take, pipe, req.BootID, []int16{})
	}
	b.Queue(s.sql.stopped, pipe).Query(func(rows pgx.Rows) (err error) {
		a.stopped, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	s.queueStanding(b, req.BootID, &a.standing)
	if err := s.box.Pool.SendBatch(ctx, b).Close(); err != nil {
		return g, err
	}
	if s.minuteDue(req.Leave) {
		s.noteMinute(ctx, req.Leave)
	}
	if err := s.judge(&a); err != nil {
		return g, err
	}
	if a.pipe, err = db.ParseRow(found); err != nil {
		return g, err
	}
	if err := s.box.TakePipe(a.pipe, req.BootID); err != nil {
		return g, err
	}
	// Without time left to take more, the heartbeat still counts.
	if err := s.take(ctx, req, &a); err != nil && ctx.Err() == nil {
		return g, err
	}
	settled, err := s.settledSince(ctx, req, &a)
	if err != nil { // lanes in the caller's hands would seem to be new to it
		return g, err
	}
	unread, err := s.view(ctx, req, settled, &a)
	if err != nil && ctx.Err() == nil {
		return g, err
	}
	s.setIdentity(a.identity)
	s.noteKinds(a.kinds)
	if err := s.carryOut(ctx, req.BootID, &a, unread); ctx.Err() == nil {
		s.views.Acted(err)
	}
	return a.grant(), nil
}

// grant returns the answer for the engine.
func (a *leaseAnswer) grant() store.Grant {
	g := store.Grant{Identity: a.identity, Total: a.lanes, Instances: a.live, Lapse: a.lapse, Paused: a.pipe.Paused, Stopped: a.stopped, Now: a.now}
	held := map[store.Lane]bool{}
	for _, l := range a.grants {
		held[l.Lane] = true
		g.Lanes = append(g.Lanes, l)
	}
	g.Requests = a.turn(func(r store.Request) bool { return held[r.Lane] })
	return g
}

// queueStanding queues the queries for the instance's state.
func (s *Store) queueStanding(b *pgx.Batch, boot string, a *standing) {
	pipe := s.opts.Pipe
	a.kinds = map[int64]string{}
	b.Queue(s.sql.grants, pipe, boot).Query(func(rows pgx.Rows) error { return scanGrants(rows, a) })
	b.Queue(s.sql.requests, pipe, boot).Query(func(rows pgx.Rows) error { return scanRequests(rows, a) })
	b.Queue(s.sql.live, pipe, boot).QueryRow(func(row pgx.Row) error {
		var lapse float64
		err := row.Scan(&a.live, &lapse)
		a.lapse = max(0, db.Seconds(lapse))
		return err
	})
}

// view reads the views of lanes that are new to the caller, in portions. The lanes whose views
// were not read are left out of the grant and returned; they follow with a later one.
//
// Whatever fails, no lane is granted without its view: who knows no captured key sends
// what waits behind one.
func (s *Store) view(ctx context.Context, req store.LeaseRequest, settled map[store.Lane]bool, a *leaseAnswer) (unread []store.LaneGrant, err error) {
	if req.ActsOnly {
		for i := range a.grants {
			a.grants[i].Known = true
		}
		return nil, nil
	}
	var lanes []store.Lane
	for i := range a.grants {
		l := &a.grants[i]
		epoch, ok := req.Known[l.Lane]
		if l.Known = ok && (epoch == l.Epoch || settled[l.Lane]); !l.Known {
			lanes = append(lanes, l.Lane)
		}
	}
	parked := make(map[store.Lane]store.ParkedView, len(lanes))
	crashes := map[store.Lane][2]int{}
	end, _ := ctx.Deadline()
	read, err := s.views.Read(lanes, s.box.Limits().TTL, end, func(page []store.Lane, limit time.Duration) error {
		ids := laneIDs(page)
		b := &pgx.Batch{}
		b.Queue(s.sql.settings).Query(a.asserts)
		db.QueueLimit(b, limit)
		b.Queue(s.sql.parked, s.opts.Pipe, ids, countTo(req.CountParked)).Query(func(rows pgx.Rows) error { return scanViews(rows, parked) })
		b.Queue(s.sql.crashes, s.opts.Pipe, ids, req.BootID).Query(func(rows pgx.Rows) error { return scanCrashes(rows, crashes) })
		return s.box.Pool.SendBatch(ctx, b).Close()
	})
	granted := a.grants[:0:0]
	for _, l := range a.grants {
		if !l.Known && !read[l.Lane] {
			unread = append(unread, l)
			continue
		}
		l.Parked = parked[l.Lane]
		l.Crashes, l.Buried = crashes[l.Lane][0], crashes[l.Lane][1]
		granted = append(granted, l)
	}
	a.grants = granted
	return unread, err
}

// carryOut carries out what people request in lanes of boot whose views were not read. The lanes are not
// granted, so the caller cannot do it, and no other instance can take them. Discarding records there is
// what makes such a view readable.
func (s *Store) carryOut(ctx context.Context, boot string, a *leaseAnswer, unread []store.LaneGrant) error {
	byLane := map[store.Lane]*store.Settlement{}
	for _, l := range unread {
		byLane[l.Lane] = &store.Settlement{BootID: boot, Lane: l.Lane, Epoch: l.Epoch}
	}
	for _, r := range a.turn(func(r store.Request) bool { return byLane[r.Lane] != nil }) {
		byLane[r.Lane].Requests = append(byLane[r.Lane].Requests, r.ID)
	}
	var settlements []store.Settlement
	for _, st := range byLane {
		if len(st.Requests) > 0 {
			settlements = append(settlements, *st)
		}
	}
	if len(settlements) == 0 {
		return nil
	}
	_, err := s.settle(ctx, a.identity, settlements) // a lane that is lost has another owner by now
	return err
}

// settledSince returns the lanes whose epoch moved only by a concurrent settlement of the
// caller. Their views need not be read: in a partial outage
// that would take longer than a lease.
func (s *Store) settledSince(ctx context.Context, req store.LeaseRequest, a *leaseAnswer) (map[store.Lane]bool, error) {
	if req.ActsOnly {
		return nil, nil
	}
	var lanes []int16
	var epochs []int64
	for i := range a.grants {
		l := &a.grants[i]
		if epoch, ok := req.Known[l.Lane]; ok && epoch < l.Epoch && l.Epoch-epoch < db.KeepProgress {
			lanes, epochs = append(lanes, int16(l.Lane)), append(epochs, epoch)
		}
	}
	if len(lanes) == 0 {
		return nil, nil
	}
	settled := make(map[store.Lane]bool, len(lanes))
	b := &pgx.Batch{}
	b.Queue(s.sql.settings).Query(a.asserts)
	b.Queue(s.sql.settledSince, s.opts.Pipe, lanes, epochs).Query(func(rows pgx.Rows) error {
		var lane store.Lane
		_, err := pgx.ForEachRow(rows, []any{&lane}, func() error { settled[lane] = true; return nil })
		return err
	})
	return settled, s.box.Pool.SendBatch(ctx, b).Close()
}

// judge refuses a database that cannot be trusted.
func (s *Store) judge(a *leaseAnswer) error {
	switch {
	case !a.schema.Fits():
		return &store.SchemaError{Schema: s.opts.Schema, Have: a.schema.Version, Want: db.Version}
	case a.secured:
		return db.RowSecurity(s.opts.Schema, "outbox", nil)
	case strings.Contains(a.identity, "/standby/"):
		return s.standby()
	case a.subscription != "":
		return subscribed(s.opts.Schema, a.subscription)
	case !a.home:
		return db.Moved(s.opts.Schema)
	case !a.ascends:
		return cached(s.opts.Schema)
	case a.unlogged != "":
		return unlogged(s.opts.Schema, a.unlogged)
	}
	return nil
}

// otherHistory refuses a position that was made before the identity changed.
func otherHistory(lane store.Lane) error {
	return fmt.Errorf("%w: the position of lane %d belongs to another history of the database", store.ErrIdentity, lane)
}

// asserts reads the answer to the settings. Later requests of a lease may reach another server than
// its heartbeat, or another history: their answers do not belong to its lanes.
func (a *leaseAnswer) asserts(rows pgx.Rows) error {
	for rows.Next() {
		if saw := string(rows.RawValues()[0]); saw != a.identity {
			return otherIdentity(a.identity, saw)
		}
	}
	return rows.Err()
}

func otherIdentity(known, saw string) error {
	return fmt.Errorf("%w: was %s, is %s", store.ErrIdentity, known, saw)
}

// checkIdentity compares the identity that a statement saw with that of the last lease.
func (s *Store) checkIdentity(saw string) error {
	if strings.Contains(saw, "/standby/") {
		return s.standby()
	}
	if known := s.knownIdentity(); known != "" && known != saw {
		return otherIdentity(known, saw)
	}
	return nil
}

func scanGrants(rows pgx.Rows, a *standing) error {
	for rows.Next() {
		var g store.LaneGrant
		var raw rawCursor
		err := rows.Scan(&g.Lane, &g.Epoch, &raw.pos, &raw.low, &raw.next, &raw.inflight, &raw.draining, &raw.drainSeq, &raw.floor)
		if err != nil {
			return err
		}
		c, err := raw.cursor()
		if err != nil {
			return fmt.Errorf("lane %d: %w", g.Lane, err)
		}
		c.history = a.history
		g.Position = c.encode()
		a.grants = append(a.grants, g)
	}
	return rows.Err()
}

func scanRequests(rows pgx.Rows, a *standing) error {
	for rows.Next() {
		var r store.Request
		if err := rows.Scan(&r.ID, &r.Lane, &r.Seq, &r.Kind, &r.Key, &r.Actor, &r.Reason); err != nil {
			return err
		}
		a.kinds[r.ID] = string(r.Kind)
		r.Act.Lane, r.Kind = r.Lane, store.ActKind(strings.TrimSuffix(string(r.Kind), operations.ManySuffix))
		a.requests = append(a.requests, r)
	}
	return rows.Err()
}

// countTo returns the limit for counting parked records.
func countTo(asked int) int {
	const most = 100_000
	if asked <= 0 || asked > most {
		return most
	}
	return asked
}

func scanViews(rows pgx.Rows, views map[store.Lane]store.ParkedView) error {
	for rows.Next() {
		var lane store.Lane
		var v store.ParkedView
		var due *float64
		var keys []string
		var firsts, lasts, heads []int64
		var dues []*float64
		if err := rows.Scan(&lane, &v.Records, &v.Captured, &heads, &dues, &due, &keys, &firsts, &lasts, &v.Paused); err != nil {
			return err
		}
		for i, key := range keys {
			v.Gaps = append(v.Gaps, store.Gap{Key: key, First: firsts[i], Last: lasts[i]})
		}
		if len(v.Captured) == 0 {
			v.Captured = nil
		}
		if due != nil {
			v.HasDue, v.NextDue = true, db.Seconds(*due)
		}
		for i, seq := range heads { // the keys are sorted by their bytes, as the column is
			h := store.Head{Seq: seq, HasDue: dues[i] != nil}
			if h.HasDue {
				h.DueIn = db.Seconds(*dues[i])
			}
			v.Heads = append(v.Heads, h)
		}
		views[lane] = v
	}
	return rows.Err()
}

func scanCrashes(rows pgx.Rows, crashes map[store.Lane][2]int) error {
	for rows.Next() {
		var lane store.Lane
		var n [2]int
		if err := rows.Scan(&lane, &n[0], &n[1]); err != nil {
			return err
		}
		crashes[lane] = n
	}
	return rows.Err()
}
