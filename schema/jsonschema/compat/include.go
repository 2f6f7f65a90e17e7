package compat

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"

	js "github.com/santhosh-tekuri/jsonschema/v6"
)

// includes proves that r accepts all that every one of nodes accepts, and otherwise
// returns the keywords of r that stand in the way.
func (c *check) includes(nodes []*js.Schema, r *js.Schema) []finding {
	return c.induct(c.key("in", nodes, r), r, func() []finding {
		var found []finding
		for _, p := range c.expand(nodes, nil) {
			if found = append(found, c.node(p, r, 0)...); len(found) > maxFindings {
				break
			}
		}
		return found
	})
}

// induct proves a statement about a document with the same statement about the smaller
// values inside of it.
func (c *check) induct(key string, r *js.Schema, prove func() []finding) []finding {
	if c.proved[key] {
		return nil
	}
	if depth, ok := c.open[key]; ok {
		c.lowest = min(c.lowest, depth)
		return nil
	}
	if c.steps--; c.steps < 0 {
		return []finding{{at: r, detail: "the schemas are too large for a proof"}}
	}
	depth, outer := len(c.open), c.lowest
	c.open[key], c.lowest = depth, math.MaxInt
	found := prove()
	delete(c.open, key)
	if len(found) == 0 && c.lowest >= depth {
		c.proved[key] = true
		c.lowest = math.MaxInt
	}
	c.lowest = min(c.lowest, outer)
	return found
}

// node proves that r accepts every document of p.
func (c *check) node(p *piece, r *js.Schema, deep int) []finding {
	switch {
	case r.Bool != nil && *r.Bool:
		return nil
	case c.knows(p, r):
		return nil
	case r.Bool != nil:
		return []finding{{at: r, detail: "the reader accepts nothing here"}}
	}
	c.steps--
	switch {
	case deep > maxLevel || c.steps < 0:
		return []finding{{at: r, detail: "the schemas are too large or nested too deep for a proof"}}
	case p.finite:
		return c.each(p, r)
	case !allows(r, p.kind):
		return []finding{{at: r, keyword: "type", detail: fmt.Sprintf("the writer may send %s, the reader wants %s", p.typeName(), strings.Join(r.Types.ToStrings(), " or "))}}
	}
	var found []finding
	add := func(more ...finding) { found = append(found, more...) }
	if values, ok := listed(r); ok {
		keyword := "enum"
		if r.Const != nil {
			keyword = "const"
		}
		if !c.integersIn(p, values) {
			add(finding{at: r, keyword: keyword, detail: "the writer may send values that are not listed"})
		}
	}
	if r.Format != nil && !slices.ContainsFunc(p.known, func(n *js.Schema) bool { return n.Format != nil && n.Format.Name == r.Format.Name }) && p.kind == text {
		add(finding{at: r, keyword: "format", detail: fmt.Sprintf("the writer's texts need not be of the format %s", r.Format.Name)})
	}
	if r.Ref != nil {
		add(c.node(p, r.Ref, deep+1)...)
	}
	for _, s := range r.AllOf {
		add(c.node(p, s, deep+1)...)
	}
	add(c.anyOf(p, r, deep)...)
	add(c.oneOf(p, r, deep)...)
	if r.Not != nil && !c.disjoint(p, r.Not, deep+1) {
		add(finding{at: r, keyword: "not", detail: "the writer may send what the reader excludes"})
	}
	if r.If != nil {
		add(c.conditional(p, r, deep)...)
	}
	switch p.kind {
	case number:
		add(c.number(p, r)...)
	case text:
		add(c.text(p, r)...)
	case array:
		add(c.array(p, r)...)
	case object:
		add(c.object(p, r, deep)...)
	case null, boolean: // finite
	}
	return found
}

func (p *piece) typeName() string {
	if p.kind == number && p.integer() {
		return "integer"
	}
	return string(p.kind)
}

// knows reports whether a node of the piece is the same schema as r.
func (c *check) knows(p *piece, r *js.Schema) bool {
	return slices.ContainsFunc(p.known, func(n *js.Schema) bool { return c.same(n, r) })
}

// each validates the values of a finite piece.
func (c *check) each(p *piece, r *js.Schema) (found []finding) {
	for _, v := range p.values {
		if err := r.Validate(v); err != nil {
			for _, place := range leaves(err) {
				found = append(found, finding{at: place.at(r), keyword: place.keyword, detail: "the writer may send " + short(v)})
			}
		}
	}
	return found
}

// integersIn reports whether a bounded piece of integers has listed values only.
func (c *check) integersIn(p *piece, values []any) bool {
	lo, hi := low(p.known...), high(p.known...)
	if p.kind != number || !p.integer() || lo.at == nil || hi.at == nil {
		return false
	}
	n := new(big.Rat).SetInt(new(big.Int).Quo(lo.at.Num(), lo.at.Denom()))
	n.Sub(n, big.NewRat(1, 1))
	for range 1000 {
		if n.Cmp(hi.at) > 0 {
			return true
		}
		v := decimal(n)
		if accepted(p.known, v) && !slices.ContainsFunc(values, func(w any) bool { return equal(v, w) }) {
			return false
		}
		n.Add(n, big.NewRat(1, 1))
	}
	return false
}

func (c *check) anyOf(p *piece, r *js.Schema, deep int) []finding {
	if len(r.AnyOf) == 0 {
		return nil
	}
	return c.branches(p, r, r.AnyOf, "anyOf", deep)
}

// branches proves that one branch accepts the piece.
func (c *check) branches(p *piece, r *js.Schema, list []*js.Schema, keyword string, deep int) []finding {
	var near [][]finding // of branches for this kind of document
	for _, b := range list {
		found := c.node(p, b, deep+1)
		if len(found) == 0 {
			return nil
		}
		if !c.disjoint(p, b, deep+1) {
			near = append(near, found)
		}
	}
	found := []finding{{at: r, keyword: keyword, detail: "no single branch accepts all that the writer may send"}}
	if len(near) == 1 {
		found = append(near[0], found...)
	}
	return found
}

func (c *check) oneOf(p *piece, r *js.Schema, deep int) []finding {
	if len(r.OneOf) == 0 {
		return nil
	}
	if found := c.branches(p, r, r.OneOf, "oneOf", deep); len(found) > 0 {
		return found
	}
	fits := slices.IndexFunc(r.OneOf, func(b *js.Schema) bool { return len(c.node(p, b, deep+1)) == 0 })
	for i, b := range r.OneOf {
		if i != fits && !c.disjoint(p, b, deep+1) {
			return []finding{{at: r, keyword: "oneOf", detail: "a document of the writer may match two branches"}}
		}
	}
	return nil
}

// conditional proves if, then and else.
func (c *check) conditional(p *piece, r *js.Schema, deep int) (found []finding) {
	whole := func(s *js.Schema) []finding {
		if s == nil {
			return nil
		}
		return c.node(p, s, deep+1)
	}
	if c.disjoint(p, r.If, deep+1) {
		return whole(r.Else)
	}
	if r.Then != nil {
		for _, q := range c.expand(append(slices.Clone(p.known), r.If), p.names) {
			if q.kind == p.kind {
				found = append(found, c.node(q, r.Then, deep+1)...)
			}
		}
	}
	if r.Else != nil && len(c.node(p, r.If, deep+1)) > 0 {
		found = append(found, whole(r.Else)...)
	}
	return found
}

func (c *check) number(p *piece, r *js.Schema) (found []finding) {
	if onlyIntegers(r) && !p.integer() {
		found = append(found, finding{at: r, keyword: "type", detail: "the writer may send numbers that are not integers"})
	}
	lo, hi := p.low(), p.high()
	for _, limit := range []struct {
		keyword string
		at      *big.Rat
		holds   func(at *big.Rat) bool
	}{
		{"minimum", r.Minimum, func(at *big.Rat) bool { return lo.at != nil && lo.at.Cmp(at) >= 0 }},
		{"exclusiveMinimum", r.ExclusiveMinimum, func(at *big.Rat) bool {
			return lo.at != nil && (lo.at.Cmp(at) > 0 || lo.at.Cmp(at) == 0 && lo.exclusive)
		}},
		{"maximum", r.Maximum, func(at *big.Rat) bool { return hi.at != nil && hi.at.Cmp(at) <= 0 }},
		{"exclusiveMaximum", r.ExclusiveMaximum, func(at *big.Rat) bool {
			return hi.at != nil && (hi.at.Cmp(at) < 0 || hi.at.Cmp(at) == 0 && hi.exclusive)
		}},
		{"multipleOf", r.MultipleOf, func(at *big.Rat) bool {
			return p.integer() && new(big.Rat).Inv(at).IsInt() || slices.ContainsFunc(p.known, func(n *js.Schema) bool {
				return n.MultipleOf != nil && new(big.Rat).Quo(n.MultipleOf, at).IsInt()
			})
		}},
	} {
		if limit.at != nil && !limit.holds(limit.at) {
			found = append(found, finding{at: r, keyword: limit.keyword, detail: fmt.Sprintf("the writer's numbers need not meet %s %s", limit.keyword, decimal(limit.at))})
		}
	}
	return found
}

func (c *check) text(p *piece, r *js.Schema) (found []finding) {
	if r.MinLength != nil && least(p.known, minLength) < *r.MinLength {
		found = append(found, finding{at: r, keyword: "minLength", detail: fmt.Sprintf("the writer's texts may be shorter than %d", *r.MinLength)})
	}
	if at := most(p.known, maxLength); r.MaxLength != nil && (at < 0 || at > *r.MaxLength) {
		found = append(found, finding{at: r, keyword: "maxLength", detail: fmt.Sprintf("the writer's texts may be longer than %d", *r.MaxLength)})
	}
	if r.Pattern != nil && !slices.Contains([]string{"", ".*", "^"}, r.Pattern.String()) && !slices.ContainsFunc(p.known, func(n *js.Schema) bool { return n.Pattern != nil && n.Pattern.String() == r.Pattern.String() }) {
		found = append(found, finding{at: r, keyword: "pattern", detail: "the writer's texts need not match " + short(r.Pattern.String())})
	}
	return found
}

func (c *check) array(p *piece, r *js.Schema) (found []finding) {
	limit, first := c.itemLimit(p), least(p.known, minItems)
	if r.MinItems != nil && first < *r.MinItems {
		found = append(found, finding{at: r, keyword: "minItems", detail: fmt.Sprintf("the writer may send fewer than %d items", *r.MinItems)})
	}
	if r.MaxItems != nil && (limit < 0 || limit > *r.MaxItems) {
		found = append(found, finding{at: r, keyword: "maxItems", detail: fmt.Sprintf("the writer may send more than %d items", *r.MaxItems)})
	}
	if r.UniqueItems && (limit < 0 || limit > 1) && !slices.ContainsFunc(p.known, func(n *js.Schema) bool { return n.UniqueItems }) {
		found = append(found, finding{at: r, keyword: "uniqueItems", detail: "the writer may send an item twice"})
	}
	if r.Contains != nil && !c.contains(p, r, first) {
		found = append(found, finding{at: r, keyword: "contains", detail: "the writer's items need not have so many that match"})
	}
	if r.UnevaluatedItems != nil && (r.UnevaluatedItems.Bool == nil || !*r.UnevaluatedItems.Bool) && limit != 0 {
		found = append(found, finding{at: r, keyword: "unevaluatedItems", detail: "this keyword is compared with an identical schema only"})
	}
	prefix := len(positions(r))
	for _, n := range p.known {
		prefix = max(prefix, len(positions(n)))
	}
	for i := range prefix + 1 { // the last one is for all items after the prefix
		if want := item(r, i); want != nil && (limit < 0 || i < limit) {
			found = append(found, c.includes(c.items(p, i), want)...)
		}
	}
	return found
}

// itemLimit is how many items the piece has at most; -1: any number.
func (c *check) itemLimit(p *piece) int {
	limit, prefix := most(p.known, maxItems), 0
	for _, n := range p.known {
		prefix = max(prefix, len(positions(n)))
	}
	for i := range prefix + 1 {
		if (limit < 0 || i < limit) && never(c.items(p, i)) {
			return i
		}
	}
	return limit
}

// contains proves contains, minContains and maxContains.
func (c *check) contains(p *piece, r *js.Schema, first int) bool {
	want := 1
	if r.MinContains != nil {
		want = *r.MinContains
	}
	for _, n := range p.known {
		if n.Contains == nil || !c.same(n.Contains, r.Contains) {
			continue
		}
		has := 1
		if n.MinContains != nil {
			has = *n.MinContains
		}
		if has >= want && (r.MaxContains == nil || n.MaxContains != nil && *n.MaxContains <= *r.MaxContains) {
			return true
		}
	}
	if r.MaxContains != nil || first < want {
		return r.MaxContains == nil && want == 0
	}
	for i := range want {
		if len(c.includes(c.items(p, i), r.Contains)) > 0 {
			return false
		}
	}
	return true
}

// positions are the schemas of the first items.
func positions(n *js.Schema) []*js.Schema {
	if list, ok := n.Items.([]*js.Schema); ok {
		return list
	}
	return n.PrefixItems
}

// item is the schema of the item at i; nil: any.
func item(n *js.Schema, i int) *js.Schema {
	if list := positions(n); i < len(list) {
		return list[i]
	}
	switch all := n.Items.(type) {
	case *js.Schema:
		return all
	case []*js.Schema:
		return additional(n.AdditionalItems)
	}
	return n.Items2020
}

// additional is the schema of additionalProperties or additionalItems; nil: any.
func additional(v any) *js.Schema {
	switch v := v.(type) {
	case *js.Schema:
		return v
	case bool:
		if !v {
			return closed()
		}
	}
	return nil
}

// items are the nodes that hold for the item at i of every document of the piece.
func (c *check) items(p *piece, i int) (all []*js.Schema) {
	for _, n := range p.known {
		if s := item(n, i); s != nil {
			all = append(all, s)
		}
	}
	return all
}
