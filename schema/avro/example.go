package avro

import (
	"strings"
)

// A datum is the Go value of a node: nil, bool, int64, float64, string (also of an enum),
// []byte (also of a fixed), []any, []entry of a map, []any of a record's fields, or a
// chosen branch of a union.
type (
	chosen struct {
		branch int
		v      any
	}
	entry struct {
		key string
		v   any
	}
)

// mostValues bounds a sample: records that have two of the next one, level by level, double
// with each level.
const mostValues = 10_000

// sample makes the smallest datum of a node that passes the way, with a symbol at its end.
// Lists and maps beside the way are empty, and inside holds the records around it. It is
// false where each datum would have no end, or more values than mostValues.
func sample(n *node, way []int, symbol string, inside []*node, left *int) (v any, ok bool) {
	if *left--; *left < 0 {
		return nil, false
	}
	var next []int
	step := -1
	if len(way) > 0 {
		step, next = way[0], way[1:]
	}
	switch n.kind {
	case "null":
		return nil, true
	case "boolean":
		return false, true
	case "int", "long":
		return int64(0), true
	case "float", "double":
		return float64(0), true
	case "bytes":
		return []byte{}, true
	case "string":
		return "", true
	case "fixed":
		return make([]byte, n.size), n.size <= mostExample
	case "enum":
		if step < 0 && symbol != "" {
			return symbol, true
		}
		if len(n.symbols) == 0 {
			return nil, false
		}
		return n.symbols[0], true
	case "array", "map":
		if step < 0 {
			if n.kind == "map" {
				return []entry{}, true
			}
			return []any{}, true
		}
		if v, ok = sample(n.of, next, symbol, inside, left); !ok {
			return nil, false
		}
		if n.kind == "map" {
			return []entry{{"a", v}}, true
		}
		return []any{v}, true
	case "union":
		for i, b := range n.branches {
			if step >= 0 && step != i {
				continue
			}
			if v, ok = sample(b, next, symbol, inside, left); ok {
				return chosen{i, v}, true
			}
		}
		return nil, false
	}
	if step < 0 && around(inside, n) || len(inside) > maxDepth {
		return nil, false // a record beside the way that leads back
	}
	if step < 0 {
		inside = append(inside[:len(inside):len(inside)], n)
	}
	all := make([]any, len(n.fields))
	for i := range n.fields {
		if i == step {
			v, ok = sample(n.fields[i].node, next, symbol, inside, left)
		} else {
			v, ok = sample(n.fields[i].node, nil, "", inside, left)
		}
		if !ok {
			return nil, false
		}
		all[i] = v
	}
	return all, true
}

func around(inside []*node, n *node) bool {
	for _, o := range inside {
		if o == n {
			return true
		}
	}
	return false
}

// reads reports whether a reader reads a datum of a writer, by schema resolution.
func reads(w, r *node, v any) bool {
	if w.kind == "union" {
		c, _ := v.(chosen)
		return reads(w.branches[c.branch], r, c.v)
	}
	if r.kind == "union" {
		b := branch(w, r)
		return b != nil && reads(w, b, v)
	}
	if w.kind != r.kind {
		return widens(w.kind, r.kind)
	}
	if w.named() && !sameName(w, r) {
		return false
	}
	switch w.kind {
	case "array":
		list, _ := v.([]any)
		for _, one := range list {
			if !reads(w.of, r.of, one) {
				return false
			}
		}
	case "map":
		list, _ := v.([]entry)
		for _, one := range list {
			if !reads(w.of, r.of, one.v) {
				return false
			}
		}
	case "fixed":
		return w.size == r.size
	case "enum":
		for _, s := range r.symbols {
			if s == v {
				return true
			}
		}
		return r.standby
	case "record":
		list, _ := v.([]any)
		for i := range r.fields {
			f := &r.fields[i]
			switch at := sent(w, f); {
			case at >= 0 && !reads(w.fields[at].node, f.node, list[at]):
				return false
			case at < 0 && !f.standard && (f.node.kind != "enum" || !f.node.standby):
				return false
			}
		}
	}
	return true
}

// jsonOf is a datum in Avro's JSON encoding: a branch of a union has its name, and bytes
// are characters from 0 to 255.
func jsonOf(n *node, v any) any {
	switch v := v.(type) {
	case chosen:
		b := n.branches[v.branch]
		if b.kind == "null" {
			return nil
		}
		name := b.kind
		if b.named() {
			name = b.name
		}
		return map[string]any{name: jsonOf(b, v.v)}
	case []byte:
		var text strings.Builder
		for _, c := range v {
			text.WriteRune(rune(c))
		}
		return text.String()
	case []entry:
		all := map[string]any{}
		for _, e := range v {
			all[e.key] = jsonOf(n.of, e.v)
		}
		return all
	case []any:
		if n.kind == "record" {
			all := map[string]any{}
			for i := range v {
				all[n.fields[i].name] = jsonOf(n.fields[i].node, v[i])
			}
			return all
		}
		all := make([]any, len(v))
		for i := range v {
			all[i] = jsonOf(n.of, v[i])
		}
		return all
	}
	return v
}
