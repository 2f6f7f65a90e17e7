package adoption

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"go.yaml.in/yaml/v4"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/adopt"
)

// readMapping reads a mapping from a YAML file. A field that is a text names a column.
func readMapping(file string) (m adopt.Mapping, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return m, exit.Usagef("mapping: %w", err)
	}
	var doc any
	if err := yaml.Load(text, &doc); err != nil {
		return m, exit.Usagef("mapping %s: invalid YAML: %w", file, err)
	}
	if _, ok := doc.(map[string]any); !ok {
		return m, exit.Usagef("mapping %s: it must be a mapping of names; --print-mapping prints one to start from", file)
	}
	asJSON, err := json.Marshal(words(doc, ""))
	if err != nil {
		return m, exit.Usagef("mapping %s: %w", file, err)
	}
	d := json.NewDecoder(bytes.NewReader(asJSON))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return m, exit.Usagef("mapping %s: %w; --print-mapping prints one to start from", file, err)
	}
	if m.Layout == "" {
		m.Layout = adopt.LayoutCustom
	}
	return m, nil
}

// words makes texts of numbers and truths: a state of 0 is a value like any other.
func words(v any, name string) any {
	switch v := v.(type) {
	case map[string]any:
		for k, one := range v {
			v[k] = words(one, k)
		}
		return v
	case []any:
		for i, one := range v {
			v[i] = words(one, name)
		}
		return v
	case nil, string:
		return v
	}
	if name == "null_pending" {
		return v
	}
	return fmt.Sprint(v)
}
