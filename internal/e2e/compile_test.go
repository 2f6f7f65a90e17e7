package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhatIsATransaction: the compiler refuses what would write the message
// outside the caller's transaction, and takes every kind of transaction.
func TestWhatIsATransaction(t *testing.T) {
	for _, c := range []struct{ name, params, arg, refused string }{
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
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := compile(t, c.params, c.arg)
			switch {
			case c.refused == "" && err != nil:
				t.Errorf("refused:\n%s", out)
			case c.refused != "" && (err == nil || !strings.Contains(out, c.refused)):
				t.Errorf("error %v, output does not say %q:\n%s", err, c.refused, out)
			}
		})
	}
}

// compile type-checks one call of Enqueue inside this module.
func compile(t *testing.T, params, arg string) (string, error) {
	t.Helper()
	dir, err := os.MkdirTemp("testdata", "compile") //nolint:usetesting // inside the module, whose imports it needs
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
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
		"func f(ctx context.Context, ob *outbox.Outbox, " + params + ") error {\n" +
		"\treturn ob.Enqueue(ctx, " + arg + ", postrider.Message{Topic: \"t\"})\n}\n"
	if err := os.WriteFile(filepath.Join(dir, "snippet.go"), []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "vet", "./"+dir).CombinedOutput()
	return string(out), err
}
