// Package points reads the figures of a pipe over time from stores that keep them in
// database/sql, with times in microseconds.
package points

import (
	"database/sql"
	"errors"
	"time"

	"github.com/postrider/postrider/store/ops"
)

// Columns are those that Read scans, of a table whose names need no quotes but lag.
const Columns = "at, drawn, delivered, pending, capped, `lag`, dead, blocked, relays"

// Read returns the points of rows, whose columns are Columns, and closes rows.
func Read(rows *sql.Rows) (all []ops.Point, err error) {
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var p ops.Point
		var at, lag int64
		if err := rows.Scan(&at, &p.Drawn, &p.Delivered, &p.Pending, &p.Capped, &lag, &p.Dead, &p.Blocked, &p.Relays); err != nil {
			return nil, err
		}
		p.At, p.Lag = time.UnixMicro(at).UTC(), time.Duration(lag)*time.Microsecond
		all = append(all, p)
	}
	return all, rows.Err()
}
