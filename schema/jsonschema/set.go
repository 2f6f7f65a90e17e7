package jsonschema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	js "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/jsonschema/internal/confine"
)

// Compiler makes the checks of payloads by JSON Schemas. What a writer's schema says is not
// looked at: a JSON Schema reads documents.
func Compiler() schema.Compiler {
	return schema.Compiler{Format: schema.JSONSchema, Compile: func(fsys fs.FS, reader, _ *schema.File) (schema.Payloads, error) {
		sch, err := confine.Compile(fsys, reader.Path)
		if err != nil {
			return nil, fmt.Errorf("jsonschema: compile %s: %w", reader.Path, err)
		}
		return func(m *postrider.Message) string { return refusal(sch, m.Payload) }, nil
	}}
}

// refusal is what the schema has against a payload, without values of the payload.
func refusal(sch *js.Schema, payload []byte) string {
	if len(payload) == 0 {
		return "the payload is empty"
	}
	doc, err := js.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return "the payload is not JSON"
	}
	if reason := unbounded(doc, 0); reason != "" {
		return reason
	}
	var bad *js.ValidationError
	switch err := sch.Validate(doc); {
	case err == nil:
		return ""
	case errors.As(err, &bad):
		var rules []string
		leaves(bad, &rules)
		return strings.Join(rules, "; ")
	}
	return "the payload cannot be checked"
}

// Bounds of a payload's numbers and depth: the arithmetic of the checker is exact, so
// that 1e1000000000 would fill the memory.
const (
	maxDepth    = 512
	maxDigits   = 400
	maxExponent = 400
)

func unbounded(doc any, depth int) string {
	if depth > maxDepth {
		return fmt.Sprintf("the payload is nested more than %d levels deep", maxDepth)
	}
	switch doc := doc.(type) {
	case map[string]any:
		for _, v := range doc {
			if reason := unbounded(v, depth+1); reason != "" {
				return reason
			}
		}
	case []any:
		for _, v := range doc {
			if reason := unbounded(v, depth+1); reason != "" {
				return reason
			}
		}
	case json.Number:
		_, exponent, given := strings.Cut(strings.ToLower(string(doc)), "e")
		n, err := strconv.Atoi(exponent)
		if len(doc) > maxDigits || given && (err != nil || n > maxExponent || n < -maxExponent) {
			return fmt.Sprintf("a number has more than %d digits or an exponent beyond %d", maxDigits, maxExponent)
		}
	}
	return ""
}

// leaves collects the rules that the payload breaks: places of the schema only, since
// places of the payload may be made of its values. Three are enough.
func leaves(e *js.ValidationError, rules *[]string) {
	if len(*rules) == 3 {
		return
	}
	switch e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf, *kind.Not, *kind.Contains: // one of several: no branch of it is to blame
	default:
		if len(e.Causes) > 0 {
			for _, cause := range e.Causes {
				leaves(cause, rules)
			}
			return
		}
	}
	place := strings.TrimPrefix(e.SchemaURL, "file:///")
	if at := e.ErrorKind.KeywordPath(); len(at) > 0 {
		place += "/" + strings.Join(at, "/")
	}
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		place += " wants " + strings.Join(k.Missing, ", ")
	case *kind.Type:
		place += " wants " + strings.Join(k.Want, " or ")
	}
	*rules = append(*rules, place)
}
