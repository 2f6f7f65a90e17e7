package compat

import (
	"fmt"
	"slices"

	js "github.com/santhosh-tekuri/jsonschema/v6"
)

// closed is the schema that accepts nothing.
func closed() *js.Schema {
	no := false
	return &js.Schema{Bool: &no, DraftVersion: 2020}
}

// field returns the nodes that hold for a field of every document of the piece.
func (c *check) field(p *piece, name string) []*js.Schema {
	if !p.names.has(name) {
		return []*js.Schema{closed()}
	}
	var all []*js.Schema
	for _, n := range p.known {
		all = append(all, fieldOf(n, name)...)
	}
	return all
}

func fieldOf(n *js.Schema, name string) (all []*js.Schema) {
	if s, ok := n.Properties[name]; ok {
		all = append(all, s)
	}
	for re, s := range n.PatternProperties {
		if re.MatchString(name) {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		if s := additional(n.AdditionalProperties); s != nil {
			all = append(all, s)
		}
	}
	if n.UnevaluatedProperties != nil && !evaluated(n, true).has(name) {
		all = append(all, n.UnevaluatedProperties)
	}
	return all
}

// rest returns the nodes that hold for every field that the piece names nowhere and
// that matches none of its patterns.
func (c *check) rest(p *piece) []*js.Schema {
	if p.names != nil && !p.names.open {
		return []*js.Schema{closed()}
	}
	var all []*js.Schema
	for _, n := range p.known {
		if s := additional(n.AdditionalProperties); s != nil {
			all = append(all, s)
		}
		if n.UnevaluatedProperties == nil {
			continue
		}
		by := evaluated(n, true)
		strange := slices.ContainsFunc(by.patterns, func(re js.Regexp) bool {
			return !slices.ContainsFunc(p.known, func(k *js.Schema) bool { return patternOf(k, re.String()) != nil })
		})
		if !by.open && !strange {
			all = append(all, n.UnevaluatedProperties)
		}
	}
	return all
}

// evaluated are the fields that a node judges, for unevaluatedProperties: all that it
// may judge, or all that it always does.
func evaluated(n *js.Schema, may bool) *names {
	all := &names{props: map[string]bool{}}
	nodes := []*js.Schema{n}
	if may {
		nodes = level(n)
	} else {
		for i := 0; i < len(nodes); i++ {
			for _, s := range append(slices.Clone(nodes[i].AllOf), nodes[i].Ref) {
				if s != nil && !slices.Contains(nodes, s) {
					nodes = append(nodes, s)
				}
			}
		}
	}
	for _, s := range nodes {
		for name := range s.Properties {
			all.props[name] = true
		}
		for re := range s.PatternProperties {
			all.patterns = append(all.patterns, re)
		}
		all.open = all.open || s.AdditionalProperties != nil || s != n && s.UnevaluatedProperties != nil
	}
	return all
}

// fields are the names that schemas of the piece have, also in a branch that the piece
// did not take.
func (p *piece) fields() []string {
	var all []string
	for _, n := range p.known {
		all = append(all, sorted(n.Properties)...)
		all = append(all, n.Required...)
		if n.UnevaluatedProperties != nil {
			all = append(all, sorted(evaluated(n, true).props)...)
		}
	}
	if p.names != nil {
		all = append(all, sorted(p.names.props)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (c *check) object(p *piece, r *js.Schema, deep int) (found []finding) {
	add := func(keyword, detail string) { found = append(found, finding{at: r, keyword: keyword, detail: detail}) }
	if r.MinProperties != nil && max(least(p.known, minProperties), len(p.required())) < *r.MinProperties {
		add("minProperties", fmt.Sprintf("the writer may send fewer than %d fields", *r.MinProperties))
	}
	if r.MaxProperties != nil && !c.atMost(p, *r.MaxProperties) {
		add("maxProperties", fmt.Sprintf("the writer may send more than %d fields", *r.MaxProperties))
	}
	for _, name := range r.Required {
		if !p.requires(name) {
			add("required", fmt.Sprintf("the writer may leave out %q", name))
		}
	}
	found = append(found, c.dependent(p, r, deep)...)
	for _, name := range sorted(r.Properties) {
		found = append(found, c.value(p, name, r.Properties[name], r, "properties")...)
	}
	for re, s := range r.PatternProperties {
		found = append(found, c.matching(p, r, re, s)...)
	}
	if s := additional(r.AdditionalProperties); s != nil {
		found = append(found, c.others(p, r, s, evaluatedHere(r), "additionalProperties")...)
	}
	if s := r.UnevaluatedProperties; s != nil && (s.Bool == nil || !*s.Bool) {
		if by := evaluated(r, false); !by.open {
			found = append(found, c.others(p, r, s, by, "unevaluatedProperties")...)
		}
	}
	if r.PropertyNames != nil && !c.namesIn(p, r.PropertyNames) {
		add("propertyNames", "the writer may use other names of fields")
	}
	return found
}

// evaluatedHere are the fields that properties and patternProperties of one node judge.
func evaluatedHere(n *js.Schema) *names {
	all := &names{props: map[string]bool{}}
	for name := range n.Properties {
		all.props[name] = true
	}
	for re := range n.PatternProperties {
		all.patterns = append(all.patterns, re)
	}
	return all
}

// value proves that s accepts the values of one field of the piece.
func (c *check) value(p *piece, name string, s, r *js.Schema, keyword string) []finding {
	nodes := c.field(p, name)
	found := c.includes(nodes, s)
	switch {
	case len(found) == 0:
		return nil
	case keyword != "properties" && s.Bool != nil:
		return []finding{{at: r, keyword: keyword, detail: fmt.Sprintf("the writer may send the field %q, which the reader does not accept", name)}}
	case len(nodes) == 0 && keyword == "properties":
		return []finding{{at: s, rule: "unnamed", detail: fmt.Sprintf("the writer's schema does not name the field %q, so that it may have any value; close that schema, or compare without unnamed fields (lenient)", name)}}
	}
	return found
}

// matching proves patternProperties for one pattern.
func (c *check) matching(p *piece, r *js.Schema, re js.Regexp, s *js.Schema) (found []finding) {
	for _, name := range p.fields() {
		if re.MatchString(name) {
			found = append(found, c.value(p, name, s, r, "patternProperties")...)
		}
	}
	var same, rest []*js.Schema // what holds for names that match, and for those among the unnamed
	for _, n := range p.known {
		of := patternOf(n, re.String())
		if of != nil {
			same = append(same, of)
		} else if s := additional(n.AdditionalProperties); s != nil && len(n.PatternProperties) == 0 {
			rest = append(rest, s)
		}
	}
	if p.names != nil && !p.names.open {
		rest = append(rest, closed())
	}
	if s.Bool == nil || !*s.Bool {
		if more := c.includes(append(same, rest...), s); len(more) > 0 {
			found = append(found, finding{at: s, detail: "the writer may send other values in fields that match the pattern " + short(re.String())})
		}
	}
	return found
}

func patternOf(n *js.Schema, pattern string) *js.Schema {
	for re, s := range n.PatternProperties {
		if re.String() == pattern {
			return s
		}
	}
	return nil
}

// others proves that s accepts the values of all fields that by does not have.
func (c *check) others(p *piece, r, s *js.Schema, by *names, keyword string) (found []finding) {
	for _, name := range p.fields() {
		if !by.has(name) {
			found = append(found, c.value(p, name, s, r, keyword)...)
		}
	}
	for _, n := range p.known {
		for re, of := range n.PatternProperties {
			if slices.ContainsFunc(by.patterns, func(o js.Regexp) bool { return o.String() == re.String() }) {
				continue
			}
			if len(c.includes([]*js.Schema{of}, s)) > 0 {
				found = append(found, finding{at: r, keyword: keyword, detail: "the writer may send fields that match the pattern " + short(re.String())})
			}
		}
	}
	if len(c.includes(c.rest(p), s)) > 0 {
		found = append(found, finding{at: r, keyword: keyword, detail: "the writer may send fields that the reader's schema does not name"})
	}
	return found
}

// atMost reports whether documents of the piece have no more than n fields.
func (c *check) atMost(p *piece, n int) bool {
	if at := most(p.known, maxProperties); at >= 0 && at <= n {
		return true
	}
	if !never(c.rest(p)) || slices.ContainsFunc(p.known, func(k *js.Schema) bool { return len(k.PatternProperties) > 0 }) {
		return false
	}
	fields := slices.DeleteFunc(p.fields(), func(name string) bool { return never(c.field(p, name)) })
	return len(fields) <= n
}

// namesIn proves propertyNames.
func (c *check) namesIn(p *piece, s *js.Schema) bool {
	nodes := []*js.Schema{c.textOnly()}
	for _, n := range p.known {
		if n.PropertyNames != nil {
			nodes = append(nodes, n.PropertyNames)
		}
	}
	if len(c.includes(nodes, s)) == 0 {
		return true
	}
	if !never(c.rest(p)) || slices.ContainsFunc(p.known, func(k *js.Schema) bool { return len(k.PatternProperties) > 0 }) {
		return false
	}
	return !slices.ContainsFunc(p.fields(), func(name string) bool { return !never(c.field(p, name)) && s.Validate(name) != nil })
}

// textOnly is the schema of all texts.
func (c *check) textOnly() *js.Schema {
	var types js.Types
	types.Add(string(text))
	return c.synthetic("text", &js.Schema{Types: &types, DraftVersion: 2020})
}

// with is the schema of all objects that have a field.
func (c *check) with(name string) *js.Schema {
	return c.synthetic("with "+name, &js.Schema{Required: []string{name}, DraftVersion: 2020})
}

// dependent proves dependentRequired, dependentSchemas and the older dependencies.
func (c *check) dependent(p *piece, r *js.Schema, deep int) (found []finding) {
	required := func(keyword, name string, want []string) {
		if never(c.field(p, name)) {
			return
		}
		for _, other := range want {
			same := slices.ContainsFunc(p.known, func(n *js.Schema) bool {
				old, _ := n.Dependencies[name].([]string)
				return slices.Contains(n.DependentRequired[name], other) || slices.Contains(old, other)
			})
			if !p.requires(other) && !same && other != name {
				found = append(found, finding{at: r, keyword: keyword, detail: fmt.Sprintf("the writer may send %q without %q", name, other)})
			}
		}
	}
	holds := func(keyword, name string, s *js.Schema) {
		if never(c.field(p, name)) {
			return
		}
		same := slices.ContainsFunc(p.known, func(n *js.Schema) bool {
			old, _ := n.Dependencies[name].(*js.Schema)
			of := n.DependentSchemas[name]
			return of != nil && c.same(of, s) || old != nil && c.same(old, s)
		})
		if same {
			return
		}
		for _, q := range c.expand(append(slices.Clone(p.known), c.with(name)), p.names) {
			if q.kind == object && len(c.node(q, s, deep+1)) > 0 {
				found = append(found, finding{at: r, keyword: keyword, detail: fmt.Sprintf("the writer may send %q with other fields than the reader wants then", name)})
				return
			}
		}
	}
	for _, name := range sorted(r.DependentRequired) {
		required("dependentRequired/"+name, name, r.DependentRequired[name])
	}
	for _, name := range sorted(r.DependentSchemas) {
		holds("dependentSchemas/"+name, name, r.DependentSchemas[name])
	}
	for _, name := range sorted(r.Dependencies) {
		switch want := r.Dependencies[name].(type) {
		case []string:
			required("dependency/"+name, name, want)
		case *js.Schema:
			holds("dependencies/"+name, name, want)
		}
	}
	return found
}
