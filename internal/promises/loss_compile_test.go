package promises

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOnlyTransactionsCompile: the compiler accepts every kind of transaction and refuses
// arguments that would write the message outside of the caller's transaction.
//
// Promises: A
func TestOnlyTransactionsCompile(t *testing.T) {
	cases := []struct{ name, params, arg, refused string }{
		{"sql.Tx", "x *sql.Tx", "x", ""},
		{"struct embedding sql.Tx", "x struct{ *sql.Tx }", "x", ""},
		{"sqlx.Tx", "x *sqlx.Tx", "x", ""},
		{"bun.Tx.Tx", "x bun.Tx", "x.Tx", ""},
		{"pgx.Tx", "x pgx.Tx", "outbox.Pgx(x)", ""},
		{"pgxpool.Tx", "x *pgxpool.Tx", "outbox.Pgx(x)", ""},
		{"GORM, unchecked", "x *gorm.DB", "outbox.Unchecked(x.Statement.ConnPool)", ""},
		{"sql.DB", "x *sql.DB", "x", "missing method Commit"},
		{"sql.Conn", "x *sql.Conn", "x", "missing method Commit"},
		{"sqlx.DB", "x *sqlx.DB", "x", "missing method Commit"},
		{"pgx.Conn", "x *pgx.Conn", "outbox.Pgx(x)", "does not match outbox.PgxTx[Tag]"},
		{"pgxpool.Pool", "x *pgxpool.Pool", "outbox.Pgx(x)", "does not match outbox.PgxTx[Tag]"},
	}
	dir, err := os.MkdirTemp("testdata", "compile") //nolint:usetesting // inside the module, for its imports
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := func(i int) string { return fmt.Sprintf("case%d.go", i) }
	for i, c := range cases {
		if err := os.WriteFile(filepath.Join(dir, file(i)), []byte(snippet(i, c.params, c.arg)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// One compilation for all snippets; -e reports every error, not only ten.
	out, err := exec.CommandContext(t.Context(), "go", "build", "-gcflags=-e", "./"+dir).CombinedOutput()
	if err == nil {
		t.Fatal("everything compiled")
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			said := ""
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, file(i)+":") {
					said += line
				}
			}
			if (said != "") != (c.refused != "") || !strings.Contains(said, c.refused) {
				t.Errorf("the compiler reports %q, want %q; whole output:\n%s", said, c.refused, out)
			}
		})
	}
}

// snippet is a file with one call of Enqueue.
func snippet(i int, params, arg string) string {
	src := "package snippet\n\nimport (\n"
	for name, path := range map[string]string{
		"context.": "context", "sql.": "database/sql", "sqlx.": "github.com/jmoiron/sqlx", "bun.": "github.com/uptrace/bun",
		"pgx.": "github.com/jackc/pgx/v5", "pgxpool.": "github.com/jackc/pgx/v5/pgxpool", "gorm.": "gorm.io/gorm",
	} {
		if name == "context." || strings.Contains(params, "*"+name) || strings.Contains(params, " "+name) {
			src += "\t\"" + path + "\"\n"
		}
	}
	src += "\t\"github.com/postrider/postrider\"\n\t\"github.com/postrider/postrider/outbox\"\n)\n\n" +
		fmt.Sprintf("func f%d(ctx context.Context, ob *outbox.Outbox, %s) error {\n", i, params) +
		"\treturn ob.Enqueue(ctx, " + arg + ", postrider.Message{Topic: \"t\"})\n}\n"
	return src
}
