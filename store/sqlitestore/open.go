package sqlitestore

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Open returns a pool for the database file at path that suits an outbox and
// its application. It does no I/O; close it yourself.
//
// Transactions begin as IMMEDIATE: one that reads first and writes later would
// be refused as busy at once, whatever the timeout. Writers wait up to 10 s for
// each other. Readers and the writer do not wait for each other in WAL mode,
// which Migrate turns on and the file keeps.
// synchronous is FULL, since a commit that a power cut can take back may have
// been delivered already.
func Open(path string) (*sql.DB, error) {
	switch {
	case path == "":
		return nil, errors.New("sqlite: no file is named")
	case path == ":memory:" || strings.HasPrefix(path, "file::memory:"):
		return nil, errors.New("sqlite: a database in memory belongs to one connection and cannot hold an outbox; name a file")
	}
	params := url.Values{"_txlock": {"immediate"}, "_pragma": {
		"busy_timeout(10000)", "synchronous(FULL)", "foreign_keys(ON)",
	}}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+params.Encode())
	if err != nil {
		return nil, fmt.Errorf("sqlite: open %s: %w", path, err)
	}
	return db, nil
}
