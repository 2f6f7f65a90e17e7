package adopt

import (
	"fmt"
	"strings"
)

// tsqlSpeech is SQL Server. Its statements are printed, and were never run on a server.
type tsqlSpeech struct{}

func (tsqlSpeech) ident(name string) string { return "[" + strings.ReplaceAll(name, "]", "]]") + "]" }
func (tsqlSpeech) quote(text string) string { return "N'" + strings.ReplaceAll(text, "'", "''") + "'" }

func (s tsqlSpeech) convert(t *Table, c Column, field, expr string) string {
	text := "CAST(" + expr + " AS nvarchar(max))"
	switch field {
	case "id":
		if c.Class == UUID {
			return expr
		}
		return s.hashed(s.quote(t.Full()+":") + ", " + text)
	case "topic":
		return "CAST(" + expr + " AS nvarchar(255))"
	case "payload":
		if c.Class == Bytes {
			return "COALESCE(" + expr + ", 0x)"
		}
		return "CAST(CAST(COALESCE(" + text + ", N'') AS varchar(max)) AS varbinary(max))"
	case "headers":
		return "COALESCE(" + text + ", N'{}')"
	case "version":
		return "COALESCE(" + expr + ", 0)"
	case "created_at":
		return "COALESCE(CAST(" + expr + " AS datetimeoffset), SYSDATETIMEOFFSET())"
	case "not_before":
		return "CASE WHEN CAST(" + expr + " AS datetimeoffset) > SYSDATETIMEOFFSET() THEN CAST(" + expr + " AS datetimeoffset) END"
	}
	return "COALESCE(CAST(" + expr + " AS nvarchar(255)), N'')"
}

func (tsqlSpeech) hashed(parts string) string {
	hex := "CONVERT(char(32), HASHBYTES('MD5', CONCAT(" + parts + ")), 2)"
	return "CAST(STUFF(STUFF(STUFF(STUFF(" + hex + ", 9, 0, '-'), 14, 0, '-'), 19, 0, '-'), 24, 0, '-') AS uniqueidentifier)"
}

func (s tsqlSpeech) derive(t *Table, row string) string {
	parts := []string{s.quote(t.Full() + ":")}
	for i, k := range t.Key {
		if i > 0 {
			parts = append(parts, "NCHAR(31)")
		}
		parts = append(parts, row+"."+s.ident(k))
	}
	return s.hashed(strings.Join(parts, ", "))
}

func (s tsqlSpeech) wrapped(_ Column, expr string) envelope {
	field := func(name string) string { return "JSON_VALUE(" + expr + ", '$." + name + "')" }
	return envelope{
		id: s.hashed("N'watermill:', " + field("uuid")), topic: field("destination_topic"),
		payload: "CAST(N'' AS xml).value('xs:base64Binary(sql:column(\"payload\"))', 'varbinary(max)')", headers: "JSON_QUERY(" + expr + ", '$.metadata')",
	}
}

func (tsqlSpeech) clock(Column) string { return "SYSUTCDATETIME()" }

// tsqlTarget is a table of the outbox's columns. No store of Postrider reads it.
const tsqlTarget = `CREATE TABLE [postrider_outbox] (
    [seq] bigint IDENTITY PRIMARY KEY,
    [id] uniqueidentifier NOT NULL,
    [topic] nvarchar(255) NOT NULL CHECK ([topic] <> N''),
    [key] nvarchar(255) NOT NULL DEFAULT N'',
    [type] nvarchar(255) NOT NULL DEFAULT N'',
    [payload] varbinary(max) NOT NULL DEFAULT 0x,
    [content_type] nvarchar(255) NOT NULL DEFAULT N'',
    [headers] nvarchar(max) NOT NULL DEFAULT N'{}' CHECK (ISJSON([headers]) = 1),
    [version] bigint NOT NULL DEFAULT 0,
    [created_at] datetimeoffset NOT NULL DEFAULT SYSDATETIMEOFFSET(),
    [not_before] datetimeoffset NULL
)`

func (p *Plan) tsql(r *Record) {
	w := p.writer
	name := w.dotted(p.Table.Schema, short("postrider_adopt_", p.Table, 128))
	insert := func(from string) string {
		return "INSERT INTO [postrider_outbox] (" + w.columns() + ")\n        SELECT " + w.values("r") + "\n        FROM " + from + " ORDER BY " + w.list("r", w.m.Order)
	}
	p.Prepare = []string{tsqlTarget}
	// A trigger sees all rows of a statement; the join tells which of them have become pending.
	join := w.table() + " AS r JOIN inserted AS i ON " + w.same("r", "i") + " LEFT JOIN deleted AS d ON " + w.same("d", "i")
	begin := "CREATE TRIGGER " + name + " ON " + w.table() + " AFTER INSERT"
	if p.Mapping.State == nil {
		rows := ""
		if w.m.Rows != "" {
			rows = " WHERE " + w.rows("r", "")
		}
		p.Install = []string{begin + " AS\nBEGIN\n    " + r.line() + "\n    SET NOCOUNT ON;\n    " + insert(w.table()+" AS r JOIN inserted AS i ON "+w.same("r", "i")+rows) + ";\nEND"}
	} else {
		pending := " WHERE " + w.pending("i") + " AND (d." + w.ident(p.Table.Key[0]) + " IS NULL OR NOT (" + w.unsettled("d") + "))"
		p.Install = []string{
			begin + ", UPDATE AS\nBEGIN\n    " + r.line() + "\n    SET NOCOUNT ON;\n    " + insert(join+pending) + ";\n    UPDATE r SET " + strings.ReplaceAll(w.set(), "now()", w.clock(Column{})) + "\n        FROM " + join + pending + ";\nEND",
		}
		these := "SELECT TOP (" + fmt.Sprint(BatchRows) + ") " + w.list("r", p.Table.Key) + " INTO #these FROM " + w.table() + " AS r WITH (UPDLOCK, ROWLOCK)\n        WHERE " + w.unsettled("r") + " ORDER BY " + w.list("r", w.m.Order)
		p.Backfill = []string{
			"SET XACT_ABORT ON", "BEGIN TRANSACTION", these, insert(w.table() + " AS r JOIN #these AS i ON " + w.same("r", "i")),
			"UPDATE r SET " + strings.ReplaceAll(w.set(), "now()", w.clock(Column{})) + " FROM " + w.table() + " AS r JOIN #these AS i ON " + w.same("r", "i"), "COMMIT TRANSACTION", "DROP TABLE #these",
		}
	}
	p.Remove = []string{"DROP TRIGGER " + name}
}
