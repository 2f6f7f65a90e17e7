package compat

import (
	"bytes"
	"encoding/json"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"

	js "github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds of the search for examples.
const (
	maxValues  = 40 // candidates per place of a document
	maxTried   = 20_000
	minTried   = 100  // below this, no items and fields
	maxText    = 4096 // characters of a text
	maxEntries = 64   // items and fields
)

// example is a document that the writer's schema accepts and the reader's refuses.
type example struct {
	text   json.RawMessage
	places []string // of the keywords that it breaks
}

func (e *example) breaks(place string) bool {
	return slices.ContainsFunc(e.places, func(p string) bool { return p == place || strings.HasPrefix(p, place+"/") })
}

// examples makes documents of the writer's schema until enough of them are refused.
func (c *check) examples(w, r *js.Schema) []example {
	g := &sampler{c}
	var all []example
	shown := map[string]bool{} // keywords that have their example
	for _, doc := range g.values([]*js.Schema{w}, []*js.Schema{r}, maxTried) {
		if len(all) == maxFindings {
			break
		}
		if !c.writes([]*js.Schema{w}, doc) {
			continue
		}
		for _, place := range broken(r, doc) {
			if shown[place] {
				continue
			}
			shown[place] = true
			small := shrink(doc, func(v any) bool {
				return c.writes([]*js.Schema{w}, v) && slices.Contains(broken(r, v), place)
			})
			e := example{text: encode(small), places: broken(r, small)}
			if !slices.ContainsFunc(all, func(o example) bool { return bytes.Equal(o.text, e.text) }) {
				all = append(all, e)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b example) int { return len(a.text) - len(b.text) })
	return all
}

// broken are the places of the keywords that refuse a value.
func broken(r *js.Schema, v any) (places []string) {
	for _, l := range leaves(r.Validate(v)) {
		places = append(places, l.place())
	}
	return places
}

// writes reports whether nodes accept a value; a lenient check wants every field named too.
func (c *check) writes(nodes []*js.Schema, v any) bool {
	return accepted(nodes, v) && (!c.lenient || c.namedIn(nodes, v))
}

func (c *check) namedIn(nodes []*js.Schema, v any) bool {
	flat := level(nodes...)
	switch v := v.(type) {
	case map[string]any:
		n := c.named(nodes)
		for name, value := range v {
			if !n.has(name) || !c.namedIn(fieldsOf(flat, name), value) {
				return false
			}
		}
	case []any:
		for i, value := range v {
			if !c.namedIn(itemsOf(flat, i), value) {
				return false
			}
		}
	}
	return true
}

func fieldsOf(nodes []*js.Schema, name string) (all []*js.Schema) {
	for _, n := range nodes {
		all = append(all, fieldOf(n, name)...)
	}
	return all
}

func itemsOf(nodes []*js.Schema, i int) (all []*js.Schema) {
	for _, n := range nodes {
		for _, s := range []*js.Schema{item(n, i), n.Contains, n.UnevaluatedItems} {
			if s != nil {
				all = append(all, s)
			}
		}
	}
	return all
}

// shrink removes fields and items as long as the document stays an example.
func shrink(doc any, refused func(any) bool) any {
	var smaller func(v any, put func(any) any) any
	smaller = func(v any, put func(any) any) any {
		switch v := v.(type) {
		case map[string]any:
			for _, name := range sorted(v) {
				less := map[string]any{}
				for k, e := range v {
					if k != name {
						less[k] = e
					}
				}
				if refused(put(less)) {
					return smaller(less, put)
				}
			}
			for _, name := range sorted(v) {
				v[name] = smaller(v[name], func(e any) any {
					with := map[string]any{}
					for k, o := range v {
						with[k] = o
					}
					with[name] = e
					return put(with)
				})
			}
		case []any:
			for i := range v {
				if less := slices.Delete(slices.Clone(v), i, i+1); refused(put(less)) {
					return smaller(less, put)
				}
			}
			for i := range v {
				v[i] = smaller(v[i], func(e any) any {
					with := slices.Clone(v)
					with[i] = e
					return put(with)
				})
			}
		}
		return v
	}
	return smaller(clone(doc), func(v any) any { return v })
}

// sampler makes values that nodes accept, at the limits of nodes and of hints, the
// schemas that may refuse them.
type sampler struct{ c *check }

// values returns values that the nodes accept; those that a hint refuses come first. It
// tries so many in all, also of the values inside.
func (g *sampler) values(nodes, hints []*js.Schema, budget int) []any {
	var good, bad []any
	tried, limit := budget, maxValues
	if budget == maxTried { // the whole document
		limit *= 10
	}
	keep := func(v any) bool {
		if tried--; tried < 0 || len(bad) >= limit {
			return false
		}
		if !g.c.writes(nodes, v) || slices.ContainsFunc(bad, func(o any) bool { return equal(o, v) }) {
			return true
		}
		if !accepted(hints, v) {
			bad = append(bad, v)
		} else if len(good) < maxValues && !slices.ContainsFunc(good, func(o any) bool { return equal(o, v) }) {
			good = append(good, v)
		}
		return true
	}
	all := level(append(slices.Clone(nodes), hints...)...)
	for _, n := range all {
		if values, ok := listed(n); ok {
			for _, v := range values {
				keep(v)
			}
		}
	}
	for _, p := range g.c.expand(nodes, nil) {
		if p.finite {
			for _, v := range p.values {
				keep(v)
			}
			continue
		}
		switch p.kind {
		case number:
			g.numbers(all, keep)
		case text:
			g.texts(all, keep)
		case array:
			g.arrays(p, hints, all, budget, keep)
		case object:
			g.objects(p, hints, all, budget, keep)
		case null, boolean: // finite
		}
	}
	slices.Reverse(good) // the plainest last
	if len(good) == 0 && len(bad) > 0 {
		good = bad[:1]
	}
	return append(bad, good...)
}

func (g *sampler) numbers(all []*js.Schema, keep func(any) bool) {
	list := []*big.Rat{big.NewRat(0, 1), big.NewRat(1, 1), big.NewRat(3, 2), big.NewRat(-1, 1), big.NewRat(1000, 1), big.NewRat(1, 100)}
	for _, n := range all {
		for _, at := range []*big.Rat{n.Minimum, n.Maximum, n.ExclusiveMinimum, n.ExclusiveMaximum, n.MultipleOf} {
			if at == nil {
				continue
			}
			list = append(list, at)
			for _, by := range []*big.Rat{big.NewRat(1, 1), big.NewRat(1, 2), big.NewRat(1, 100), at} {
				list = append(list, new(big.Rat).Add(at, by), new(big.Rat).Sub(at, by))
			}
			for _, o := range all {
				if o.MultipleOf != nil && o.MultipleOf.Sign() > 0 { // the multiples around a limit
					q := new(big.Rat).Quo(at, o.MultipleOf)
					floor := new(big.Rat).SetInt(new(big.Int).Div(q.Num(), q.Denom()))
					for i := int64(-1); i <= 1; i++ {
						list = append(list, new(big.Rat).Mul(new(big.Rat).Add(floor, big.NewRat(i, 1)), o.MultipleOf))
					}
				}
			}
		}
	}
	for _, r := range list {
		if _, exact := r.FloatPrec(); exact && !keep(decimal(r)) {
			return
		}
	}
}

func (g *sampler) texts(all []*js.Schema, keep func(any) bool) {
	list := []string{"", "a", "A1", "x y", "0"}
	for _, n := range all {
		if n.Pattern != nil {
			list = append(list, matches(n.Pattern.String())...)
		}
		if n.Format != nil {
			list = append(list, ofFormat(n.Format.Name)...)
		}
	}
	for _, n := range all {
		for _, limit := range []*int{n.MinLength, n.MaxLength} {
			if limit == nil || *limit > maxText {
				continue
			}
			for _, base := range slices.Clone(list)[:min(len(list), 24)] {
				for _, length := range []int{*limit - 1, *limit, *limit + 1} {
					list = append(list, stretch(base, length))
				}
			}
		}
	}
	for _, s := range list {
		if !keep(s) {
			return
		}
	}
}

// stretch cuts or repeats a text until it has so many characters.
func stretch(s string, length int) string {
	if s == "" {
		s = "a"
	}
	if length < 0 {
		return ""
	}
	for utf8.RuneCountInString(s) < length {
		s += s
	}
	return string([]rune(s)[:length])
}

func (g *sampler) arrays(p *piece, hints, all []*js.Schema, budget int, keep func(any) bool) {
	keep([]any{})
	if budget < minTried {
		return
	}
	lengths := []int{1, 2, 3}
	for _, n := range all {
		for _, limit := range []*int{n.MinItems, n.MaxItems, n.MinContains, n.MaxContains} {
			if limit != nil {
				lengths = append(lengths, *limit-1, *limit, *limit+1)
			}
		}
		lengths = append(lengths, len(positions(n)), len(positions(n))+1)
	}
	slices.Sort(lengths)
	flat := level(hints...)
	choices := map[int][]any{}
	at := func(i int) []any {
		if choices[i] == nil {
			choices[i] = g.values(itemsOfAll(p.known, i), itemsOf(flat, i), budget/8)
		}
		return choices[i]
	}
	for _, length := range slices.Compact(lengths) {
		if length < 1 || length > maxEntries {
			continue
		}
		same, apart := make([]any, length), make([]any, length)
		short := false
		for i := range length {
			list := at(min(i, 8))
			if len(list) == 0 {
				short = true
				break
			}
			good := list[len(list)-1]
			same[i], apart[i] = good, list[len(list)-1-i%len(list)]
		}
		if short || !keep(same) {
			return
		}
		keep(apart)
		for i := range min(length, 4) {
			for _, v := range at(i) {
				with := slices.Clone(same)
				with[i] = v
				keep(with)
			}
		}
	}
}

// itemsOfAll are the nodes that hold for the item at i.
func itemsOfAll(known []*js.Schema, i int) (all []*js.Schema) {
	for _, n := range known {
		if s := item(n, i); s != nil {
			all = append(all, s)
		}
	}
	return all
}

func (g *sampler) objects(p *piece, hints, all []*js.Schema, budget int, keep func(any) bool) {
	keep(map[string]any{})
	if budget < minTried {
		return
	}
	flat := level(hints...)
	names := objectNames(all)
	choices := map[string][]any{}
	for _, name := range names {
		choices[name] = g.values(g.c.field(p, name), fieldsOf(flat, name), max(budget/(2*len(names)), minTried-1))
	}
	base, full := map[string]any{}, map[string]any{}
	for _, name := range names {
		list := choices[name]
		if len(list) == 0 {
			continue
		}
		full[name] = list[len(list)-1]
		if p.requires(name) {
			base[name] = list[len(list)-1]
		}
	}
	for _, from := range []map[string]any{base, full} {
		if !keep(from) {
			return
		}
		for _, name := range names {
			for _, v := range choices[name] {
				if !keep(with(from, name, v)) {
					return
				}
			}
			keep(without(from, name))
		}
	}
	for _, one := range names { // fields that depend on another
		for _, v := range choices[one] {
			for _, two := range names {
				if one == two || len(choices[two]) == 0 {
					continue
				}
				if !keep(with(with(base, one, v), two, choices[two][0])) || !keep(without(with(full, one, v), two)) {
					return
				}
			}
		}
	}
	counts := []int{}
	for _, n := range all {
		for _, limit := range []*int{n.MinProperties, n.MaxProperties} {
			if limit != nil && *limit < maxEntries {
				counts = append(counts, *limit-1, *limit, *limit+1)
			}
		}
	}
	for _, count := range counts {
		some := with(base, "", nil)
		delete(some, "")
		for _, name := range names {
			if len(some) < count && len(choices[name]) > 0 {
				some[name] = choices[name][len(choices[name])-1]
			}
		}
		for i := 0; len(some) < count; i++ {
			name := "field" + string(rune('a'+i%26)) + strings.Repeat("x", i/26)
			list := g.values(g.c.field(p, name), nil, minTried-1)
			if len(list) == 0 {
				break
			}
			some[name] = list[0]
		}
		keep(some)
	}
}

// objectNames are fields that the schemas name, and some that they do not.
func objectNames(all []*js.Schema) []string {
	names := []string{"unnamed"}
	for _, n := range all {
		names = append(names, sorted(n.Properties)...)
		names = append(names, n.Required...)
		for _, deps := range n.DependentRequired {
			names = append(names, deps...)
		}
		names = append(names, sorted(n.DependentRequired)...)
		names = append(names, sorted(n.DependentSchemas)...)
		names = append(names, sorted(n.Dependencies)...)
		for re := range n.PatternProperties {
			names = append(names, matches(re.String())...)
		}
		if n.PropertyNames != nil {
			for _, s := range level(n.PropertyNames) {
				if s.Pattern != nil {
					names = append(names, matches(s.Pattern.String())...)
				}
				if s.MaxLength != nil && *s.MaxLength < maxText {
					names = append(names, stretch("a", *s.MaxLength), stretch("a", *s.MaxLength+1))
				}
				if values, ok := listed(s); ok {
					for _, v := range values {
						if name, ok := v.(string); ok {
							names = append(names, name)
						}
					}
				}
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return names[:min(len(names), maxEntries)]
}

func with(m map[string]any, name string, v any) map[string]any {
	all := without(m, name)
	all[name] = v
	return all
}

func without(m map[string]any, name string) map[string]any {
	all := make(map[string]any, len(m)+1)
	for k, v := range m {
		if k != name {
			all[k] = v
		}
	}
	return all
}
