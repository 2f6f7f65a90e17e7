package inboxwork

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/inboxsql"
)

// texts appends the strings of a struct, of those in it, and of their slices.
func texts(v reflect.Value, all []string) []string {
	switch v.Kind() {
	case reflect.String:
		return append(all, v.String())
	case reflect.Struct:
		for i := range v.NumField() {
			all = texts(v.Field(i), all)
		}
	case reflect.Slice:
		for i := range v.Len() {
			all = texts(v.Index(i), all)
		}
	default: // holds no text
	}
	return all
}

// TestEveryTextIsFilled: no text reaches a database with a word or a placeholder of
// another dialect in it.
func TestEveryTextIsFilled(t *testing.T) {
	word := regexp.MustCompile(`\{'?[A-Za-z]+'?\}`)
	for _, d := range []dialect.Dialect{dialect.Postgres, dialect.SQLite, dialect.MySQL} {
		in, l := New(d, "billing", nil), inboxsql.For(d, "")
		consumers := consumersSQL
		if d == dialect.MySQL {
			consumers = mysqlConsumers
		}
		all := texts(reflect.ValueOf(in.sql), texts(reflect.ValueOf(l.Statement(consumers)), nil))
		own := len(all)
		all = texts(reflect.ValueOf(in.Inbox).Elem().FieldByName("sql"), all)
		if own < 20 || len(all)-own < 10 {
			t.Errorf("%v: %d texts here and %d in package inbox: they are elsewhere now", d, own, len(all)-own)
		}
		all = texts(reflect.ValueOf(l.Schema), texts(reflect.ValueOf(l.Columns), all))
		for _, text := range all {
			if left := word.FindString(text); left != "" {
				t.Errorf("%v: %s is left in %q", d, left, text)
			}
			if d != dialect.Postgres && strings.Contains(text, "$1") {
				t.Errorf("%v: a placeholder of PostgreSQL is left in %q", d, text)
			}
		}
	}
}
