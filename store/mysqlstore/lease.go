package mysqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/housekeeping"
	"github.com/postrider/postrider/store/mysqlstore/internal/operations"
	"github.com/postrider/postrider/store/mysqlstore/internal/sessions"
	"github.com/postrider/postrider/store/ops"
)

// Lease implements store.Store. Each of its statements is a transaction of its own: a
// process that is stopped between two of them holds no lock. Lanes are taken by comparing
// their epoch, so that of two instances one gets them.
func (s *Store) Lease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	if req.BootID == "" {
		return store.Grant{}, errors.New("mysql: lease: the boot id is empty")
	}
	g, here, err := s.leaseOnOne(ctx, req)
	if err != nil && !db.Answered(err) && db.DiscardIdle(ctx, s.box.DB) > 0 && db.IsReadOnly(err) {
		g, here, err = s.leaseOnOne(ctx, req) // the pool knew a primary of before a switch
	}
	if err != nil {
		return store.Grant{}, s.box.Wrap("lease", err)
	}
	s.mu.Lock()
	changed := s.identity != "" && s.identity != g.Identity
	s.identity, s.here = g.Identity, here
	s.mu.Unlock()
	if changed {
		s.beats.Forget()
		s.views.Forget()
		db.DiscardIdle(ctx, s.box.DB)
	}
	return g, nil
}

// leaseOnOne leases on one connection, which is closed where it leads to no primary.
func (s *Store) leaseOnOne(ctx context.Context, req store.LeaseRequest) (g store.Grant, here string, err error) {
	conn, err := s.box.DB.Conn(ctx)
	if err != nil {
		return g, "", err
	}
	err = db.Again(ctx, func() error { // after a deadlock; what was done before it is done again, to the same end
		g = store.Grant{}
		here, err = s.lease(ctx, conn, req, &g)
		return err
	})
	if err != nil && !db.Answered(err) {
		db.Discard(conn)
		return g, "", err
	}
	return g, here, errors.Join(err, conn.Close())
}

func (s *Store) lease(ctx context.Context, q *sql.Conn, req store.LeaseRequest, g *store.Grant) (here string, err error) {
	have, at, err := s.box.VersionAt(ctx, q)
	if err != nil {
		return here, err
	}
	if have != Version {
		return "", &store.SchemaError{Schema: "postrider", Have: have, Want: Version}
	}
	g.Now = time.UnixMicro(at)
	if err := sessions.SeesAll(ctx, q); err != nil {
		return here, err
	}
	if here, err = s.identify(ctx, q, g); err != nil {
		return here, err
	}
	if err := s.numbering(ctx, q); err != nil {
		return here, err
	}
	if err := s.heartbeat(ctx, q, req, at); err != nil {
		return here, err
	}
	if err := s.orders(ctx, q, at, g); err != nil {
		return here, err
	}
	if err := s.giveBack(ctx, q, req); err != nil {
		return here, err
	}
	// Owners first: an instance that joins, or is renewed, and takes lanes between two statements is
	// alive in the second.
	owned, err := s.owned(ctx, q)
	if err != nil {
		return here, err
	}
	alive, err := s.live(ctx, q, req.BootID, at, g)
	if err != nil {
		return here, err
	}
	if !req.Leave && !req.Observe {
		if err := s.take(ctx, q, req, g, owned, alive); err != nil {
			return here, err
		}
	}
	return here, s.grant(ctx, q, req, here, g)
}

// heartbeat renews the instance. A pipe that is new starts behind everything that is
// visible, with the holes below it.
func (s *Store) heartbeat(ctx context.Context, q db.Querier, req store.LeaseRequest, at int64) error {
	pipe := s.box.Pipe
	err := s.box.Knows(ctx, q, "check --pipe, or make it with `postrider relay --make-pipe --pipe "+pipe+"`")
	if errors.Is(err, store.ErrNoPipe) && s.opts.MakePipe {
		err = operations.Begin(ctx, s.box, q, ops.AddPipe{Name: pipe}, nil)
	}
	if errors.Is(err, ops.ErrPipeExists) { // another instance was first
		err = nil
	}
	if err != nil {
		return err
	}
	if req.Leave {
		return nil
	}
	_, err = q.ExecContext(ctx, `INSERT INTO postrider_relay (pipe, boot_id, instance, ttl, alive_until) VALUES (?, ?, ?, ?, `+db.Now+` + ?)
		ON DUPLICATE KEY UPDATE instance = VALUES(instance), ttl = VALUES(ttl), alive_until = VALUES(alive_until)`,
		pipe, req.BootID, req.Instance, req.TTL.Microseconds(), req.TTL.Microseconds())
	if err != nil {
		return err
	}
	if err := s.report(ctx, q, req); err != nil {
		return err
	}
	if !s.beats.Tidies(s.elapsed()) {
		return nil
	}
	return housekeeping.Sweep(ctx, s.box, q, at)
}

// report stores what an instance tells of itself, if it is new.
func (s *Store) report(ctx context.Context, q db.Querier, req store.LeaseRequest) error {
	trouble, err := json.Marshal(slices.Concat([]string{}, req.Report.Trouble, s.views.Trouble(), s.refusal.Trouble()))
	if err != nil {
		return err
	}
	held, err := json.Marshal(append([]store.Held{}, req.Report.Held...))
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s %v %s %s", req.BootID, req.Report.Reach, trouble, held)
	if s.beats.Told(text, s.elapsed()) {
		return nil
	}
	_, err = q.ExecContext(ctx, `INSERT INTO postrider_report (pipe, boot_id, reach, trouble, held) VALUES (?, ?, ?, ?, ?)
		ON DUPLICATE KEY UPDATE reach = VALUES(reach), trouble = VALUES(trouble), held = VALUES(held)`,
		s.box.Pipe, req.BootID, req.Report.Reach, string(trouble), string(held))
	if err == nil {
		s.beats.Tell(text, s.elapsed())
	}
	return err
}

// orders reads what people have set for the whole pipe.
func (s *Store) orders(ctx context.Context, q db.Querier, at int64, g *store.Grant) error {
	filter, paused, err := s.box.Set(ctx, q)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.filter = &filter
	s.mu.Unlock()
	g.Paused = paused.Valid
	if g.Stopped, err = operations.Stopped(ctx, s.box, q); err != nil {
		return err
	}
	if !s.beats.Samples(at) {
		return nil
	}
	next, err := housekeeping.Sample(ctx, s.box, q, at)
	if err == nil {
		s.beats.Sampled(next)
	}
	return err
}

// giveBack frees the lanes that the request names, or all.
func (s *Store) giveBack(ctx context.Context, q db.Querier, req store.LeaseRequest) error {
	if req.Leave {
		s.beats.Forget()
		return db.Again(ctx, func() error {
			mine, err := db.List[store.Lane](ctx, q, `SELECT lane FROM postrider_progress WHERE pipe = ? AND owner = ? ORDER BY lane`, s.box.Pipe, req.BootID)
			if err != nil {
				return err
			}
			if _, err = q.ExecContext(ctx, `UPDATE postrider_progress SET owner = '' WHERE pipe = ? AND lane IN (`+db.Numbers(mine)+`) AND owner = ?`,
				s.box.Pipe, req.BootID); err != nil {
				return err
			}
			err = housekeeping.Forget(ctx, s.box, q, req.BootID)
			return err
		})
	}
	for _, r := range req.Release {
		_, err := q.ExecContext(ctx, `UPDATE postrider_progress SET owner = '' WHERE pipe = ? AND lane = ? AND owner = ? AND epoch = ?`,
			s.box.Pipe, r.Lane, req.BootID, r.Epoch)
		if err != nil {
			return err
		}
	}
	return nil
}

// live counts the live instances, finds when the first lease of another than boot ends,
// and returns the boot ids of those that live.
func (s *Store) live(ctx context.Context, q db.Querier, boot string, at int64, g *store.Grant) (alive []string, err error) {
	rows, err := q.QueryContext(ctx, `SELECT boot_id, alive_until FROM postrider_relay WHERE pipe = ? AND alive_until > ? AND alive_until <= `+db.Now+` + 2 * ttl`,
		s.box.Pipe, at)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var end int64
		if err := rows.Scan(&id, &end); err != nil {
			return nil, err
		}
		alive = append(alive, id)
		if left := db.Until(at, end); id != boot && (g.Lapse == 0 || left < g.Lapse) {
			g.Lapse = left
		}
	}
	g.Instances = len(alive)
	return alive, rows.Err()
}

// ownedLane is a lane and its owner, who may have died.
type ownedLane struct {
	lane  store.Lane
	epoch int64
	owner string
}

// owned lists the lanes of the pipe.
func (s *Store) owned(ctx context.Context, q db.Querier) (all []ownedLane, err error) {
	rows, err := q.QueryContext(ctx, `SELECT lane, epoch, owner FROM postrider_progress WHERE pipe = ? ORDER BY lane`, s.box.Pipe)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var l ownedLane
		if err := rows.Scan(&l.lane, &l.epoch, &l.owner); err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, errors.Join(rows.Err(), rows.Close())
}

// take takes free lanes up to the fair share. Lanes given back in the same
// request are left to others.
func (s *Store) take(ctx context.Context, q db.Querier, req store.LeaseRequest, g *store.Grant, owned []ownedLane, alive []string) error {
	var free []ownedLane
	held := 0
	for _, l := range owned {
		gave := slices.ContainsFunc(req.Release, func(r store.Release) bool { return r.Lane == l.lane })
		switch {
		case l.owner == req.BootID:
			held++
		case slices.Contains(alive, l.owner), gave, len(req.Only) > 0 && !slices.Contains(req.Only, l.lane):
		default:
			free = append(free, l)
		}
	}
	free = free[:max(0, min(len(free), req.Share(g.Total, g.Instances)-held))]
	if len(free) == 0 {
		return nil
	}
	var same []string
	args := []any{req.BootID, s.box.Pipe}
	for _, l := range free {
		same = append(same, "(lane = ? AND epoch = ? AND owner = ?)")
		args = append(args, l.lane, l.epoch, l.owner)
	}
	_, err := q.ExecContext(ctx, `UPDATE postrider_progress SET owner = ?, epoch = epoch + 1, settled_call = 0 WHERE pipe = ? AND (`+strings.Join(same, " OR ")+`)`, args...)
	return err
}

// grant fills in what boot holds. Without time left for all views, or for the requests, the heartbeat
// still counts.
func (s *Store) grant(ctx context.Context, q *sql.Conn, req store.LeaseRequest, here string, g *store.Grant) error {
	if err := s.lanes(ctx, q, req, g); err != nil {
		return err
	}
	granted, unread, err := s.views.Grant(ctx, q, req.TTL, g.Lanes)
	if g.Lanes = granted; err != nil {
		return err
	}
	if g.Requests, err = s.requests(ctx, q, req.BootID, granted); ctx.Err() != nil { // they have the next heartbeat
		g.Requests, err = nil, nil
	}
	if err != nil {
		return err
	}
	if err = s.carryOut(ctx, q, req.BootID, g.Identity, here, unread); ctx.Err() == nil {
		s.views.Acted(err)
	}
	return nil
}

// carryOut carries out people's requests in lanes of boot whose views were not read. The lanes are not
// granted, so the caller cannot do it, and no other instance can take them. Discarding records there is
// what makes such a view readable.
func (s *Store) carryOut(ctx context.Context, q *sql.Conn, boot, identity, here string, unread []store.LaneGrant) error {
	requests, err := s.requests(ctx, q, boot, unread)
	if err != nil {
		return err
	}
	var settlements []store.Settlement
	for _, l := range unread {
		st := store.Settlement{BootID: boot, Lane: l.Lane, Epoch: l.Epoch}
		for _, r := range requests {
			if r.Lane == l.Lane {
				st.Requests = append(st.Requests, r.ID)
			}
		}
		if len(st.Requests) > 0 {
			settlements = append(settlements, st)
		}
	}
	if len(settlements) == 0 {
		return nil
	}
	_, err = s.settle(ctx, q, identity, here, settlements) // a lane that is lost has another owner by now
	return err
}

// lanes lists the lanes of boot. A lane is also known if only settlements of the caller have moved it,
// since he settles beside his heartbeat.
func (s *Store) lanes(ctx context.Context, q db.Querier, req store.LeaseRequest, g *store.Grant) error {
	rows, err := q.QueryContext(ctx, `SELECT lane, epoch, settled_call <> 0, pos, holes FROM postrider_progress WHERE pipe = ? AND owner = ? ORDER BY lane`, s.box.Pipe, req.BootID)
	if err != nil {
		return err
	}
	defer rows.Close()
	history := db.History(g.Identity)
	for rows.Next() {
		var l store.LaneGrant
		var pos int64
		var settled bool
		var text sql.NullString
		if err := rows.Scan(&l.Lane, &l.Epoch, &settled, &pos, &text); err != nil {
			return err
		}
		p, err := db.Position(pos, text)
		if err != nil {
			return err
		}
		l.Position = db.Encode(p, history)
		epoch, asked := req.Known[l.Lane]
		l.Known = asked && s.views.Moved(req.BootID, l.Lane, epoch, l.Epoch, settled) || req.ActsOnly
		g.Lanes = append(g.Lanes, l)
	}
	return errors.Join(rows.Err(), rows.Close()) // the next queries may need its connection
}

// pagesPerTurn is how many pages of orders an instance gets with a heartbeat: one settlement carries them
// out, and each of their lanes waits for it.
const pagesPerTurn = 4

// requests lists the acts that wait for lanes of boot. Pages of orders are picked at random: a page
// that waits, for a rate or for live messages, delays no other, and no act.
func (s *Store) requests(ctx context.Context, q db.Querier, boot string, lanes []store.LaneGrant) (all []store.Request, err error) {
	if len(lanes) == 0 {
		return nil, nil
	}
	ids := make([]store.Lane, len(lanes))
	for i := range lanes {
		ids[i] = lanes[i].Lane
	}
	part := func(which string) string {
		return "(SELECT r.id, r.lane, r.kind, r.seq, r.`key`, r.actor, r.reason FROM postrider_act r" +
			` JOIN postrider_progress p ON p.pipe = r.pipe AND p.lane = r.lane
			WHERE r.pipe = ? AND r.done_at IS NULL AND r.lane IN (` + db.Numbers(ids) + `) AND p.owner = ? AND r.upto IS ` + which + `)`
	}
	rows, err := q.QueryContext(ctx, part(`NULL ORDER BY r.id LIMIT 1000`)+` UNION ALL `+part(fmt.Sprintf(`NOT NULL ORDER BY RAND() LIMIT %d`, pagesPerTurn))+` ORDER BY id`,
		s.box.Pipe, boot, s.box.Pipe, boot)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r store.Request
		var kind string
		if err := rows.Scan(&r.ID, &r.Lane, &kind, &r.Seq, &r.Key, &r.Actor, &r.Reason); err != nil {
			return nil, err
		}
		r.Kind, r.Act.Lane = operations.KindOf(kind), r.Lane
		all = append(all, r)
	}
	return all, errors.Join(rows.Err(), rows.Close()) // the next queries may need its connection
}
