package jsonschema_test

import (
	"embed"
	"fmt"
	"io/fs"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/jsonschema"
)

//go:embed testdata/schemas
var embedded embed.FS

// An outbox that refuses payloads that break their schema, before anything is written.
func ExampleCompiler() {
	schemas, err := fs.Sub(embedded, "testdata/schemas")
	if err != nil {
		fmt.Println(err)
		return
	}
	set, err := schema.Open(schemas, nil, jsonschema.Compiler())
	if err != nil {
		fmt.Println(err)
		return
	}
	ob := outbox.New(dialect.Postgres, &outbox.Options{Validator: set})
	_ = ob

	m := postrider.JSON("orders", "o-1", "order.placed", map[string]any{"qty": "two"})
	m.SchemaVersion = 1
	fmt.Println(set.Check(&m))
	// Output: payload does not match version 1 of the schema order.placed: order.placed/001.json#/properties/qty/type wants integer
}
