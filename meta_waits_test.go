package postrider_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// sleepers are the functions of tests that sleep for a time and poll nothing. Each has its reason.
func sleepers() map[string]string {
	return map[string]string{
		"broker/httpbroker/sink_test.go TestLimits":          "a slow server, whose requests overlap if more are in flight than allowed",
		"broker/natsbroker/access_test.go TestWhoWeAre":      "a second of refused logins, after which the client must still try",
		"broker/brokertest/broken_test.go brokenSinks":       "a broken sink whose calls last long enough to overlap",
		"broker/brokertest/broken_line_test.go brokenFaults": "a broken sink that ignores its context",
		"internal/testserver/orphan_linux_test.go orphan":    "a child process, until its parent kills it",
	}
}

// TestSleepsPollACondition: outside of testing/synctest a test sleeps only between two looks at a
// condition. A pause that is long enough today fails on a slower machine.
func TestSleepsPollACondition(t *testing.T) {
	allowed := sleepers()
	for _, s := range goFiles(t) {
		if !s.isTest() || imports(s.ast, "testing/synctest") {
			continue
		}
		for _, f := range s.ast.Decls {
			if !bareSleep(f) {
				continue
			}
			where := s.name + " " + declared(f)
			if allowed[where] == "" {
				t.Errorf("%s sleeps for a time: wait for a condition, with a bound, or use testing/synctest", where)
			}
			delete(allowed, where)
		}
	}
	for where := range allowed {
		t.Errorf("%s does not sleep any more: remove it from sleepers in meta_waits_test.go", where)
	}
}

// bareSleep reports whether the declaration waits for a time outside of a loop.
func bareSleep(f ast.Node) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt:
			return false // polls
		case *ast.CommClause: // a receive of a select is a bound
			found = found || slices.ContainsFunc(n.Body, func(s ast.Stmt) bool { return bareSleep(s) })
			return false
		case *ast.CallExpr:
			found = found || types.ExprString(n.Fun) == "time.Sleep"
		case *ast.ExprStmt:
			wait, ok := n.X.(*ast.UnaryExpr)
			if !ok || wait.Op != token.ARROW {
				break
			}
			call, ok := wait.X.(*ast.CallExpr)
			found = found || ok && types.ExprString(call.Fun) == "time.After"
		}
		return !found
	})
	return found
}

// skippers are the functions that skip for another reason. Each has its reason.
func skippers() map[string]string {
	return map[string]string{
		"internal/testserver/testserver.go GiveUp":       "the list itself",
		"store/storetest/env.go Run":                     "a store says which ability it lacks",
		"schema/files_test.go TestReadFilesFollowsLinks": "a system where links need a privilege",
		"tools/kube/server_test.go missing":              "a module outside of the workspace: it writes the list itself",
	}
}

// TestNothingIsSkippedInSilence: a test whose server or program is missing calls
// testserver.GiveUp, which lists it at the end of "make test". Otherwise a test skips only with
// -short in the root module, without POSTRIDER_MATRIX, or for an input of a fuzzer.
func TestNothingIsSkippedInSilence(t *testing.T) {
	allowed := skippers()
	modules := moduleDirs(t)
	for _, s := range goFiles(t) {
		for _, f := range s.ast.Decls {
			if !skips(f, moduleOf(modules, s.name) == ".") {
				continue
			}
			where := s.name + " " + declared(f)
			if allowed[where] == "" {
				t.Errorf("%s skips in silence: report what is missing with testserver.GiveUp", where)
			}
			delete(allowed, where)
		}
	}
	for where := range allowed {
		t.Errorf("%s does not skip any more: remove it from skippers in meta_waits_test.go", where)
	}
}

// skips reports whether the declaration skips a test for a reason that is not allowed everywhere.
func skips(f ast.Node, root bool) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			why := types.ExprString(n.Cond)
			if strings.Contains(why, "POSTRIDER_MATRIX") || root && strings.Contains(why, "testing.Short()") {
				return false
			}
		case *ast.CallExpr:
			called, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				break
			}
			if types.ExprString(n.Fun) == "f.Fuzz" {
				return false
			}
			found = found || slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, called.Sel.Name)
		}
		return !found
	})
	return found
}

// TestSleepsAndSkipsAreFound: the checks find each way to sleep and to skip.
func TestSleepsAndSkipsAreFound(t *testing.T) {
	for body, want := range map[string]struct{ sleeps, skips bool }{
		`time.Sleep(x)`:                                              {sleeps: true},
		`<-time.After(x)`:                                            {sleeps: true},
		`go func() { time.Sleep(x) }()`:                              {sleeps: true},
		`for !done() { time.Sleep(x) }`:                              {},
		`for ; !done(); <-time.After(x) {}`:                          {},
		`select { case <-c: case <-time.After(x): }`:                 {},
		`t.Skip("no server")`:                                        {skips: true},
		`b.SkipNow()`:                                                {skips: true},
		`if err != nil { t.Skipf("no %s", x) }`:                      {skips: true},
		`if os.Getenv("POSTRIDER_MATRIX") != "1" { t.Skip("long") }`: {},
		`f.Fuzz(func(t *testing.T) { t.Skip() })`:                    {},
		`if testing.Short() { t.Skip("starts a server") }`:           {skips: true},
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc f() {\n"+body+"\n}", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := bareSleep(file); got != want.sleeps {
			t.Errorf("%s: sleeps %t", body, got)
		}
		if got := skips(file, false); got != want.skips {
			t.Errorf("%s: skips %t", body, got)
		}
	}
}

// declared returns the name of a function, "" for other declarations.
func declared(d ast.Decl) string {
	if f, ok := d.(*ast.FuncDecl); ok {
		return f.Name.Name
	}
	return ""
}

func imports(f *ast.File, path string) bool {
	return slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == strconv.Quote(path) })
}

// moduleOf returns the directory of the module that a file belongs to.
func moduleOf(modules []string, name string) (dir string) {
	dir = "."
	for _, m := range modules {
		if strings.HasPrefix(name, m+"/") && len(m) > len(dir) {
			dir = m
		}
	}
	return dir
}
