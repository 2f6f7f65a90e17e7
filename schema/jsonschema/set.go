package jsonschema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	js "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/jsonschema/internal/confine"
)

// Options are the settings of a [Set]. Zero fields mean the defaults named.
type Options struct {
	// Subject names the subject of a message; nil: its type.
	Subject func(m *postrider.Message) string
	// Required refuses a message whose subject has no schema: false, it passes.
	Required bool
}

// Set is the schemas of a file system. It is constant and safe for concurrent use. It is a
// [schema.Checker], and so fits into outbox.Options and route.Rule.
type Set struct {
	opts     Options
	subjects map[string][]compiled // by version
}

type compiled struct {
	version int32
	schema  *js.Schema
}

var _ schema.Checker = (*Set)(nil)

// Open reads and compiles the JSON Schemas of a file system; opts may be nil. Schemas in
// other languages are left to their packages. Errors name the file.
func Open(fsys fs.FS, opts *Options) (*Set, error) {
	files, err := schema.ReadFiles(fsys)
	if err != nil {
		return nil, err
	}
	s := &Set{subjects: make(map[string][]compiled)}
	if opts != nil {
		s.opts = *opts
	}
	c := confine.Compiler(fsys)
	for _, f := range files {
		if f.Format != schema.JSONSchema {
			continue
		}
		sch, err := c.Compile(confine.Address(f.Path))
		if err != nil {
			return nil, fmt.Errorf("jsonschema: compile %s: %w", f.Path, err)
		}
		s.subjects[f.Subject] = append(s.subjects[f.Subject], compiled{f.Version, sch})
	}
	if len(s.subjects) == 0 {
		return nil, errors.New("jsonschema: the folder has no JSON Schema: add one as SUBJECT/001.json")
	}
	return s, nil
}

// Subjects lists the subjects that have a schema.
func (s *Set) Subjects() []string {
	all := make([]string, 0, len(s.subjects))
	for name := range s.subjects {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// Check compares the payload of m with the schema of its subject and version; version 0
// is the oldest one. The error is a *[schema.InvalidError], or nil. It does no I/O.
//
// A field that the schema does not name passes unless the schema is closed
// (additionalProperties: false).
func (s *Set) Check(m *postrider.Message) error {
	subject := m.Type
	if s.opts.Subject != nil {
		subject = s.opts.Subject(m)
	}
	invalid := func(reason string) error {
		return &schema.InvalidError{Subject: subject, Version: m.SchemaVersion, Reason: reason}
	}
	versions := s.subjects[subject]
	if len(versions) == 0 {
		if s.opts.Required {
			return invalid("the subject has no schema; add one as SUBJECT/001.json")
		}
		return nil
	}
	at := 0
	if m.SchemaVersion != 0 {
		if at = slices.IndexFunc(versions, func(c compiled) bool { return c.version == m.SchemaVersion }); at < 0 {
			return invalid(fmt.Sprintf("the version has no schema; the subject has versions %d to %d", versions[0].version, versions[len(versions)-1].version))
		}
	}
	if reason := refusal(versions[at].schema, m.Payload); reason != "" {
		return &schema.InvalidError{Subject: subject, Version: versions[at].version, Reason: reason}
	}
	return nil
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
