package postrider_test

import (
	"go/ast"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// entries are the entry points of published packages that are no constructors.
func entries() map[string][]string {
	return map[string][]string{
		".":                {"JSON", "Message.Validate"},
		"consumer":         {"Handle", "HandleChain", "SQL", "Pgx", "Permanent", "Consumer.Use"},
		"consumer/metrics": {"Handler"},
		"envelope":         {"Codec", "ParseGap", "ParseFormat"},
		"inbox": {
			"Inbox.Once", "Inbox.OnceBatch", "Inbox.OnceResult", "Inbox.Claim", "OncePgx", "OnceResultPgx",
			"Inbox.Revive", "Inbox.Status", "Inbox.PruneAll",
		},
		"inbox/inboxtest":   {"Run"},
		"otelpostrider":     {"Process"},
		"outbox":            {"Outbox.Enqueue", "Outbox.EnqueueIDs", "Pgx", "Unchecked", "CausedBy"},
		"outboxtest":        {"RequireEnqueued", "RequireNone", "Enqueued"},
		"route":             {"Door"},
		"schema":            {"BeginWith", "Then", "Chain.Last"},
		"schema/schematest": {"Run"},
		"seal":              {"Keys", "ParseKey"},
		"store/pgstore":     {"ParseConfig"},
	}
}

// TestEntryPointsHaveExamples: what an application calls first has an Example, which
// the compiler keeps true. Constructors (New..., Open...) are found in the code.
func TestEntryPointsHaveExamples(t *testing.T) {
	var (
		constructor = regexp.MustCompile(`^(New|Open)([A-Z]|$)`)
		examples    = make(map[string]bool) // DIRECTORY.ExampleNAME
		exists      = make(map[string]bool) // DIRECTORY.NAME, DIRECTORY.TYPE.METHOD
		wanted      = make(map[string][]string)
	)
	maps.Copy(wanted, entries())
	for _, s := range goFiles(t) {
		dir := path.Dir(s.name)
		for _, d := range s.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := methodName(d)
				switch {
				case s.isTest():
					examples[dir+"."+name] = strings.HasPrefix(name, "Example")
				default:
					exists[dir+"."+name] = true
					if d.Recv == nil && constructor.MatchString(name) && isPublished(dir) {
						wanted[dir] = append(wanted[dir], name)
					}
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if spec, ok := spec.(*ast.TypeSpec); ok && !s.isTest() {
						exists[dir+"."+spec.Name.Name] = true
					}
				}
			}
		}
	}
	for dir, names := range wanted {
		for _, name := range names {
			example := "Example" + strings.ReplaceAll(name, ".", "_")
			switch {
			case !exists[dir+"."+name]:
				t.Errorf("%s has no %s: take it off the list", dir, name)
			case !examples[dir+"."+example]:
				t.Errorf("%s.%s has no %s: write it in %s/example_test.go", dir, name, example, dir)
			}
		}
	}
}

// isPublished reports whether applications may import the package of a directory.
func isPublished(dir string) bool {
	return !slices.ContainsFunc(strings.Split(dir, "/"), func(part string) bool {
		return slices.Contains([]string{"internal", "cmd", "examples", "bench", "proof", "tools"}, part)
	})
}

// methodName is a function's name, behind that of its receiver's type.
func methodName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	switch generic := typ.(type) {
	case *ast.IndexExpr:
		typ = generic.X
	case *ast.IndexListExpr:
		typ = generic.X
	}
	if id, ok := typ.(*ast.Ident); ok {
		return id.Name + "." + f.Name.Name
	}
	return f.Name.Name
}
