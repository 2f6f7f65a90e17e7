package compat

import (
	"slices"

	js "github.com/santhosh-tekuri/jsonschema/v6"
)

// disjoint proves that no document of the piece satisfies s.
func (c *check) disjoint(p *piece, s *js.Schema, deep int) bool {
	if c.steps--; deep > maxLevel || c.steps < 0 {
		return false
	}
	other := func(o *js.Schema) bool { return c.disjoint(p, o, deep+1) }
	switch {
	case s.Bool != nil:
		return !*s.Bool
	case p.finite:
		return !slices.ContainsFunc(p.values, func(v any) bool { return s.Validate(v) == nil })
	case !allows(s, p.kind),
		slices.ContainsFunc(p.known, func(n *js.Schema) bool { return n.Not != nil && c.same(n.Not, s) }),
		s.Ref != nil && other(s.Ref),
		slices.ContainsFunc(s.AllOf, other),
		len(s.AnyOf) > 0 && all(s.AnyOf, other),
		len(s.OneOf) > 0 && all(s.OneOf, other),
		s.Not != nil && len(c.node(p, s.Not, deep+1)) == 0:
		return true
	}
	if values, ok := listed(s); ok && all(values, func(v any) bool { return kindOf(v) != p.kind || !accepted(p.known, v) }) {
		return true
	}
	switch p.kind {
	case number:
		return apart(low(append([]*js.Schema{s}, p.known...)...), high(append([]*js.Schema{s}, p.known...)...))
	case text:
		both := append([]*js.Schema{s}, p.known...)
		at := most(both, maxLength)
		return at >= 0 && at < least(both, minLength)
	case array:
		return c.arraysApart(p, s)
	case object:
		return c.objectsApart(p, s)
	default:
		return false
	}
}

func all[E any](list []E, f func(E) bool) bool {
	return !slices.ContainsFunc(list, func(e E) bool { return !f(e) })
}

func (c *check) arraysApart(p *piece, s *js.Schema) bool {
	both := append([]*js.Schema{s}, p.known...)
	first := least(both, minItems)
	if at := most(both, maxItems); at >= 0 && at < first {
		return true
	}
	for i := range min(first, 32) {
		if want := item(s, i); want != nil && c.apart(c.items(p, i), want) {
			return true
		}
	}
	return false
}

// objectsApart finds a field that both must have and cannot agree on.
func (c *check) objectsApart(p *piece, s *js.Schema) bool {
	for _, name := range append(p.required(), s.Required...) {
		nodes := c.field(p, name)
		if never(nodes) {
			return true
		}
		for _, want := range fieldOf(s, name) {
			if c.apart(nodes, want) {
				return true
			}
		}
	}
	return false
}

// apart proves that no value satisfies all nodes and s.
func (c *check) apart(nodes []*js.Schema, s *js.Schema) bool {
	return len(c.induct(c.key("apart", nodes, s), s, func() []finding {
		for _, p := range c.expand(nodes, nil) {
			if !c.disjoint(p, s, 0) {
				return []finding{{at: s}}
			}
		}
		return nil
	})) == 0
}
