package inboxsql

import (
	"context"
	"reflect"
	"strconv"
	"strings"
)

func mysql(schema string) *Language {
	name := func(bare string) string {
		if schema == "" {
			return bare
		}
		return "`" + strings.ReplaceAll(schema, "`", "``") + "`." + bare
	}
	t := Tables{
		Inbox: name("postrider_inbox"), Attempt: name("postrider_inbox_attempt"), Mark: name("postrider_inbox_mark"),
		Stash: name("postrider_inbox_stash"), Batch: name("postrider_inbox_batch"), Journal: name("postrider_inbox_journal"), Version: name("postrider_inbox_schema"),
	}
	database := "DATABASE()"
	if schema != "" {
		database = mysqlLiteral(schema)
	}
	return &Language{
		Tables: t, MySQL: true, Schema: mysqlSchema(&t), Guards: mysqlAppendOnly(&t), Columns: mysqlColumns(&t),
		Ready: mysqlReady(&t),
		Sizes: `SELECT CAST(coalesce(JSON_OBJECTAGG(t.TABLE_NAME, coalesce(t.DATA_LENGTH, 0) + coalesce(t.INDEX_LENGTH, 0)), '{}') AS CHAR)
FROM information_schema.TABLES AS t WHERE t.TABLE_SCHEMA = ` + database,
		words: []string{ // explained in postgres.go; times are microseconds since 1970
			"{now}", mysqlNow, "{plus}", mysqlNow + " + CAST(", "{plusend}", " AS SIGNED)", "{wait}", "next_at - " + mysqlNow,
			"{micros}", "a.updated_at", "{since}", mysqlNow + " - min(s.stashed_at)", "{createdMicros}", "s.created_at", "{atMicros}", "at",
			"{us}", "(", "{usend}", ")", "{fromMicros}", "", "{fromMicrosEnd}", "",
			"{stashHeaders}", "s.headers", "{jsontext}", "a.headers", "{json}", "",
			"{ids}", "JSON_TABLE(CAST($2 AS CHAR), '$[*]' COLUMNS (value VARCHAR(255) CHARACTER SET utf8mb4 PATH '$')) AS e",
			" AS bigint)", " AS SIGNED)", " AS integer)", " AS SIGNED)", " AS text)", " AS CHAR)",
		},
	}
}

// mysqlNow is the server's clock, whatever the time zone of the session.
const mysqlNow = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

func mysqlLiteral(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text) + "'"
}

// mysqlStatement makes question marks of $1, $2 ..., and quotes the columns whose names
// are words of the language.
func mysqlStatement(text string) Statement {
	var (
		b     strings.Builder
		order = []int{}
	)
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '\'' || c == '`': // a text or a name, as it is
			end := strings.IndexByte(text[i+1:], c)
			if end < 0 {
				end = len(text) - i - 2
			}
			b.WriteString(text[i : i+end+2])
			i += end + 2
		case c == '$':
			end := i + 1
			for end < len(text) && '0' <= text[end] && text[end] <= '9' {
				end++
			}
			n, _ := strconv.Atoi(text[i+1 : end]) // digits, as every text has them
			order = append(order, n-1)
			b.WriteByte('?')
			i = end
		case isWord(c):
			end := i + 1
			for end < len(text) && isWord(text[end]) {
				end++
			}
			word := text[i:end]
			if word == "key" || word == "now" {
				word = "`" + word + "`"
			}
			b.WriteString(word)
			i = end
		default:
			b.WriteByte(c)
			i++
		}
	}
	return Statement{text: b.String(), order: order}
}

func isWord(c byte) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// Errors of MySQL and MariaDB, by their numbers.
const (
	MySQLDuplicate = 1062
	MySQLColumn    = 1060 // it is there
	mysqlSyntax    = 1064
	mysqlTrigger   = 1359 // it is there
	mysqlBusy      = 3572 // NOWAIT
	mysqlLockWait  = 1205 // NOWAIT on MariaDB
)

// MySQLNumber is the number of an error of MySQL or MariaDB, 0 for another one. The
// drivers keep it in a field, and this module imports none of them.
func MySQLNumber(err error) uint16 {
	for err != nil {
		if n := numberOf(err); n != 0 {
			return n
		}
		switch e := err.(type) { //nolint:errorlint // it walks the chain itself
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			for _, one := range e.Unwrap() {
				if n := MySQLNumber(one); n != 0 {
					return n
				}
			}
			return 0
		default:
			return 0
		}
	}
	return 0
}

func numberOf(err error) uint16 {
	v := reflect.ValueOf(err)
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct || v.Type().Name() != "MySQLError" {
		return 0
	}
	if f := v.FieldByName("Number"); f.IsValid() && f.CanUint() {
		return uint16(f.Uint()) //nolint:gosec // it has 16 bits
	}
	return 0
}

// MySQLMakeTrigger makes a trigger that is not there. MySQL before 8.0.29 does not know
// IF NOT EXISTS here.
func MySQLMakeTrigger(ctx context.Context, db Execer, text string) error {
	_, err := db.ExecContext(ctx, text)
	if MySQLNumber(err) == mysqlSyntax {
		_, err = db.ExecContext(ctx, strings.Replace(text, " IF NOT EXISTS", "", 1))
	}
	if MySQLNumber(err) == mysqlTrigger {
		return nil
	}
	return err
}

// MySQLDenied reports whether a user may not make triggers: without the privilege
// TRIGGER, or on a server with a binary log and without its log_bin_trust_function_creators.
func MySQLDenied(err error) bool {
	switch MySQLNumber(err) {
	case 1142, 1227, 1419:
		return true
	}
	return false
}

// MySQLBusy reports whether a statement with NOWAIT met a lock.
func MySQLBusy(err error) bool {
	n := MySQLNumber(err)
	return n == mysqlBusy || n == mysqlLockWait
}
