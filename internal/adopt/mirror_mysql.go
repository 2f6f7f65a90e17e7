package adopt

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// reflect returns the next rows of the mirror's table behind a place, and what is known of their messages but for the
// positions of lanes and the numbers that were given up. Every statement of the mirror reads few rows and ends soon:
// relays give no number up before a statement has ended that began earlier, so that behind a slow one the backlog would
// grow. The view postrider_messages counts all that is not settled, and a subquery about the numbers that were given up
// would read all of them for each row: the servers use no range of an index that depends on another table's row.
func (p mysqlPlan) reflect(limit int) string {
	return `SELECT m.seq, o.seq IS NOT NULL, COALESCE(o.lane, -1), k.seq IS NOT NULL, ` + p.died() + `
    FROM (SELECT * FROM ` + p.mirrored() + fmt.Sprintf(` WHERE seq > ? ORDER BY seq LIMIT %d`, limit) + `) AS m
    JOIN (SELECT ? AS pipe) AS n
    LEFT JOIN postrider_parked AS k ON k.pipe = n.pipe AND k.seq = m.seq
    LEFT JOIN postrider_outbox AS o ON o.seq = m.seq ORDER BY m.seq`
}

// positions returns how far lanes are settled.
func (p mysqlPlan) positions(lanes int) string {
	return "SELECT lane, pos, COALESCE(holes, '[]') FROM postrider_progress WHERE pipe = ? AND lane IN (" + strings.TrimSuffix(strings.Repeat("?, ", lanes), ", ") + ")"
}

// dropped returns the ranges of numbers that were given up and end at a number or above it.
func (p mysqlPlan) dropped() string {
	return fmt.Sprintf("SELECT low, high FROM postrider_dropped FORCE INDEX (PRIMARY) WHERE pipe = ? AND high >= ? ORDER BY high LIMIT %d", droppedRows)
}

// droppedRows is how many ranges one statement returns: few where the messages of a page are far apart.
const droppedRows = 200

// written writes them back, and forget removes them from the mirror's table.
func (p mysqlPlan) written(count int) string {
	set := p.sent("t.", p.clock(Column{Class: Time}), p.clock(Column{Class: LocalTime}), p.inPlace)
	return "UPDATE " + p.table() + " AS t JOIN " + p.mirrored() + " AS m ON " + p.meets("t", "m") + " SET " + set +
		"\n    WHERE " + p.ours("t", p.inPlace) + " AND m.seq IN (" + strings.TrimSuffix(strings.Repeat("?, ", count), ", ") + ")"
}

func (p mysqlPlan) forget(count int) string {
	return "DELETE FROM " + p.mirrored() + " WHERE seq IN (" + strings.TrimSuffix(strings.Repeat("?, ", count), ", ") + ")"
}

// reflected is a message of the mirror's table.
type reflected struct {
	death
	lane   int64 // of its row
	stored bool  // its row is in the outbox
	parked bool
}

// position is how far a lane is settled: up to a number, but for the numbers in some ranges, which ascend.
type position struct {
	at   int64
	open [][2]int64
}

func (p position) settled(seq int64) bool {
	i, _ := slices.BinarySearchFunc(p.open, seq, func(r [2]int64, seq int64) int { return cmp.Compare(r[1], seq) })
	return seq <= p.at && (i == len(p.open) || seq < p.open[i][0])
}

// look reads the next messages behind a place in one snapshot: between two of them a message could be set aside, or
// its number given up, and look as if it was sent.
func (d DB) look(ctx context.Context, p mysqlPlan, pipe string, from Place) (sent []any, dead []death, seen int64, to Place, err error) {
	tx, err := d.SQL.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return nil, nil, 0, from, err
	}
	defer func() { _ = tx.Rollback() }() // it has changed nothing
	all, err := p.page(ctx, tx, pipe, from)
	if err != nil || len(all) == 0 {
		return nil, nil, 0, from, err
	}
	lanes, err := p.lanes(ctx, tx, pipe, all)
	if err != nil {
		return nil, nil, 0, from, err
	}
	given := givenUp{mysqlPlan: p, pipe: pipe}
	for _, m := range all {
		open := m.parked || m.stored && !lanes[m.lane].settled(m.seq)
		if m.stored && !open {
			if open, err = given.has(ctx, tx, m.seq); err != nil {
				return nil, nil, 0, from, err
			}
		}
		switch {
		case !open:
			sent = append(sent, m.seq)
		case m.at.Valid:
			dead = append(dead, m.death)
		}
	}
	return sent, dead, int64(len(all)), Place{Seq: all[len(all)-1].seq}, nil
}

func (p mysqlPlan) page(ctx context.Context, tx *sql.Tx, pipe string, from Place) (all []reflected, err error) {
	rows, err := tx.QueryContext(ctx, p.reflect(BatchRows), from.Seq, pipe)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var m reflected
		if err := rows.Scan(&m.seq, &m.stored, &m.lane, &m.parked, &m.at, &m.attempts, &m.text); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, rows.Err()
}

// lanes reads the positions of the lanes that have the messages.
func (p mysqlPlan) lanes(ctx context.Context, tx *sql.Tx, pipe string, all []reflected) (map[int64]position, error) {
	found, args := map[int64]position{}, []any{pipe}
	for _, m := range all {
		if _, known := found[m.lane]; m.stored && !known {
			found[m.lane], args = position{}, append(args, m.lane)
		}
	}
	if len(found) == 0 {
		return found, nil
	}
	rows, err := tx.QueryContext(ctx, p.positions(len(found)), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	clear(found) // a lane without a row has settled nothing
	for rows.Next() {
		var lane int64
		var at position
		var text []byte
		if err := rows.Scan(&lane, &at.at, &text); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, &at.open); err != nil {
			return nil, fmt.Errorf("holes of lane %d: %w", lane, err)
		}
		found[lane] = at
	}
	return found, rows.Err()
}

// givenUp are the numbers that were given up, read as far as they are asked for.
type givenUp struct {
	mysqlPlan
	pipe   string
	ranges [][2]int64 // by their ends
	whole  bool       // there are none above the last
}

// has reports whether a number was given up. The numbers asked for ascend.
func (g *givenUp) has(ctx context.Context, tx *sql.Tx, seq int64) (bool, error) {
	if n := len(g.ranges); !g.whole && (n == 0 || g.ranges[n-1][1] < seq) {
		if err := g.read(ctx, tx, seq); err != nil {
			return false, err
		}
	}
	for len(g.ranges) > 0 && g.ranges[0][1] < seq {
		g.ranges = g.ranges[1:]
	}
	// Ranges can overlap where two relays noted them at once.
	return slices.ContainsFunc(g.ranges, func(r [2]int64) bool { return r[0] <= seq }), nil
}

func (g *givenUp) read(ctx context.Context, tx *sql.Tx, seq int64) error {
	rows, err := tx.QueryContext(ctx, g.dropped(), g.pipe, seq)
	if err != nil {
		return err
	}
	defer rows.Close()
	g.ranges = nil
	for rows.Next() {
		var r [2]int64
		if err := rows.Scan(&r[0], &r[1]); err != nil {
			return err
		}
		g.ranges = append(g.ranges, r)
	}
	g.whole = len(g.ranges) < droppedRows
	return rows.Err()
}

func (d DB) mirrorMySQL(ctx context.Context, p mysqlPlan, pipe string, from Place) (written, foreign, seen int64, to Place, err error) {
	sent, dead, seen, to, err := d.look(ctx, p, pipe, from)
	if err != nil || len(sent)+len(dead) == 0 {
		return 0, 0, seen, to, err
	}
	tx, err := d.SQL.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, 0, 0, from, err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := p.bury(ctx, tx, dead); err != nil {
		return 0, 0, 0, from, err
	}
	if len(sent) > 0 {
		res, err := tx.ExecContext(ctx, p.written(len(sent)), sent...)
		if err != nil {
			return 0, 0, 0, from, err
		}
		n, err := res.RowsAffected()
		if err != nil {
			return 0, 0, 0, from, err
		}
		if foreign = int64(len(sent)) - n; !p.inPlace {
			foreign = 0 // a state that stays as it is counts among them
		}
		if _, err := tx.ExecContext(ctx, p.forget(len(sent)), sent...); err != nil {
			return 0, 0, 0, from, err
		}
	}
	return int64(len(sent)), foreign, seen, to, tx.Commit()
}
