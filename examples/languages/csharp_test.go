package languages

import (
	"database/sql"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/testserver"
)

// csharp splits a program into its statements of SQL, and the brackets of the rest.
func csharp(t *testing.T, name string) (statements []string, brackets string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("csharp", name))
	if err != nil {
		t.Fatal(err)
	}
	rest := regexp.MustCompile(`(?m)//.*$`).ReplaceAllString(string(text), "")
	literal := regexp.MustCompile(`"([^"\n]*)"|'\\?.'`)
	for _, m := range literal.FindAllStringSubmatch(rest, -1) {
		if regexp.MustCompile(`^(INSERT|SELECT) `).MatchString(m[1]) {
			statements = append(statements, m[1])
		}
	}
	rest = literal.ReplaceAllString(rest, "")
	return statements, regexp.MustCompile(`[^(){}\[\]"]`).ReplaceAllString(rest, "")
}

// TestCSharpStatements: the programs need .NET and are not run. Their statements
// are: on PostgreSQL, with the parameters that the programs give them, the writer's message
// travels, and the consumer makes one invoice of two deliveries. Brackets are balanced.
//
// Promises: E
func TestCSharpStatements(t *testing.T) {
	address := testserver.SharedPostgres(t, testserver.PostgresVersions()[0]).Database(t)
	db, err := sql.Open("pgx", address)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	bus := shop(t, db, address)
	all := map[string][]string{}
	for name, want := range map[string]int{"Writer.cs": 2, "Consumer.cs": 2} {
		statements, brackets := csharp(t, name)
		for before := ""; before != brackets; {
			before = brackets
			brackets = strings.NewReplacer("()", "", "{}", "", "[]", "").Replace(brackets)
		}
		if len(statements) != want || brackets != "" {
			t.Fatalf("%s: statements %q, brackets left %q", name, statements, brackets)
		}
		all[name] = statements
	}
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }() // a no-op after the commit
	if _, err := tx.Exec(all["Writer.cs"][0], "cs-1", "book"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(all["Writer.cs"][1], "cs-1", []byte(`{"order":"cs-1","item":"book"}`)); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	m := delivered(t, bus, 1)[0].Message
	if m.Key != "cs-1" || m.Type != "order.placed" || string(m.Payload) != `{"order":"cs-1","item":"book"}` {
		t.Errorf("delivered: %+v", m)
	}
	for _, want := range []bool{true, false} {
		var claimed bool
		if err := db.QueryRow(all["Consumer.cs"][0], "billing-csharp", m.ID, m.Topic, m.Type).Scan(&claimed); err != nil || claimed != want {
			t.Fatalf("claimed %v, %v, want %v", claimed, err, want)
		}
	}
	if _, err := db.Exec(all["Consumer.cs"][1], m.Key); err != nil {
		t.Error(err)
	}
}
