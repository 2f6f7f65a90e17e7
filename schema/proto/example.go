package proto

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Bounds of the work on examples. Required fields of required messages grow with a power
// of their number.
const (
	tries       = 64      // payloads for one finding
	maxMessages = 5_000   // messages inside those
	maxMade     = 200_000 // messages for all findings
)

// maker makes messages until it has made enough.
type maker struct{ left int }

// examples looks for a payload that shows each finding.
func (c *comparison) examples() {
	roots := payloads(c.writer)
	for i, made := 0, 0; i < len(c.found) && made < maxMade; i++ {
		if at := c.places[i]; !at.none {
			mk := &maker{left: maxMessages}
			c.found[i].Example = c.example(mk, roots, at)
			made += maxMessages - mk.left
		}
	}
}

// example returns a payload, as JSON, that the reader refuses or reads as another one.
func (c *comparison) example(mk *maker, roots []protoreflect.FullName, at place) json.RawMessage {
	left := tries
	for _, root := range roots {
		to := c.reader.messages[root]
		if to == nil {
			continue
		}
		way, ends := path(c.writer.messages[root], at)
		if ends == nil {
			continue
		}
		for _, inner := range mk.candidates(ends, at) {
			if left--; left < 0 {
				return nil
			}
			m := mk.wrap(c.writer.messages[root], way, inner)
			if mk.left < 0 { // required fields are missing
				return nil
			}
			if misread(m, to, c.binary) == "" {
				continue
			}
			text, err := protojson.Marshal(m)
			var packed []byte
			if err == nil {
				packed, err = compact(text)
			}
			if err == nil {
				return packed
			}
		}
	}
	return nil
}

// compact removes the spaces that protojson adds at random.
func compact(text []byte) ([]byte, error) {
	var v json.RawMessage = text
	return json.Marshal(v)
}

// path finds the way from a message to the one of a place, or to a field of its enum.
func path(root protoreflect.MessageDescriptor, at place) (way []protoreflect.FieldDescriptor, ends protoreflect.MessageDescriptor) {
	type step struct {
		m   protoreflect.MessageDescriptor
		way []protoreflect.FieldDescriptor
	}
	seen := map[protoreflect.FullName]bool{root.FullName(): true}
	for queue := []step{{root, nil}}; len(queue) > 0; queue = queue[1:] {
		m := queue[0].m
		if m.FullName() == at.message {
			return queue[0].way, m
		}
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			if f.Enum() != nil && f.Enum().FullName() == at.message {
				return queue[0].way, m
			}
			if next := f.Message(); next != nil && !seen[next.FullName()] {
				seen[next.FullName()] = true
				queue = append(queue, step{next, append(slices.Clip(queue[0].way), f)})
			}
		}
	}
	return nil, nil
}

// wrap makes a root that has the inner message at the end of the way.
func (mk *maker) wrap(root protoreflect.MessageDescriptor, way []protoreflect.FieldDescriptor, inner *dynamicpb.Message) *dynamicpb.Message {
	if len(way) == 0 {
		return inner
	}
	m := mk.filled(root, 0)
	value := protoreflect.ValueOfMessage(inner)
	f := way[0]
	switch {
	case f.IsMap(): // the way leads through the entry
		if len(way) == 1 { // the entry itself
			entry := inner.Get(f.MapValue())
			if f.MapValue().Message() != nil {
				entry = protoreflect.ValueOfMessage(dynamicpb.NewMessage(f.MapValue().Message()))
			}
			m.Mutable(f).Map().Set(inner.Get(f.MapKey()).MapKey(), entry)
			return m
		}
		value = protoreflect.ValueOfMessage(mk.wrap(f.MapValue().Message(), way[2:], inner))
	case len(way) > 1:
		value = protoreflect.ValueOfMessage(mk.wrap(f.Message(), way[1:], inner))
	}
	mk.set(m, f, value)
	return m
}

// set gives a field one value.
func (mk *maker) set(m *dynamicpb.Message, f protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch {
	case f.IsMap():
		keys := mk.values(f.MapKey(), 0)
		m.Mutable(f).Map().Set(keys[0].MapKey(), v)
	case f.IsList():
		m.Mutable(f).List().Append(v)
	default:
		m.Set(f, v)
	}
}

// filled is a message with its required fields.
func (mk *maker) filled(d protoreflect.MessageDescriptor, deep int) *dynamicpb.Message {
	m := dynamicpb.NewMessage(d)
	if mk.left--; mk.left < 0 {
		return m
	}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if f.Cardinality() != protoreflect.Required {
			continue
		}
		if all := mk.values(f, deep+1); len(all) > 0 {
			mk.set(m, f, all[0])
		}
	}
	return m
}

// candidates are messages that may show what a place is about.
func (mk *maker) candidates(d protoreflect.MessageDescriptor, at place) []*dynamicpb.Message {
	all := []*dynamicpb.Message{mk.filled(d, 0)}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		switch {
		case d.FullName() == at.message && f.Number() == at.field:
			for _, v := range mk.values(f, 0) {
				m := mk.filled(d, 0)
				if f.IsMap() {
					for _, v := range mk.values(f.MapValue(), 0) {
						m := mk.filled(d, 0)
						mk.set(m, f, v)
						all = append(all, m)
					}
					break
				}
				mk.set(m, f, v)
				all = append(all, m)
				if of := d.Fields().ByNumber(at.beside); of != nil && !of.IsMap() {
					both := mk.filled(d, 0)
					mk.set(both, f, v)
					mk.set(both, of, mk.values(of, 0)[0])
					all = append(all, both)
				}
				if f.IsList() {
					two := mk.filled(d, 0)
					mk.set(two, f, v)
					mk.set(two, f, v)
					all = append(all, two)
				}
			}
		case f.Enum() != nil && f.Enum().FullName() == at.message && f.Enum().Values().ByNumber(protoreflect.EnumNumber(at.field)) != nil:
			m := mk.filled(d, 0)
			mk.set(m, f, protoreflect.ValueOfEnum(protoreflect.EnumNumber(at.field)))
			all = append(all, m)
		}
	}
	return all
}

// values are some values of a field, without its list.
func (mk *maker) values(f protoreflect.FieldDescriptor, deep int) []protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return []protoreflect.Value{protoreflect.ValueOfBool(true)}
	case protoreflect.StringKind:
		return []protoreflect.Value{protoreflect.ValueOfString("a"), protoreflect.ValueOfString("")}
	case protoreflect.BytesKind:
		return []protoreflect.Value{protoreflect.ValueOfBytes([]byte{0xff}), protoreflect.ValueOfBytes([]byte("ab"))}
	case protoreflect.FloatKind:
		return []protoreflect.Value{protoreflect.ValueOfFloat32(1.5)}
	case protoreflect.DoubleKind:
		return []protoreflect.Value{protoreflect.ValueOfFloat64(1.5), protoreflect.ValueOfFloat64(1e300)}
	case protoreflect.EnumKind:
		var all []protoreflect.Value
		numbers, _ := named(f.Enum())
		for _, n := range numbers {
			all = append(all, protoreflect.ValueOfEnum(n))
		}
		return all
	case protoreflect.MessageKind, protoreflect.GroupKind:
		if deep > 8 || f.IsMap() {
			return []protoreflect.Value{protoreflect.ValueOfMessage(dynamicpb.NewMessage(f.Message()))}
		}
		m := mk.filled(f.Message(), deep)
		all := []protoreflect.Value{protoreflect.ValueOfMessage(m)}
		if deep > 0 {
			return all
		}
		for i := range f.Message().Fields().Len() {
			of := f.Message().Fields().Get(i)
			if of.Message() != nil {
				continue
			}
			for _, v := range mk.values(of, deep+1) {
				one := mk.filled(f.Message(), deep)
				mk.set(one, of, v)
				all = append(all, protoreflect.ValueOfMessage(one))
				break
			}
		}
		return all
	}
	signed, bits := integer(f.Kind())
	switch {
	case signed && bits == 32:
		return []protoreflect.Value{protoreflect.ValueOfInt32(1), protoreflect.ValueOfInt32(-1), protoreflect.ValueOfInt32(2)}
	case signed:
		return []protoreflect.Value{protoreflect.ValueOfInt64(1), protoreflect.ValueOfInt64(-1), protoreflect.ValueOfInt64(math.MaxInt64)}
	case bits == 32:
		return []protoreflect.Value{protoreflect.ValueOfUint32(1), protoreflect.ValueOfUint32(math.MaxUint32)}
	}
	return []protoreflect.Value{protoreflect.ValueOfUint64(1), protoreflect.ValueOfUint64(math.MaxUint64)}
}

// misread returns how a reader's type misreads a payload; "": it reads all that it has
// fields for. Fields that the reader does not have are none of its business.
func misread(m *dynamicpb.Message, as protoreflect.MessageDescriptor, binary bool) string {
	if what := misreadBinary(m, as); what != "" || binary {
		return what
	}
	return misreadJSON(m, as)
}

func misreadBinary(m *dynamicpb.Message, as protoreflect.MessageDescriptor) string {
	data, err := proto.Marshal(m)
	if err != nil {
		return ""
	}
	to := dynamicpb.NewMessage(as)
	if err := proto.Unmarshal(data, to); err != nil {
		return "the binary payload is refused"
	}
	if what := differs(m, to); what != "" {
		return what + " of the binary payload is read as another"
	}
	return ""
}

func misreadJSON(m *dynamicpb.Message, as protoreflect.MessageDescriptor) string {
	text, err := protojson.Marshal(m)
	if err != nil {
		return ""
	}
	to := dynamicpb.NewMessage(as)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, to); err != nil {
		return "the JSON payload is refused"
	}
	if what := differs(m, to); what != "" {
		return what + " of the JSON payload is read as another"
	}
	return ""
}

// differs names the first field that both types have with another value.
func differs(w, r protoreflect.Message) string {
	for i := range w.Descriptor().Fields().Len() {
		fw := w.Descriptor().Fields().Get(i)
		fr := r.Descriptor().Fields().ByNumber(fw.Number())
		if fr != nil && !same(fw, fr, w, r) {
			return strconv.Quote(string(fw.Name()))
		}
	}
	for i := range r.Descriptor().Fields().Len() {
		fr := r.Descriptor().Fields().Get(i)
		if w.Descriptor().Fields().ByNumber(fr.Number()) == nil && r.Has(fr) {
			return strconv.Quote(string(fr.Name()))
		}
	}
	return ""
}

func same(fw, fr protoreflect.FieldDescriptor, w, r protoreflect.Message) bool {
	switch {
	case fw.IsMap() != fr.IsMap() || fw.IsList() != fr.IsList() || (fw.Message() == nil) != (fr.Message() == nil):
		return !w.Has(fw) && !r.Has(fr)
	case fw.IsMap():
		a, b := w.Get(fw).Map(), r.Get(fr).Map()
		if a.Len() != b.Len() {
			return false
		}
		values := map[string]protoreflect.Value{}
		b.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			values[plain(fr.MapKey(), k.Value())] = v
			return true
		})
		equal := true
		a.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			other, ok := values[plain(fw.MapKey(), k.Value())]
			equal = ok && equalValues(fw.MapValue(), fr.MapValue(), v, other)
			return equal
		})
		return equal
	case fw.IsList():
		a, b := w.Get(fw).List(), r.Get(fr).List()
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !equalValues(fw, fr, a.Get(i), b.Get(i)) {
				return false
			}
		}
		return true
	case fw.Message() != nil:
		return w.Has(fw) == r.Has(fr) && (!w.Has(fw) || equalValues(fw, fr, w.Get(fw), r.Get(fr)))
	}
	if !w.Has(fw) && !r.Has(fr) {
		_, _, differ := defaults(fw, fr)
		return !differ
	}
	return equalValues(fw, fr, w.Get(fw), r.Get(fr))
}

func equalValues(fw, fr protoreflect.FieldDescriptor, a, b protoreflect.Value) bool {
	switch {
	case (fw.Message() == nil) != (fr.Message() == nil):
		return false
	case fw.Message() != nil:
		return differs(a.Message(), b.Message()) == ""
	}
	return plain(fw, a) == plain(fr, b)
}

// plain is a value as text, the same for all kinds that may hold it.
func plain(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch f.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind:
		if f.Kind() == protoreflect.StringKind {
			return strconv.Quote(v.String())
		}
		return strconv.Quote(string(v.Bytes()))
	case protoreflect.BoolKind:
		if v.Bool() {
			return "1"
		}
		return "0"
	case protoreflect.EnumKind:
		return strconv.Itoa(int(v.Enum()))
	}
	return fmt.Sprint(v.Interface())
}
