package proto_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// The model of a schema: what is drawn, changed and written as text.
type (
	file struct {
		pkg      string
		proto2   bool
		messages []*message
		enums    []*enum
	}
	message struct {
		name     string
		fields   []*field
		nested   []*message
		enums    []*enum
		reserved []string
	}
	field struct {
		name, label, kind, key, oneof string // key: a map
		number                        int
		options                       []string
	}
	enum struct {
		name     string
		values   []value
		reserved []string
		alias    bool
	}
	value struct {
		name   string
		number int
	}
)

var scalars = []string{"int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "sfixed32", "fixed64", "sfixed64", "bool", "string", "bytes", "double", "float"}

type dice struct{ *rand.Rand }

func (d *dice) one(in int) bool           { return d.IntN(in) == 0 }
func (d *dice) of(list ...string) string  { return list[d.IntN(len(list))] }
func deleted[T any](list []T, at int) []T { return slices.Delete(slices.Clone(list), at, at+1) }

// pair draws a schema and one that differs from it in few places.
func pair(seed uint64, pkg string) (before, now *file) {
	d := &dice{rand.New(rand.NewPCG(seed, 21))}
	draw := func() *file {
		d := &dice{rand.New(rand.NewPCG(seed, 7))}
		f := &file{pkg: pkg, proto2: d.one(3)}
		f.enums = append(f.enums, d.enum("Kind", f), d.enum("Color", f))
		for _, name := range []string{"Order", "Line", "Note"} {
			f.messages = append(f.messages, d.message(name, f, 1))
		}
		return f
	}
	before, now = draw(), draw()
	for range 1 + d.IntN(3) {
		d.change(now)
	}
	return before, now
}

func (d *dice) enum(name string, f *file) *enum {
	e := &enum{name: name}
	for i := range 1 + d.IntN(4) {
		n := i
		if f.proto2 && i > 0 && d.one(3) {
			n = i * 5
		}
		e.values = append(e.values, value{fmt.Sprintf("%s_%d", strings.ToUpper(name), i), n})
	}
	if d.one(3) {
		e.reserved = append(e.reserved, d.of("100", "100 to 110", `"GONE"`))
	}
	if d.one(6) {
		e.alias = true
		e.values = append(e.values, value{strings.ToUpper(name) + "_ALIAS", 0})
	}
	return e
}

func (d *dice) kind(f *file) string {
	if d.one(3) {
		all := []string{"Kind", "Color", "Line", "Note"}
		return "." + f.pkg + "." + d.of(all...)
	}
	return d.of(scalars...)
}

func (d *dice) label(f *file) string {
	if f.proto2 {
		return d.of("optional", "optional", "required", "repeated")
	}
	return d.of("", "", "optional", "repeated")
}

func (d *dice) field(f *file, name string, number int) *field {
	g := &field{name: name, number: number, label: d.label(f), kind: d.kind(f)}
	for g.label == "required" && strings.HasPrefix(g.kind, ".") { // no endless messages
		g.kind = d.of(scalars...)
	}
	switch {
	case d.one(8):
		g.label, g.key = "", d.of("string", "int32", "bool", "uint64")
	case d.one(6):
		g.label, g.oneof = "", d.of("first", "second")
	case f.proto2 && g.label == "optional" && d.one(3):
		if v := map[string]string{"int32": "3", "int64": "3", "string": `"x"`, "bool": "true", "double": "1.5", "float": "1.5", "bytes": `"y"`}[g.kind]; v != "" {
			g.options = append(g.options, "default = "+v)
		}
	}
	if d.one(12) {
		g.options = append(g.options, fmt.Sprintf("json_name = %q", "j"+name))
	}
	return g
}

func (d *dice) message(name string, f *file, deep int) *message {
	m := &message{name: name}
	for i := range 1 + d.IntN(5) {
		m.fields = append(m.fields, d.field(f, fmt.Sprintf("%s_f%d", strings.ToLower(name), i+1), i+1))
	}
	if d.one(3) {
		m.reserved = append(m.reserved, d.of("200", "200 to 210", "200 to max", `"gone"`))
	}
	if deep > 0 && d.one(3) {
		m.nested = append(m.nested, d.message(name+"In", f, deep-1))
	}
	if deep > 0 && d.one(3) {
		m.enums = append(m.enums, d.enum(name+"State", f))
	}
	return m
}

func (d *dice) change(f *file) {
	m := f.messages[d.IntN(len(f.messages))]
	if len(m.nested) > 0 && d.one(3) {
		m = m.nested[0]
	}
	e := f.enums[d.IntN(len(f.enums))]
	if len(m.enums) > 0 {
		e = m.enums[0]
	}
	at := 0
	if len(m.fields) > 0 {
		at = d.IntN(len(m.fields))
	}
	switch d.IntN(18) {
	case 0, 1: // a new field
		m.fields = append(m.fields, d.field(f, fmt.Sprintf("added%d", d.IntN(50)), 50+d.IntN(50)))
	case 2, 3: // a removed one, perhaps reserved
		if len(m.fields) < 2 {
			return
		}
		g := m.fields[at]
		m.fields = deleted(m.fields, at)
		if !d.one(3) {
			m.reserved = append(m.reserved, fmt.Sprint(g.number))
		}
		if !d.one(3) {
			m.reserved = append(m.reserved, fmt.Sprintf("%q", g.name))
		}
	case 4, 5, 6: // another type
		g := m.fields[at]
		was := g.kind
		if g.kind = d.kind(f); d.one(2) {
			g.kind = d.near(was)
		}
		if strings.HasPrefix(g.kind, ".") && g.label == "required" {
			g.kind = "string"
		}
		g.options = nil
	case 7: // another name
		m.fields[at].name += "_x"
	case 8: // another number
		m.fields[at].number += 20
	case 9: // another label
		if g := m.fields[at]; g.key == "" && g.oneof == "" {
			if g.label = d.label(f); strings.HasPrefix(g.kind, ".") && g.label == "required" {
				g.label = "optional"
			}
			g.options = nil
		}
	case 10: // another oneof
		g := m.fields[at]
		g.options = nil
		switch {
		case g.oneof != "" && d.one(2):
			g.oneof = map[string]string{"first": "second", "second": "first"}[g.oneof]
		case g.oneof != "":
			g.oneof = ""
			if f.proto2 {
				g.label = "optional"
			}
		case g.key == "" && g.label != "repeated":
			g.label, g.oneof = "", "first"
		}
	case 11: // another default or JSON name
		g := m.fields[at]
		switch {
		case len(g.options) > 0:
			g.options = g.options[1:]
		case d.one(2):
			g.options = []string{`json_name = "other"`}
		case f.proto2 && g.label == "optional" && g.kind == "int64":
			g.options = []string{"default = 9"}
		}
	case 12: // another map
		if g := m.fields[at]; g.key != "" {
			g.key = d.of("string", "int32", "int64")
		} else if g.label == "repeated" {
			g.label, g.key = "", "string"
		}
	case 13: // a new value
		e.values = append(e.values, value{fmt.Sprintf("%s_N%d", strings.ToUpper(e.name), d.IntN(9)), 20 + d.IntN(20)})
	case 14: // a removed one
		if len(e.values) < 3 {
			return
		}
		i := len(e.values) - 1
		gone := e.values[i]
		e.values = deleted(e.values, i)
		if e.alias {
			e.alias = false
		} else if d.one(2) {
			e.reserved = append(e.reserved, fmt.Sprint(gone.number))
		}
		if d.one(2) {
			e.reserved = append(e.reserved, fmt.Sprintf("%q", gone.name))
		}
	case 15: // another name of a value
		e.values[len(e.values)-1].name += "_Y"
	case 16: // no longer reserved
		if len(m.reserved) > 0 {
			m.reserved = m.reserved[1:]
		} else if len(e.reserved) > 0 {
			e.reserved = nil
		}
	case 17:
		switch d.IntN(4) {
		case 0:
			f.pkg += "x"
		case 1:
			m.reserved = append(m.reserved, "300 to 310")
		default:
			f.messages = append(f.messages, d.message("Extra", f, 0))
		}
	}
}

// near is a type that some readers can exchange for another one.
func (d *dice) near(kind string) string {
	for _, group := range [][]string{{"int32", "uint32", "int64", "uint64", "bool"}, {"sint32", "sint64"}, {"fixed32", "sfixed32"}, {"fixed64", "sfixed64"}, {"string", "bytes"}, {"double", "float"}} {
		if slices.Contains(group, kind) {
			return d.of(group...)
		}
	}
	return kind
}

func (f *file) text() string {
	var b strings.Builder
	b.WriteString(map[bool]string{true: "syntax = \"proto2\";\n", false: "syntax = \"proto3\";\n"}[f.proto2])
	fmt.Fprintf(&b, "package %s;\n", f.pkg)
	for _, e := range f.enums {
		e.write(&b)
	}
	for _, m := range f.messages {
		m.write(&b)
	}
	return strings.ReplaceAll(b.String(), "."+strings.TrimSuffix(f.pkg, "x")+".", "."+f.pkg+".")
}

func reserve(b *strings.Builder, all []string) {
	slices.Sort(all)
	for _, r := range slices.Compact(all) {
		fmt.Fprintf(b, "reserved %s;\n", r)
	}
}

func (m *message) write(b *strings.Builder) {
	fmt.Fprintf(b, "message %s {\n", m.name)
	reserve(b, m.reserved)
	for _, e := range m.enums {
		e.write(b)
	}
	for _, n := range m.nested {
		n.write(b)
	}
	oneofs := map[string][]*field{}
	for _, f := range m.fields {
		if f.oneof != "" {
			oneofs[f.oneof] = append(oneofs[f.oneof], f)
			continue
		}
		f.write(b)
	}
	for _, name := range []string{"first", "second"} {
		if len(oneofs[name]) > 0 {
			fmt.Fprintf(b, "oneof %s {\n", name)
			for _, f := range oneofs[name] {
				f.write(b)
			}
			b.WriteString("}\n")
		}
	}
	b.WriteString("}\n")
}

func (f *field) write(b *strings.Builder) {
	kind := f.kind
	if f.key != "" {
		kind = "map<" + f.key + ", " + kind + ">"
	}
	options := ""
	if len(f.options) > 0 {
		options = " [" + strings.Join(f.options, ", ") + "]"
	}
	fmt.Fprintf(b, "%s %s %s = %d%s;\n", f.label, kind, f.name, f.number, options)
}

func (e *enum) write(b *strings.Builder) {
	fmt.Fprintf(b, "enum %s {\n", e.name)
	if e.alias {
		b.WriteString("option allow_alias = true;\n")
	}
	reserve(b, e.reserved)
	for _, v := range e.values {
		fmt.Fprintf(b, "%s = %d;\n", v.name, v.number)
	}
	b.WriteString("}\n")
}
