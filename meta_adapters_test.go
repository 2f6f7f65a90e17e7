package postrider_test

import (
	"go/ast"
	"go/types"
	"maps"
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
		"Account":         "string",           // of the cloud that owns topics and queues
		"Connections":     "int",              // over which the calls are spread
		"Durable":         "Durability",       // least durability of what is written or read
		"Foreign":         "envelope.Foreign", // records of other writers
		"Group":           "string",           // of consumers that share the messages
		"MaxHeld":         "int",              // unsettled messages that a source holds
		"MaxHeldBytes":    "int",              // the same in bytes
		"MaxMessageBytes": "int",              // largest message
		"NoDedup":         "bool",             // no deduplication at the broker
		"Partitions":      "int",              // streams of a topic
		"Prefix":          "string",           // put before every topic
		"Project":         "string",           // of the cloud
		"Queue":           "string",           // topic and group in one
		"Route":           "envelope.Router",  // rules of destination and format
		"Standard":        "bool",             // queues and topics without order
		"Timeout":         "time.Duration",    // of one answer of the broker
		"Topics":          "[]string",         // to receive from
		"Window":          "int",              // requests or messages without an answer, of all calls together
	}
}

// ownOptions are those that one adapter alone has, because its broker alone has the thing.
func ownOptions() map[string]string {
	return map[string]string{
		"awsbroker":    "Visibility Wait",
		"httpbroker":   "MaxLateBytes Patience ReadTimeout Secrets Tolerance Topic Unsigned",
		"kafkabroker":  "TransactionalID",
		"natsbroker":   "AckWait Stream Subjects",
		"pubsubbroker": "Deadline Subscription",
		"rabbitbroker": "CloudEventsPrefix Consumer Exchange RoutingKey Unchecked",
		"redisbroker":  "Delete Lease Logger NoCreate Replicas Synced Trim",
	}
}

// TestOptionsHaveOneName: who changes the broker finds the option under the same name. A
// new option has a name of sharedOptions, or is a thing of its broker alone.
func TestOptionsHaveOneName(t *testing.T) {
	shared, own := sharedOptions(), ownOptions()
	used := map[string]bool{}
	for _, s := range goFiles(t) {
		dir, name := path.Split(path.Dir(s.name))
		if dir != "broker/" || own[name] == "" || s.isTest() {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != "SinkOptions" && spec.Name.Name != "SourceOptions" {
				return true
			}
			fields, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			for _, f := range fields.Fields.List {
				for _, id := range f.Names {
					kind, common := shared[id.Name]
					used[id.Name], used[name+"."+id.Name] = true, true
					switch got := types.ExprString(f.Type); {
					case common && got != kind:
						t.Errorf("%s: %s.%s is %s, %s everywhere else", s.name, spec.Name.Name, id.Name, got, kind)
					case !common && !slices.Contains(strings.Fields(own[name]), id.Name):
						t.Errorf("%s: %s.%s: other adapters use %v: take one of them, or add it to ownOptions", s.name, spec.Name.Name, id.Name, slices.Sorted(maps.Keys(shared)))
					}
				}
			}
			return true
		})
	}
	for name := range shared {
		if !used[name] {
			t.Errorf("no adapter has the option %s: remove it from sharedOptions", name)
		}
	}
	for adapter, names := range own {
		for name := range strings.FieldsSeq(names) {
			if !used[adapter+"."+name] {
				t.Errorf("%s has no option %s: remove it from ownOptions", adapter, name)
			}
		}
	}
}
