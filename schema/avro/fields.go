package avro

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/postrider/postrider/schema/evolve"
)

// fields finds record fields that a reader wants, that a writer does not send and that
// have no default. The library takes null for the default of a field whose type begins
// with null; Avro does not.
type fields struct {
	writer, reader map[string]map[string]any // named types
	seen           map[string]bool
	path           string
	found          []evolve.Finding
}

func missing(writer, reader *evolve.Version) ([]evolve.Finding, error) {
	var w, r any
	if err := json.Unmarshal(writer.Text, &w); err != nil {
		return nil, fmt.Errorf("avro: parse %s: %w", writer.Path, err)
	}
	if err := json.Unmarshal(reader.Text, &r); err != nil {
		return nil, fmt.Errorf("avro: parse %s: %w", reader.Path, err)
	}
	f := &fields{writer: map[string]map[string]any{}, reader: map[string]map[string]any{}, seen: map[string]bool{}, path: reader.Path}
	named(w, "", f.writer)
	named(r, "", f.reader)
	f.walk(w, r, "", "", "")
	return f.found, nil
}

// fullName is the name of a type with its namespace.
func fullName(name, space string) string {
	if strings.Contains(name, ".") || space == "" {
		return name
	}
	return space + "." + name
}

// nameOf returns the full name of a type and the namespace inside of it.
func nameOf(t map[string]any, space string) (name, inside string) {
	name, _ = t["name"].(string)
	if own, ok := t["namespace"].(string); ok && !strings.Contains(name, ".") {
		space = own
	}
	name = fullName(name, space)
	if at := strings.LastIndex(name, "."); at >= 0 {
		return name, name[:at]
	}
	return name, ""
}

// named collects the named types below t.
func named(t any, space string, into map[string]map[string]any) {
	switch t := t.(type) {
	case []any:
		for _, b := range t {
			named(b, space, into)
		}
	case map[string]any:
		inside := space
		if t["name"] != nil {
			var name string
			if name, inside = nameOf(t, space); into[name] == nil {
				into[name] = t
			}
		}
		if kind, ok := t["type"].(map[string]any); ok {
			named(kind, inside, into)
		}
		named(t["items"], inside, into)
		named(t["values"], inside, into)
		list, _ := t["fields"].([]any)
		for _, f := range list {
			if f, ok := f.(map[string]any); ok {
				named(f["type"], inside, into)
			}
		}
	}
}

// resolve follows a name, and the type of a type.
func resolve(t any, space string, types map[string]map[string]any) (any, string) {
	for {
		switch s := t.(type) {
		case string:
			of, ok := types[fullName(s, space)]
			if !ok {
				return t, space
			}
			at := fullName(s, space)
			space = at[:max(strings.LastIndex(at, "."), 0)]
			return of, space
		case map[string]any:
			switch inner := s["type"].(type) {
			case map[string]any, []any:
				t = inner
				continue
			}
			if s["name"] != nil {
				_, space = nameOf(s, space)
			}
			return s, space
		}
		return t, space
	}
}

func (f *fields) walk(w, r any, wSpace, rSpace, at string) {
	w, wSpace = resolve(w, wSpace, f.writer)
	r, rSpace = resolve(r, rSpace, f.reader)
	if branches, ok := w.([]any); ok {
		for _, b := range branches {
			f.walk(b, r, wSpace, rSpace, at)
		}
		return
	}
	if branches, ok := r.([]any); ok {
		for _, same := range []func(one, two string) bool{sameName, sameShort} { // full names of all branches first
			for _, b := range branches {
				if f.match(w, b, wSpace, rSpace, same) {
					f.walk(w, b, wSpace, rSpace, at)
					return
				}
			}
		}
		return
	}
	a, okW := w.(map[string]any)
	b, okR := r.(map[string]any)
	if !okW || !okR || a["type"] != b["type"] {
		return
	}
	switch a["type"] {
	case "array":
		f.walk(a["items"], b["items"], wSpace, rSpace, at+"/items")
	case "map":
		f.walk(a["values"], b["values"], wSpace, rSpace, at+"/values")
	case "record", "error":
		f.record(a, b, wSpace, rSpace, at)
	}
}

// sameName compares the full name of a writer's type with a full name or alias of the reader's.
func sameName(writer, reader string) bool { return writer == reader }

// sameShort compares names without their namespaces.
func sameShort(writer, reader string) bool { return short(writer) == short(reader) }

// short is a name without its namespace.
func short(name string) string { return name[strings.LastIndex(name, ".")+1:] }

// match reports whether a branch of a reader's union is the one for w: one of the same
// name, or of the same kind where it has no name. An alias with a namespace is of that
// namespace alone.
func (f *fields) match(w, b any, wSpace, rSpace string, same func(writer, reader string) bool) bool {
	b, rSpace = resolve(b, rSpace, f.reader)
	x, okW := w.(map[string]any)
	y, okR := b.(map[string]any)
	if !okW || !okR || x["type"] != y["type"] {
		return false
	}
	if x["name"] == nil {
		return true
	}
	one, _ := nameOf(x, wSpace)
	two, inside := nameOf(y, rSpace)
	aliases, _ := y["aliases"].([]any)
	return same(one, two) || slices.ContainsFunc(aliases, func(v any) bool {
		s, _ := v.(string)
		return fullName(s, inside) == one || !strings.Contains(s, ".") && same(one, fullName(s, inside))
	})
}

func (f *fields) record(a, b map[string]any, wSpace, rSpace, at string) {
	one, _ := nameOf(a, wSpace)
	two, _ := nameOf(b, rSpace)
	if f.seen[one+" "+two] {
		return
	}
	f.seen[one+" "+two] = true
	sent, _ := a["fields"].([]any)
	wanted, _ := b["fields"].([]any)
	for _, v := range wanted {
		want, _ := v.(map[string]any)
		name, _ := want["name"].(string)
		names := []any{name}
		if aliases, ok := want["aliases"].([]any); ok {
			names = append(names, aliases...)
		}
		found := slices.IndexFunc(sent, func(v any) bool {
			s, _ := v.(map[string]any)
			return slices.Contains(names, s["name"])
		})
		if found >= 0 {
			s, _ := sent[found].(map[string]any)
			f.walk(s["type"], want["type"], wSpace, rSpace, at+"/"+name)
			continue
		}
		if _, ok := want["default"]; !ok {
			f.found = append(f.found, evolve.Finding{
				Path: f.path + "#" + at + "/" + name, Rule: "default",
				Detail: fmt.Sprintf("the writer does not send the field %q, and the reader has no default for it: add one", name),
			})
		}
	}
}
