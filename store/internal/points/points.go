// Package points reads the figures of a pipe over time from stores that keep them in
// database/sql, with times in microseconds.
package points

import (
	"database/sql"
	"time"

	"github.com/postrider/postrider/store/ops"
)

// Columns are those that Read scans, of a table whose names need no quotes but lag.
const Columns = "at, drawn, delivered, pending, capped, `lag`, dead, blocked, relays"

// Read returns the points that a query for Columns answered with. It takes what the query
// returned, and closes rows.
func Read(rows *sql.Rows, err error) ([]ops.Point, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []ops.Point
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
