package postrider_test

import (
	"go/ast"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

// sharedOptions are the options that adapters have in common: one name for one thing. Each
// has its type.
func sharedOptions() map[string]string {
	return map[string]string{
		"Connections":     "int",              // over which the calls are spread
		"Foreign":         "envelope.Foreign", // records of other writers
		"Group":           "string",           // of consumers that share the messages
		"MaxHeld":         "int",              // unsettled messages that a source holds
		"MaxHeldBytes":    "int",              // the same in bytes
		"MaxMessageBytes": "int",              // largest message
		"NoDedup":         "bool",             // no deduplication at the broker
		"Prefix":          "string",           // put before every topic
		"Queue":           "string",           // topic and group in one
		"Route":           "envelope.Router",  // rules of destination and format
		"Timeout":         "time.Duration",    // of one answer of the broker
		"Topics":          "[]string",         // to receive from
		"Window":          "int",              // requests or messages without an answer, of all calls together
	}
}

// otherNames are names of other clients for what sharedOptions names.
func otherNames() map[string]string {
	return map[string]string{
		"Concurrency": "Window", "InFlight": "Window", "MaxInFlight": "Window", "Parallel": "Window",
		"MaxWaiting": "MaxHeld", "Prefetch": "MaxHeld", "MaxBytes": "MaxMessageBytes", "MaxSize": "MaxMessageBytes",
		"Namespace": "Prefix", "TopicPrefix": "Prefix", "Router": "Route", "Routes": "Route", "Log": "Logger", "ConsumerGroup": "Group",
	}
}

// TestOptionsHaveOneName: an application that changes its broker finds an option under the
// same name. What two adapters have is in sharedOptions; one broker's own thing is not.
func TestOptionsHaveOneName(t *testing.T) {
	shared, others := sharedOptions(), otherNames()
	users := map[string][]string{}
	for _, s := range goFiles(t) {
		dir, name := path.Split(path.Dir(s.name))
		if dir != "broker/" || !strings.HasSuffix(name, "broker") || name == "membroker" || s.isTest() {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != "SinkOptions" && spec.Name.Name != "SourceOptions" {
				return true
			}
			for _, f := range spec.Type.(*ast.StructType).Fields.List {
				for _, id := range f.Names {
					if !slices.Contains(users[id.Name], name) {
						users[id.Name] = append(users[id.Name], name)
					}
					if want, got := shared[id.Name], types.ExprString(f.Type); want != "" && got != want {
						t.Errorf("%s: %s.%s is %s, %s everywhere else", s.name, spec.Name.Name, id.Name, got, want)
					}
					if want := others[id.Name]; want != "" {
						t.Errorf("%s: %s.%s: other adapters call it %s", s.name, spec.Name.Name, id.Name, want)
					}
				}
			}
			return true
		})
	}
	for name, of := range users {
		if len(of) > 1 && shared[name] == "" {
			t.Errorf("%v have the option %s: add it to sharedOptions, or give them two names", of, name)
		}
	}
	for name := range shared {
		if len(users[name]) < 2 {
			t.Errorf("%d adapters have the option %s: remove it from sharedOptions", len(users[name]), name)
		}
	}
}
