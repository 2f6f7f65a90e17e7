package postrider_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

const modulePath = "github.com/postrider/postrider/"

// contracts are the packages whose interfaces adapters and wrappers implement.
var contracts = []string{"store", "store/ops", "broker", "consumer", "route", "inbox"}

// TestAbilitiesAreData: an ability that not every adapter has is a field that
// may be nil. A type assertion finds nothing behind a wrapper.
func TestAbilitiesAreData(t *testing.T) {
	files := goFiles(t)
	interfaces := interfacesOf(files)
	programs := 0
	for _, s := range files {
		program := isProgram(s)
		if program {
			programs++
		}
		for _, found := range abilityProbes(s, interfaces, program) {
			t.Errorf("%s: type assertion on %s: make the ability a field of an info or options struct (ADR 2)", s.name, found)
		}
	}
	if programs == 0 || !interfaces["relay/internal/port.Event"] {
		t.Error("the check looks in the wrong place")
	}
}

// isProgram reports whether a file works with adapters that it does not know.
func isProgram(s source) bool {
	top, _, _ := strings.Cut(s.name, "/")
	return !s.isTest() && slices.Contains([]string{"relay", "admin", "cmd", "console", "consumer", "route"}, top)
}

// TestAbilityProbesAreFound: the check finds each way to probe for an ability.
func TestAbilityProbesAreFound(t *testing.T) {
	const contract = "package ops\ntype Doctor interface { Examine() }\ntype Finding struct{}\n"
	for name, c := range map[string]struct{ want, body string }{
		"assertion":             {"store/ops.Doctor", `_, _ = x.(ops.Doctor)`},
		"only if":               {"store/ops.Doctor", `if d, ok := x.(ops.Doctor); ok { d.Examine() }`},
		"type switch":           {"store/ops.Doctor", `switch x.(type) { case nil, ops.Doctor: }`},
		"renamed import":        {"store/ops.Doctor", `_ = x.(office.Doctor)`},
		"parentheses":           {"store/ops.Doctor", `_ = x.((ops.Doctor))`},
		"anonymous interface":   {"an anonymous interface", `_ = x.(interface{ Examine() })`},
		"interface of its own":  {"admin.prober", `_ = x.(prober)`},
		"local interface":       {"admin.local", `type local interface{ Examine() }; _ = x.(local)`},
		"concrete adapter":      {"store/pgstore.Store", `_ = x.(*pgstore.Store)`},
		"struct of a contract":  {"store/ops.Finding", `_ = x.(ops.Finding)`},
		"struct of its own":     {"", `type mine struct{}; _ = x.(mine)`},
		"errors.As is no probe": {"", `var pg interface{ SQLState() string }; _ = errors.As(nil, &pg)`},
		"error and any":         {"", `_, _ = x.(error), x.(any)`},
		"type switch on x only": {"", `switch y := x.(type) { case string: _ = y }`},
	} {
		t.Run(name, func(t *testing.T) {
			program := `package admin
import ("errors"; "` + modulePath + `store/ops"; office "` + modulePath + `store/ops"; "` + modulePath + `store/pgstore")
type prober interface{ Examine() }
func f(x any) { ` + c.body + ` }`
			files := make([]source, 0, 2)
			for name, text := range map[string]string{"store/ops/ops.go": contract, "admin/f.go": program} {
				f, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, source{name: name, ast: f})
			}
			var found []string
			for _, s := range files {
				found = append(found, abilityProbes(s, interfacesOf(files), isProgram(s))...)
			}
			if got := strings.Join(found, ", "); got != c.want {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}

// interfacesOf names every interface as "folder.Name".
func interfacesOf(files []source) map[string]bool {
	all := make(map[string]bool)
	for _, s := range files {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if _, ok := spec.Type.(*ast.InterfaceType); ok {
					all[path.Dir(s.name)+"."+spec.Name.Name] = true
				}
			}
			return true
		})
	}
	return all
}

// abilityProbes lists what the type assertions and type switches of a file ask
// for, when it is a type of a contract. In a program it lists interfaces of the
// file's own package, interfaces without a name and types of adapters too.
func abilityProbes(s source, interfaces map[string]bool, program bool) (found []string) {
	imports := make(map[string]string) // name -> folder
	for _, i := range s.ast.Imports {
		dir, ours := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), modulePath)
		if !ours {
			continue
		}
		imports[path.Base(dir)] = dir
		if i.Name != nil {
			imports[i.Name.Name] = dir
		}
	}
	asks := func(e ast.Expr) {
		e = ast.Unparen(e)
		pointer, isPointer := e.(*ast.StarExpr)
		if isPointer {
			e = pointer.X
		}
		switch e := e.(type) {
		case *ast.InterfaceType:
			if program && e.Methods.NumFields() > 0 {
				found = append(found, "an anonymous interface")
			}
		case *ast.Ident:
			if name := path.Dir(s.name) + "." + e.Name; program && interfaces[name] {
				found = append(found, name)
			}
		case *ast.SelectorExpr:
			x, ok := e.X.(*ast.Ident)
			if !ok {
				return
			}
			dir := imports[x.Name]
			contract := slices.Contains(contracts, dir)
			adapter := !contract && (strings.HasPrefix(dir, "store/") || strings.HasPrefix(dir, "broker/"))
			if contract && !isPointer || program && adapter {
				found = append(found, dir+"."+e.Sel.Name)
			}
		}
	}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.TypeAssertExpr:
			if n.Type != nil {
				asks(n.Type)
			}
		case *ast.TypeSwitchStmt:
			for _, c := range n.Body.List {
				for _, e := range c.(*ast.CaseClause).List {
					asks(e)
				}
			}
		}
		return true
	})
	return found
}
