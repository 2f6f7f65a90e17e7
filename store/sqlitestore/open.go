package sqlitestore

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"modernc.org/sqlite"

	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// Open returns a store over a pool of its own for the database file at path: see
// [OpenDB]. opts may be nil. It does no I/O. Close ends the store and its pool.
func Open(path string, opts *Options) (*Store, error) {
	pool, err := OpenDB(path)
	if err != nil {
		return nil, err
	}
	s := New(pool, opts)
	s.own = pool
	return s, nil
}

// Close ends the pool that [Open] made. A store of [New] has nothing to end, and leaves
// its pool open.
func (s *Store) Close() error {
	if s.own == nil {
		return nil
	}
	return s.own.Close()
}

// OpenDB returns a pool for the database file at path that suits an outbox and
// its application, which writes messages in its own transactions. It does no I/O;
// close it yourself.
//
// Transactions begin as IMMEDIATE: one that reads first and writes later would
// be refused as busy at once, whatever the timeout. They wait for their turn to
// write until their context ends, a minute at the most; a single statement
// outside a transaction waits up to 10 s, whatever its context says. Readers
// and the writer do not wait for each other in WAL mode, which Migrate turns on
// and the file keeps.
// synchronous is FULL, since a commit that a power cut can take back may have
// been delivered already.
func OpenDB(path string) (*sql.DB, error) {
	switch {
	case path == "":
		return nil, errors.New("sqlite: no file is named")
	case path == ":memory:" || strings.HasPrefix(path, "file::memory:"):
		return nil, errors.New("sqlite: a database in memory belongs to one connection and cannot hold an outbox; name a file")
	}
	params := url.Values{"_txlock": {"immediate"}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", db.BusyTimeout.Milliseconds()), "synchronous(FULL)", "foreign_keys(ON)",
	}}
	base, err := sqlite.NewConnector("file:" + (&url.URL{Path: path}).EscapedPath() + "?" + params.Encode())
	if err != nil {
		return nil, fmt.Errorf("sqlite: open %s: %w", path, err)
	}
	return sql.OpenDB(db.Connector{Connector: base}), nil
}
