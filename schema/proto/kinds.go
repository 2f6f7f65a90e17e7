package proto

import (
	"fmt"
	"math/big"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Kinds of one group may replace each other in both forms of a payload.
var jsonGroups = map[protoreflect.Kind]int{
	protoreflect.Int32Kind: 1, protoreflect.Uint32Kind: 1,
	protoreflect.Int64Kind: 2, protoreflect.Uint64Kind: 2,
	protoreflect.Fixed32Kind: 3, protoreflect.Sfixed32Kind: 3,
	protoreflect.Fixed64Kind: 4, protoreflect.Sfixed64Kind: 4,
	protoreflect.BoolKind: 5, protoreflect.Sint32Kind: 6, protoreflect.Sint64Kind: 7, protoreflect.StringKind: 8, protoreflect.BytesKind: 9,
	protoreflect.DoubleKind: 10, protoreflect.FloatKind: 11, protoreflect.GroupKind: 12, protoreflect.MessageKind: 13, protoreflect.EnumKind: 14,
}

// Kinds of one group may replace each other in binary payloads.
var wireGroups = map[protoreflect.Kind]int{
	protoreflect.Int32Kind: 1, protoreflect.Int64Kind: 1, protoreflect.Uint32Kind: 1, protoreflect.Uint64Kind: 1, protoreflect.BoolKind: 1,
	protoreflect.Sint32Kind: 2, protoreflect.Sint64Kind: 2,
	protoreflect.StringKind: 3, protoreflect.BytesKind: 4,
	protoreflect.Fixed32Kind: 5, protoreflect.Sfixed32Kind: 5,
	protoreflect.Fixed64Kind: 6, protoreflect.Sfixed64Kind: 6,
	protoreflect.DoubleKind: 7, protoreflect.FloatKind: 8, protoreflect.GroupKind: 9, protoreflect.MessageKind: 10, protoreflect.EnumKind: 11,
}

// integer kinds, by whether they have a sign and by their bits.
var integers = map[protoreflect.Kind]struct {
	signed bool
	bits   int
}{
	protoreflect.BoolKind:  {false, 1},
	protoreflect.Int32Kind: {true, 32}, protoreflect.Sint32Kind: {true, 32}, protoreflect.Sfixed32Kind: {true, 32},
	protoreflect.Int64Kind: {true, 64}, protoreflect.Sint64Kind: {true, 64}, protoreflect.Sfixed64Kind: {true, 64},
	protoreflect.Uint32Kind: {false, 32}, protoreflect.Fixed32Kind: {false, 32},
	protoreflect.Uint64Kind: {false, 64}, protoreflect.Fixed64Kind: {false, 64},
}

// holds reports whether a reader's kind has all values of a writer's kind of its group.
func holds(w, r protoreflect.Kind) bool {
	a, ok := integers[w]
	if !ok || w == r {
		return true
	}
	b := integers[r]
	switch {
	case a.signed == b.signed:
		return b.bits >= a.bits
	case a.signed:
		return false
	}
	return b.bits > a.bits
}

// defaults returns the defaults of two fields where they differ.
func defaults(w, r protoreflect.FieldDescriptor) (a, b string, differ bool) {
	for _, f := range []protoreflect.FieldDescriptor{w, r} {
		if f.IsList() || f.IsMap() || f.Message() != nil {
			return "", "", false
		}
	}
	x, y := w.Default(), r.Default()
	a, b = shown(w, x), shown(r, y)
	if zero(w, x) && zero(r, y) {
		return a, b, false
	}
	text := func(f protoreflect.FieldDescriptor) bool {
		return f.Kind() == protoreflect.StringKind || f.Kind() == protoreflect.BytesKind
	}
	switch {
	case text(w) && text(r):
		return a, b, a != b
	case text(w) || text(r):
		return a, b, true
	}
	m, n := number(w, x), number(r, y)
	if w.Kind() != r.Kind() && real(w) && real(r) { // one is a float: compare as such
		m, n = new(big.Float).SetFloat64(float64(float32(x.Float()))), new(big.Float).SetFloat64(float64(float32(y.Float())))
		if x.Float() != x.Float() || y.Float() != y.Float() {
			m, n = nil, nil
		}
	}
	if m == nil || n == nil { // not a number
		return a, b, (m == nil) != (n == nil) || a != b
	}
	return a, b, m.Cmp(n) != 0
}

func real(f protoreflect.FieldDescriptor) bool {
	return f.Kind() == protoreflect.FloatKind || f.Kind() == protoreflect.DoubleKind
}

func shown(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch f.Kind() {
	case protoreflect.StringKind:
		return fmt.Sprintf("%q", v.String())
	case protoreflect.BytesKind:
		return fmt.Sprintf("%q", v.Bytes())
	case protoreflect.EnumKind:
		if of := f.Enum().Values().ByNumber(v.Enum()); of != nil {
			return string(of.Name())
		}
	}
	return fmt.Sprint(v.Interface())
}

func zero(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
	switch f.Kind() {
	case protoreflect.StringKind:
		return v.String() == ""
	case protoreflect.BytesKind:
		return len(v.Bytes()) == 0
	}
	n := number(f, v)
	return n != nil && n.Sign() == 0
}

// number is the value of a number, a bool or an enum; nil: not a number.
func number(f protoreflect.FieldDescriptor, v protoreflect.Value) *big.Float {
	n := new(big.Float).SetPrec(64)
	switch f.Kind() {
	case protoreflect.BoolKind:
		if v.Bool() {
			return n.SetInt64(1)
		}
		return n
	case protoreflect.EnumKind:
		return n.SetInt64(int64(v.Enum()))
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		if v.Float() != v.Float() {
			return nil
		}
		return n.SetFloat64(v.Float())
	}
	if kind := integers[f.Kind()]; kind.signed {
		return n.SetInt64(v.Int())
	}
	return n.SetUint64(v.Uint())
}
