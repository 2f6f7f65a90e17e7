package compat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"

	js "github.com/santhosh-tekuri/jsonschema/v6"
	failed "github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/postrider/postrider/schema/jsonschema/internal/confine"
)

// decimal writes a number of a schema as JSON; numbers of schemas are decimal.
func decimal(r *big.Rat) json.Number {
	if r.IsInt() {
		return json.Number(r.Num().String())
	}
	digits, exact := r.FloatPrec()
	if !exact || digits > 40 {
		digits = 6
	}
	return json.Number(strings.TrimRight(r.FloatString(digits), "0"))
}

func rational(v any) *big.Rat {
	n, ok := v.(json.Number)
	if !ok {
		return nil
	}
	r, ok := new(big.Rat).SetString(string(n))
	if !ok {
		return nil
	}
	return r
}

// equal compares two values of JSON; 1 and 1.0 are equal.
func equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && sameMap(a, b, equal)
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !equal(a[i], b[i]) {
				return false
			}
		}
		return true
	case json.Number:
		x, y := rational(a), rational(b)
		return x != nil && y != nil && x.Cmp(y) == 0
	}
	if kindOf(b) == array || kindOf(b) == object {
		return false
	}
	return a == b
}

// encode writes a value as one line.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return []byte(fmt.Sprintf("%q", err.Error()))
	}
	return bytes.TrimSpace(b.Bytes())
}

// short is a value of a schema for a text.
func short(v any) string {
	s := []rune(string(encode(v)))
	if len(s) > 60 {
		return string(s[:57]) + "..."
	}
	return string(s)
}

// leaf is a keyword that a document breaks.
type leaf struct{ location, keyword string }

func (l leaf) place() string {
	place := confine.Place(l.location)
	if l.keyword != "" {
		place += "/" + l.keyword
	}
	return place
}

// at is a node that stands for the leaf's location in a finding.
func (l leaf) at(r *js.Schema) *js.Schema {
	if l.location == r.Location {
		return r
	}
	return &js.Schema{Location: l.location}
}

// leaves are the keywords that a document breaks, the innermost and all around them.
func leaves(err error) (all []leaf) {
	var bad *js.ValidationError
	if !errors.As(err, &bad) {
		return nil
	}
	var visit func(e *js.ValidationError)
	visit = func(e *js.ValidationError) {
		for _, cause := range e.Causes {
			visit(cause)
		}
		switch e.ErrorKind.(type) {
		case nil, *failed.Group, *failed.Schema, *failed.Reference:
			return
		case *failed.Not:
			all = append(all, leaf{e.SchemaURL, "not"})
			return
		case *failed.PropertyNames:
			all = append(all, leaf{strings.TrimSuffix(e.SchemaURL, "/propertyNames"), "propertyNames"})
			return
		}
		all = append(all, leaf{e.SchemaURL, strings.Join(e.ErrorKind.KeywordPath(), "/")})
	}
	visit(bad)
	return all
}

// clone copies a value deeply.
func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		all := make(map[string]any, len(v))
		for k, e := range v {
			all[k] = clone(e)
		}
		return all
	case []any:
		all := make([]any, len(v))
		for i, e := range v {
			all[i] = clone(e)
		}
		return all
	}
	return v
}
