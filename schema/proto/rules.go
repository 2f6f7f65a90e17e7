package proto

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/postrider/postrider/schema/evolve"
)

// The rules. Those of the first group, by names and verdicts, are the category WIRE_JSON of
// `buf breaking`, or WIRE for binary payloads; those of the second find what that accepts
// although a payload is refused or read as another value.
const (
	filePackage       = "FILE_SAME_PACKAGE"
	fieldNumber       = "FIELD_NO_DELETE_UNLESS_NUMBER_RESERVED"
	fieldName         = "FIELD_NO_DELETE_UNLESS_NAME_RESERVED"
	fieldSameName     = "FIELD_SAME_NAME"
	fieldSameJSON     = "FIELD_SAME_JSON_NAME"
	fieldDefault      = "FIELD_SAME_DEFAULT"
	fieldOneof        = "FIELD_SAME_ONEOF"
	jsonCardinality   = "FIELD_WIRE_JSON_COMPATIBLE_CARDINALITY"
	wireCardinality   = "FIELD_WIRE_COMPATIBLE_CARDINALITY"
	jsonType          = "FIELD_WIRE_JSON_COMPATIBLE_TYPE"
	wireType          = "FIELD_WIRE_COMPATIBLE_TYPE"
	requiredFields    = "MESSAGE_SAME_REQUIRED_FIELDS"
	messageJSONFormat = "MESSAGE_SAME_JSON_FORMAT"
	messageReserved   = "RESERVED_MESSAGE_NO_DELETE"
	enumNumber        = "ENUM_VALUE_NO_DELETE_UNLESS_NUMBER_RESERVED"
	enumName          = "ENUM_VALUE_NO_DELETE_UNLESS_NAME_RESERVED"
	enumSameName      = "ENUM_VALUE_SAME_NAME"
	enumJSONFormat    = "ENUM_SAME_JSON_FORMAT"
	enumReserved      = "RESERVED_ENUM_NO_DELETE"

	payloadMessage = "PAYLOAD_NO_DELETE"   // the reader lacks a message that may be a payload
	fieldValues    = "FIELD_SAME_VALUES"   // the reader's type has fewer values
	fieldUTF8      = "FIELD_SAME_UTF8"     // the reader refuses strings that the writer may send
	enumUnknown    = "ENUM_VALUE_KNOWN"    // the reader lacks a value
	enumClosed     = "ENUM_SAME_TYPE"      // the reader drops numbers without a name
	extensions     = "EXTENSION_UNDECIDED" // extensions differ
)

// comparison finds why a reader with one program may refuse or misread what a writer with
// another wrote.
type comparison struct {
	writer, reader *program
	backward       bool // the reader is the newer one
	binary         bool
	path           string
	found          []evolve.Finding
	places         []place // of the findings
}

// place is where an example of a finding begins.
type place struct {
	message protoreflect.FullName
	field   protoreflect.FieldNumber // 0: the message itself
	beside  protoreflect.FieldNumber // another field of the example; 0: none
	none    bool
}

// older sorts two things of writer and reader by age.
func older[T any](c *comparison, w, r T) (before, now T) {
	if c.backward {
		return w, r
	}
	return r, w
}

func (c *comparison) add(at protoreflect.Descriptor, from place, rule, format string, args ...any) {
	f := evolve.Finding{Path: c.path, Rule: rule, Detail: fmt.Sprintf(format, args...)}
	if at != nil {
		if file := at.ParentFile(); file != nil {
			f.Path = file.Path()
			f.Line = line(at)
		}
		if _, file := at.(protoreflect.FileDescriptor); !file {
			f.Path += "#" + string(at.FullName())
		}
	}
	c.found, c.places = append(c.found, f), append(c.places, from)
}

// line finds the line of a declaration; that of a map's entry is its field's.
func line(at protoreflect.Descriptor) int {
	if m, ok := at.(protoreflect.MessageDescriptor); ok && m.IsMapEntry() {
		if in, ok := m.Parent().(protoreflect.MessageDescriptor); ok {
			for i := range in.Fields().Len() {
				if of := in.Fields().Get(i); of.Message() != nil && of.Message().FullName() == m.FullName() {
					at = of
				}
			}
		}
	}
	if loc := at.ParentFile().SourceLocations().ByDescriptor(at); loc.Path != nil {
		return loc.StartLine + 1
	}
	if at.Parent() == nil {
		return 0
	}
	return line(at.Parent())
}

func (c *comparison) run() {
	if w, r := c.writer.file.Package(), c.reader.file.Package(); w != r {
		c.add(c.reader.file, place{none: true}, filePackage, "the package is %q for the writer and %q for the reader: restore it", w, r)
	}
	before, now := older(c, c.writer, c.reader)
	for _, name := range payloads(before) {
		if now.messages[name] == nil {
			c.add(c.reader.file, place{none: true}, payloadMessage, "the message %s, which may be a payload, is gone: restore it, or use a new message type", name)
		}
	}
	for _, name := range c.reader.names {
		if r, w := c.reader.messages[name], c.writer.messages[name]; r != nil && w != nil {
			c.message(w, r)
		}
		if r, w := c.reader.enums[name], c.writer.enums[name]; r != nil && w != nil {
			c.enum(w, r)
		}
	}
	if fmt.Sprint(extensionsOf(c.writer)) != fmt.Sprint(extensionsOf(c.reader)) {
		c.add(c.reader.file, place{none: true}, extensions, "the extensions of the two versions differ, which is not compared: declare fields instead")
		c.found[len(c.found)-1].Undecided = true
	}
}

// payloads are the messages of a file that no other message has a field of, and the first.
func payloads(p *program) []protoreflect.FullName {
	used := map[protoreflect.FullName]bool{}
	for name, m := range p.messages {
		for i := range m.Fields().Len() {
			if of := m.Fields().Get(i).Message(); of != nil && of.FullName() != name {
				used[of.FullName()] = true
			}
		}
	}
	var all []protoreflect.FullName
	for i := range p.file.Messages().Len() {
		if name := p.file.Messages().Get(i).FullName(); i == 0 || !used[name] {
			all = append(all, name)
		}
	}
	return all
}

func extensionsOf(p *program) []string {
	var all []string
	var walk func(s scope)
	walk = func(s scope) {
		for i := range s.Extensions().Len() {
			all = append(all, fmt.Sprint(protoutil.ProtoFromDescriptor(s.Extensions().Get(i))))
		}
		for i := range s.Messages().Len() {
			walk(s.Messages().Get(i))
		}
	}
	for _, f := range p.all {
		walk(f)
	}
	slices.Sort(all)
	return all
}

// jsonFormat reports whether all of a message or an enum can be JSON.
func jsonFormat(d protoreflect.Descriptor) bool {
	return feature(d, "json_format") == int32(descriptorpb.FeatureSet_ALLOW)
}

func feature(d protoreflect.Descriptor, name protoreflect.Name) int32 {
	fd := (*descriptorpb.FeatureSet)(nil).ProtoReflect().Descriptor().Fields().ByName(name)
	v, err := protoutil.ResolveFeature(d, fd)
	if err != nil {
		return 0
	}
	return int32(v.Enum())
}

func (c *comparison) message(w, r protoreflect.MessageDescriptor) {
	before, now := older(c, w, r)
	if !c.binary && jsonFormat(before) && !jsonFormat(now) {
		c.add(r, place{none: true}, messageJSONFormat, "%s cannot be JSON in the newer version: restore its json_format", r.Name())
	}
	c.reserved(r, messageReserved, numbersOf(before.ReservedRanges()), numbersOf(now.ReservedRanges()), before.ReservedNames(), now.ReservedNames())
	for i := range before.Fields().Len() {
		gone := before.Fields().Get(i)
		if now.Fields().ByNumber(gone.Number()) != nil {
			continue
		}
		if !now.ReservedRanges().Has(gone.Number()) {
			c.add(r, place{none: true}, fieldNumber, "field %d (%s) was removed and its number is not reserved: add `reserved %d;` to the newer version", gone.Number(), gone.Name(), gone.Number())
		}
		if !c.binary && !now.ReservedNames().Has(gone.Name()) {
			c.add(r, place{none: true}, fieldName, "field %d (%s) was removed and its name is not reserved: add `reserved %q;` to the newer version", gone.Number(), gone.Name(), gone.Name())
		}
	}
	for i := range r.Fields().Len() {
		fr := r.Fields().Get(i)
		fw := w.Fields().ByNumber(fr.Number())
		if fr.Cardinality() == protoreflect.Required && (fw == nil || fw.Cardinality() != protoreflect.Required) {
			c.add(fr, place{message: w.FullName()}, requiredFields, "the reader requires field %d (%s), which the writer may leave out: make it optional", fr.Number(), fr.Name())
		}
		if fw != nil {
			c.field(fw, fr)
		}
	}
}

// span is a range of numbers, both ends included.
type span struct{ first, last int64 }

func numbersOf(r protoreflect.FieldRanges) []span {
	all := make([]span, 0, r.Len())
	for i := range r.Len() {
		all = append(all, span{int64(r.Get(i)[0]), int64(r.Get(i)[1]) - 1})
	}
	return all
}

func numbersOfEnum(r protoreflect.EnumRanges) []span {
	all := make([]span, 0, r.Len())
	for i := range r.Len() {
		all = append(all, span{int64(r.Get(i)[0]), int64(r.Get(i)[1])})
	}
	return all
}

// covers reports whether every number of s is in one of the spans.
func covers(spans []span, s span) bool {
	spans = slices.SortedFunc(slices.Values(spans), func(a, b span) int {
		if a.first < b.first {
			return -1
		}
		return 1
	})
	next := s.first
	for _, o := range spans {
		if o.first <= next && o.last >= next {
			next = o.last + 1
		}
	}
	return next > s.last
}

// reserved finds numbers and names that the newer version no longer reserves.
func (c *comparison) reserved(at protoreflect.Descriptor, rule string, before, now []span, names, nowNames protoreflect.Names) {
	for _, s := range before {
		if !covers(now, s) {
			c.add(at, place{none: true}, rule, "the newer version no longer reserves all of %d to %d: restore it", s.first, s.last)
		}
	}
	for i := range names.Len() {
		if !nowNames.Has(names.Get(i)) {
			c.add(at, place{none: true}, rule, "the newer version no longer reserves the name %q: restore it", names.Get(i))
		}
	}
}

// cardinality is how often a field may be there.
func cardinality(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return "map"
	case f.IsList():
		return "repeated"
	case f.Cardinality() == protoreflect.Required:
		return "required"
	}
	return "optional"
}

func (c *comparison) field(w, r protoreflect.FieldDescriptor) {
	at := place{message: w.Parent().FullName(), field: w.Number()}
	n := r.Number()
	if !c.binary {
		if w.Name() != r.Name() {
			c.add(r, at, fieldSameName, "field %d is %q for the writer and %q for the reader: restore the name", n, w.Name(), r.Name())
		}
		if w.JSONName() != r.JSONName() {
			c.add(r, at, fieldSameJSON, "field %d is %q in the writer's JSON and %q in the reader's: restore the name, or set json_name", n, w.JSONName(), r.JSONName())
		}
	}
	c.cardinality(w, r, at)
	if ow, or := oneof(w), oneof(r); ow != or {
		from := at
		from.beside = rival(w, r)
		c.add(r, from, fieldOneof, "field %d (%s) is in %s for the writer and in %s for the reader: restore it", n, r.Name(), ow, or)
	}
	if a, b, ok := defaults(w, r); ok {
		c.add(r, place{message: w.Parent().FullName()}, fieldDefault, "the default of field %d (%s) is %s for the writer and %s for the reader: restore it", n, r.Name(), a, b)
	}
	rule, group := jsonType, jsonGroup
	if c.binary {
		rule, group = wireType, wireGroup
	}
	before, now := older(c, w, r)
	switch {
	case group(w.Kind()) != group(r.Kind()):
		if c.binary && w.Kind() == protoreflect.StringKind && r.Kind() == protoreflect.BytesKind {
			return // bytes hold all strings
		}
		if c.binary && before.Kind() == protoreflect.StringKind && now.Kind() == protoreflect.BytesKind {
			rule = fieldValues
		}
		c.add(r, at, rule, "field %d (%s) is %s for the writer and %s for the reader: restore the type, or add a field with a new number", n, r.Name(), w.Kind(), r.Kind())
	case w.Enum() != nil && w.Enum().FullName() != r.Enum().FullName():
		if before.Enum().Name() != now.Enum().Name() || !within(before.Enum(), now.Enum()) {
			c.add(r, at, rule, "field %d (%s) is %s for the writer and %s for the reader: restore the type", n, r.Name(), w.Enum().FullName(), r.Enum().FullName())
			return
		}
		c.values(w.Enum(), r.Enum(), r, at)
	case w.Message() != nil && w.Message().FullName() != r.Message().FullName():
		c.add(r, at, rule, "field %d (%s) is %s for the writer and %s for the reader: restore the type", n, r.Name(), w.Message().FullName(), r.Message().FullName())
	case !holds(w.Kind(), r.Kind()):
		c.add(r, at, fieldValues, "field %d (%s) is %s for the writer and %s for the reader, which has not all of its values: restore the type, or add a field with a new number", n, r.Name(), w.Kind(), r.Kind())
	case r.Kind() == protoreflect.StringKind && checked(r) && !checked(w):
		c.add(r, place{none: true}, fieldUTF8, "field %d (%s) may be a string that is not UTF-8, which the reader refuses: restore the syntax or utf8_validation", n, r.Name())
	}
}

func checked(f protoreflect.FieldDescriptor) bool {
	return feature(f, "utf8_validation") == int32(descriptorpb.FeatureSet_VERIFY)
}

func (c *comparison) cardinality(w, r protoreflect.FieldDescriptor, at place) {
	if entry, ok := r.Parent().(protoreflect.MessageDescriptor); ok && entry.IsMapEntry() {
		return
	}
	a, b, rule := cardinality(w), cardinality(r), jsonCardinality
	same := a == b
	if c.binary {
		rule = wireCardinality
		same = same || a == "map" && b == "repeated" || a == "repeated" && b == "map"
	}
	if same || a == "required" && b == "optional" { // a reader may expect less
		return
	}
	c.add(r, at, rule, "field %d (%s) is %s for the writer and %s for the reader: restore it, or add a field with a new number", r.Number(), r.Name(), a, b)
}

// oneof names the real oneof of a field.
func oneof(f protoreflect.FieldDescriptor) string {
	if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
		return "the oneof " + string(o.Name())
	}
	return "no oneof"
}

// rival finds a field of the reader's oneof that the writer may send beside a field of it, of
// which the reader keeps the last one only; 0: none.
func rival(w, r protoreflect.FieldDescriptor) protoreflect.FieldNumber {
	in, ok := w.Parent().(protoreflect.MessageDescriptor)
	if !ok || r.ContainingOneof() == nil {
		return 0
	}
	for i := range r.ContainingOneof().Fields().Len() {
		n := r.ContainingOneof().Fields().Get(i).Number()
		if of := in.Fields().ByNumber(n); of != nil && n != w.Number() && (of.ContainingOneof() == nil || of.ContainingOneof() != w.ContainingOneof()) {
			return n
		}
	}
	return 0
}

// within reports whether all values of before are in now, with their numbers.
func within(before, now protoreflect.EnumDescriptor) bool {
	for i := range before.Values().Len() {
		old := before.Values().Get(i)
		v := now.Values().ByName(old.Name())
		if v == nil || v.Number() != old.Number() {
			return false
		}
	}
	return true
}

// named are the names of an enum's values by their number, in order.
func named(e protoreflect.EnumDescriptor) (numbers []protoreflect.EnumNumber, names map[protoreflect.EnumNumber][]string) {
	names = map[protoreflect.EnumNumber][]string{}
	for i := range e.Values().Len() {
		v := e.Values().Get(i)
		if names[v.Number()] == nil {
			numbers = append(numbers, v.Number())
		}
		names[v.Number()] = append(names[v.Number()], string(v.Name()))
	}
	return numbers, names
}

func (c *comparison) enum(w, r protoreflect.EnumDescriptor) {
	before, now := older(c, w, r)
	if !c.binary && jsonFormat(before) && !jsonFormat(now) {
		c.add(r, place{none: true}, enumJSONFormat, "%s cannot be JSON in the newer version: restore its json_format", r.Name())
	}
	c.reserved(r, enumReserved, numbersOfEnum(before.ReservedRanges()), numbersOfEnum(now.ReservedRanges()), before.ReservedNames(), now.ReservedNames())
	numbers, names := named(before)
	_, kept := named(now)
	for _, n := range numbers {
		if kept[n] != nil {
			if !c.binary && slices.ContainsFunc(names[n], func(s string) bool { return !slices.Contains(kept[n], s) }) {
				for range kept[n] {
					c.add(r, place{message: r.FullName(), field: protoreflect.FieldNumber(n)}, enumSameName, "value %d was %s and is %s: restore the names", n, strings.Join(names[n], ", "), strings.Join(kept[n], ", "))
				}
			}
			continue
		}
		if !now.ReservedRanges().Has(n) {
			c.add(r, place{none: true}, enumNumber, "value %d (%s) was removed and its number is not reserved: add `reserved %d;` to the newer version", n, strings.Join(names[n], ", "), n)
		}
		if !c.binary && slices.ContainsFunc(names[n], func(s string) bool { return !now.ReservedNames().Has(protoreflect.Name(s)) }) {
			c.add(r, place{none: true}, enumName, "value %d (%s) was removed and its name is not reserved: add `reserved %q;` to the newer version", n, strings.Join(names[n], ", "), strings.Join(names[n], `", "`))
		}
	}
	c.values(w, r, r, place{message: w.FullName()})
	if r.IsClosed() && !w.IsClosed() {
		c.add(r, place{none: true}, enumClosed, "%s is open for the writer and closed for the reader, which drops numbers without a name: restore it", r.Name())
	}
}

// values finds values of an enum that the reader does not know. An open enum keeps their
// numbers in binary payloads; as JSON they are refused.
func (c *comparison) values(w, r protoreflect.EnumDescriptor, at protoreflect.Descriptor, from place) {
	if c.binary && !r.IsClosed() {
		return
	}
	_, known := named(r)
	numbers, names := named(w)
	for _, n := range numbers {
		if known[n] != nil {
			continue
		}
		here := from
		if here.field == 0 {
			here.field = protoreflect.FieldNumber(n)
		}
		fix := "restore it"
		if !c.backward {
			fix = "deploy readers that know it first"
		}
		c.add(at, here, enumUnknown, "the reader does not know value %d (%s) of %s: %s", n, strings.Join(names[n], ", "), w.Name(), fix)
	}
}
