package outbox

import (
	"context"
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
)

// writer inserts messages, already checked, of which there is at least one.
type writer interface {
	write(ctx context.Context, tx Tx, ids []string, msgs []postrider.Message) error
}

func newWriter(d dialect.Dialect, o Options) writer {
	switch d {
	case dialect.Postgres:
	case dialect.SQLite:
		return newSQLite(tableName(o, "", "postrider_outbox"))
	case dialect.MySQL:
		return newMySQL(backquoted(tableName(o, "", "postrider_outbox")))
	}
	lock := ""
	if o.LockKeys {
		o := Options{Schema: o.Schema}
		lock = "SELECT " + tableName(o, "postrider", "lock_keys") + "($1::text::text[], $2::text::text[])"
	}
	return newPostgres(tableName(o, "postrider", "outbox"), lock)
}

// tableName is quoted, so that a search path or a keyword cannot redirect it.
func tableName(o Options, schema, table string) string {
	if o.Schema != "" {
		schema = o.Schema
	}
	if o.Table != "" {
		table = o.Table
	}
	if schema == "" {
		return quote(table)
	}
	return quote(schema) + "." + quote(table)
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// backquoted is a quoted name as MySQL has it, where double quotes make a string.
func backquoted(name string) string {
	name = strings.ReplaceAll(name, "`", "``")
	return strings.NewReplacer(`""`, `"`, `"`, "`").Replace(name)
}

const columns = "(id, topic, key, type, payload, content_type, headers, version, schema_version, not_before)"

const columnCount = 10
