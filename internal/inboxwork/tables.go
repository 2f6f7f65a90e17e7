package inboxwork

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxsql"
)

// Consumers names every consumer that the inbox tables of a schema, which is that
// of [inbox.Options], know, in the order of the names.
func Consumers(ctx context.Context, db inbox.Conn, d dialect.Dialect, schema string) ([]string, error) {
	var list string
	l := inboxsql.For(d, schema)
	text := consumersSQL
	if l.MySQL {
		text = mysqlConsumers
	}
	if err := inboxsql.QueryRow(ctx, db, l.Statement(text)).Scan(&list); err != nil {
		return nil, inbox.Classify(fmt.Errorf("inbox: list the consumers: %w", err))
	}
	var names []string
	if err := json.Unmarshal([]byte(list), &names); err != nil {
		return nil, fmt.Errorf("inbox: list the consumers: %w", err)
	}
	slices.Sort(names)
	return names, nil
}

const (
	// Each step is one look into an index, whatever the size of the table.
	consumersSQL = `WITH RECURSIVE i(c) AS (SELECT min(consumer) FROM {inbox}
UNION ALL SELECT (SELECT min(t.consumer) FROM {inbox} AS t WHERE t.consumer > i.c) FROM i WHERE i.c IS NOT NULL),
a(c) AS (SELECT min(consumer) FROM {attempt}
UNION ALL SELECT (SELECT min(t.consumer) FROM {attempt} AS t WHERE t.consumer > a.c) FROM a WHERE a.c IS NOT NULL),
m(c) AS (SELECT min(consumer) FROM {mark}
UNION ALL SELECT (SELECT min(t.consumer) FROM {mark} AS t WHERE t.consumer > m.c) FROM m WHERE m.c IS NOT NULL),
s(c) AS (SELECT min(consumer) FROM {stash}
UNION ALL SELECT (SELECT min(t.consumer) FROM {stash} AS t WHERE t.consumer > s.c) FROM s WHERE s.c IS NOT NULL)
SELECT {names} FROM (SELECT c FROM i UNION SELECT c FROM a UNION SELECT c FROM m UNION SELECT c FROM s ORDER BY 1) AS u WHERE c IS NOT NULL`
)

// Table is one of the inbox tables.
type Table struct {
	Name  string `json:"name"`  // with the schema
	Bytes int64  `json:"bytes"` // with indexes and all; 0 where the database does not say
}

// Tables returns the inbox tables of a schema, which is that of [inbox.Options]: those
// that are there, and the names of those that are missing.
func Tables(ctx context.Context, db inbox.Conn, d dialect.Dialect, schema string) (there []Table, missing []string, err error) {
	sizes, err := relations(ctx, db, d, schema)
	if err != nil {
		return nil, nil, err
	}
	t := &inboxsql.For(d, schema).Tables
	for _, name := range []string{t.Inbox, t.Attempt, t.Mark, t.Stash, t.Batch, t.Journal} {
		if size, ok := sizes[inboxsql.Bare(name)]; ok {
			there = append(there, Table{Name: name, Bytes: size})
		} else {
			missing = append(missing, name)
		}
	}
	return there, missing, nil
}

// relations are the tables of a schema by their bare names, with their sizes.
func relations(ctx context.Context, db inbox.Conn, d dialect.Dialect, schema string) (sizes map[string]int64, err error) {
	var list string
	if err := db.QueryRow(ctx, inboxsql.For(d, schema).Sizes).Scan(&list); err != nil {
		return nil, inbox.Classify(fmt.Errorf("inbox: look for the tables: %w", err))
	}
	if err := json.Unmarshal([]byte(list), &sizes); err != nil {
		return nil, fmt.Errorf("inbox: look for the tables: %w", err)
	}
	return sizes, nil
}

// Version is that of the inbox tables of a schema, which is that of [inbox.Options]: 0
// when there are none, 1 when they are older than versions are.
func Version(ctx context.Context, db inbox.Conn, d dialect.Dialect, schema string) (int, error) {
	there, err := relations(ctx, db, d, schema)
	if err != nil {
		return 0, err
	}
	t := &inboxsql.For(d, schema).Tables
	if _, ok := there[inboxsql.Bare(t.Inbox)]; !ok {
		return 0, nil
	}
	if _, ok := there[inboxsql.Bare(t.Version)]; !ok {
		return 1, nil
	}
	var version int
	if err := db.QueryRow(ctx, "SELECT coalesce(max(version), 1) FROM "+t.Version).Scan(&version); err != nil {
		return 0, inbox.Classify(fmt.Errorf("inbox: look for the version of the tables: %w", err))
	}
	return version, nil
}
