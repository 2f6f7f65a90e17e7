package db

import (
	"context"
	"regexp"
	"strconv"

	"github.com/postrider/postrider/store"
)

// counterText is the line with the options of a table: its counter is left out where it is 1.
var counterText = regexp.MustCompile(`(?m)^\).*? ENGINE=\w+(?: AUTO_INCREMENT=(\d+))?`)

// Counter returns the next number that the outbox draws. The information schema may be a day behind. Some
// modes of a session hide the counter: it is unknown there, which is an error, and never taken for 1.
func Counter(ctx context.Context, q Querier) (int64, error) {
	var table, text string
	if err := q.QueryRowContext(ctx, `SHOW CREATE TABLE postrider_outbox`).Scan(&table, &text); err != nil {
		return 0, err
	}
	switch found := counterText.FindStringSubmatch(text); {
	case found == nil:
		return 0, &store.UnusableError{
			What: "the sql_mode of the pool's sessions hides the counter of postrider_outbox",
			Fix:  "open the pool with mysqlstore.OpenDB, or set its sql_mode to TRADITIONAL",
		}
	case found[1] == "":
		return 1, nil
	default:
		return strconv.ParseInt(found[1], 10, 64)
	}
}
