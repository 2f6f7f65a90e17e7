package postrider_test

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// entries are the published packages whose entry points have an Example, and those of
// their entry points that are no constructors.
func entries() map[string][]string {
	return map[string][]string{
		".":                   {"JSON", "Message.Validate"},
		"broker/httpbroker":   nil,
		"broker/kafkabroker":  nil,
		"broker/membroker":    nil,
		"broker/natsbroker":   nil,
		"broker/rabbitbroker": nil,
		"broker/redisbroker":  nil,
		"claim":               nil,
		"consumer":            {"Handle", "SQL", "Pgx", "Permanent", "Consumer.Use"},
		"envelope":            {"Codec", "ParseGap", "ParseFormat"},
		"inbox": {
			"Inbox.Once", "Inbox.OnceBatch", "Inbox.OnceResult", "Inbox.Claim", "OncePgx", "OnceResultPgx",
			"Inbox.Revive", "Inbox.Status", "Inbox.PruneAll",
		},
		"inbox/inboxhttp": nil,
		"inbox/inboxtest": {"Run"},
		"outbox":          {"Outbox.Enqueue", "Outbox.EnqueueIDs", "Pgx", "Unchecked", "CausedBy"},
		"outboxtest":      {"RequireEnqueued", "RequireNone", "Enqueued"},
		"relay":           nil,
		"route":           {"Door"},
		"seal":            {"Keys", "ParseKey"},
		"store/memstore":  nil,
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
	listed := entries()
	for dir, names := range listed {
		wanted[dir] = slices.Clone(names)
	}
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
					if _, ok := listed[dir]; ok && d.Recv == nil && constructor.MatchString(name) {
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
