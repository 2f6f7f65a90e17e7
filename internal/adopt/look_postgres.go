package adopt

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
)

// DB looks at a table and changes it.
type DB struct {
	SQL     *sql.DB
	Dialect Dialect
	Schema  string // of the outbox on PostgreSQL
	// Wait is how long a lock is asked for again; Waiting hears of it.
	Wait    time.Duration
	Waiting func(error)
	// Held is how long writers wait at most while a look under the lock runs; 0: 5 s.
	Held time.Duration
	// Copied hears how many rows a backfill has copied so far.
	Copied func(int64)
	// Retry has a dead letter sent again. Foreign hears how many rows a mirror found that another program had
	// settled or removed. Both are for adoptions in place.
	Retry   func(ctx context.Context, seq int64) error
	Foreign func(rows int64)
}

// kinds are the words of pg_class.relkind.
func kinds() map[string]string {
	return map[string]string{"r": "table", "v": "view", "m": "materialized view", "p": "partitioned table", "f": "foreign table", "i": "index", "S": "sequence"}
}

const pgLook = `SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, greatest(c.reltuples, 0)::bigint,
 coalesce((SELECT json_agg(a.attname ORDER BY k.n) FROM pg_index x, unnest(x.indkey) WITH ORDINALITY k(num, n), pg_attribute a
   WHERE x.indrelid = c.oid AND x.indisprimary AND a.attrelid = c.oid AND a.attnum = k.num), '[]')::text,
 coalesce((SELECT json_agg(pg_get_indexdef(x.indexrelid) ORDER BY x.indexrelid) FROM pg_index x WHERE x.indrelid = c.oid), '[]')::text,
 coalesce((SELECT json_agg(json_build_object('name', g.tgname, 'text', p.prosrc, 'off', g.tgenabled = 'D') ORDER BY g.tgname) FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
   WHERE g.tgrelid = c.oid AND NOT g.tgisinternal), '[]')::text,
 coalesce((SELECT json_agg(json_build_object('Name', o.conname, 'Column', a.attname, 'Expression', pg_get_expr(o.conbin, o.conrelid)))
   FROM pg_constraint o JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = o.conkey[1]
   WHERE o.conrelid = c.oid AND o.contype = 'c' AND cardinality(o.conkey) = 1), '[]')::text,
 coalesce((SELECT json_agg(json_build_object('name', a.attname, 'type', format_type(a.atttypid, a.atttypmod), 'nullable', NOT a.attnotnull,
     'base', coalesce(nullif(format_type(b.oid, NULL), ''), ''), 'kind', b.typtype::text, 'numbered', a.attidentity <> '' OR coalesce(pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%', false),
     'default', coalesce(pg_get_expr(d.adbin, d.adrelid), ''), 'length', CASE WHEN b.typname IN ('varchar', 'bpchar') AND a.atttypmod > 4 THEN a.atttypmod - 4 ELSE 0 END,
     'words', (SELECT json_agg(e.enumlabel ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = b.oid)) ORDER BY a.attnum)
   FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid JOIN pg_type b ON b.oid = CASE WHEN y.typtype = 'd' THEN y.typbasetype ELSE y.oid END
   LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '[]')::text,
 EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid), c.relispartition
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = coalesce(to_regclass($1), to_regclass(quote_ident($1)))::oid`

// Look reads what the catalog says of a table.
func (d DB) Look(ctx context.Context, name string) (*Table, error) {
	t := &Table{Dialect: d.Dialect, Name: name}
	var err error
	if d.Dialect == MySQL {
		err = d.lookMySQL(ctx, t)
	} else {
		err = d.lookPostgres(ctx, t)
	}
	if errors.Is(err, sql.ErrNoRows) {
		return nil, t.refuse(NoTable, "check the name, with its schema where it is not on the search path", "the table does not exist in this database")
	}
	if err != nil {
		return nil, d.failed(t, "look at the table", err)
	}
	return t, nil
}

// Usable refuses what cannot have an adoption.
func (t *Table) Usable() error {
	const direct = "let the service write its events to the outbox itself"
	switch {
	case t.Kind == "partitioned table":
		return t.refuse(NotPlain, direct, "it is a partitioned table, which adopt does not support")
	case t.Kind == "partition" && t.Adopted != nil: // by a version that took partitions
	case t.Kind == "partition":
		return t.refuse(NotPlain, direct, "it is a partition: the partitions that are made later would have no trigger, and their events would never be sent")
	case t.Kind != "table":
		return t.refuse(NotPlain, "name the table itself", "it is a %s, not a table", t.Kind)
	case len(t.Key) == 0:
		return t.refuse(NoKey, "add one: ALTER TABLE "+newWriter(t, &Mapping{}).table()+" ADD PRIMARY KEY (...)", "it has no primary key, so a row cannot be told from another")
	}
	return nil
}

func (d DB) lookPostgres(ctx context.Context, t *Table) error {
	var (
		oid                                    int64
		key, indexes, triggers, checks, column string
		parent, partition                      bool
		found                                  []pgFound
		columns                                []pgColumn
	)
	err := d.SQL.QueryRowContext(ctx, pgLook, t.Name).Scan(&oid, &t.Schema, &t.Name, &t.Kind, &t.Rows, &key, &indexes, &triggers, &checks, &column, &parent, &partition)
	if err != nil {
		return err
	}
	if t.Kind = kinds()[t.Kind]; partition {
		t.Kind = "partition"
	} else if parent && t.Kind == "table" {
		t.Kind = "table with children (INHERITS)"
	}
	for text, into := range map[string]any{key: &t.Key, indexes: &t.Indexes, checks: &t.Checks, triggers: &found, column: &columns} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			return err
		}
	}
	for _, c := range columns {
		t.Columns = append(t.Columns, c.column())
	}
	for _, g := range found {
		if g.Name == pgTrigger {
			t.Adopted = recordIn(g.Text)
			if t.Adopted != nil {
				t.Adopted.Retired = g.Off
				continue
			}
		}
		t.Triggers = append(t.Triggers, g.Name)
	}
	return nil
}

// pgFound is a trigger as the query returns it.
type pgFound struct {
	Name, Text string
	Off        bool
}

// pgColumn is a column as the query returns it.
type pgColumn struct {
	Name, Type, Base, Kind, Default string
	Nullable, Numbered              bool
	Length                          int64
	Words                           []string
}

func (c pgColumn) column() Column {
	out := Column{Name: c.Name, Type: c.Type, Nullable: c.Nullable, Numbered: c.Numbered, Words: c.Words, Length: c.Length, Class: Other}
	switch base, _, _ := strings.Cut(c.Base, "("); {
	case c.Kind == "e":
		out.Class = Enum
	case base == "uuid":
		out.Class = UUID
	case slices.Contains([]string{"text", "character varying", "character", "name", "citext"}, base):
		out.Class = Text
	case base == "json" || base == "jsonb":
		out.Class = JSON
	case base == "bytea":
		out.Class = Bytes
	case slices.Contains([]string{"smallint", "integer", "bigint", "numeric"}, base):
		out.Class = Number
	case base == "boolean":
		out.Class = Bool
	case base == "timestamp with time zone":
		out.Class = Time
	case base == "timestamp without time zone":
		out.Class = LocalTime
	}
	if text, _, cast := strings.Cut(c.Default, "'::"); cast && strings.HasPrefix(text, "'") {
		out.Default = strings.ReplaceAll(text[1:], "''", "'")
	} else if out.Class == Number || out.Class == Bool {
		out.Default = strings.Trim(c.Default, "()")
	}
	if out.Numbered {
		out.Default = ""
	}
	return out
}
