package adopt

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/inboxsql"
)

func (p *Plan) my() mysqlPlan { return mysqlPlan{p.writer, p.opts.Mirror, p.opts.InPlace} }

func (p *Plan) mysql(r *Record) {
	sql := p.my()
	p.Install, p.Remove = sql.install(r), sql.remove()
	if p.backfills() {
		p.Backfill = []string{sql.pick(BatchRows), sql.hold(1), sql.copyRows(1), sql.markRows(1)}
	}
	if p.opts.Mirror {
		p.Prepare, p.Mirror = []string{sql.prepare()}, []string{sql.reflect(BatchRows), sql.positions(1), sql.dropped(), sql.written(1)}
		p.Remove = append(p.Remove, "DROP TABLE "+sql.mirrored())
	}
}

func (d DB) readyMySQL(_ context.Context, p *Plan) error {
	sql := p.my()
	if name := sql.name("bi"); slices.Contains(p.Table.Triggers, name) {
		return p.Table.refuse(NameTaken, "rename or drop that trigger", "a trigger %s that Postrider did not make exists", name)
	}
	return nil
}

func (d DB) batchMySQL(ctx context.Context, p *Plan) (int64, error) {
	tx, err := d.SQL.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	n, err := p.copyMySQL(ctx, tx, BatchRows)
	if err != nil {
		return 0, err
	}
	return n, tx.Commit()
}

type execer interface {
	queryer
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// copyMySQL copies and marks the next rows in the transaction of q.
func (p *Plan) copyMySQL(ctx context.Context, q execer, limit int) (int64, error) {
	sql := p.my()
	args, err := p.keysOf(ctx, q, sql.pick(limit))
	if err != nil || len(args) == 0 {
		return 0, err
	}
	args, err = p.keysOf(ctx, q, sql.hold(len(args)/len(p.Table.Key)), args...)
	if err != nil || len(args) == 0 {
		return 0, err
	}
	count := len(args) / len(p.Table.Key)
	if _, err := q.ExecContext(ctx, sql.copyRows(count), args...); err != nil {
		return 0, err
	}
	if p.opts.Mirror {
		res, err := q.ExecContext(ctx, sql.mirrorRows(count), args...)
		if err != nil {
			return 0, err
		}
		if n, err := res.RowsAffected(); err != nil || n != int64(count) {
			return 0, errors.Join(err, p.Table.refuse(BadMapping, "let the mapping's id be the same each time", "%d of %d copied rows were found by their ids", n, count))
		}
	}
	if p.Mode == InPlace {
		return int64(count), nil
	}
	_, err = q.ExecContext(ctx, sql.markRows(count), args...)
	return int64(count), err
}

// keysOf reads the keys of rows as arguments.
func (p *Plan) keysOf(ctx context.Context, q execer, query string, these ...any) ([]any, error) {
	rows, err := q.QueryContext(ctx, query, these...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var args []any
	raw := make([]sql.RawBytes, len(p.Table.Key))
	into := make([]any, len(raw))
	for i := range raw {
		into[i] = &raw[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		for i, k := range p.Table.Key {
			if c, _ := p.Table.Column(k); c.binary() {
				args = append(args, slices.Clone([]byte(raw[i])))
			} else {
				args = append(args, string(raw[i]))
			}
		}
	}
	return args, rows.Err()
}

// mirrorRows notes the numbers of the messages that copyRows has just made.
func (p mysqlPlan) mirrorRows(count int) string {
	// Rows with the same id are paired in their order.
	id := p.source(Field{"id", p.m.ID}, "r")
	return "INSERT INTO " + p.mirrored() + " (seq, " + strings.Join(keys(p.t), ", ") + ")\n    SELECT c.seq, " + p.list("x", p.t.Key) + " FROM (SELECT " + p.list("r", p.t.Key) + ", " + id + " AS postrider_id, ROW_NUMBER() OVER (PARTITION BY " + id + " ORDER BY " + p.ordered("r") + ") AS postrider_place FROM " + p.table() + " AS r WHERE " + p.these(count) +
		") AS x\n    JOIN (SELECT o.seq, o.id, ROW_NUMBER() OVER (PARTITION BY o.id ORDER BY o.seq) AS place FROM postrider_outbox AS o WHERE o.seq >= LAST_INSERT_ID()) AS c ON c.id = x.postrider_id AND c.place = x.postrider_place"
}

// boundaryMySQL locks the table for the last rows and the triggers: a statement that changes a schema ends a
// transaction here, a lock of the session it does not. The last trigger is the switch.
func (d DB) boundaryMySQL(ctx context.Context, p *Plan, wait time.Duration) (n int64, again bool, err error) {
	conn, err := d.SQL.Conn(ctx)
	if err != nil {
		return 0, false, err
	}
	defer func() {
		// A session that keeps a lock must not go back to the pool.
		if _, unlocked := conn.ExecContext(context.WithoutCancel(ctx), "UNLOCK TABLES; SET autocommit = 1; SET lock_wait_timeout = DEFAULT"); unlocked != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
		err = errors.Join(err, conn.Close())
	}()
	sql := p.my()
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("SET lock_wait_timeout = %d", max(1, int(wait.Seconds())))); err != nil {
		return 0, false, err
	}
	lock := "LOCK TABLES " + p.writer.table() + " WRITE, " + p.writer.table() + " AS r WRITE, postrider_outbox WRITE"
	if p.opts.Mirror {
		lock += ", postrider_outbox AS o WRITE, " + sql.mirrored() + " WRITE, " + sql.mirrored() + " AS m WRITE"
	}
	if _, err := conn.ExecContext(ctx, lock); err != nil {
		return 0, false, err
	}
	if p.backfills() {
		n, again, err = d.lastMySQL(ctx, p, conn)
		if err != nil || again {
			return 0, again, d.tooLong(ctx, p, err)
		}
	}
	for i, text := range p.Install {
		// What an adoption has left that was broken off before the switch is made again.
		if _, err := conn.ExecContext(ctx, "DROP TRIGGER IF EXISTS "+sql.trigger(mysqlEvents()[i])); err != nil {
			return n, false, err
		}
		if _, err := conn.ExecContext(ctx, text); err != nil {
			return n, false, err
		}
	}
	return n, false, nil
}

// lastMySQL copies the last rows under the lock.
func (d DB) lastMySQL(ctx context.Context, p *Plan, conn *sql.Conn) (n int64, again bool, err error) {
	end := d.until()
	q := bounded{conn, end}
	left, err := countIn(ctx, q, p.writer, p.my().fresh("r"), lastRows+1)
	if err != nil || left > lastRows {
		return 0, left > lastRows, err
	}
	if err := inHands(ctx, q, p); err != nil {
		return 0, false, err
	}
	if _, err := conn.ExecContext(ctx, "SET autocommit = 0"); err != nil {
		return 0, false, err
	}
	if n, err = p.copyMySQL(ctx, q, lastRows); err == nil {
		_, err = conn.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		_, undone := conn.ExecContext(ctx, "ROLLBACK")
		return 0, false, errors.Join(err, undone)
	}
	return n, false, nil
}

// undoMySQL removes the switch first. While the mirror's table has rows, the trigger that holds the record stays:
// without the switch it copies nothing.
func (d DB) undoMySQL(ctx context.Context, t *Table, wait time.Duration) (mirrored int64, err error) {
	conn, err := d.SQL.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer func() {
		_, reset := conn.ExecContext(context.WithoutCancel(ctx), "SET lock_wait_timeout = DEFAULT")
		err = errors.Join(err, reset, conn.Close())
	}()
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("SET lock_wait_timeout = %d", max(1, int(wait.Seconds())))); err != nil {
		return 0, err
	}
	sql := mysqlPlan{newWriter(t, &Mapping{State: &State{}}), false, false}
	if t.Adopted != nil {
		sql = mysqlPlan{newWriter(t, &t.Adopted.Mapping), t.Adopted.Mirror, t.Adopted.InPlace}
	}
	if sql.mirror {
		if mirrored, err = d.Left(ctx, t); err != nil {
			return 0, err
		}
	}
	remove := sql.remove()
	if mirrored > 0 {
		remove = remove[:2]
	} else if sql.mirror {
		remove = append(remove, "DROP TABLE "+sql.mirrored())
	}
	for _, text := range remove {
		if _, err := conn.ExecContext(ctx, text); err != nil {
			return 0, err
		}
	}
	return mirrored, nil
}

// lookMySQL reads the catalog.
func (d DB) lookMySQL(ctx context.Context, t *Table) error {
	schema, name, found := strings.Cut(t.Name, ".")
	if !found {
		schema, name = "", t.Name
	}
	var kind, engine string
	var other bool
	err := d.SQL.QueryRowContext(ctx, `SELECT t.TABLE_NAME, t.TABLE_TYPE, COALESCE(t.TABLE_ROWS, 0), COALESCE(t.ENGINE, ''), t.TABLE_SCHEMA <> DATABASE()
 FROM information_schema.TABLES AS t WHERE t.TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND t.TABLE_NAME = ?`, schema, name).Scan(&t.Name, &kind, &t.Rows, &engine, &other)
	switch {
	case err != nil:
		return err
	case other:
		return t.refuse(NotPossible, "make an outbox in that database, and name it in --store", "the table is in the database %s, and the outbox is not", schema)
	case kind != "BASE TABLE":
		t.Kind = strings.ToLower(kind)
	case engine != "InnoDB":
		t.Kind = "table of the engine " + engine + ", which has no transactions"
	default:
		t.Kind = "table"
	}
	for _, part := range []func(context.Context, *Table) error{d.mysqlColumns, d.mysqlIndexes, d.mysqlChecks, d.mysqlTriggers} {
		if err := part(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

const ofTable = ` WHERE x.TABLE_SCHEMA = DATABASE() AND x.TABLE_NAME = ?`

// each calls scan for each row of a query about the table.
func (d DB) each(ctx context.Context, t *Table, query string, scan func(*sql.Rows) error) error {
	rows, err := d.SQL.QueryContext(ctx, query, t.Name)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (d DB) mysqlColumns(ctx context.Context, t *Table) error {
	return d.each(ctx, t, `SELECT x.COLUMN_NAME, x.COLUMN_TYPE, LOWER(x.DATA_TYPE), COALESCE(x.COLLATION_NAME, ''), x.IS_NULLABLE = 'YES', x.EXTRA LIKE '%auto_increment%', COALESCE(x.COLUMN_DEFAULT, ''), COALESCE(x.CHARACTER_MAXIMUM_LENGTH, 0),
 EXISTS (SELECT 1 FROM information_schema.KEY_COLUMN_USAGE k WHERE k.TABLE_SCHEMA = x.TABLE_SCHEMA AND k.TABLE_NAME = x.TABLE_NAME AND k.CONSTRAINT_NAME = 'PRIMARY' AND k.COLUMN_NAME = x.COLUMN_NAME)
 FROM information_schema.COLUMNS AS x`+ofTable+` ORDER BY x.ORDINAL_POSITION`, func(rows *sql.Rows) error {
		var (
			c    Column
			base string
			key  bool
		)
		if err := rows.Scan(&c.Name, &c.Type, &base, &c.Collation, &c.Nullable, &c.Numbered, &c.Default, &c.Length, &key); err != nil {
			return err
		}
		c.mysqlClass(base)
		t.Columns = append(t.Columns, c)
		if key {
			t.Key = append(t.Key, c.Name)
		}
		return nil
	})
}

func (c *Column) mysqlClass(base string) {
	c.Default = strings.Trim(c.Default, "'")
	if c.Default == "NULL" || c.Numbered {
		c.Default = ""
	}
	is := func(names string) bool { return slices.Contains(strings.Fields(names), base) }
	switch {
	case base == "enum":
		c.Class, c.Length = Enum, 0
		for _, w := range strings.Split(strings.TrimSuffix(strings.TrimPrefix(c.Type, "enum("), ")"), ",") {
			c.Words = append(c.Words, strings.ReplaceAll(strings.Trim(w, "'"), "''", "'"))
		}
	case c.Type == "binary(16)" || base == "uuid":
		c.Class = UUID
	case is("char varchar text mediumtext longtext tinytext"):
		c.Class = Text
		if base != "char" && base != "varchar" {
			c.Length = 0
		}
	case base == "json":
		c.Class = JSON
	case is("binary varbinary blob mediumblob longblob tinyblob"):
		c.Class = Bytes
	case is("tinyint smallint mediumint int bigint decimal bit"):
		c.Class = Number
	case base == "timestamp":
		c.Class = Time
	case base == "datetime":
		c.Class = LocalTime
	default:
		c.Class = Other
	}
}

func (d DB) mysqlIndexes(ctx context.Context, t *Table) error {
	return d.each(ctx, t, `SELECT CONCAT(x.INDEX_NAME, ' (', GROUP_CONCAT(x.COLUMN_NAME ORDER BY x.SEQ_IN_INDEX), ')') FROM information_schema.STATISTICS AS x`+ofTable+` GROUP BY x.INDEX_NAME`, func(rows *sql.Rows) error {
		var s string
		err := rows.Scan(&s)
		t.Indexes = append(t.Indexes, s)
		return err
	})
}

// mysqlChecks finds constraints that name one column alone. MariaDB calls a column of JSON a text with such a one.
func (d DB) mysqlChecks(ctx context.Context, t *Table) error {
	err := d.each(ctx, t, `SELECT c.CONSTRAINT_NAME, c.CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS c JOIN information_schema.TABLE_CONSTRAINTS x
 ON x.CONSTRAINT_SCHEMA = c.CONSTRAINT_SCHEMA AND x.CONSTRAINT_NAME = c.CONSTRAINT_NAME AND x.CONSTRAINT_TYPE = 'CHECK'`+ofTable, func(rows *sql.Rows) error {
		var check Check
		if err := rows.Scan(&check.Name, &check.Expression); err != nil {
			return err
		}
		check.Expression = strings.ReplaceAll(check.Expression, `\'`, `'`)
		var named []string
		for i, c := range t.Columns {
			if !strings.Contains(check.Expression, "`"+c.Name+"`") {
				continue
			}
			if named = append(named, c.Name); strings.HasPrefix(strings.ToLower(check.Expression), "json_valid(") && c.Class == Text {
				t.Columns[i].Class = JSON
			}
		}
		if len(named) == 1 {
			check.Column = named[0]
			t.Checks = append(t.Checks, check)
		}
		return nil
	})
	if inboxsql.MySQLNumber(err) == 1109 { // a server that has no such view
		return nil
	}
	return err
}

func (d DB) mysqlTriggers(ctx context.Context, t *Table) error {
	names := mysqlPlan{newWriter(t, &Mapping{}), false, false}
	rest := map[string]bool{}
	for _, of := range mysqlEvents() {
		rest[names.name(of)] = true
	}
	var record *Record
	switched, some := false, false
	err := d.each(ctx, t, `SELECT x.TRIGGER_NAME, x.ACTION_STATEMENT FROM (SELECT TRIGGER_NAME, ACTION_STATEMENT, EVENT_OBJECT_SCHEMA AS TABLE_SCHEMA, EVENT_OBJECT_TABLE AS TABLE_NAME
 FROM information_schema.TRIGGERS) AS x`+ofTable+` ORDER BY x.TRIGGER_NAME`, func(rows *sql.Rows) error {
		var name, text string
		if err := rows.Scan(&name, &text); err != nil {
			return err
		}
		switch {
		case name == names.name("ai"):
			record = recordIn(text)
		case name == names.name("bi"):
			switched = true
		case rest[name]:
			some = true
		default:
			t.Triggers = append(t.Triggers, name)
		}
		return nil
	})
	switch {
	case record == nil && switched:
		t.Triggers = append(t.Triggers, names.name("bi"))
	case record != nil && (switched || record.Mapping.State == nil):
		t.Adopted = record
	case record != nil && record.Mirror: // its switch is gone, the rest is to be written back
		record.Retired, t.Adopted = true, record
	default:
		t.Half = record != nil || some
	}
	return err
}
