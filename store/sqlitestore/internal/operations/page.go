package operations

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// Pages of an order: the records that are read, and moved, in one settlement of a lane. Nobody
// else can write meanwhile, and a settlement has up to Pages of them.
const (
	orderScan  = 5000
	orderPage  = 500
	orderBytes = 8 << 20 // that a page of a replay copies
	// Pages of orders that an instance is told of at a time.
	Pages = 4
)

// room is how many records may be moved now: a page, or the rate times the time since the last
// page in any lane, of which two seconds count at most, or as long as one record takes.
func (r *request) room() int {
	if !r.rate.Valid {
		return orderPage
	}
	since := r.created
	if r.ran.Valid {
		since = r.ran.Int64
	}
	seconds := time.Duration(max(r.began-since, 0) * 1000).Seconds()
	return int(min(orderPage, r.rate.Float64*seconds, max(1, 2*r.rate.Float64)))
}

// hit is a record of a page.
type hit struct {
	seq     int64
	size    int
	headers string
}

// plan is what a page does.
type plan struct {
	hits   []hit
	looked int64 // up to which number
	done   bool  // nothing of the order is left in the lane
}

// source says where the records of an order are.
type source struct {
	table, beside string // beside: the size of a record k, and its headers if these are needed
	within        string // the condition of a short range: pipe ?1, lane ?2, number above ?3 and up to ?4
	of            string // the condition that a record k is the pipe's
	last          int64  // number of the order
}

func parkedSource(last int64) source {
	return source{"postrider_parked", "0, k.headers", "pipe = ?1 AND lane = ?2 AND seq > ?3 AND seq <= ?4", "k.pipe = ?1", last}
}

func settledSource(last int64) source {
	return source{"postrider_outbox", "length(CAST(k.payload AS BLOB)), ''", "?1 <> '' AND lane = ?2 AND seq > ?3 AND seq <= ?4", "TRUE", last}
}

// next is the statement that looks where the next rows end. Its fifth parameter is their number.
func (from *source) next() string {
	return `SELECT count(*), max(seq) FROM (SELECT seq FROM ` + from.table + ` WHERE ` + from.within + ` ORDER BY seq LIMIT ?5)`
}

// fitting is the statement that reads the records on a condition, and no more than some. The
// range is a list by the index of lanes: the planner would read the numbers of all lanes.
func (from *source) fitting(condition string, most int) string {
	return `SELECT k.seq, ` + from.beside + ` FROM ` + from.table + ` k WHERE ` + from.of + ` AND k.seq IN (SELECT seq FROM ` + from.table + ` WHERE ` + from.within +
		`) AND ` + condition + fmt.Sprintf(` ORDER BY k.seq LIMIT %d`, most)
}

// page finds the records of the next page on a condition, whose first parameter is the fifth. It
// looks at a bounded number of rows, whether they fit or not.
func (r *request) page(ctx context.Context, room int, from source, condition string, args ...any) (p plan, err error) {
	var n int
	var end sql.NullInt64
	err = r.q.QueryRowContext(ctx, from.next(), r.Pipe, r.lane, r.seq, from.last, orderScan).Scan(&n, &end)
	if err != nil {
		return p, err
	}
	p.looked, p.done = max(r.seq, end.Int64), n < orderScan
	if n == 0 {
		return p, nil
	}
	rows, err := r.q.QueryContext(ctx, from.fitting(condition, room+1), append([]any{r.Pipe, r.lane, r.seq, p.looked}, args...)...)
	if err != nil {
		return p, err
	}
	defer rows.Close()
	for size := 0; rows.Next(); {
		var h hit
		if err := rows.Scan(&h.seq, &h.size, &h.headers); err != nil {
			return p, err
		}
		if len(p.hits) == room || len(p.hits) > 0 && size+h.size > orderBytes {
			p.looked, p.done = p.hits[len(p.hits)-1].seq, false
			break
		}
		p.hits, size = append(p.hits, h), size+h.size
	}
	return p, errors.Join(rows.Err(), rows.Close())
}

// numbers are those of the records, as a list in JSON.
func (p *plan) numbers() string {
	seqs := make([]int64, len(p.hits))
	for i, h := range p.hits {
		seqs[i] = h.seq
	}
	text, _ := json.Marshal(seqs)
	return string(text)
}

// turn ends a page, and the order in this lane behind its last one.
func (r *request) turn(ctx context.Context, p *plan, moved int64) error {
	r.moved += moved
	if moved > 0 || p.done {
		r.ran = sql.NullInt64{Int64: r.began, Valid: true}
	}
	// ran is that of the order: a page that moves nothing takes it over from another lane.
	_, err := r.q.ExecContext(ctx, `UPDATE postrider_request SET seq = ?, moved = ?, gate = ?, generation = ?, ran_at = ? WHERE id = ?`,
		p.looked, r.moved, r.gate, r.generation, r.ran, r.id)
	if err != nil || !p.done {
		return err
	}
	return r.end(ctx, ops.ResultDone, &r.moved)
}

// discarded has the view show no time of sending for records whose rows are there. Parameters:
// the pipe, the lane, the numbers.
const discarded = `INSERT INTO postrider_unparked (pipe, seq, lane, at) SELECT ?1, o.seq, ?2, NULL FROM postrider_outbox o
	WHERE o.seq IN (SELECT value FROM json_each(?3)) ON CONFLICT (pipe, seq) DO UPDATE SET at = NULL`

// many does the next page of an order on parked records.
func (r *request) many(ctx context.Context) error {
	room := r.room()
	if room == 0 {
		return nil
	}
	fits, args := where(&r.Match, string(KindOf(r.kind)), r.began, true)
	from := parkedSource(r.upto.Int64)
	p, err := r.page(ctx, room, from, fits, args...)
	if err != nil {
		return err
	}
	if !r.Edit.Empty() {
		if p.hits, err = r.edit(ctx, p.hits); err != nil {
			return err
		}
	}
	const these = ` WHERE pipe = ? AND seq IN (SELECT value FROM json_each(?))`
	var query string
	args = []any{r.Pipe, p.numbers()}
	switch r.kind {
	case string(store.ActSkip):
		query = `UPDATE postrider_parked SET state = 'dead', captures = 0` + these
	case string(store.ActDiscard) + ManySuffix:
		if _, err := r.q.ExecContext(ctx, discarded, r.Pipe, r.lane, p.numbers()); err != nil {
			return err
		}
		query = `DELETE FROM postrider_parked` + these
	default:
		query = `UPDATE postrider_parked SET state = 'retry', captures = key <> '', due_at = ?, attempts = 0, generation = generation + 1` + these
		args = append([]any{r.began}, args...)
	}
	generations, err := db.List[int64](ctx, r.q, query+` RETURNING generation`, args...)
	if err != nil {
		return err
	}
	highest := int64(0)
	for _, g := range generations {
		highest = max(highest, g)
	}
	if err := r.reached(ctx, highest); err != nil {
		return err
	}
	return r.turn(ctx, &p, int64(len(generations)))
}

// edit changes topic and headers of the records, and returns those that a message can have.
func (r *request) edit(ctx context.Context, hits []hit) (kept []hit, err error) {
	for _, h := range hits {
		text, ok := edited(h.headers, &r.Edit)
		if !ok {
			continue
		}
		_, err := r.q.ExecContext(ctx, `UPDATE postrider_parked SET headers = ?, topic = CASE ?2 WHEN '' THEN topic ELSE ?2 END WHERE pipe = ? AND seq = ?`,
			text, r.Edit.Topic, r.Pipe, h.seq)
		if err != nil {
			return nil, err
		}
		kept = append(kept, h)
	}
	return kept, nil
}

// edited returns headers as they are after an edit; false: no message can have them.
func edited(text string, e *ops.Edit) (string, bool) {
	headers := map[string]string{}
	if json.Unmarshal([]byte(text), &headers) != nil {
		return "", false
	}
	maps.Copy(headers, e.SetHeaders)
	for _, name := range e.UnsetHeaders {
		delete(headers, name)
	}
	if (&postrider.Message{Topic: "t", Headers: headers}).Validate() != nil {
		return "", false
	}
	out, err := json.Marshal(headers)
	return string(out), err == nil
}

// replay does the next page of a replay. Live messages up to the gate come first: those that
// the cursor has not reached.
func (r *request) replay(ctx context.Context) error {
	room := r.room()
	if room == 0 {
		return nil
	}
	var settled int64
	var live bool
	err := r.q.QueryRowContext(ctx, `SELECT c.pos, EXISTS (SELECT 1 FROM postrider_outbox o WHERE o.lane = c.lane AND o.seq > c.pos AND o.seq <= ?3)
		FROM postrider_progress c WHERE c.pipe = ?1 AND c.lane = ?2`, r.Pipe, r.lane, r.gate.Int64).Scan(&settled, &live)
	if err != nil || live && r.gate.Valid {
		return err
	}
	filter, _, err := r.Set(ctx, r.q)
	if err != nil {
		return err
	}
	fits, args := where(&r.Match, r.kind, r.began, true)
	from := settledSource(min(r.upto.Int64, settled))
	p, err := r.page(ctx, room, from, `?5 <> '' AND `+fits+db.And(filter, "?5", "k")+` AND `+notParked, append(append([]any{filter}, args...), r.Pipe)...)
	if err != nil {
		return err
	}
	if !r.generation.Valid {
		err := r.q.QueryRowContext(ctx, `SELECT 1 + coalesce((SELECT generation FROM postrider_repair WHERE pipe = ? AND lane = ?), 0)`, r.Pipe, r.lane).Scan(&r.generation)
		if err != nil {
			return err
		}
	}
	state := store.Scheduled
	if !r.gate.Valid {
		state = store.Retry
	}
	res, err := r.q.ExecContext(ctx, `INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, generation, class, code, error,
		id, topic, key, type, payload, content_type, headers, version, schema_version, not_before, created_at)
		SELECT ?, k.seq, k.lane, ?, 0, ?, 0, ?, '', '', '', `+db.MessageColumns+`
		FROM postrider_outbox k WHERE k.seq IN (SELECT value FROM json_each(?))`, r.Pipe, state.String(), r.began, r.generation, p.numbers())
	if err != nil {
		return err
	}
	moved, err := res.RowsAffected()
	if err == nil && moved > 0 {
		err = r.reached(ctx, r.generation.Int64)
	}
	if err == nil && r.gate.Valid {
		r.gate.Int64, err = r.Newest(ctx, r.q)
	}
	if err != nil {
		return err
	}
	return r.turn(ctx, &p, moved)
}
