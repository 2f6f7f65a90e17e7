package compat

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	js "github.com/santhosh-tekuri/jsonschema/v6"
)

type pair struct{ a, b *js.Schema }

// check is one comparison.
type check struct {
	lenient bool
	steps   int

	// A statement that is being proved may be used for the values inside of a document,
	// which are smaller: the induction is over the size of documents. A statement that
	// used another one is kept only after that one is proved.
	open   map[string]int
	proved map[string]bool
	lowest int // depth of the outermost open statement that was used

	ids   map[*js.Schema]int
	equal map[pair]bool
	made  map[string]*js.Schema
}

// kind is a type of JSON; an integer is a number.
type kind string

const (
	null    kind = "null"
	boolean kind = "boolean"
	number  kind = "number"
	text    kind = "string"
	array   kind = "array"
	object  kind = "object"
)

func kinds() []kind { return []kind{null, boolean, number, text, array, object} }

// piece describes documents of one kind that a writer may write: all of known hold for
// each. There may be fewer such documents than known allows, never more.
type piece struct {
	kind   kind
	known  []*js.Schema
	finite bool
	values []any // all of them, where finite
	names  *names
}

// names are the fields that a writer's schema names, in any branch.
type names struct {
	props    map[string]bool
	patterns []js.Regexp
	open     bool
}

func (n *names) has(name string) bool {
	return n == nil || n.open || n.props[name] || slices.ContainsFunc(n.patterns, func(re js.Regexp) bool { return re.MatchString(name) })
}

// expand splits what all nodes allow into pieces. What a piece cannot express is left
// out, so that the pieces allow more, never less.
func (c *check) expand(nodes []*js.Schema, n *names) []*piece {
	if n == nil {
		n = c.named(nodes)
	}
	type state struct{ known, todo []*js.Schema }
	states := []state{{nil, slices.Clone(nodes)}}
	var pieces []*piece
	for len(states) > 0 {
		s := states[len(states)-1]
		states = states[:len(states)-1]
		dead := false
		for len(s.todo) > 0 && !dead {
			node := s.todo[0]
			s.todo = s.todo[1:]
			if slices.Contains(s.known, node) {
				continue
			}
			s.known = append(s.known, node)
			dead = node.Bool != nil && !*node.Bool
			if node.Ref != nil {
				s.todo = append(s.todo, node.Ref)
			}
			s.todo = append(s.todo, node.AllOf...)
			branches := alternatives(node)
			if len(branches) == 0 || len(states)+len(pieces)+len(branches) > maxPieces {
				continue
			}
			for _, branch := range branches[1:] {
				states = append(states, state{slices.Clone(s.known), append(slices.Clone(s.todo), branch...)})
			}
			s.todo = append(slices.Clone(s.todo), branches[0]...)
		}
		if dead {
			continue
		}
		for _, k := range kinds() {
			if p := newPiece(k, s.known, n); p != nil && !c.empty(p) {
				pieces = append(pieces, p)
			}
		}
	}
	slices.SortStableFunc(pieces, func(a, b *piece) int { return slices.Index(kinds(), a.kind) - slices.Index(kinds(), b.kind) })
	return pieces
}

// alternatives are the sets of branches of a node; a document satisfies all of one set.
// nil: the node has no branches, or too many.
func alternatives(n *js.Schema) [][]*js.Schema {
	var choices [][][]*js.Schema
	for _, list := range [][]*js.Schema{n.AnyOf, n.OneOf} {
		var choice [][]*js.Schema
		for _, b := range list {
			choice = append(choice, []*js.Schema{b})
		}
		if choice != nil {
			choices = append(choices, choice)
		}
	}
	if n.If != nil && (n.Then != nil || n.Else != nil) {
		then, other := []*js.Schema{n.If}, []*js.Schema{}
		if n.Then != nil {
			then = append(then, n.Then)
		}
		if n.Else != nil {
			other = append(other, n.Else)
		}
		choices = append(choices, [][]*js.Schema{then, other})
	}
	if choices == nil {
		return nil
	}
	sets := [][]*js.Schema{nil}
	for _, choice := range choices {
		var next [][]*js.Schema
		for _, set := range sets {
			for _, branch := range choice {
				next = append(next, append(slices.Clone(set), branch...))
			}
		}
		if len(next) > maxPieces {
			return nil
		}
		sets = next
	}
	return sets
}

func newPiece(k kind, known []*js.Schema, n *names) *piece {
	p := &piece{kind: k, known: known, names: n}
	for _, node := range known {
		if !allows(node, k) {
			return nil
		}
	}
	switch k {
	case null:
		p.finite, p.values = true, []any{nil}
	case boolean:
		p.finite, p.values = true, []any{true, false}
	case number, text, array, object:
	}
	for _, node := range known {
		if values, ok := listed(node); ok && !p.finite {
			p.finite = true
			for _, v := range values {
				if kindOf(v) == k {
					p.values = append(p.values, v)
				}
			}
		}
	}
	if p.finite {
		p.values = slices.DeleteFunc(p.values, func(v any) bool { return !accepted(known, v) })
		if len(p.values) == 0 {
			return nil
		}
	}
	return p
}

// listed are the values of const or enum.
func listed(n *js.Schema) ([]any, bool) {
	switch {
	case n.Const != nil:
		return []any{*n.Const}, true
	case n.Enum != nil:
		return slices.Clone(n.Enum.Values), true
	}
	return nil, false
}

func accepted(nodes []*js.Schema, v any) bool {
	return !slices.ContainsFunc(nodes, func(n *js.Schema) bool { return n.Validate(v) != nil })
}

func allows(n *js.Schema, k kind) bool {
	if n.Types == nil || n.Types.IsEmpty() {
		return true
	}
	types := n.Types.ToStrings()
	return slices.Contains(types, string(k)) || k == number && slices.Contains(types, "integer")
}

func onlyIntegers(n *js.Schema) bool {
	if n.Types == nil || n.Types.IsEmpty() {
		return false
	}
	types := n.Types.ToStrings()
	return slices.Contains(types, "integer") && !slices.Contains(types, "number")
}

func kindOf(v any) kind {
	switch v.(type) {
	case nil:
		return null
	case bool:
		return boolean
	case string:
		return text
	case []any:
		return array
	case map[string]any:
		return object
	}
	return number
}

// The facts of a piece.

func (p *piece) integer() bool {
	return slices.ContainsFunc(p.known, func(n *js.Schema) bool {
		return onlyIntegers(n) || n.MultipleOf != nil && n.MultipleOf.IsInt()
	})
}

// bound is an end of a range of numbers; nil: none.
type bound struct {
	at        *big.Rat
	exclusive bool
}

// low and high are the ends that one node, or all of them, set.
func low(nodes ...*js.Schema) (b bound) {
	for _, n := range nodes {
		for _, o := range []bound{{n.Minimum, false}, {n.ExclusiveMinimum, true}} {
			if o.at != nil && (b.at == nil || o.at.Cmp(b.at) > 0 || o.at.Cmp(b.at) == 0 && o.exclusive) {
				b = o
			}
		}
	}
	return b
}

func high(nodes ...*js.Schema) (b bound) {
	for _, n := range nodes {
		for _, o := range []bound{{n.Maximum, false}, {n.ExclusiveMaximum, true}} {
			if o.at != nil && (b.at == nil || o.at.Cmp(b.at) < 0 || o.at.Cmp(b.at) == 0 && o.exclusive) {
				b = o
			}
		}
	}
	return b
}

// low and high are the ends of the piece's numbers. Of integers they are integers
// and inclusive: above 0 and from 1 on are the same.
func (p *piece) low() bound {
	b := low(p.known...)
	if b.at == nil || !p.integer() {
		return b
	}
	at := floor(b.at)
	if b.exclusive || at.Cmp(b.at) < 0 {
		at.Add(at, big.NewRat(1, 1))
	}
	return bound{at: at}
}

func (p *piece) high() bound {
	b := high(p.known...)
	if b.at == nil || !p.integer() {
		return b
	}
	at := floor(b.at)
	if b.exclusive && at.Cmp(b.at) == 0 {
		at.Sub(at, big.NewRat(1, 1))
	}
	return bound{at: at}
}

func floor(x *big.Rat) *big.Rat { return new(big.Rat).SetInt(new(big.Int).Div(x.Num(), x.Denom())) }

// apart reports whether no number lies between the ends.
func apart(lo, hi bound) bool {
	if lo.at == nil || hi.at == nil {
		return false
	}
	by := lo.at.Cmp(hi.at)
	return by > 0 || by == 0 && (lo.exclusive || hi.exclusive)
}

// most and least are the strictest limit of a kind that any node sets; -1: none.
func most(nodes []*js.Schema, of func(*js.Schema) *int) int {
	at := -1
	for _, n := range nodes {
		if v := of(n); v != nil && (at < 0 || *v < at) {
			at = *v
		}
	}
	return at
}

func least(nodes []*js.Schema, of func(*js.Schema) *int) int {
	at := 0
	for _, n := range nodes {
		if v := of(n); v != nil {
			at = max(at, *v)
		}
	}
	return at
}

func minLength(n *js.Schema) *int     { return n.MinLength }
func maxLength(n *js.Schema) *int     { return n.MaxLength }
func minItems(n *js.Schema) *int      { return n.MinItems }
func maxItems(n *js.Schema) *int      { return n.MaxItems }
func minProperties(n *js.Schema) *int { return n.MinProperties }
func maxProperties(n *js.Schema) *int { return n.MaxProperties }

func (p *piece) requires(name string) bool {
	return slices.ContainsFunc(p.known, func(n *js.Schema) bool { return slices.Contains(n.Required, name) })
}

func (p *piece) required() []string {
	var all []string
	for _, n := range p.known {
		all = append(all, n.Required...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// empty reports whether no document at all is in the piece; false where it is unclear.
func (c *check) empty(p *piece) bool {
	switch p.kind {
	case number:
		return apart(p.low(), p.high())
	case text:
		most := most(p.known, maxLength)
		return most >= 0 && most < least(p.known, minLength)
	case array:
		most := most(p.known, maxItems)
		return most >= 0 && most < least(p.known, minItems)
	case object:
		most := most(p.known, maxProperties)
		if most >= 0 && most < max(least(p.known, minProperties), len(p.required())) {
			return true
		}
		return slices.ContainsFunc(p.required(), func(name string) bool { return never(c.field(p, name)) })
	default:
		return false
	}
}

// never reports whether no value satisfies all nodes, where that is plain to see.
func never(nodes []*js.Schema) bool {
	return slices.ContainsFunc(nodes, func(n *js.Schema) bool { return n.Bool != nil && !*n.Bool })
}

// synthetic returns one schema per name, so that statements about it are found again.
func (c *check) synthetic(name string, s *js.Schema) *js.Schema {
	if c.made[name] == nil {
		c.made[name] = s
	}
	return c.made[name]
}

func (c *check) id(n *js.Schema) int {
	if _, ok := c.ids[n]; !ok {
		c.ids[n] = len(c.ids)
	}
	return c.ids[n]
}

// key names the statement that what all nodes allow is allowed by r.
func (c *check) key(relation string, nodes []*js.Schema, r *js.Schema) string {
	ids := make([]int, 0, len(nodes))
	for _, n := range nodes {
		ids = append(ids, c.id(n))
	}
	slices.Sort(ids)
	var b strings.Builder
	for _, id := range slices.Compact(ids) {
		b.WriteString(strconv.Itoa(id) + " ")
	}
	return fmt.Sprint(b.String(), relation, c.id(r))
}

// level are all nodes that judge the same value as n: n, and what it refers to or has
// as a branch.
func level(nodes ...*js.Schema) []*js.Schema {
	var all []*js.Schema
	todo := slices.Clone(nodes)
	for len(todo) > 0 {
		n := todo[0]
		todo = todo[1:]
		if n == nil || slices.Contains(all, n) {
			continue
		}
		all = append(all, n)
		todo = append(todo, n.Ref, n.Not, n.If, n.Then, n.Else)
		todo = append(todo, n.AllOf...)
		todo = append(todo, n.AnyOf...)
		todo = append(todo, n.OneOf...)
		for _, name := range sorted(n.DependentSchemas) {
			todo = append(todo, n.DependentSchemas[name])
		}
		for _, name := range sorted(n.Dependencies) {
			if s, ok := n.Dependencies[name].(*js.Schema); ok {
				todo = append(todo, s)
			}
		}
	}
	return all
}

func sorted[V any](m map[string]V) []string {
	all := make([]string, 0, len(m))
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

// named are the names of the writer's schema, where they limit what it writes.
func (c *check) named(nodes []*js.Schema) *names {
	if !c.lenient {
		return nil
	}
	n := &names{props: map[string]bool{}}
	for _, node := range level(nodes...) {
		for name := range node.Properties {
			n.props[name] = true
		}
		for re := range node.PatternProperties {
			n.patterns = append(n.patterns, re)
		}
		for _, name := range node.Required {
			n.props[name] = true
		}
		n.open = n.open || node.AdditionalProperties != nil || node.UnevaluatedProperties != nil
	}
	if len(n.props) == 0 || len(n.patterns) > 0 {
		n.open = true
	}
	return n
}
