// Package confine compiles JSON Schemas of one file system, and loads nothing else.
package confine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"

	js "github.com/santhosh-tekuri/jsonschema/v6"
)

// Compiler reads schemas of fsys only.
func Compiler(fsys fs.FS) *js.Compiler {
	c := js.NewCompiler()
	c.UseLoader(loader{fsys})
	return c
}

// Address is the URL of a file of the file system.
func Address(path string) string { return (&url.URL{Scheme: "file", Path: "/" + path}).String() }

// Place is an address of a schema as people read it: a path inside the file system and
// a pointer.
func Place(address string) string {
	place := strings.TrimPrefix(address, "file:///")
	if decoded, err := url.PathUnescape(place); err == nil {
		return decoded
	}
	return place
}

// loader loads files of one file system.
type loader struct{ fsys fs.FS }

// Load implements the loader of the library.
func (l loader) Load(address string) (any, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "file" || u.Host != "" {
		return nil, fmt.Errorf("the reference leads to %q: put the schema beside the others, in a folder such as _shared, and refer to it by its path", u.Redacted())
	}
	text, err := fs.ReadFile(l.fsys, strings.TrimPrefix(u.Path, "/"))
	if err != nil {
		return nil, err
	}
	v, err := js.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, notJSON(text, err)
	}
	if deeper(v, maxLevels) {
		return nil, fmt.Errorf("it nests deeper than %d levels: flatten it, or move parts to $defs", maxLevels)
	}
	return v, nil
}

// notJSON names the line at which a text ends to be JSON.
func notJSON(text []byte, err error) error {
	var syntax *json.SyntaxError
	at := int64(len(text))
	if errors.As(err, &syntax) {
		at = min(at, syntax.Offset)
	}
	return fmt.Errorf("line %d is not JSON: %w", 1+bytes.Count(text[:at], []byte("\n")), err)
}

// maxLevels bounds the arrays and objects of a file inside each other. The time of a
// comparison grows with the square of the depth and more: 1,000 schemas took half a minute.
const maxLevels = 256

// deeper reports whether arrays and objects nest in v more than n times.
func deeper(v any, n int) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, of := range v {
			if n == 0 || deeper(of, n-1) {
				return true
			}
		}
	case []any:
		for _, of := range v {
			if n == 0 || deeper(of, n-1) {
				return true
			}
		}
	}
	return false
}

// Compile compiles the schema of a file.
func Compile(fsys fs.FS, path string) (*js.Schema, error) {
	s, err := Compiler(fsys).Compile(Address(path))
	var load *js.LoadURLError
	if errors.As(err, &load) {
		if err = load.Err; load.URL != Address(path) {
			err = fmt.Errorf("its reference to %s: %w", Place(load.URL), err)
		}
	}
	if err == nil && unfolded(s) >= maxUnfolded {
		err = fmt.Errorf("its references and branches unfold to more than %d schemas for one value: let fewer branches lead to the same $ref", maxUnfolded)
	}
	return s, err
}

// maxUnfolded bounds the schemas that the library tries on one value. Branches that lead
// twice to the next one double them level by level: 25 levels took minutes.
const maxUnfolded = 10_000

// unfolded counts them, up to the bound, for the schema with the most.
func unfolded(s *js.Schema) int {
	most, known := 0, map[*js.Schema]int{}
	var count func(s *js.Schema) int
	count = func(s *js.Schema) int {
		if s == nil {
			return 0
		}
		if n, ok := known[s]; ok {
			return n
		}
		known[s] = 0 // a loop, which the library refuses in its own way
		n := 1 + count(s.Ref) + count(s.Not) + count(s.If) + count(s.Then) + count(s.Else)
		for _, list := range [][]*js.Schema{s.AllOf, s.AnyOf, s.OneOf} {
			for _, one := range list {
				n = min(n+count(one), maxUnfolded)
			}
		}
		for _, one := range s.DependentSchemas {
			n = min(n+count(one), maxUnfolded)
		}
		for _, one := range s.Dependencies {
			one, _ := one.(*js.Schema)
			n = min(n+count(one), maxUnfolded)
		}
		for _, one := range inside(s) {
			count(one)
		}
		n = min(n, maxUnfolded)
		known[s], most = n, max(most, n)
		return n
	}
	count(s)
	return most
}

// inside lists the schemas of the values inside a value.
func inside(s *js.Schema) []*js.Schema {
	all := []*js.Schema{s.PropertyNames, s.Contains, s.UnevaluatedItems, s.UnevaluatedProperties, s.Items2020, s.ContentSchema}
	all = append(all, s.PrefixItems...)
	for _, one := range s.Properties {
		all = append(all, one)
	}
	for _, one := range s.PatternProperties {
		all = append(all, one)
	}
	for _, one := range []any{s.AdditionalProperties, s.Items, s.AdditionalItems} {
		switch one := one.(type) {
		case *js.Schema:
			all = append(all, one)
		case []*js.Schema:
			all = append(all, one...)
		}
	}
	return all
}
