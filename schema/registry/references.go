package registry

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile/ast"
	"github.com/bufbuild/protocompile/parser"
	"github.com/bufbuild/protocompile/reporter"

	"github.com/postrider/postrider/internal/brackets"
)

// parse reads the text of a Protobuf schema.
func parse(text string) (*ast.FileNode, error) {
	if len(text) > maxSchema || brackets.Depth([]byte(text)) > maxBrackets {
		return nil, fmt.Errorf("the Protobuf schema is larger than %d MiB, or its brackets are more than %d deep", maxSchema>>20, maxBrackets)
	}
	silent := reporter.NewHandler(reporter.NewReporter(func(err reporter.ErrorWithPos) error { return err }, nil))
	return parser.Parse("schema.proto", strings.NewReader(text), silent)
}

// Refers returns the files that a schema names, as it names them: the imports of Protobuf
// without Google's own, and the references of JSON Schema to other files. Avro names types, not
// files: see References in schema/avro.
func Refers(t Type, text string) (names []string, err error) {
	switch t {
	case Protobuf:
		file, err := parse(text)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			if d, ok := d.(*ast.ImportNode); ok && !strings.HasPrefix(d.Name.AsString(), "google/protobuf/") {
				names = append(names, d.Name.AsString())
			}
		}
	case JSON:
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			return nil, err
		}
		names = refs(v, nil)
	case Avro:
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// refs collects the $ref of a JSON Schema that lead to files.
func refs(v any, names []string) []string {
	switch v := v.(type) {
	case map[string]any:
		for key, one := range v {
			if text, ok := one.(string); ok && key == "$ref" {
				if file, _, _ := strings.Cut(text, "#"); file != "" {
					names = append(names, file)
				}
				continue
			}
			names = refs(one, names)
		}
	case []any:
		for _, one := range v {
			names = refs(one, names)
		}
	}
	return names
}

// Place returns the file of the folder that a name in a schema's file leads to.
func Place(t Type, from, name string) string {
	if t == JSON {
		return path.Join(path.Dir(from), name)
	}
	return path.Clean(name)
}
