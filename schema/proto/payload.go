package proto

import (
	"cmp"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/evolve"
)

// Bounds of a payload.
const (
	maxNested  = 100     // messages inside one another
	maxObjects = 100_000 // objects and lists of JSON
)

// Compiler makes the checks of payloads by Protobuf schemas. The message's type names the
// message of the file; otherwise it is the only one that may be a payload, or any of
// those. A payload is JSON if its content type says so, and otherwise binary.
func Compiler() schema.Compiler {
	return schema.Compiler{Format: schema.Protobuf, Compile: func(fsys fs.FS, reader, writer *schema.File) (schema.Payloads, error) {
		r, err := compile(&evolve.Version{File: *reader, FS: fsys})
		if err != nil {
			return nil, err
		}
		if len(r.messages) == 0 {
			return nil, fmt.Errorf("proto: %s has no message: add one", reader.Path)
		}
		if writer == nil {
			return func(m *postrider.Message) string { return r.refusal(m) }, nil
		}
		w, err := compile(&evolve.Version{File: *writer, FS: fsys})
		if err != nil {
			return nil, err
		}
		return func(m *postrider.Message) string {
			return cmp.Or(w.refusal(m), r.misread(w, m))
		}, nil
	}}
}

// roots are the messages that a payload may be.
func (p *program) roots(typ string) []protoreflect.MessageDescriptor {
	if m := p.messages[protoreflect.FullName(typ)]; m != nil {
		return []protoreflect.MessageDescriptor{m}
	}
	var all []protoreflect.MessageDescriptor
	for _, name := range payloads(p) {
		all = append(all, p.messages[name])
	}
	return all
}

func isJSON(m *postrider.Message) bool {
	kind, _, _ := strings.Cut(m.ContentType, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	return kind == "application/json" || strings.HasSuffix(kind, "+json")
}

// refusal is what the schema has against a payload, of all the messages that it may be.
func (p *program) refusal(m *postrider.Message) (reason string) {
	for _, root := range p.roots(m.Type) {
		var one string
		if isJSON(m) {
			one = jsonRefusal(root, m.Payload)
		} else {
			one = binaryRefusal(root, m.Payload, 0)
		}
		if one == "" {
			return ""
		}
		reason = cmp.Or(reason, p.file.Path()+"#"+one)
	}
	return reason
}

// misread is how a reader misreads a payload of a writer's schema.
func (p *program) misread(w *program, m *postrider.Message) (reason string) {
	for _, root := range w.roots(m.Type) {
		to := p.messages[root.FullName()]
		if to == nil {
			reason = cmp.Or(reason, p.file.Path()+" has no message "+string(root.FullName()))
			continue
		}
		from := dynamicpb.NewMessage(root)
		var what string
		if isJSON(m) {
			if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(m.Payload, from); err != nil {
				continue
			}
			what = misreadJSON(from, to)
		} else {
			if err := proto.Unmarshal(m.Payload, from); err != nil {
				continue
			}
			what = misreadBinary(from, to)
		}
		if what == "" {
			return ""
		}
		reason = cmp.Or(reason, p.file.Path()+"#"+string(to.FullName())+": "+what)
	}
	return reason
}

// position is where protojson stopped, the one part of its texts that quotes nothing.
var position = regexp.MustCompile(`\(line (\d+):(\d+)\)`)

func jsonRefusal(d protoreflect.MessageDescriptor, payload []byte) string {
	if objects(payload) > maxObjects {
		return fmt.Sprintf("%s: the payload has more than %d objects and lists", d.FullName(), maxObjects)
	}
	err := protojson.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: maxNested}.Unmarshal(payload, dynamicpb.NewMessage(d))
	if err == nil {
		return ""
	}
	if at := position.FindString(err.Error()); at != "" {
		return fmt.Sprintf("%s: the JSON does not match %s", d.FullName(), at)
	}
	return fmt.Sprintf("%s: the JSON does not match", d.FullName())
}

// objects counts the objects and lists of a JSON text: brackets outside of its strings.
func objects(payload []byte) (n int) {
	inside := false
	for i := 0; i < len(payload); i++ {
		switch c := payload[i]; {
		case inside && c == '\\':
			i++
		case c == '"':
			inside = !inside
		case !inside && (c == '{' || c == '['):
			n++
		}
	}
	return n
}

// binaryRefusal reads the wire format without making a message. Fields that the message
// does not have pass.
func binaryRefusal(d protoreflect.MessageDescriptor, b []byte, depth int) string {
	if depth > maxNested {
		return fmt.Sprintf("%s: the payload is nested more than %d levels deep", d.FullName(), maxNested)
	}
	var given map[protoreflect.FieldNumber]bool
	if d.RequiredNumbers().Len() > 0 {
		given = map[protoreflect.FieldNumber]bool{}
	}
	for len(b) > 0 {
		number, typ, size := protowire.ConsumeTag(b)
		if size < 0 || number > protowire.MaxValidNumber {
			return string(d.FullName()) + ": the payload is not Protobuf"
		}
		b = b[size:]
		size = protowire.ConsumeFieldValue(number, typ, b)
		if size < 0 {
			return string(d.FullName()) + ": the payload is cut off"
		}
		value := b[:size]
		b = b[size:]
		f := d.Fields().ByNumber(number)
		if f == nil {
			continue
		}
		if given != nil {
			given[number] = true
		}
		if reason := fieldRefusal(f, typ, value, depth); reason != "" {
			return reason
		}
	}
	for i := range d.RequiredNumbers().Len() {
		if n := d.RequiredNumbers().Get(i); !given[n] {
			return fmt.Sprintf("%s wants %s", d.FullName(), d.Fields().ByNumber(n).Name())
		}
	}
	return ""
}

// fieldRefusal looks at one value.
func fieldRefusal(f protoreflect.FieldDescriptor, typ protowire.Type, value []byte, depth int) string {
	want := wireOf(f.Kind())
	if f.IsList() && typ == protowire.BytesType && want != protowire.BytesType && want != protowire.StartGroupType {
		packed, _ := protowire.ConsumeBytes(value)
		for len(packed) > 0 {
			n := protowire.ConsumeFieldValue(f.Number(), want, packed)
			if n < 0 {
				return string(f.FullName()) + " is cut off"
			}
			if reason := fieldRefusal(f, want, packed[:n], depth); reason != "" {
				return reason
			}
			packed = packed[n:]
		}
		return ""
	}
	if typ != want {
		return fmt.Sprintf("%s wants %s", f.FullName(), f.Kind())
	}
	switch f.Kind() {
	case protoreflect.StringKind:
		if text, _ := protowire.ConsumeBytes(value); checked(f) && !utf8.Valid(text) {
			return string(f.FullName()) + " is not UTF-8"
		}
	case protoreflect.EnumKind:
		n, _ := protowire.ConsumeVarint(value)
		if f.Enum().IsClosed() && f.Enum().Values().ByNumber(protoreflect.EnumNumber(int32(n))) == nil {
			return fmt.Sprintf("%s is not a value of %s", f.FullName(), f.Enum().FullName())
		}
	case protoreflect.MessageKind:
		inner, _ := protowire.ConsumeBytes(value)
		return binaryRefusal(f.Message(), inner, depth+1)
	case protoreflect.GroupKind:
		inner, _ := protowire.ConsumeGroup(f.Number(), value)
		return binaryRefusal(f.Message(), inner, depth+1)
	}
	return ""
}

// wireOf is the wire type of a kind.
func wireOf(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.GroupKind:
		return protowire.StartGroupType
	}
	return protowire.VarintType
}
