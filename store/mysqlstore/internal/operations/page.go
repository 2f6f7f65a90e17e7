package operations

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// Pages of an order: the records that are read, and moved, in one settlement of a lane.
const (
	orderScan  = 2000
	orderPage  = 1000
	orderBytes = 16 << 20 // that a page of a replay copies
)

// order is what a request has beside, if it is one lane of an order.
type order struct {
	upto, gate, generation, link, ran sql.NullInt64
	rate                              sql.NullFloat64
	created, began                    int64
	orderArgs
}

// orderArgs are kept as JSON.
type orderArgs struct {
	Match    ops.Match
	Edit     ops.Edit
	Overtake bool
}

func (o *order) parse(text string) error {
	if err := json.Unmarshal([]byte(text), &o.orderArgs); err != nil {
		return fmt.Errorf("arguments of an order: %w", err)
	}
	return nil
}

// room is how many records may be moved now: a page, or the rate times the time since the
// beginning of the last page in any lane, of which two seconds count at most, or as
// long as one record takes, less what other lanes of the same call move.
func (x *Executor) room(o *order) int {
	if !o.rate.Valid || o.rate.Float64 <= 0 {
		return orderPage
	}
	since := o.created
	if o.ran.Valid {
		since = o.ran.Int64
	}
	seconds := time.Duration(max(o.began-since, 0) * 1000).Seconds()
	return max(int(min(orderPage, o.rate.Float64*seconds, max(1, 2*o.rate.Float64)))-x.planned[o.link.Int64], 0)
}

// where is the condition that a row of table alias k fits. Texts are compared as bytes:
// otherwise those that differ in blanks at their end are equal.
func where(m *ops.Match, kind string) (condition string, args []any) {
	all := []string{"TRUE"}
	add := func(text string, values ...any) { all, args = append(all, text), append(args, values...) }
	if len(m.Seqs) > 0 {
		add("k.seq IN (" + db.Numbers(m.Seqs) + ")")
	}
	if len(m.IDs) > 0 {
		var ids []any
		for _, id := range m.IDs {
			ids = append(ids, []byte(strings.ToLower(id)))
		}
		add("k.id IN ("+strings.TrimSuffix(strings.Repeat("?,", len(ids)), ",")+")", ids...)
	}
	for _, f := range []struct{ column, value string }{{"topic", m.Topic}, {"`key`", m.Key}, {"type", m.Type}, {"class", m.Class}, {"code", m.Code}} {
		if f.value != "" {
			add("CAST(k."+f.column+" AS BINARY) = ?", []byte(f.value))
		}
	}
	if m.Error != "" {
		add("LOCATE(?, CAST(k.error AS BINARY)) > 0", []byte(m.Error))
	}
	if v := m.Versions; v.First > 0 {
		add("k.version BETWEEN ? AND ?", v.First, max(v.First, v.Last))
	}
	if m.Lane != nil {
		add("k.lane = ?", *m.Lane)
	}
	if !m.Since.IsZero() {
		add("k.created_at >= ?", m.Since.UnixMicro())
	}
	if !m.Until.IsZero() {
		add("k.created_at < ?", m.Until.UnixMicro())
	}
	if m.IdleFor > 0 {
		add("COALESCE(k.last_attempt, k.due_at) < "+db.Now+" - ?", m.IdleFor.Microseconds())
	}
	switch kind {
	case string(store.ActReplay):
	case string(store.ActSkip):
		add("k.captures AND k.`key` <> '' AND k.state IN ('dead', 'retry')")
	default:
		add("k.state = 'dead'")
	}
	return strings.Join(all, " AND "), args
}

// candidate is a record that fits.
type candidate struct {
	seq     int64
	size    int
	headers string
}

// many adds the statements of the next page of an order on parked records.
func (x *Executor) many(ctx context.Context, g *page, r *request) error {
	room := x.room(&r.order)
	if room == 0 {
		return nil
	}
	fits, args := where(&r.Match, r.kind)
	headers := "''"
	if len(r.Edit.SetHeaders)+len(r.Edit.UnsetHeaders) > 0 {
		headers = "k.headers"
	}
	found, err := candidates(ctx, x.DB, `SELECT k.seq, 0, `+headers+` FROM postrider_parked k
		WHERE k.pipe = ? AND k.lane = ? AND k.seq > ? AND k.seq <= ? AND `+fits+fmt.Sprintf(` ORDER BY k.seq LIMIT %d`, orderScan),
		append([]any{x.Pipe, g.lane, r.seq, r.upto.Int64}, args...)...)
	if err != nil {
		return err
	}
	p := plan{looked: r.seq}
	edited := map[int64]string{}
	for _, c := range found {
		if len(p.hits) == room {
			break
		}
		p.looked = c.seq
		if headers != "''" {
			text, ok := edit(c.headers, &r.Edit)
			if !ok {
				continue
			}
			edited[c.seq] = text
		}
		p.hits = append(p.hits, c.seq)
	}
	p.done = len(found) < orderScan && (len(found) == 0 || p.looked == found[len(found)-1].seq)
	x.planned[r.link.Int64] += len(p.hits)
	x.change(g, r, p.hits, edited)
	g.turn(r, p)
	return nil
}

// plan is what a page does.
type plan struct {
	hits   []int64
	looked int64 // up to which number
	done   bool  // the order is, in this lane
}

// turn adds what follows the statement that moved the records.
func (g *page) turn(r *request, p plan) {
	ran := "r.ran_at"
	if len(p.hits) > 0 || p.done {
		ran = fmt.Sprint(r.began)
	}
	g.add(r, `UPDATE postrider_act r`+mine+` SET r.moved = r.moved + @postrider_moved, r.seq = ?, r.ran_at = `+ran+`,
		r.gate = CASE WHEN r.gate IS NOT NULL THEN @postrider_gate END`+open, p.looked)
	if !p.done {
		return
	}
	g.add(r, `INSERT INTO postrider_journal (at, actor, act, pipe, lane, reason, result, records, request)
		SELECT `+db.Now+`, r.actor, ?, r.pipe, r.lane, r.reason, '`+ops.ResultDone+`', r.moved, r.link FROM postrider_act r`+mine+open, string(KindOf(r.kind)))
	g.add(r, `UPDATE postrider_act r`+mine+` SET r.result = '`+ops.ResultDone+`'`+open)
	g.end(r)
}

// count keeps how many rows the statement before has changed.
func (g *page) count() {
	g.all = append(g.all, db.Statement{Query: `SET @postrider_moved = ROW_COUNT(), @postrider_gate = NULL`})
}

// change adds the statement that moves parked records, and counts them. That they are as
// they were read is part of its condition: a request before may have moved them.
func (x *Executor) change(g *page, r *request, hits []int64, edited map[int64]string) {
	still, _ := where(&ops.Match{}, r.kind)
	from := ` FROM postrider_parked k JOIN postrider_progress p ON p.pipe = k.pipe AND p.lane = k.lane`
	condition := ` WHERE k.pipe = ? AND k.seq IN (` + db.Numbers(hits) + `) AND k.lane = ? AND ` + still + ` AND p.settled_call = ?`
	args := []any{x.Pipe, g.lane, g.call}
	put := func(query string, before ...any) {
		g.all = append(g.all, db.Statement{Query: query, Args: append(before, args...)})
	}
	update := strings.Replace(from, " FROM", "UPDATE", 1) + ` SET `
	for part := hits; len(edited) > 0 && len(part) > 0; {
		const bytes = 1 << 20 // of one statement
		var texts []string
		var values []any
		n := 0
		for size := 0; n < len(part) && n < 200 && size < bytes; n++ {
			text := edited[part[n]]
			texts, values, size = append(texts, `WHEN ? THEN ?`), append(values, part[n], text), size+len(text)
		}
		put(update+`k.headers = CASE k.seq `+strings.Join(texts, " ")+` ELSE k.headers END`+condition, values...)
		part = part[n:]
	}
	switch r.kind {
	case string(store.ActDiscard) + ManySuffix:
		g.all = append(g.all, Unparked(condition, `NULL`, args...))
		put(`DELETE k` + from + condition)
		g.count()
		return
	case string(store.ActSkip):
		put(update + `k.state = 'dead', k.captures = FALSE` + condition)
		g.count()
		return
	}
	put(update+"k.state = 'retry', k.captures = k.`key` <> '', k.due_at = "+db.Now+", k.attempts = 0, k.generation = k.generation + 1, k.topic = COALESCE(?, k.topic)"+condition,
		sql.NullString{String: r.Edit.Topic, Valid: r.Edit.Topic != ""})
	g.count()
	g.all = append(g.all, db.Statement{
		Query: `INSERT INTO postrider_repair (pipe, lane, generation) SELECT k.pipe, k.lane, MAX(k.generation)` + from +
			` WHERE k.pipe = ? AND k.seq IN (` + db.Numbers(hits) + `) AND k.lane = ? AND p.settled_call = ? GROUP BY k.pipe, k.lane` + higher, Args: args,
	})
}

// edit returns headers as they are after an edit; false: no message can have them.
func edit(text string, e *ops.Edit) (string, bool) {
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

// replay adds the statements of the next page of a replay. Live messages up to the gate
// come first: those that the cursor has not reached, and those that were committed
// behind it.
func (x *Executor) replay(ctx context.Context, g *page, r *request, settled holes.Position) error {
	room := x.room(&r.order)
	if room == 0 {
		return nil
	}
	if r.gate.Valid {
		live, err := x.live(ctx, g.lane, settled, r.gate.Int64)
		if err != nil || live {
			return err
		}
	}
	filter, err := x.Filter(ctx, x.DB)
	if err != nil {
		return err
	}
	dropped, err := x.Dropped(ctx, x.DB, []string{x.Pipe}, r.seq, r.upto.Int64)
	if err != nil {
		return err
	}
	fits, args := where(&r.Match, r.kind)
	found, err := x.replayable(ctx, filter, `k.lane = ? AND k.seq > ? AND k.seq <= ? AND `+fits+` AND `+notParked+fmt.Sprintf(` ORDER BY k.seq LIMIT %d`, orderScan),
		append(append([]any{g.lane, r.seq, r.upto.Int64}, args...), x.Pipe)...)
	if err != nil {
		return err
	}
	p := plan{looked: r.seq}
	size := 0
	for _, c := range found {
		if len(p.hits) == room || len(p.hits) > 0 && size+c.size > orderBytes {
			break
		}
		if p.looked = c.seq; c.passes && settled.Settled(c.seq) && !dropped.Has(c.seq) {
			p.hits, size = append(p.hits, c.seq), size+c.size
		}
	}
	p.done = len(found) < orderScan && (len(found) == 0 || p.looked == found[len(found)-1].seq)
	x.planned[r.link.Int64] += len(p.hits)
	g.add(r, `UPDATE postrider_act r`+mine+` LEFT JOIN postrider_repair x ON x.pipe = r.pipe AND x.lane = r.lane
		SET r.generation = COALESCE(r.generation, 1 + COALESCE(x.generation, 0))`+open)
	state := store.Scheduled
	if !r.gate.Valid {
		state = store.Retry
	}
	g.add(r, "INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, generation, class, code, error,"+
		" id, topic, `key`, type, payload, content_type, headers, version, schema_version, not_before, created_at)"+
		` SELECT r.pipe, k.seq, k.lane, ?, FALSE, `+db.Now+`, 0, r.generation, '', '', '',
		k.id, k.topic, k.`+"`key`"+`, k.type, k.payload, k.content_type, k.headers, k.version, k.schema_version, k.not_before, k.created_at
		FROM postrider_act r`+mine+` JOIN postrider_outbox k ON k.lane = r.lane AND k.seq IN (`+db.Numbers(p.hits)+`) AND `+notParked+open, state.String(), x.Pipe)
	g.count()
	g.add(r, `INSERT INTO postrider_repair (pipe, lane, generation) SELECT r.pipe, r.lane, r.generation FROM postrider_act r`+mine+open+` AND @postrider_moved > 0`+higher)
	// A read that locks nothing, of what is committed at this moment.
	g.all = append(g.all, db.Statement{Query: `SELECT COALESCE(MAX(seq), 0) INTO @postrider_gate FROM postrider_outbox`})
	g.turn(r, p)
	return nil
}

// notParked is true of a row k of the outbox that the pipe has not set aside.
const notParked = `NOT EXISTS (SELECT 1 FROM postrider_parked a WHERE a.pipe = ? AND a.seq = k.seq)`

// live reports whether a message of the lane up to a number is committed and not settled.
func (x *Executor) live(ctx context.Context, lane store.Lane, settled holes.Position, gate int64) (found bool, err error) {
	late, _ := settled.Open.Split(gate)
	parts := []holes.Set{{{First: settled.At + 1, Last: gate}}}
	for len(late) > 0 {
		n := min(len(late), db.MostRanges)
		parts, late = append(parts, late[:n]), late[n:]
	}
	for _, part := range parts {
		if part[0].First > part[0].Last {
			continue
		}
		err = x.DB.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM postrider_outbox FORCE INDEX (lane_seq) WHERE lane = ? AND `+db.Within(part)+`)`, lane).Scan(&found)
		if err != nil || found {
			return found, err
		}
	}
	return false, nil
}

// row is one of the outbox that fits an order.
type row struct {
	candidate
	passes bool // the filter of the pipe
}

// replayable reads rows k of the outbox.
func (x *Executor) replayable(ctx context.Context, filter store.Filter, condition string, args ...any) (found []row, err error) {
	rows, err := x.DB.QueryContext(ctx, `SELECT k.seq, k.size, `+db.Filtered(filter, "k.")+` FROM postrider_outbox k FORCE INDEX (lane_seq) WHERE `+condition, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var c row
		if c.passes, err = db.ScanFiltered(rows, filter, &c.seq, &c.size); err != nil {
			return nil, err
		}
		found = append(found, c)
	}
	return found, cmp.Or(rows.Err(), rows.Close())
}

// candidates reads parked records.
func candidates(ctx context.Context, q db.Querier, query string, args ...any) (found []candidate, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var c candidate
		if err := rows.Scan(&c.seq, &c.size, &c.headers); err != nil {
			return nil, err
		}
		found = append(found, c)
	}
	return found, cmp.Or(rows.Err(), rows.Close())
}
