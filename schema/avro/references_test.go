package avro_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/avro"
	"github.com/postrider/postrider/schema/evolve"
)

// sharing is a folder whose schemas use types of other files: one that uses a third, one
// that has two, and one without a namespace.
func sharing() fstest.MapFS {
	return fstest.MapFS{
		"order/001.avsc": {Data: []byte(`{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"total","type":"Price"},{"name":"paid","type":["null","shop.Price"]},
			{"name":"unit","type":"com.acme.Unit"},{"name":"note","type":"Note"}]}`)},
		"_shared/price.avsc":     {Data: []byte(`{"type":"record","name":"shop.Price","fields":[{"name":"cents","type":"int"},{"name":"in","type":"com.acme.Currency"}]}`)},
		"_shared/deep/acme.avsc": {Data: []byte(`[{"type":"enum","name":"com.acme.Currency","symbols":["EUR","USD"]},{"type":"enum","name":"com.acme.Unit","symbols":["PIECE"]}]`)},
		"_more/Note.avsc":        {Data: []byte(`{"type":"record","name":"Note","fields":[{"name":"text","type":"string"}]}`)},
		"_more/README.md":        {Data: []byte(`not a schema`)},
	}
}

// TestReferences: a named type of another file is used for payloads, comparisons and the list
// of what is registered first.
func TestReferences(t *testing.T) {
	fsys := sharing()
	set, err := schema.Open(fsys, nil, avro.Compiler())
	if err != nil {
		t.Fatal(err)
	}
	const good = "\x02\x02" + "\x02\x02\x00" + "\x00" + "\x02x"
	for payload, want := range map[string]string{
		good:                                   "",
		"\x02\x04" + good[2:]:                  "order/001.avsc#/total/in is not a symbol of the enum com.acme.Currency",
		good[:len(good)-1]:                     "order/001.avsc#/note/text is cut off",
		"\x02\x02" + "\x00" + "\x00" + "\x02x": "",
	} {
		err := set.Check(&postrider.Message{Type: "order", SchemaVersion: 1, Payload: []byte(payload)})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %s", payload, err, want)
		}
	}
	refs, err := avro.References(fsys, "order/001.avsc", fsys["order/001.avsc"].Data)
	if want := []avro.Reference{{"shop.Price", "_shared/price.avsc"}, {"_shared/deep/acme.avsc", "_shared/deep/acme.avsc"}, {"Note", "_more/Note.avsc"}}; err != nil || !slices.Equal(refs, want) {
		t.Errorf("references: %v, %v", refs, err)
	}
	// The shared file of the reader has another type: the difference is in a schema that is the same.
	now := maps.Clone(fsys)
	now["_shared/price.avsc"] = &fstest.MapFile{Data: []byte(strings.Replace(string(fsys["_shared/price.avsc"].Data), `"int"`, `"boolean"`, 1))}
	of := func(fsys fstest.MapFS) *evolve.Version {
		return &evolve.Version{File: schema.File{Path: "order/001.avsc", Text: fsys["order/001.avsc"].Data}, FS: fsys}
	}
	found, err := avro.Language().Reads(of(fsys), of(now))
	if err != nil || len(found) != 1 || found[0].Path != "order/001.avsc#/total/cents" || found[0].Example == nil {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestReferencesThatCannotBeUsed: each error names the file and the fix.
func TestReferencesThatCannotBeUsed(t *testing.T) {
	const price = "_shared/price.avsc"
	chain := map[string]string{price: `{"type":"record","name":"shop.Price","fields":[{"name":"a","type":"T1"}]}`}
	for i := range 30 {
		chain[fmt.Sprintf("_shared/%d.avsc", i)] = fmt.Sprintf(`{"type":"record","name":"T%d","fields":[{"name":"a","type":"T%d"}]}`, i, i+1)
	}
	for want, files := range map[string]map[string]string{
		`avro: parse order/001.avsc: unknown type "com.acme.Unit": define it before its use, or in a file such as _shared/com.acme.Unit.avsc`: {"_shared/deep/acme.avsc": `{"type":"enum","name":"com.acme.Currency","symbols":["EUR"]}`},
		"avro: parse order/001.avsc: _shared/price.avsc: _shared/deep/acme.avsc: the references of _shared/price.avsc lead back to it: define the types in one file": {
			"_shared/deep/acme.avsc": `{"type":"record","name":"com.acme.Currency","fields":[{"name":"p","type":"shop.Price"}]}`,
		},
		"_more/Note.avsc and _shared/note.avsc both define the type Note: remove one": {"_shared/note.avsc": `{"type":"enum","name":"Note","symbols":["A"]}`},
		"more than 20 files refer to each other in a row":                             chain,
		"_shared/price.avsc: unexpected end of JSON input":                            {price: `{"type":`},
		"avro: parse order/001.avsc: _shared/price.avsc: ":                            {price: `{"type":"record","name":"shop.Price","fields":[{"name":"no name"}]}`},
		"the limit is 1048576: split it":                                              {price: strings.Repeat(" ", 2<<20)},
	} {
		fsys := sharing()
		for name, text := range files {
			fsys[name] = &fstest.MapFile{Data: []byte(text)}
		}
		if _, err := schema.Open(fsys, nil, avro.Compiler()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
