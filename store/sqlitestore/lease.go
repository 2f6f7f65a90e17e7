package sqlitestore

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
	"github.com/postrider/postrider/store/sqlitestore/internal/operations"
)

// forgotten is how long the row of an instance that died is kept for Status.
const forgotten = time.Hour

// Lease implements store.Store.
func (s *Store) Lease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	if req.BootID == "" {
		return store.Grant{}, errors.New("sqlite: lease: the boot id is empty")
	}
	var g store.Grant
	var filter string
	err := s.box.Write(ctx, "lease", func(q db.Querier) error {
		if err := s.checkFile(ctx, q); err != nil {
			return err
		}
		if err := s.box.Info(ctx, q, &g); err != nil {
			return err
		}
		if err := s.renumber(ctx, q, req, &g); err != nil {
			return err
		}
		var err error
		if filter, err = s.pipe(ctx, q, &g); err != nil {
			return err
		}
		if err := s.heartbeat(ctx, q, req); err != nil {
			return err
		}
		released, err := s.giveBack(ctx, q, req)
		if err != nil {
			return err
		}
		if err := s.countLive(ctx, q, req.BootID, &g); err != nil {
			return err
		}
		if !req.Leave && !req.Observe {
			if err := s.take(ctx, q, req, &g, released); err != nil {
				return err
			}
		}
		return s.grant(ctx, q, req, &g)
	})
	if err != nil {
		return store.Grant{}, err
	}
	s.mu.Lock()
	s.identity, s.filter = g.Identity, filter
	s.mu.Unlock()
	// Without time left for a view, the heartbeat still counts.
	if err := s.view(ctx, req, &g); err != nil && ctx.Err() == nil {
		return store.Grant{}, err
	}
	return g, nil
}

// viewPage is the number of lanes whose views are read at once if reading is fast.
const viewPage = 8

// view reads the views of lanes that are new to the caller, for up to a quarter of the lease: the
// remaining lanes are left out of the grant, and follow with the next one. The lease is committed
// then, so that nobody waits to write: a lane that is lost meanwhile shows at its settlement.
func (s *Store) view(ctx context.Context, req store.LeaseRequest, g *store.Grant) error {
	read := map[store.Lane]bool{}
	start, size := time.Now(), 1
	var ids []int
	for i, l := range g.Lanes {
		if !l.Known {
			ids = append(ids, i)
		}
	}
	var err error
	for len(ids) > 0 && (len(read) == 0 || time.Since(start) < req.TTL/4) {
		page, began := ids[:min(size, len(ids))], time.Now()
		ids = ids[len(page):]
		lanes := make([]store.LaneGrant, 0, len(page))
		for _, i := range page {
			lanes = append(lanes, g.Lanes[i])
		}
		if err = s.views(ctx, s.box.DB, lanes); err != nil {
			break
		}
		for n, i := range page {
			g.Lanes[i] = lanes[n]
			read[lanes[n].Lane] = true
		}
		if time.Since(began) < req.TTL/32 {
			size = min(2*size, viewPage)
		}
	}
	here := func(l store.Lane) bool {
		return slices.ContainsFunc(g.Lanes, func(have store.LaneGrant) bool { return have.Lane == l })
	}
	g.Lanes = slices.DeleteFunc(g.Lanes, func(l store.LaneGrant) bool { return !l.Known && !read[l.Lane] })
	g.Requests = slices.DeleteFunc(g.Requests, func(r store.Request) bool { return !here(r.Lane) })
	return err
}

// pipe makes the pipe where that is wanted. A new one starts behind everything that is there. It
// reads what people have set for the pipe, and returns its filter.
func (s *Store) pipe(ctx context.Context, q db.Querier, g *store.Grant) (filter string, err error) {
	err = s.box.Knows(ctx, q, "check --pipe, or make it with `postrider pipe add "+s.box.Pipe+" --from now`")
	if s.opts.MakePipe && errors.Is(err, store.ErrNoPipe) {
		newest, err := s.box.Newest(ctx, q)
		if err != nil {
			return "", err
		}
		if err := operations.Begin(ctx, s.box, q, db.Everything, newest); err != nil {
			return "", err
		}
	} else if err != nil {
		return "", err
	}
	filter, paused, err := s.box.Set(ctx, q)
	if err != nil {
		return "", err
	}
	g.Paused = paused.Valid
	g.Stopped, err = operations.Stopped(ctx, s.box, q)
	return filter, err
}

// countLive counts the live instances and finds when the first lease of another than boot ends.
func (s *Store) countLive(ctx context.Context, q db.Querier, boot string, g *store.Grant) error {
	now := db.Micros(s.box.Now())
	var first int64
	err := q.QueryRowContext(ctx, `SELECT count(*), coalesce(min(alive_until) FILTER (WHERE boot_id <> ?), ?)
		FROM postrider_relay WHERE pipe = ? AND alive_until > ? AND alive_until <= ? + 2 * ttl`,
		boot, now, s.box.Pipe, now, now).Scan(&g.Instances, &first)
	g.Lapse = time.Duration(first-now) * time.Microsecond
	return err
}

// checkFile refuses to continue when another file is at the path: the pool's
// connections still write into the moved one.
func (s *Store) checkFile(ctx context.Context, q db.Querier) error {
	var path string
	if err := q.QueryRowContext(ctx, `SELECT coalesce(file, '') FROM pragma_database_list WHERE name = 'main'`).Scan(&path); err != nil {
		return err
	}
	if path == "" {
		return &store.UnusableError{What: "the database is in memory", Fix: "name a file"}
	}
	now, err := os.Stat(path)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.file == nil {
		s.file = now
	}
	if err != nil || !os.SameFile(s.file, now) {
		return &store.UnusableError{What: "the database file " + path + " was removed or replaced while it was open", Fix: "restart this process", Err: err}
	}
	return nil
}

// heartbeat renews the instance, and takes the lanes of those who died.
func (s *Store) heartbeat(ctx context.Context, q db.Querier, req store.LeaseRequest) error {
	pipe, now := s.box.Pipe, db.Micros(s.box.Now())
	trouble, err := list(req.Report.Trouble)
	if err != nil {
		return err
	}
	held, err := list(req.Report.Held)
	if err != nil {
		return err
	}
	for _, st := range []struct {
		query string
		args  []any
	}{
		{
			`INSERT INTO postrider_relay (pipe, boot_id, instance, ttl, alive_until, reach, trouble, held) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
		  ON CONFLICT (pipe, boot_id) DO UPDATE SET instance = excluded.instance, ttl = excluded.ttl, alive_until = excluded.alive_until,
		    reach = excluded.reach, trouble = excluded.trouble, held = excluded.held`,
			[]any{pipe, req.BootID, req.Instance, req.TTL.Microseconds(), s.box.After(req.TTL), req.Report.Reach, trouble, held},
		},
		{
			`UPDATE postrider_progress SET owner = '' WHERE pipe = ? AND owner NOT IN
		  (SELECT '' UNION ALL SELECT boot_id FROM postrider_relay WHERE pipe = ? AND (alive_until > ? AND alive_until <= ? + 2 * ttl OR boot_id = ?))`,
			[]any{pipe, pipe, now, now, req.BootID},
		},
		{
			`DELETE FROM postrider_request WHERE id IN
		  (SELECT id FROM postrider_request WHERE pipe = ? AND done_at < ? ORDER BY id LIMIT 500)`,
			[]any{pipe, now - db.Remembered.Microseconds()},
		},
		{`DELETE FROM postrider_relay WHERE alive_until <= ?`, []any{now - forgotten.Microseconds()}},
	} {
		if _, err := q.ExecContext(ctx, st.query, st.args...); err != nil {
			return err
		}
	}
	return nil
}

// list is a list as the tables have it.
func list[T any](all []T) (string, error) {
	if len(all) == 0 {
		return "[]", nil
	}
	text, err := json.Marshal(all)
	return string(text), err
}

// giveBack frees the lanes that the request names, or all.
func (s *Store) giveBack(ctx context.Context, q db.Querier, req store.LeaseRequest) ([]store.Lane, error) {
	if req.Leave {
		if _, err := q.ExecContext(ctx, `UPDATE postrider_progress SET owner = '' WHERE pipe = ? AND owner = ?`, s.box.Pipe, req.BootID); err != nil {
			return nil, err
		}
		_, err := q.ExecContext(ctx, `DELETE FROM postrider_relay WHERE pipe = ? AND boot_id = ?`, s.box.Pipe, req.BootID)
		return nil, err
	}
	var released []store.Lane
	for _, r := range req.Release {
		_, err := q.ExecContext(ctx, `UPDATE postrider_progress SET owner = '' WHERE pipe = ? AND lane = ? AND owner = ? AND epoch = ?`,
			s.box.Pipe, r.Lane, req.BootID, r.Epoch)
		if err != nil {
			return nil, err
		}
		released = append(released, r.Lane)
	}
	return released, nil
}

// take takes free lanes up to the fair share. Lanes given back in the same
// request are left to others.
func (s *Store) take(ctx context.Context, q db.Querier, req store.LeaseRequest, g *store.Grant, released []store.Lane) error {
	var held int
	err := q.QueryRowContext(ctx, `SELECT count(*) FROM postrider_progress WHERE pipe = ? AND owner = ?`, s.box.Pipe, req.BootID).Scan(&held)
	if err != nil {
		return err
	}
	share := req.Share(g.Total, g.Instances)
	free, err := db.List[store.Lane](ctx, q, `SELECT lane FROM postrider_progress WHERE pipe = ? AND owner = '' ORDER BY lane`, s.box.Pipe)
	if err != nil {
		return err
	}
	for _, lane := range free {
		if held >= share {
			return nil
		}
		if slices.Contains(released, lane) || len(req.Only) > 0 && !slices.Contains(req.Only, lane) {
			continue
		}
		_, err := q.ExecContext(ctx, `UPDATE postrider_progress SET owner = ?, epoch = epoch + 1 WHERE pipe = ? AND lane = ?`, req.BootID, s.box.Pipe, lane)
		if err != nil {
			return err
		}
		held++
	}
	return nil
}

// grant fills in what boot holds.
func (s *Store) grant(ctx context.Context, q db.Querier, req store.LeaseRequest, g *store.Grant) error {
	boot := req.BootID
	g.Now = s.box.Now()
	rows, err := q.QueryContext(ctx, `SELECT lane, epoch, pos, settled_by, settled_epoch FROM postrider_progress WHERE pipe = ? AND owner = ? ORDER BY lane`, s.box.Pipe, boot)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var l store.LaneGrant
		var pos, settled int64
		var by string
		if err := rows.Scan(&l.Lane, &l.Epoch, &pos, &by, &settled); err != nil {
			return err
		}
		l.Position = encode(pos)
		epoch, known := req.Known[l.Lane]
		// A lane needs no view when only a settlement of the caller has moved it since: if it were left
		// out for lack of time, the caller would take it for lost and send again what it has in flight.
		own := settled == l.Epoch-1 && settledBy(by, boot)
		l.Known = req.ActsOnly || known && (epoch == l.Epoch || own && epoch == settled)
		g.Lanes = append(g.Lanes, l)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if err := rows.Close(); err != nil { // the next queries may need its connection
		return err
	}
	return s.requests(ctx, q, boot, g)
}

// requests lists the acts of people that wait for the lanes of boot. Of orders it picks some
// pages by chance: a settlement carries out all that are told, and nobody writes meanwhile.
func (s *Store) requests(ctx context.Context, q db.Querier, boot string, g *store.Grant) error {
	const open = `FROM postrider_request r JOIN postrider_progress p ON p.pipe = r.pipe AND p.lane = r.lane
		WHERE r.pipe = ?1 AND r.done_at IS NULL AND p.owner = ?2`
	rows, err := q.QueryContext(ctx, `SELECT r.id, r.lane, r.kind, r.seq, r.key, r.actor, r.reason `+open+`
		AND (r.upto IS NULL OR r.id IN (SELECT r.id `+open+` AND r.upto IS NOT NULL ORDER BY random() LIMIT ?3)) ORDER BY r.id LIMIT 1000`,
		s.box.Pipe, boot, operations.Pages)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var r store.Request
		var kind string
		if err := rows.Scan(&r.ID, &r.Lane, &kind, &r.Seq, &r.Key, &r.Actor, &r.Reason); err != nil {
			return err
		}
		r.Kind, r.Act.Lane = operations.KindOf(kind), r.Lane
		g.Requests = append(g.Requests, r)
	}
	return rows.Err()
}
