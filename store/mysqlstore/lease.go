package mysqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
)

// forgotten is how long the row of an instance that died is kept for Status.
const forgotten = time.Hour

// remembered is how long an executed act is kept for who asked for it.
const remembered = 7 * 24 * time.Hour

// Lease implements store.Store. Each of its statements is a transaction of its own: a
// process that is stopped between two of them holds no lock. Lanes are taken by comparing
// their epoch, so that of two instances one gets them.
func (s *Store) Lease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	if req.BootID == "" {
		return store.Grant{}, errors.New("mysql: lease: the boot id is empty")
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return store.Grant{}, s.wrap("lease", err)
	}
	var g store.Grant
	err = s.lease(ctx, conn, req, &g)
	if err = errors.Join(err, conn.Close()); err != nil {
		return store.Grant{}, s.wrap("lease", err)
	}
	s.mu.Lock()
	s.identity = g.Identity
	s.mu.Unlock()
	return g, nil
}

func (s *Store) lease(ctx context.Context, q querier, req store.LeaseRequest, g *store.Grant) error {
	have, err := s.schemaVersion(ctx, q)
	if err != nil {
		return err
	}
	if have != Version {
		return &store.SchemaError{Schema: "postrider", Have: have, Want: Version}
	}
	at, err := s.clock(ctx, q)
	if err != nil {
		return err
	}
	g.Now = time.UnixMicro(at)
	if err := s.seesAll(ctx, q); err != nil {
		return err
	}
	if err := s.identify(ctx, q, at, g); err != nil {
		return err
	}
	if err := s.numbering(ctx, q); err != nil {
		return err
	}
	if err := s.heartbeat(ctx, q, req, at, g.Total); err != nil {
		return err
	}
	if err := s.giveBack(ctx, q, req); err != nil {
		return err
	}
	alive, err := s.live(ctx, q, req.BootID, at, g)
	if err != nil {
		return err
	}
	if !req.Leave && !req.Observe {
		if err := again(ctx, func() error { return s.take(ctx, q, req, g, alive) }); err != nil {
			return err
		}
	}
	return s.grant(ctx, q, req, at, g)
}

// identify fills in identity and lanes. Another server, or a restart of the same one,
// raises the epoch, once however many instances see it.
func (s *Store) identify(ctx context.Context, q querier, at int64, g *store.Grant) error {
	srv, err := s.server(ctx, q, at)
	if err != nil {
		return err
	}
	const jitter = 2_000_000 // the server counts its time in seconds
	_, err = q.ExecContext(ctx, `UPDATE postrider_info SET epoch = epoch + 1, server = ?, started = ?
		WHERE one = 1 AND (server <> ? OR ABS(started - ?) > ?)`, srv.id, srv.started, srv.id, srv.started, jitter)
	if err != nil {
		return err
	}
	return q.QueryRowContext(ctx, `SELECT CONCAT(id, '/', epoch), lanes FROM postrider_info`).Scan(&g.Identity, &g.Total)
}

// heartbeat renews the instance. A pipe that is new starts behind everything that is
// visible, with the holes below it.
func (s *Store) heartbeat(ctx context.Context, q querier, req store.LeaseRequest, at int64, lanes int) error {
	pipe := s.opts.Pipe
	err := s.knows(ctx, q, "check --pipe, or make it with `postrider relay --make-pipe --pipe "+pipe+"`")
	if errors.Is(err, store.ErrNoPipe) && s.opts.MakePipe {
		err = s.begin(ctx, q, lanes)
	}
	if err != nil {
		return err
	}
	if req.Leave {
		return nil
	}
	_, err = q.ExecContext(ctx, `INSERT INTO postrider_relay (pipe, boot_id, instance, ttl, alive_until) VALUES (?, ?, ?, ?, `+now+` + ?)
		ON DUPLICATE KEY UPDATE instance = VALUES(instance), ttl = VALUES(ttl), alive_until = VALUES(alive_until)`,
		pipe, req.BootID, req.Instance, req.TTL.Microseconds(), req.TTL.Microseconds())
	if err != nil {
		return err
	}
	if err := s.report(ctx, q, req); err != nil {
		return err
	}
	// By primary key: a range of times would lock the rows of those who live.
	dead, err := list[string](ctx, q, `SELECT boot_id FROM postrider_relay WHERE pipe = ? AND alive_until <= ?`, pipe, at-forgotten.Microseconds())
	if err != nil {
		return err
	}
	for _, boot := range dead {
		if err := s.forget(ctx, q, boot); err != nil {
			return err
		}
	}
	old, err := list[int64](ctx, q, `SELECT id FROM postrider_request WHERE pipe = ? AND done_at < ? ORDER BY id LIMIT 500`, pipe, at-remembered.Microseconds())
	if err != nil || len(old) == 0 {
		return err
	}
	_, err = q.ExecContext(ctx, `DELETE FROM postrider_request WHERE id IN (`+numbers(old)+`)`)
	return err
}

// report stores what an instance tells of itself.
func (s *Store) report(ctx context.Context, q querier, req store.LeaseRequest) error {
	trouble, err := json.Marshal(append([]string{}, req.Report.Trouble...))
	if err != nil {
		return err
	}
	held, err := json.Marshal(append([]store.Held{}, req.Report.Held...))
	if err != nil {
		return err
	}
	_, err = q.ExecContext(ctx, `INSERT INTO postrider_report (pipe, boot_id, reach, trouble, held) VALUES (?, ?, ?, ?, ?)
		ON DUPLICATE KEY UPDATE reach = VALUES(reach), trouble = VALUES(trouble), held = VALUES(held)`,
		s.opts.Pipe, req.BootID, req.Report.Reach, string(trouble), string(held))
	return err
}

// forget removes an instance and its report.
func (s *Store) forget(ctx context.Context, q querier, boot string) error {
	for _, table := range []string{"postrider_report", "postrider_relay"} {
		if _, err := q.ExecContext(ctx, `DELETE FROM `+table+` WHERE pipe = ? AND boot_id = ?`, s.opts.Pipe, boot); err != nil {
			return err
		}
	}
	return nil
}

// knows fails with an error that matches store.ErrNoPipe where the pipe does not exist; fix
// is its remedy.
func (s *Store) knows(ctx context.Context, q querier, fix string) error {
	var known bool
	err := q.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM postrider_progress WHERE pipe = ?)`, s.opts.Pipe).Scan(&known)
	if err == nil && !known {
		err = &store.UnusableError{What: fmt.Sprintf("pipe %q does not exist", s.opts.Pipe), Fix: fix, Err: store.ErrNoPipe}
	}
	return err
}

// begin makes the progress of a new pipe: behind the highest visible number, with
// everything below it that is not visible as holes.
//
// It reads the numbers from the highest down. A row that is seen has no predecessor that
// was missed before, so what the pipe is given and what it is not is a clean cut. Below
// what another pipe has passed in every lane it knows the holes without reading.
func (s *Store) begin(ctx context.Context, q querier, lanes int) error {
	known, floor, open, err := s.passed(ctx, q)
	if err != nil {
		return err
	}
	// What it gave up by mistake is looked for by the new pipe too.
	_, err = q.ExecContext(ctx, `INSERT INTO postrider_dropped (pipe, high, low, dropped_at) SELECT ?, d.high, d.low, d.dropped_at FROM postrider_dropped d
		WHERE d.pipe = ? ON DUPLICATE KEY UPDATE postrider_dropped.low = postrider_dropped.low`, s.opts.Pipe, known)
	if err != nil {
		return err
	}
	var p holes.Position
	for last := int64(math.MaxInt64); ; {
		seqs, err := list[int64](ctx, q, `SELECT seq FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE seq > ? AND seq < ? ORDER BY seq DESC LIMIT ?`, floor, last, mostListed)
		if err != nil {
			return err
		}
		for _, seq := range seqs {
			if p.At == 0 {
				p.At = seq
			} else if seq < last-1 {
				p.Open = append(p.Open, holes.Range{First: seq + 1, Last: last - 1})
			}
			last = seq
		}
		if len(seqs) == mostListed {
			continue
		}
		if p.At > 0 && floor+1 < last {
			p.Open = append(p.Open, holes.Range{First: floor + 1, Last: last - 1})
		}
		break
	}
	p.At = max(p.At, floor)
	slices.Reverse(p.Open)
	seen, err := s.probe(ctx, q, open)
	if err != nil {
		return err
	}
	p.Open = p.Open.Or(open.Minus(holes.Of(seen)))
	var each []string
	for lane := range lanes {
		each = append(each, fmt.Sprintf("SELECT %d AS lane", lane))
	}
	_, err = q.ExecContext(ctx, `INSERT INTO postrider_progress (pipe, lane, pos, holes) SELECT x.pipe, l.lane, x.pos, x.holes
		FROM (SELECT ? AS pipe, ? AS pos, ? AS holes) AS x JOIN (`+strings.Join(each, " UNION ALL ")+`) AS l`, s.opts.Pipe, p.At, holesText(p.Open))
	if code(err) == errDuplicate { // another instance was first
		return nil
	}
	return err
}

// passed returns the pipe that is farthest, the number that it has passed in every lane, and
// the numbers below it whose rows may still come.
func (s *Store) passed(ctx context.Context, q querier) (pipe string, floor int64, open holes.Set, err error) {
	err = q.QueryRowContext(ctx, `SELECT pipe, MIN(pos) AS least FROM postrider_progress GROUP BY pipe ORDER BY least DESC, pipe LIMIT 1`).Scan(&pipe, &floor)
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, nil, nil
	}
	if err != nil {
		return "", 0, nil, err
	}
	rows, err := q.QueryContext(ctx, `SELECT pos, holes FROM postrider_progress WHERE pipe = ?`, pipe)
	if err != nil {
		return "", 0, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var pos int64
		var text string
		if err := rows.Scan(&pos, &text); err != nil {
			return "", 0, nil, err
		}
		p, err := position(pos, text)
		if err != nil {
			return "", 0, nil, err
		}
		open = open.Or(p.Open)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return "", 0, nil, err
	}
	open, _ = open.Split(floor)
	return pipe, floor, open, nil
}

// holesText is a set as it stands in the table.
func holesText(set holes.Set) string {
	pairs := make([][2]int64, 0, len(set))
	for _, r := range set {
		pairs = append(pairs, [2]int64{r.First, r.Last})
	}
	text, _ := json.Marshal(pairs) // numbers always encode
	return string(text)
}

// position is a row of progress as a position.
func position(pos int64, text string) (holes.Position, error) {
	p := holes.Position{At: pos}
	if text == "[]" {
		return p, nil
	}
	var pairs [][2]int64
	if err := json.Unmarshal([]byte(text), &pairs); err != nil {
		return p, fmt.Errorf("holes %q: %w", text, err)
	}
	for _, pair := range pairs {
		p.Open = append(p.Open, holes.Range{First: pair[0], Last: pair[1]})
	}
	return p, nil
}

// numbers is a list of numbers for IN; it is never empty.
func numbers[T ~int64 | ~int32](all []T) string {
	if len(all) == 0 {
		return "NULL"
	}
	var b strings.Builder
	for i, n := range all {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, int64(n))
	}
	return b.String()
}

// giveBack frees the lanes that the request names, or all.
func (s *Store) giveBack(ctx context.Context, q querier, req store.LeaseRequest) error {
	if req.Leave {
		return again(ctx, func() error {
			mine, err := list[store.Lane](ctx, q, `SELECT lane FROM postrider_progress WHERE pipe = ? AND owner = ? ORDER BY lane`, s.opts.Pipe, req.BootID)
			if err != nil {
				return err
			}
			if _, err = q.ExecContext(ctx, `UPDATE postrider_progress SET owner = '' WHERE pipe = ? AND lane IN (`+numbers(mine)+`) AND owner = ?`,
				s.opts.Pipe, req.BootID); err != nil {
				return err
			}
			err = s.forget(ctx, q, req.BootID)
			return err
		})
	}
	for _, r := range req.Release {
		_, err := q.ExecContext(ctx, `UPDATE postrider_progress SET owner = '' WHERE pipe = ? AND lane = ? AND owner = ? AND epoch = ?`,
			s.opts.Pipe, r.Lane, req.BootID, r.Epoch)
		if err != nil {
			return err
		}
	}
	return nil
}

// live counts the live instances, finds when the first lease of another than boot ends,
// and returns the boot ids of those that live.
func (s *Store) live(ctx context.Context, q querier, boot string, at int64, g *store.Grant) (alive []string, err error) {
	rows, err := q.QueryContext(ctx, `SELECT boot_id, alive_until FROM postrider_relay WHERE pipe = ? AND alive_until > ? AND alive_until <= `+now+` + 2 * ttl`,
		s.opts.Pipe, at)
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
		if left := until(at, end); id != boot && (g.Lapse == 0 || left < g.Lapse) {
			g.Lapse = left
		}
	}
	g.Instances = len(alive)
	return alive, rows.Err()
}

// take takes free lanes up to the fair share. Lanes given back in the same
// request are left to others.
func (s *Store) take(ctx context.Context, q querier, req store.LeaseRequest, g *store.Grant, alive []string) error {
	rows, err := q.QueryContext(ctx, `SELECT lane, epoch, owner FROM postrider_progress WHERE pipe = ? ORDER BY lane`, s.opts.Pipe)
	if err != nil {
		return err
	}
	defer rows.Close()
	type one struct {
		lane  store.Lane
		epoch int64
		owner string
	}
	var free []one
	held := 0
	for rows.Next() {
		var l one
		if err := rows.Scan(&l.lane, &l.epoch, &l.owner); err != nil {
			return err
		}
		gave := slices.ContainsFunc(req.Release, func(r store.Release) bool { return r.Lane == l.lane })
		switch {
		case l.owner == req.BootID:
			held++
		case slices.Contains(alive, l.owner), gave, len(req.Only) > 0 && !slices.Contains(req.Only, l.lane):
		default:
			free = append(free, l)
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if err := rows.Close(); err != nil {
		return err
	}
	count := max(1, g.Instances)
	share := (g.Total + count - 1) / count
	if req.MaxLanes > 0 {
		share = min(share, req.MaxLanes)
	}
	free = free[:max(0, min(len(free), share-held))]
	if len(free) == 0 {
		return nil
	}
	var same []string
	args := []any{req.BootID, s.opts.Pipe}
	for _, l := range free {
		same = append(same, "(lane = ? AND epoch = ? AND owner = ?)")
		args = append(args, l.lane, l.epoch, l.owner)
	}
	_, err = q.ExecContext(ctx, `UPDATE postrider_progress SET owner = ?, epoch = epoch + 1 WHERE pipe = ? AND (`+strings.Join(same, " OR ")+`)`, args...)
	return err
}

// grant fills in what boot holds.
func (s *Store) grant(ctx context.Context, q querier, req store.LeaseRequest, at int64, g *store.Grant) error {
	rows, err := q.QueryContext(ctx, `SELECT lane, epoch, pos, holes FROM postrider_progress WHERE pipe = ? AND owner = ? ORDER BY lane`, s.opts.Pipe, req.BootID)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var l store.LaneGrant
		var pos int64
		var text string
		if err := rows.Scan(&l.Lane, &l.Epoch, &pos, &text); err != nil {
			return err
		}
		p, err := position(pos, text)
		if err != nil {
			return err
		}
		l.Position = p.Encode()
		epoch, known := req.Known[l.Lane]
		l.Known = known && epoch == l.Epoch
		g.Lanes = append(g.Lanes, l)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if err := rows.Close(); err != nil { // the next queries may need its connection
		return err
	}
	if err := s.views(ctx, q, at, g.Lanes); err != nil {
		return err
	}
	return s.requests(ctx, q, req.BootID, g)
}

func (s *Store) requests(ctx context.Context, q querier, boot string, g *store.Grant) error {
	rows, err := q.QueryContext(ctx, `SELECT r.id, r.lane, r.kind, r.seq, r.actor, r.reason FROM postrider_request r
		JOIN postrider_progress p ON p.pipe = r.pipe AND p.lane = r.lane
		WHERE r.pipe = ? AND r.done_at IS NULL AND p.owner = ? ORDER BY r.id LIMIT 1000`, s.opts.Pipe, boot)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var r store.Request
		if err := rows.Scan(&r.ID, &r.Lane, &r.Kind, &r.Seq, &r.Actor, &r.Reason); err != nil {
			return err
		}
		g.Requests = append(g.Requests, r)
	}
	return rows.Err()
}
