package avro

import (
	"slices"
	"strings"
)

// node is one type of a schema. Records may lead back to themselves.
type node struct {
	kind     string // the name of a primitive type, or record, enum, fixed, array, map or union
	name     string // with the namespace, of a record, an enum or a fixed
	aliases  []string
	bare     []string // those aliases that were written without a namespace
	fields   []field
	symbols  []string
	standby  bool // an enum's default
	size     int  // of a fixed
	of       *node
	branches []*node
}

// field is one field of a record.
type field struct {
	name     string
	aliases  []string
	standard bool // it has a default
	node     *node
}

// is reports whether the type has a name of its own.
func (n *node) named() bool { return n.name != "" }

// builder makes nodes of a schema, which is valid only if the library accepts it too.
type builder struct {
	types map[string]*node
	find  func(names ...string) *node // finds a type that types does not have, by the first of the names
	lost  string                      // a type that is not there
	err   error                       // of find
}

func (b *builder) node(v any, space string) *node {
	switch v := v.(type) {
	case string:
		if primitive(v) {
			return &node{kind: v}
		}
		for _, name := range []string{fullName(v, space), v} {
			if n := b.types[name]; n != nil {
				return n
			}
		}
		if n := b.find(fullName(v, space), v); n != nil {
			return n
		}
		b.lost = v
	case []any:
		n := &node{kind: "union"}
		for _, one := range v {
			n.branches = append(n.branches, b.node(one, space))
		}
		return n
	case map[string]any:
		return b.object(v, space)
	}
	return &node{kind: "null"}
}

func primitive(name string) bool {
	return slices.Contains([]string{"null", "boolean", "int", "long", "float", "double", "bytes", "string"}, name)
}

func (b *builder) object(v map[string]any, space string) *node {
	kind, ok := v["type"].(string)
	if !ok {
		return b.node(v["type"], space)
	}
	switch kind {
	case "array":
		return &node{kind: kind, of: b.node(v["items"], space)}
	case "map":
		return &node{kind: kind, of: b.node(v["values"], space)}
	case "error":
		kind = "record"
	case "record", "enum", "fixed":
	default:
		return b.node(kind, space)
	}
	n := &node{kind: kind}
	own, _ := v["name"].(string)
	if given, ok := v["namespace"].(string); ok && !strings.Contains(own, ".") {
		space = given
	}
	n.name = fullName(own, space)
	space = n.name[:max(strings.LastIndex(n.name, "."), 0)]
	for _, a := range texts(v["aliases"]) {
		n.aliases = append(n.aliases, fullName(a, space))
		if !strings.Contains(a, ".") {
			n.bare = append(n.bare, a)
		}
	}
	b.types[n.name] = n
	n.symbols = texts(v["symbols"])
	_, n.standby = v["default"]
	if size, ok := v["size"].(float64); ok {
		n.size = int(size)
	}
	list, _ := v["fields"].([]any)
	for _, one := range list {
		f, _ := one.(map[string]any)
		name, _ := f["name"].(string)
		_, standard := f["default"]
		n.fields = append(n.fields, field{name, texts(f["aliases"]), standard, b.node(f["type"], space)})
	}
	return n
}

func texts(v any) (all []string) {
	list, _ := v.([]any)
	for _, one := range list {
		if s, ok := one.(string); ok {
			all = append(all, s)
		}
	}
	return all
}

// fullName is the name of a type with its namespace.
func fullName(name, space string) string {
	if strings.Contains(name, ".") || space == "" {
		return name
	}
	return space + "." + name
}

// short is a name without its namespace.
func short(name string) string { return name[strings.LastIndex(name, ".")+1:] }

// sameName reports whether a reader's type answers to the name of a writer's: by its full
// name or an alias, or by the name without the namespace. An alias with a namespace is of
// that namespace alone.
func sameName(w, r *node) bool {
	return exactName(w, r) || short(w.name) == short(r.name) || slices.Contains(r.bare, short(w.name))
}

func exactName(w, r *node) bool { return w.name == r.name || slices.Contains(r.aliases, w.name) }

// widens reports whether a reader's type reads another type of a writer.
func widens(w, r string) bool {
	switch r {
	case "long":
		return w == "int"
	case "float":
		return w == "int" || w == "long"
	case "double":
		return w == "int" || w == "long" || w == "float"
	case "bytes":
		return w == "string"
	case "string":
		return w == "bytes"
	}
	return false
}

// branch finds the branch of a reader's union for a writer's type, which is no union; nil: none.
func branch(w, r *node) *node {
	for _, fits := range []func(b *node) bool{
		func(b *node) bool { return b.kind == w.kind && exactName(w, b) && b.size == w.size },
		func(b *node) bool { return b.kind == w.kind && sameName(w, b) && b.size == w.size },
		func(b *node) bool { return widens(w.kind, b.kind) },
	} {
		if at := slices.IndexFunc(r.branches, fits); at >= 0 {
			return r.branches[at]
		}
	}
	return nil
}

// sent finds the writer's field for a reader's; -1: none.
func sent(w *node, f *field) int {
	at := slices.IndexFunc(w.fields, func(o field) bool { return o.name == f.name })
	for i := 0; at < 0 && i < len(f.aliases); i++ {
		at = slices.IndexFunc(w.fields, func(o field) bool { return o.name == f.aliases[i] })
	}
	return at
}
