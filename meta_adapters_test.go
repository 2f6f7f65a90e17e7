package postrider_test

import (
	"go/ast"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"testing"
)

// TestAdaptersHaveOneShape: an application opens each broker in the same way, and a reader
// finds the same thing in the same file. membroker is the broker itself, in the memory
// of its process, and has no URL.
func TestAdaptersHaveOneShape(t *testing.T) {
	dirs, err := filepath.Glob("broker/*broker")
	if err != nil {
		t.Fatal(err)
	}
	shapes := signatures(t)
	for _, dir := range dirs {
		dir = filepath.ToSlash(dir)
		if dir == "broker/membroker" {
			continue
		}
		for _, file := range []string{"doc.go", "url.go", "open.go", "sink.go", "source.go", "errors.go", "probe.go", "example_test.go", "README.md"} {
			if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
				t.Errorf("%s has no %s, where the other adapters have the same thing", dir, file)
			}
		}
		for name, want := range map[string]string{
			"ParseURL":     `^func\(raw string\) \(.*Target, .*error\)$`,
			"Open":         `^func\(rawURL string, opts \*SinkOptions\) \(\*Sink, error\)$`,
			"OpenSource":   `^func\(rawURL string, opts \*SourceOptions\) \(\*Source, error\)$`,
			"NewSink":      `^func\(\w+ .*, \w+ \*SinkOptions\) \(\*Sink, error\)$`,
			"NewSource":    `^func\(.*\w+ \*SourceOptions\) \(\*Source, error\)$`,
			"Sink.Close":   `^func\(\)$`,
			"Source.Close": `^func\(\)$`,
		} {
			if got := shapes[dir][name]; !regexp.MustCompile(want).MatchString(got) {
				t.Errorf("%s.%s is %q, want %s", dir, name, got, want)
			}
		}
	}
}

// TestStoresHaveOneShape is the same for databases. memstore is one itself.
func TestStoresHaveOneShape(t *testing.T) {
	dirs, err := filepath.Glob("store/*store")
	if err != nil {
		t.Fatal(err)
	}
	shapes := signatures(t)
	for _, dir := range dirs {
		dir = filepath.ToSlash(dir)
		if dir == "store/memstore" {
			continue
		}
		for _, file := range []string{"store.go", "open.go", "lease.go", "read.go", "settle.go", "ops.go", "example_test.go"} {
			if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
				t.Errorf("%s has no %s, where the other stores have the same thing", dir, file)
			}
		}
		for name, want := range map[string]string{
			"Open":         `^func\(\w+ string, opts \*Options\) \(\*Store, error\)$`,
			"New":          `^func\(\w+ \S+, opts \*Options\) \*Store$`,
			"Store.Close":  `^func\(\)( error)?$`,
			"Store.Office": `^func\(\) \*ops\.Office$`,
		} {
			if got := shapes[dir][name]; !regexp.MustCompile(want).MatchString(got) {
				t.Errorf("%s.%s is %q, want %s", dir, name, got, want)
			}
		}
	}
}

// signatures are those of every function by its directory, and of methods as Type.Method.
func signatures(t *testing.T) map[string]map[string]string {
	t.Helper()
	shapes := make(map[string]map[string]string)
	for _, s := range goFiles(t) {
		dir := path.Dir(s.name)
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && !s.isTest() {
				if shapes[dir] == nil {
					shapes[dir] = make(map[string]string)
				}
				shapes[dir][methodName(f)] = types.ExprString(f.Type)
			}
		}
	}
	return shapes
}
