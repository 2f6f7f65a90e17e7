package compat

import (
	"math/big"
	"slices"

	js "github.com/santhosh-tekuri/jsonschema/v6"
)

// dynamic reports whether a schema has references whose meaning depends on where it is
// used from.
func (c *check) dynamic(root *js.Schema) bool {
	seen := map[*js.Schema]bool{}
	todo := []*js.Schema{root}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if n == nil || seen[n] {
			continue
		}
		seen[n] = true
		if n.DynamicRef != nil || n.RecursiveRef != nil {
			return true
		}
		todo = append(todo, children(n)...)
	}
	return false
}

// children are all schemas directly below n; some may be nil.
func children(n *js.Schema) []*js.Schema {
	list := []*js.Schema{n.Ref, n.Not, n.If, n.Then, n.Else, n.PropertyNames, n.UnevaluatedProperties, n.Contains, n.Items2020, n.UnevaluatedItems}
	for _, more := range [][]*js.Schema{n.AllOf, n.AnyOf, n.OneOf, n.PrefixItems} {
		list = append(list, more...)
	}
	for _, v := range []any{n.AdditionalProperties, n.Items, n.AdditionalItems} {
		switch v := v.(type) {
		case *js.Schema:
			list = append(list, v)
		case []*js.Schema:
			list = append(list, v...)
		}
	}
	for _, name := range sorted(n.Properties) {
		list = append(list, n.Properties[name])
	}
	for _, s := range n.PatternProperties {
		list = append(list, s)
	}
	for _, name := range sorted(n.DependentSchemas) {
		list = append(list, n.DependentSchemas[name])
	}
	for _, name := range sorted(n.Dependencies) {
		if s, ok := n.Dependencies[name].(*js.Schema); ok {
			list = append(list, s)
		}
	}
	return list
}

// same reports whether two schemas have the same keywords with the same values, but for
// titles and the like. Schemas that refer to themselves are the same until a
// difference is found.
func (c *check) same(a, b *js.Schema) bool {
	if a == b || a == nil || b == nil {
		return a == b
	}
	key := pair{a, b}
	if known, ok := c.equal[key]; ok {
		return known
	}
	trail := []pair{key}
	c.equal[key] = true
	equal := c.sameIn(a, b, &trail)
	if !equal {
		for _, k := range trail { // what relied on the assumption is unknown again
			delete(c.equal, k)
		}
		c.equal[key] = false
	}
	return equal
}

func (c *check) sameIn(a, b *js.Schema, trail *[]pair) bool {
	rec := func(x, y *js.Schema) bool {
		if x == y || x == nil || y == nil {
			return x == y
		}
		key := pair{x, y}
		if known, ok := c.equal[key]; ok {
			return known
		}
		c.equal[key] = true
		*trail = append(*trail, key)
		return c.sameIn(x, y, trail)
	}
	return samePlain(a, b) && sameValues(a, b) &&
		rec(a.Ref, b.Ref) && rec(a.Not, b.Not) && rec(a.If, b.If) && rec(a.Then, b.Then) && rec(a.Else, b.Else) &&
		rec(a.PropertyNames, b.PropertyNames) && rec(a.UnevaluatedProperties, b.UnevaluatedProperties) &&
		rec(a.Contains, b.Contains) && rec(a.Items2020, b.Items2020) && rec(a.UnevaluatedItems, b.UnevaluatedItems) &&
		slices.EqualFunc(a.AllOf, b.AllOf, rec) && slices.EqualFunc(a.AnyOf, b.AnyOf, rec) && slices.EqualFunc(a.OneOf, b.OneOf, rec) &&
		slices.EqualFunc(positions(a), positions(b), rec) &&
		sameAny(a.AdditionalProperties, b.AdditionalProperties, rec) && sameAny(a.Items, b.Items, rec) && sameAny(a.AdditionalItems, b.AdditionalItems, rec) &&
		sameMap(a.Properties, b.Properties, rec) && sameMap(a.DependentSchemas, b.DependentSchemas, rec) &&
		sameMap(patterns(a), patterns(b), rec) &&
		sameMap(a.Dependencies, b.Dependencies, func(x, y any) bool { return sameAny(x, y, rec) })
}

func patterns(n *js.Schema) map[string]*js.Schema {
	all := map[string]*js.Schema{}
	for re, s := range n.PatternProperties {
		all[re.String()] = s
	}
	return all
}

func sameAny(a, b any, rec func(x, y *js.Schema) bool) bool {
	switch a := a.(type) {
	case *js.Schema:
		b, ok := b.(*js.Schema)
		return ok && rec(a, b)
	case []*js.Schema:
		b, ok := b.([]*js.Schema)
		return ok && slices.EqualFunc(a, b, rec)
	case []string:
		b, ok := b.([]string)
		return ok && slices.Equal(a, b)
	}
	return a == b
}

func sameMap[V any](a, b map[string]V, rec func(x, y V) bool) bool {
	if len(a) != len(b) {
		return false
	}
	for name, x := range a {
		y, ok := b[name]
		if !ok || !rec(x, y) {
			return false
		}
	}
	return true
}

// samePlain compares the keywords that are numbers, names and texts.
func samePlain(a, b *js.Schema) bool {
	return samePtr(a.Bool, b.Bool) && samePtr(a.MaxProperties, b.MaxProperties) && samePtr(a.MinProperties, b.MinProperties) &&
		samePtr(a.MinItems, b.MinItems) && samePtr(a.MaxItems, b.MaxItems) && samePtr(a.MinContains, b.MinContains) && samePtr(a.MaxContains, b.MaxContains) &&
		samePtr(a.MinLength, b.MinLength) && samePtr(a.MaxLength, b.MaxLength) && samePtr(a.Types, b.Types) &&
		sameRat(a.Maximum, b.Maximum) && sameRat(a.Minimum, b.Minimum) && sameRat(a.MultipleOf, b.MultipleOf) &&
		sameRat(a.ExclusiveMaximum, b.ExclusiveMaximum) && sameRat(a.ExclusiveMinimum, b.ExclusiveMinimum) &&
		a.UniqueItems == b.UniqueItems && slices.Equal(ordered(a.Required), ordered(b.Required)) &&
		sameMap(a.DependentRequired, b.DependentRequired, func(x, y []string) bool { return slices.Equal(ordered(x), ordered(y)) }) &&
		pattern(a) == pattern(b) && format(a) == format(b)
}

func pattern(n *js.Schema) string {
	if n.Pattern == nil {
		return ""
	}
	return n.Pattern.String()
}

func format(n *js.Schema) string {
	if n.Format == nil {
		return ""
	}
	return n.Format.Name
}

func ordered(names []string) []string {
	all := slices.Clone(names)
	slices.Sort(all)
	return slices.Compact(all)
}

func samePtr[V comparable](a, b *V) bool {
	return a == b || a != nil && b != nil && *a == *b
}

func sameRat(a, b *big.Rat) bool {
	return a == b || a != nil && b != nil && a.Cmp(b) == 0
}

// sameValues compares const and enum.
func sameValues(a, b *js.Schema) bool {
	if (a.Const == nil) != (b.Const == nil) || (a.Enum == nil) != (b.Enum == nil) || a.Const != nil && !equal(*a.Const, *b.Const) {
		return false
	}
	return a.Enum == nil || slices.EqualFunc(a.Enum.Values, b.Enum.Values, equal)
}
