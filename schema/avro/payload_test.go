package avro_test

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	lib "github.com/twmb/avro"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/avro"
)

const all = `{"type":"record","name":"All","fields":[{"name":"s","type":"string"},{"name":"i","type":"int"},{"name":"l","type":"long"},{"name":"b","type":"boolean"},
	{"name":"f","type":"float"},{"name":"d","type":"double"},{"name":"y","type":"bytes"},{"name":"x","type":{"type":"fixed","name":"F","size":2}},
	{"name":"e","type":{"type":"enum","name":"E","symbols":["A","B"]}},{"name":"a","type":{"type":"array","items":"int"}},{"name":"m","type":{"type":"map","values":"string"}},
	{"name":"next","type":["null","All"]}]}`

// datum is a payload of all.
const datum = "\x02o" + "\x06" + "\x06" + "\x01" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" + "\x02y" + "xx" + "\x02" + "\x04\x02\x04\x00" + "\x02\x02k\x02v\x00" + "\x00"

func shop() fstest.MapFS {
	return fstest.MapFS{
		"all/001.avsc":   {Data: []byte(all)},
		"nulls/001.avsc": {Data: []byte(`{"type":"array","items":"null"}`)},
		"tree/001.avsc":  {Data: []byte(`{"type":"record","name":"T","fields":[{"name":"t","type":["null","T"]}]}`)},
		"qty/001.avsc":   {Data: []byte(`{"type":"record","name":"Q","fields":[{"name":"n","type":["int","string"]}]}`)},
		"qty/002.avsc":   {Data: []byte(`{"type":"record","name":"Q","fields":[{"name":"n","type":"long"}]}`)},
	}
}

func TestPayloads(t *testing.T) {
	set, err := schema.Open(shop(), nil, avro.Compiler())
	if err != nil {
		t.Fatal(err)
	}
	edit := func(at int, with string) string { return datum[:at] + with + datum[at+len(with):] }
	for name, tc := range map[string]struct{ typ, payload, want string }{
		"all":               {"all", datum, ""},
		"a block with size": {"all", strings.Replace(datum, "\x04\x02\x04\x00", "\x03\x04\x02\x04\x00", 1), ""},
		"inside another":    {"all", datum[:len(datum)-1] + "\x02" + datum, ""},
		"empty":             {"all", "", "all/001.avsc#/s is not a number of at most 64 bits"},
		"cut off":           {"all", datum[:8], "all/001.avsc#/f is cut off"},
		"more":              {"all", datum + "secret", "all/001.avsc: the payload has 6 bytes behind the end"},
		"not UTF-8":         {"all", edit(1, "\xff"), "all/001.avsc#/s is not UTF-8"},
		"no boolean":        {"all", edit(4, "\x02"), "all/001.avsc#/b is not a boolean"},
		"a large int":       {"all", "\x02o\x80\x80\x80\x80\x80\x01", "all/001.avsc#/i has more than 32 bits"},
		"no symbol":         {"all", edit(21, "\x04"), "all/001.avsc#/e is not a symbol of the enum E"},
		"no branch":         {"all", datum[:len(datum)-1] + "\x04", "all/001.avsc#/next is not a branch of the union"},
		"a long text":       {"all", "\xfe\xff\xff\xff\x0f", "all/001.avsc#/s is cut off"},
		"a negative length": {"all", "\x01", "all/001.avsc#/s is cut off"},
		"JSON":              {"all", `{"s":"secret"}`, "all/001.avsc#/s is cut off"},
		"too many nulls":    {"nulls", "\xfe\xff\xff\xff\x0f\x00", "nulls/001.avsc: the payload has more than 100000 empty values"},
		"the most nulls":    {"nulls", "\x01\x01", "nulls/001.avsc#/items is cut off"},
		"a deep tree":       {"tree", strings.Repeat("\x02", 1000), "tree/001.avsc: the payload is nested more than 200 levels deep"},
	} {
		m := postrider.Message{Topic: "t", Type: tc.typ, SchemaVersion: 1, Payload: []byte(tc.payload)}
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
	check, err := avro.Compiler().Compile(shop(), &files[3], &files[2]) // of qty, 002 and 001
	if err != nil {
		t.Fatal(err)
	}
	for payload, want := range map[string]string{
		"\x00\x02":  "",
		"\x02\x02x": "qty/002.avsc: does not read it by the rules of schema resolution",
		"\x04":      "qty/001.avsc#/n is not a branch of the union",
	} {
		if got := check(&postrider.Message{Payload: []byte(payload)}); got != want {
			t.Errorf("%q: %s, want %s", payload, got, want)
		}
	}
}

// FuzzPayload: no payload ends the process, and what the check accepts the library reads.
func FuzzPayload(f *testing.F) {
	set, err := schema.Open(shop(), nil, avro.Compiler())
	if err != nil {
		f.Fatal(err)
	}
	s, err := lib.Parse(all)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(datum))
	f.Add([]byte("\xfe\xff\xff\xff\x0f"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		for _, typ := range set.Subjects() {
			err := set.Check(&postrider.Message{Type: typ, Payload: payload})
			var invalid *schema.InvalidError
			if err != nil && (!errors.As(err, &invalid) || invalid.Reason == "") {
				t.Error(err)
			}
			if typ == "all" && err == nil {
				var v any
				if rest, err := s.Decode(payload, &v); err != nil || len(rest) > 0 {
					t.Errorf("%q: %v, %q left", payload, err, rest)
				}
			}
		}
	})
}

// FuzzSchema: no pair of schemas ends the process, and no file that they refer to.
func FuzzSchema(f *testing.F) {
	f.Add(all, `{"type":"record","name":"All","fields":[{"name":"next","type":"All"},{"name":"z","type":"int"}]}`, "")
	f.Add(`["null",{"type":"enum","name":"E","symbols":["A"]}]`, `{"type":"enum","name":"a.E","aliases":["E"],"symbols":[]}`, "{}")
	f.Add(`{"type":"array","items":"a.E"}`, `{"type":"record","name":"a.R","fields":[{"name":"e","type":"E"}]}`, `[{"type":"enum","name":"a.E","symbols":["A"]},{"type":"record","name":"S","fields":[{"name":"r","type":"a.R"}]}]`)
	f.Fuzz(func(_ *testing.T, writer, reader, shared string) {
		w, r := version(1, writer), version(2, reader)
		w.FS = fstest.MapFS{"_s/a.avsc": {Data: []byte(shared)}, "_s/b.avsc": {Data: []byte(reader)}}
		r.FS = w.FS
		_, _ = avro.Language().Reads(w, r)
	})
}
