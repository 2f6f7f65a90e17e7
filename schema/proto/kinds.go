package proto

import (
	"fmt"
	"math/big"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// jsonGroup returns the number of a kind's group. Kinds of one group may replace each
// other in both forms of a payload.
func jsonGroup(k protoreflect.Kind) int {
	switch k {
	case protoreflect.Int32Kind, protoreflect.Uint32Kind:
		return 1
	case protoreflect.Int64Kind, protoreflect.Uint64Kind:
		return 2
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind:
		return 3
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
		return 4
	}
	return -int(k) // a group of its own
}

// wireGroup returns the number of a kind's group. Kinds of one group may replace each
// other in binary payloads.
func wireGroup(k protoreflect.Kind) int {
	switch k {
	case protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.BoolKind:
		return 1
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		return 2
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind:
		return 3
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
		return 4
	}
	return -int(k) // a group of its own
}

// integer returns whether the integers of a kind have a sign, and their bits; 0: the
// kind has no integers.
func integer(k protoreflect.Kind) (signed bool, bits int) {
	switch k {
	case protoreflect.BoolKind:
		return false, 1
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return true, 32
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return true, 64
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return false, 32
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return false, 64
	}
	return false, 0
}

// holds reports whether a reader's kind has all values of a writer's kind of its group.
func holds(w, r protoreflect.Kind) bool {
	ws, wbits := integer(w)
	if wbits == 0 || w == r {
		return true
	}
	rs, rbits := integer(r)
	switch {
	case ws == rs:
		return rbits >= wbits
	case ws:
		return false
	}
	return rbits > wbits
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
	if m != nil && n != nil && w.Kind() != r.Kind() && real(w) && real(r) { // one is a float: compare as such
		m, n = new(big.Float).SetFloat64(float64(float32(x.Float()))), new(big.Float).SetFloat64(float64(float32(y.Float())))
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
	if signed, _ := integer(f.Kind()); signed {
		return n.SetInt64(v.Int())
	}
	return n.SetUint64(v.Uint())
}
