package proto_test

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/proto"
)

func shop() fstest.MapFS {
	all := fstest.MapFS{}
	for name, text := range map[string]string{
		"order.placed/001.proto": `syntax = "proto3"; package shop; import "_shared/money.proto";
			message Placed { string order = 1; int32 qty = 2; repeated int32 sizes = 3; shared.Money total = 4; map<string, Placed> parts = 5; double weight = 6; bytes mark = 7; }`,
		"order.placed/002.proto": `syntax = "proto3"; package shop; import "_shared/money.proto";
			message Placed { string order = 1; string qty = 2; repeated int32 sizes = 3; shared.Money total = 4; map<string, Placed> parts = 5; double weight = 6; bytes mark = 7; }`,
		"_shared/money.proto":  `syntax = "proto3"; package shared; message Money { int64 cents = 1; }`,
		"order.paid/001.proto": `syntax = "proto2"; package shop; enum Way { CARD = 1; CASH = 2; } message Paid { required string order = 1; optional Way way = 2; optional group Extra = 3 { required int32 n = 1; } }`,
	} {
		all[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return all
}

// put appends one field.
func put(b []byte, n protowire.Number, v any) []byte {
	switch v := v.(type) {
	case int:
		return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(v))
	case string:
		return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), v)
	}
	return b
}

func TestPayloads(t *testing.T) {
	set, err := schema.Open(shop(), nil, proto.Compiler())
	if err != nil {
		t.Fatal(err)
	}
	deep := ""
	for range 120 {
		deep = string(put(nil, 5, string(put(put(nil, 1, "a"), 2, deep))))
	}
	for name, tc := range map[string]struct {
		typ, contentType string
		payload          []byte
		want             string // "" for valid
	}{
		"empty":               {"order.placed", "", nil, ""},
		"all":                 {"order.placed", "", put(put(put(put(nil, 1, "o"), 2, 7), 3, "\x01\x02"), 4, string(put(nil, 1, 5))), ""},
		"unpacked":            {"order.placed", "", put(nil, 3, 7), ""},
		"an unknown field":    {"order.placed", "", put(nil, 99, "x"), ""},
		"another type":        {"order.placed", "", put(nil, 2, "secret"), "order.placed/001.proto#shop.Placed.qty wants int32"},
		"a nested one":        {"order.placed", "", put(nil, 4, string(put(nil, 1, "secret"))), "order.placed/001.proto#shared.Money.cents wants int64"},
		"a list cut off":      {"order.placed", "", put(nil, 3, "\x01\xff"), "shop.Placed.sizes is cut off"},
		"a map":               {"order.placed", "", put(nil, 5, string(put(put(nil, 1, "k"), 2, string(put(nil, 2, "secret"))))), "shop.Placed.qty wants int32"},
		"not UTF-8":           {"order.placed", "", put(nil, 1, "\xff"), "shop.Placed.order is not UTF-8"},
		"not Protobuf":        {"order.placed", "", []byte("{}"), "the payload is cut off"},
		"a zero":              {"order.placed", "", []byte{0}, "the payload is not Protobuf"},
		"cut off":             {"order.placed", "", put(nil, 1, "secret")[:4], "the payload is cut off"},
		"too deep":            {"order.placed", "", []byte(deep), "nested more than 100 levels deep"},
		"JSON":                {"order.placed", "application/json; charset=utf-8", []byte(`{"order":"o","qty":3,"more":1}`), ""},
		"wrong JSON":          {"order.placed", "application/json", []byte(`{"order":"o","qty":"secret"}`), "order.placed/001.proto#shop.Placed: the JSON does not match (line 1:"},
		"no JSON":             {"order.placed", "application/x+json", []byte(`{"order":`), "the JSON does not match"},
		"many objects":        {"order.placed", "application/json", []byte(`{"sizes":` + strings.Repeat("[", 100_001)), "more than 100000 objects"},
		"brackets in a text":  {"order.placed", "application/json", []byte(`{"order":"\\\"` + strings.Repeat("[{", 100_001) + `"}`), ""},
		"required":            {"order.paid", "", put(nil, 2, 1), "shop.Paid wants order"},
		"required, in JSON":   {"order.paid", "application/json", []byte(`{}`), "the JSON does not match"},
		"no value of an enum": {"order.paid", "", put(put(nil, 1, "o"), 2, 9), "shop.Paid.way is not a value of shop.Way"},
		"a group":             {"order.paid", "", append(put(nil, 1, "o"), 0x1b, 0x1c), "shop.Paid.Extra wants n"},
		"a whole group":       {"order.paid", "", append(put(nil, 1, "o"), 0x1b, 8, 1, 0x1c), ""},
	} {
		m := postrider.Message{Topic: "t", Type: tc.typ, ContentType: tc.contentType, SchemaVersion: 1, Payload: tc.payload}
		err := set.Check(&m)
		var invalid *schema.InvalidError
		if tc.want == "" && err != nil || tc.want != "" && (!errors.As(err, &invalid) || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// TestPayloadsOfAnotherVersion: the check with a writer's schema asks whether the reader reads
// this payload, not whether it reads all.
func TestPayloadsOfAnotherVersion(t *testing.T) {
	files, err := schema.ReadFiles(shop())
	if err != nil {
		t.Fatal(err)
	}
	check, err := proto.Compiler().Compile(shop(), &files[2], &files[1]) // of order.placed, 002 and 001
	if err != nil {
		t.Fatal(err)
	}
	for payload, want := range map[string]string{
		string(put(nil, 1, "o")): "",
		string(put(nil, 2, 7)):   `order.placed/002.proto#shop.Placed: "qty" of the binary payload is read as another`,
		string(put(nil, 2, "x")): "order.placed/001.proto#shop.Placed.qty wants int32",
	} {
		if got := check(&postrider.Message{Payload: []byte(payload)}); got != want {
			t.Errorf("%q: %s, want %s", payload, got, want)
		}
	}
}

// FuzzPayload: no payload ends the process, and what the check accepts can be read.
func FuzzPayload(f *testing.F) {
	set, err := schema.Open(shop(), nil, proto.Compiler())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(put(put(nil, 1, "o"), 3, "\x01\x02"), false)
	f.Add(put(nil, 5, string(put(put(nil, 1, "k"), 2, "\x0a\x00"))), false)
	f.Add([]byte(`{"order":"o","qty":3}`), true)
	library := map[string]func([]byte) error{"order.placed": proto.Unmarshaler(shop(), "order.placed"), "order.paid": proto.Unmarshaler(shop(), "order.paid")}
	f.Fuzz(func(t *testing.T, payload []byte, json bool) {
		for typ, read := range library {
			m := postrider.Message{Type: typ, Payload: payload}
			if json {
				m.ContentType = "application/json"
			}
			err := set.Check(&m)
			var invalid *schema.InvalidError
			if err != nil && (!errors.As(err, &invalid) || invalid.Reason == "") {
				t.Error(err)
			}
			if err == nil && !json {
				if err := read(payload); err != nil {
					t.Errorf("%q: %v", payload, err)
				}
			}
		}
	})
}
