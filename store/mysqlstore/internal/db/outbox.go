// Package db is what every room of mysqlstore stands on: one pipe of one outbox in MySQL
// or MariaDB, its transactions, positions, times and errors. It imports no other room.
package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
)

// Version is the schema version that this module needs.
const Version = 12

// MostRanges is how many ranges of numbers one condition names.
const MostRanges = 200

// Outbox is one pipe of one outbox. It is safe for concurrent use; its fields are set
// before its first use.
type Outbox struct {
	DB   *sql.DB // stays its maker's to close
	Pipe string
}

// Querier is a pool, a connection or a transaction.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Transact runs fn in a transaction of the server's default isolation, again when it
// lost a deadlock or waited too long for a lock. READ COMMITTED is not asked for: with
// binlog_format = STATEMENT the server refuses its writes.
func (o *Outbox) Transact(ctx context.Context, what string, fn func(tx *sql.Tx) error) error {
	return o.Wrap(what, Again(ctx, func() error {
		tx, err := o.DB.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err = fn(tx); err == nil {
			return tx.Commit()
		}
		if end := tx.Rollback(); !errors.Is(end, sql.ErrTxDone) {
			err = errors.Join(err, end)
		}
		return err
	}))
}

// SchemaVersion is the version of the schema, 0 without one.
func (o *Outbox) SchemaVersion(ctx context.Context, q Querier) (n int, err error) {
	n, _, err = o.VersionAt(ctx, q)
	return n, err
}

// VersionAt is the version of the schema, 0 without one, and the server's time.
func (o *Outbox) VersionAt(ctx context.Context, q Querier) (n int, us int64, err error) {
	err = q.QueryRowContext(ctx, `SELECT COALESCE(MAX(version), 0), `+Now+` FROM postrider_migration`).Scan(&n, &us)
	if NoTable(err) {
		return 0, 0, nil
	}
	return n, us, o.Wrap("read the schema version", err)
}

// Knows fails with an error that matches store.ErrNoPipe where the pipe does not exist; fix
// is its remedy.
func (o *Outbox) Knows(ctx context.Context, q Querier, fix string) error {
	var known bool
	err := q.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM postrider_progress WHERE pipe = ?)`, o.Pipe).Scan(&known)
	if err == nil && !known {
		err = &store.UnusableError{What: fmt.Sprintf("pipe %q does not exist", o.Pipe), Fix: fix, Err: store.ErrNoPipe}
	}
	return err
}

// Positions returns the settled positions of lanes. suffix ends the query.
func (o *Outbox) Positions(ctx context.Context, q Querier, lanes []store.Lane, suffix string) (map[store.Lane]holes.Position, error) {
	rows, err := q.QueryContext(ctx, `SELECT lane, pos, holes FROM postrider_progress WHERE pipe = ? AND lane IN (`+Numbers(lanes)+`)`+suffix, o.Pipe)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := map[store.Lane]holes.Position{}
	for rows.Next() {
		var lane store.Lane
		var pos int64
		var text sql.NullString
		if err := rows.Scan(&lane, &pos, &text); err != nil {
			return nil, err
		}
		if found[lane], err = Position(pos, text); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	for _, lane := range lanes {
		if _, ok := found[lane]; !ok {
			return nil, fmt.Errorf("lane %d does not exist", lane)
		}
	}
	return found, nil
}

// Behind returns which of some lanes have rows above a number each.
func Behind(ctx context.Context, q Querier, above map[store.Lane]int64) (map[store.Lane]bool, error) {
	const atOnce = 64
	found := map[store.Lane]bool{}
	for few := range slices.Chunk(slices.Sorted(maps.Keys(above)), atOnce) {
		parts := make([]string, 0, atOnce)
		for _, lane := range few {
			parts = append(parts, fmt.Sprintf(`(SELECT lane FROM postrider_outbox FORCE INDEX (lane_seq) WHERE lane = %d AND seq > %d LIMIT 1)`, lane, above[lane]))
		}
		some, err := List[store.Lane](ctx, q, strings.Join(parts, " UNION ALL "))
		if err != nil {
			return nil, err
		}
		for _, lane := range some {
			found[lane] = true
		}
	}
	return found, nil
}

// Probe returns the numbers among the holes whose rows are visible. It looks for the
// highest first: a row that is found has no predecessor that was missed by a statement before.
func Probe(ctx context.Context, q Querier, open holes.Set) (found []int64, err error) {
	for end := len(open); end > 0; end -= MostRanges {
		some, err := List[int64](ctx, q, `SELECT seq FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE `+Within(open[max(0, end-MostRanges):end]))
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// Within is the condition that seq is in one of some ranges.
func Within(set holes.Set) string {
	var b strings.Builder
	for i, r := range set {
		if i > 0 {
			b.WriteString(" OR ")
		}
		if r.First == r.Last {
			fmt.Fprintf(&b, "seq = %d", r.First)
		} else {
			fmt.Fprintf(&b, "seq BETWEEN %d AND %d", r.First, r.Last)
		}
	}
	return "(" + b.String() + ")"
}

// fewNeighbours is how many numbers in a row a list names one by one.
const fewNeighbours = 8

// Among is the condition that seq is one of some ascending numbers. Neighbours are a range,
// whose rows the server reads without searching each one.
func Among(seqs []int64) string {
	var single []int64
	var ranges holes.Set
	for _, r := range holes.Of(seqs) {
		if r.Last-r.First+1 > fewNeighbours {
			ranges = append(ranges, r)
			continue
		}
		for seq := r.First; seq <= r.Last; seq++ {
			single = append(single, seq)
		}
	}
	if len(ranges) == 0 {
		return "seq IN (" + Numbers(single) + ")"
	}
	within := Within(ranges)
	if len(single) > 0 {
		within = "(" + within + " OR seq IN (" + Numbers(single) + "))"
	}
	return within
}

// Numbers is a list of numbers for IN; it is never empty.
func Numbers[T ~int64 | ~int32](all []T) string {
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

// List reads one column.
func List[T any](ctx context.Context, q Querier, query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		var v T
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, errors.Join(rows.Err(), rows.Close())
}
