package adopt

import (
	"fmt"
	"slices"
	"strings"
)

// TSQL is the SQL of SQL Server. There is no store on it: only [TSQLScript] knows it, and its text was never run.
const TSQL Dialect = "tsql"

// NeverRun is what each text in this dialect says of itself.
const NeverRun = "never run on a server: Postrider was not tested with SQL Server and has no store for it"

// tsqlSpeech is SQL Server 2019 and later. The types of columns are unknown.
type tsqlSpeech struct{}

func (tsqlSpeech) ident(name string) string { return "[" + strings.ReplaceAll(name, "]", "]]") + "]" }

func (tsqlSpeech) quote(text string) string { return "N'" + strings.ReplaceAll(text, "'", "''") + "'" }

// hash makes a uniqueidentifier of texts.
func (tsqlSpeech) hash(parts string) string {
	return "CONVERT(uniqueidentifier, CONVERT(binary(16), HASHBYTES('SHA2_256', CONCAT(" + parts + "))))"
}

func (s tsqlSpeech) convert(t *Table, _ Column, field, expr string) string {
	switch field {
	case "id":
		return "COALESCE(TRY_CONVERT(uniqueidentifier, CONVERT(nvarchar(4000), " + expr + ")), " + s.hash(s.quote(t.Full()+":")+", "+expr) + ")"
	case "topic":
		return "CONVERT(nvarchar(255), " + expr + ")"
	case "payload": // UTF-8
		return "COALESCE(CONVERT(varbinary(max), CONVERT(varchar(max), CONVERT(nvarchar(max), " + expr + ") COLLATE Latin1_General_100_CI_AS_SC_UTF8)), 0x)"
	case "headers":
		return "CASE WHEN ISJSON(" + expr + ") = 1 THEN CONVERT(nvarchar(max), " + expr + ") ELSE N'{}' END"
	case "version":
		return "COALESCE(CONVERT(bigint, " + expr + "), 0)"
	case "created_at":
		return "COALESCE(" + s.moment(expr) + ", SYSUTCDATETIME())"
	case "not_before":
		return "CASE WHEN " + s.moment(expr) + " > SYSUTCDATETIME() THEN " + s.moment(expr) + " END"
	}
	return "COALESCE(CONVERT(nvarchar(512), " + expr + "), N'')"
}

// moment is a time in UTC; one without an offset is taken as UTC.
func (tsqlSpeech) moment(expr string) string {
	return "CONVERT(datetime2(6), SWITCHOFFSET(CONVERT(datetimeoffset(6), " + expr + "), 0))"
}

func (s tsqlSpeech) derive(t *Table, row string) string {
	parts := []string{s.quote(t.Full() + ":")}
	for i, k := range t.Key {
		if i > 0 {
			parts = append(parts, "NCHAR(31)")
		}
		parts = append(parts, row+"."+s.ident(k))
	}
	return s.hash(strings.Join(append(parts, "N''"), ", "))
}

func (tsqlSpeech) wrapped(Column, string) envelope { return envelope{} } // no library's forwarder writes to it
func (tsqlSpeech) clock(Column) string             { return "SYSUTCDATETIME()" }

// TSQLScript returns the statements of an adoption on SQL Server, for a person to read, to test and to run.
// The mapping is all that is known of the table; key are the columns of its primary key.
func TSQLScript(name string, key []string, m Mapping) (string, error) {
	t := &Table{Dialect: TSQL, Schema: "dbo", Name: name, Key: key}
	if schema, rest, found := strings.Cut(name, "."); found {
		t.Schema, t.Name = schema, rest
	}
	t.mentioned(&m)
	if len(m.Order) == 0 {
		m.Order = slices.Clone(key)
	}
	if len(key) == 0 {
		return "", t.refuse(NoKey, "name its columns in the mapping's order", "the columns of the primary key are unknown")
	}
	if err := m.Check(t); err != nil {
		return "", err
	}
	return tsqlPlan{newWriter(t, &m)}.script(), nil
}

// mentioned makes the columns that a mapping names.
func (t *Table) mentioned(m *Mapping) {
	add := func(name string, class Class) {
		if _, known := t.Column(name); name != "" && !known {
			t.Columns = append(t.Columns, Column{Name: name, Class: class})
		}
	}
	if s := m.State; s != nil {
		class := Text
		if s.Handed == now {
			class = Time
		}
		add(s.Column, class)
		add(s.LockedUntil, Time)
		add(s.SentAt, Time)
		for name := range s.Set {
			add(name, Other)
		}
		for _, name := range []string{s.Attempts, s.Error} {
			add(name, Other)
		}
	}
	for _, f := range m.every() {
		add(f.Source.Column, Text)
	}
	for _, name := range slices.Concat(t.Key, m.Order) {
		add(name, Other)
	}
}

type tsqlPlan struct{ writer }

const tsqlOutbox = "[postrider].[outbox]"

func (p tsqlPlan) trigger() string { return p.dotted(p.t.Schema, short("postrider_adopt_", p.t, 128)) }

// outbox makes the table that the trigger writes into.
func (p tsqlPlan) outbox() string {
	return "CREATE TABLE " + tsqlOutbox + ` (
    [seq] bigint IDENTITY(1, 1) NOT NULL PRIMARY KEY,
    [id] uniqueidentifier NOT NULL,
    [topic] nvarchar(255) NOT NULL CHECK ([topic] <> N''),
    [key] nvarchar(512) NOT NULL DEFAULT N'',
    [type] nvarchar(255) NOT NULL DEFAULT N'',
    [payload] varbinary(max) NOT NULL DEFAULT 0x,
    [content_type] nvarchar(255) NOT NULL DEFAULT N'',
    [headers] nvarchar(max) NOT NULL DEFAULT N'{}' CHECK (ISJSON([headers]) = 1),
    [version] bigint NOT NULL DEFAULT 0,
    [created_at] datetime2(6) NOT NULL DEFAULT SYSUTCDATETIME(),
    [not_before] datetime2(6) NULL
);`
}

// due is the condition of a row that became pending: it was not there, or was settled.
func (p tsqlPlan) due() string {
	return "CASE WHEN " + p.pending("r") + " THEN 1 ELSE 0 END = 1 AND CASE WHEN " + p.col("o", p.t.Key[0]) + " IS NOT NULL AND (" + p.unsettled("o") + ") THEN 1 ELSE 0 END = 0"
}

// install makes the trigger. A statement changes many rows, and its trigger runs once.
func (p tsqlPlan) install() string {
	insert := "INSERT INTO " + tsqlOutbox + " (" + p.columns() + ")\n    SELECT " + p.values("r") + "\n    FROM inserted AS r"
	if p.m.State == nil {
		if p.m.Rows != "" {
			insert += " WHERE " + p.rows("r", "")
		}
		return "CREATE TRIGGER " + p.trigger() + " ON " + p.table() + " AFTER INSERT AS\nBEGIN\n    SET NOCOUNT ON;\n    " + insert + "\n    ORDER BY " + p.ordered("r") + ";\nEND;"
	}
	from := " LEFT JOIN deleted AS o ON " + p.same("o", "r")
	return "CREATE TRIGGER " + p.trigger() + " ON " + p.table() + " AFTER INSERT, UPDATE AS\nBEGIN\n    SET NOCOUNT ON;\n" +
		"    IF TRIGGER_NESTLEVEL(OBJECT_ID(" + p.quote(p.trigger()) + ")) > 1 RETURN;\n    " + insert + from + "\n    WHERE " + p.due() + "\n    ORDER BY " + p.ordered("r") + ";\n" +
		"    UPDATE t SET " + p.set() + "\n    FROM " + p.table() + " AS t JOIN inserted AS r ON " + p.same("t", "r") + from + "\n    WHERE " + p.due() + ";\nEND;"
}

// batch copies the next rows and marks them.
func (p tsqlPlan) batch(limit int) string {
	join := " JOIN #picked AS p ON " + p.same("p", "r")
	return "SELECT TOP (" + fmt.Sprint(limit) + ") " + p.list("r", p.t.Key) + " INTO #picked FROM " + p.table() + " AS r WITH (UPDLOCK, ROWLOCK)\nWHERE " + p.unsettled("r") + " ORDER BY " + p.ordered("r") + ";\n" +
		"INSERT INTO " + tsqlOutbox + " (" + p.columns() + ")\n    SELECT " + p.values("r") + "\n    FROM " + p.table() + " AS r" + join + "\n    ORDER BY " + p.ordered("r") + ";\n" +
		"UPDATE r SET " + p.set() + " FROM " + p.table() + " AS r" + join + ";\nDROP TABLE #picked;"
}

func (p tsqlPlan) script() string {
	text := "-- " + strings.ToUpper(NeverRun[:1]) + NeverRun[1:] + ".\n-- Try it on a copy of the database. SQL Server 2019 or later. Run it with `sqlcmd -b`, which ends at the first error.\n\n-- The outbox.\nCREATE SCHEMA [postrider];\nGO\n" + p.outbox() + "\nGO\n\n"
	if p.m.State == nil {
		return text + "-- Rows that are in the table now are the old relay's.\n" + p.install() + "\nGO\n\n-- Step back:\n-- DROP TRIGGER " + p.trigger() + ";\n"
	}
	return text + fmt.Sprintf("-- Backfill, with the old relay stopped: repeat it until it copies fewer than %d rows.\n", BatchRows) +
		"SET XACT_ABORT ON;\nBEGIN TRANSACTION;\n" + p.batch(BatchRows) + "\nCOMMIT TRANSACTION;\nGO\n\n" +
		"-- Writers wait from the lock to the commit. Later rows meet the trigger.\nSET XACT_ABORT ON;\nSET LOCK_TIMEOUT 2000;\nBEGIN TRANSACTION;\n" +
		"SELECT TOP (1) 1 FROM " + p.table() + " WITH (TABLOCKX, HOLDLOCK);\n" + p.batch(lastRows) + "\nGO\n" + p.install() + "\nGO\nCOMMIT TRANSACTION;\nGO\n\n" +
		"-- Step back:\n-- DROP TRIGGER " + p.trigger() + ";\n"
}

// TSQLExamples are mappings of tables as teams have them on SQL Server, for tests.
func TSQLExamples() map[string]Mapping {
	return map[string]Mapping{
		"status": {
			Layout: LayoutStatus, Order: []string{"Id"}, ID: Source{Column: "EventId"}, Topic: Source{Column: "Topic"}, Key: Source{Column: "AggregateId"}, Type: Source{Column: "EventType"},
			Payload: Source{Column: "Payload"}, ContentType: Source{Value: "application/json"}, Headers: Source{Column: "Headers"}, Version: Source{Column: "Version"},
			CreatedAt: Source{Column: "CreatedAt"}, NotBefore: Source{Column: "VisibleAt"}, Rows: "{row}.[Kind] = 'event'",
			State: &State{Column: "Status", Pending: []string{"Pending", "Failed"}, InProgress: []string{"InProgress"}, Sent: []string{"Sent"}, Handed: "Postrider", Set: map[string]string{"LockOwner": "NULL"}},
		},
		"published": {
			Layout: LayoutPublished, Topic: Source{Value: "it's ]"}, Payload: Source{SQL: "CONVERT(varbinary(max), {row}.[Body])"},
			State: &State{Column: "ProcessedAt", NullPending: true, Handed: now},
		},
		"debezium": {Layout: LayoutDebezium, ID: Source{Column: "id"}, Topic: Source{Column: "aggregatetype"}, Key: Source{Column: "aggregateid"}, Payload: Source{Column: "payload"}},
	}
}
