package avro

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/postrider/postrider/schema/evolve"
)

// mostFound bounds the differences of one comparison.
const mostFound = 100

// differ finds all places in which a reader refuses what a writer may send.
type differ struct {
	root  *node // of the writer
	top   *node // of the reader
	path  string
	seen  map[[2]*node]bool
	found []evolve.Finding
}

// walk compares two types. at is the place in the reader's schema, and way leads there
// through the writer's types: the index of a field or branch, or 0 into an array or map.
// A way of nil is for a difference that no document shows.
func (d *differ) walk(w, r *node, at string, way []int) {
	if d.seen[[2]*node{w, r}] || len(d.found) >= mostFound {
		return
	}
	d.seen[[2]*node{w, r}] = true
	switch {
	case w.kind == "union":
		for i, b := range w.branches {
			d.walk(b, r, at, append(way[:len(way):len(way)], i))
		}
	case r.kind == "union":
		if b := branch(w, r); b != nil {
			d.walk(w, b, at, way)
			return
		}
		if w.kind == "record" { // readers are free to take a record of another name, and Java's does
			way = nil
		}
		d.add(at, "type", way, "", "the writer sends %s, and the reader has no branch for it: add one", kindOf(w))
	case w.kind != r.kind:
		if !widens(w.kind, r.kind) {
			d.add(at, "type", way, "", "the writer sends %s, the reader wants %s: restore the type, or add a field with another name", kindOf(w), kindOf(r))
		}
	case w.named() && !sameName(w, r):
		if w.kind == "record" {
			way = nil
		}
		d.add(at, "name", way, "", "the writer's %s is named %s, the reader's %s: restore the name, or add an alias", w.kind, w.name, r.name)
	case w.kind == "array":
		d.walk(w.of, r.of, at+"/items", append(way[:len(way):len(way)], 0))
	case w.kind == "map":
		d.walk(w.of, r.of, at+"/values", append(way[:len(way):len(way)], 0))
	case w.kind == "fixed" && w.size != r.size:
		d.add(at, "size", way, "", "the writer sends %d bytes, the reader wants %d: restore the size", w.size, r.size)
	case w.kind == "enum" && !r.standby:
		for _, s := range w.symbols {
			if !slices.Contains(r.symbols, s) {
				d.add(at, "symbols", way, s, "the writer may send the symbol %q, which the reader does not have: restore it, or give the enum a default", s)
			}
		}
	case w.kind == "record":
		d.record(w, r, at, way)
	}
}

func (d *differ) record(w, r *node, at string, way []int) {
	for i := range r.fields {
		f := &r.fields[i]
		from := sent(w, f)
		switch {
		case from >= 0:
			d.walk(w.fields[from].node, f.node, at+"/"+f.name, append(way[:len(way):len(way)], from))
		case !f.standard && (f.node.kind != "enum" || !f.node.standby):
			d.add(at+"/"+f.name, "default", way, "", "the writer does not send the field %q, and the reader has no default for it: add one", f.name)
		}
	}
}

func (d *differ) add(at, rule string, way []int, symbol, format string, args ...any) {
	f := evolve.Finding{Path: d.path, Rule: rule, Detail: fmt.Sprintf(format, args...)}
	if at != "" {
		f.Path += "#" + at
	}
	if slices.ContainsFunc(d.found, func(o evolve.Finding) bool { return o.Path == f.Path && o.Detail == f.Detail }) {
		return
	}
	left := mostValues
	if v, ok := sample(d.root, way, symbol, nil, &left); ok && way != nil && !reads(d.root, d.top, v) {
		if text, err := json.Marshal(jsonOf(d.root, v)); err == nil && len(text) <= mostExample {
			f.Example = text
		}
	}
	d.found = append(d.found, f)
}

// mostExample bounds an example, in bytes.
const mostExample = 64 << 10

// kindOf names a type for people.
func kindOf(n *node) string {
	switch {
	case n.named():
		return n.kind + " " + n.name
	case n.kind == "union":
		var all []string
		for _, b := range n.branches {
			all = append(all, kindOf(b))
		}
		return "union of " + strings.Join(all, ", ")
	}
	return n.kind
}
