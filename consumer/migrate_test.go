package consumer

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
)

// busyTables is a database whose first transactions find a locked table.
type busyTables struct {
	times int
	err   error
	tries int
}

func (*busyTables) Dialect() dialect.Dialect { return dialect.SQLite }

func (h *busyTables) Transact(_ context.Context, fn func(tx *sql.Tx, conn inbox.Conn) error) error {
	if h.tries++; h.tries <= h.times {
		return h.err
	}
	return fn(nil, yes{})
}

// TestMigrateWaitsForATable: a migration retries while running consumers hold a table.
// It ends at once after another error, and after a minute if the table stays locked.
func TestMigrateWaitsForATable(t *testing.T) {
	busy, denied := &inbox.RetryableError{Code: "55P03", Err: errors.New("lock timeout")}, errors.New("permission denied")
	for name, c := range map[string]struct {
		db    busyTables
		tries int
		want  error
	}{
		"free":      {busyTables{}, 1, nil},
		"held":      {busyTables{times: 3, err: busy}, 4, nil},
		"for ever":  {busyTables{times: 1 << 30, err: busy}, 20, busy},
		"forbidden": {busyTables{times: 1, err: denied}, 1, denied},
	} {
		synctest.Test(t, func(t *testing.T) {
			err := New(nil, &c.db, &Options{Name: "billing"}).Migrate(t.Context())
			if !errors.Is(err, c.want) || c.db.tries != c.tries {
				t.Errorf("%s: %v after %d tries, want %v after %d", name, err, c.db.tries, c.want, c.tries)
			}
		})
	}
}
