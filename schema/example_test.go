package schema_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"testing/fstest"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/schema"
)

type (
	PlacedV1 struct {
		Order string `json:"order"`
		Units int64  `json:"units"`
	}
	PlacedV2 struct {
		Order string `json:"order"`
		Cents int64  `json:"cents"`
	}
)

func ExampleThen() {
	chain := schema.Then(schema.Begin[PlacedV1](), func(e PlacedV1) (PlacedV2, error) {
		return PlacedV2{Order: e.Order, Cents: 100 * e.Units}, nil
	})

	e, err := chain.Decode(1, []byte(`{"order":"o-1","units":3}`))
	fmt.Println(e.Cents, err)

	_, err = chain.Decode(3, []byte(`{"order":"o-1","amount":{}}`))
	fmt.Println(err)
	// Output:
	// 300 <nil>
	// SCHEMA_NEWER: message has schema version 3, this program decodes 1 to 2; deploy a program that decodes it
}

// A writer puts the version of its type into the message.
func ExampleChain_Last() {
	chain := schema.Then(schema.Begin[PlacedV1](), func(e PlacedV1) (PlacedV2, error) {
		return PlacedV2{Order: e.Order, Cents: 100 * e.Units}, nil
	})

	m := postrider.JSON("orders", "o-1", "order.placed", PlacedV2{Order: "o-1", Cents: 300})
	m.SchemaVersion = chain.Last()
	fmt.Println(m.SchemaVersion)
	// Output: 2
}

// A chain whose oldest type was removed begins with a later version. Messages without
// a version are here of version 2.
func ExampleBeginWith() {
	chain := schema.BeginWith[PlacedV2](schema.Options{First: 2, Unversioned: 2, Newer: schema.Dead, Unmarshal: json.Unmarshal})

	_, err := chain.Decode(1, []byte(`{"order":"o-1","units":3}`))
	fmt.Println(err)
	// Output: SCHEMA_OLDER: message has schema version 1, this program decodes 2 only; add the old type and its upcaster to the chain
}

// One set checks the payloads of all languages whose Compilers it has.
func ExampleOpen() {
	files := fstest.MapFS{"order.placed/001.json": {Data: []byte(`{}`)}}
	filled := schema.Compiler{Format: schema.JSONSchema, Compile: func(fs.FS, *schema.File, *schema.File) (schema.Payloads, error) { // instead of jsonschema.Compiler()
		return func(m *postrider.Message) string {
			if len(m.Payload) == 0 {
				return "the payload is empty"
			}
			return ""
		}, nil
	}}
	set, err := schema.Open(files, nil, filled)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(set.Check(&postrider.Message{Type: "order.placed", SchemaVersion: 1}))
	// Output: payload does not match version 1 of the schema order.placed: the payload is empty
}
