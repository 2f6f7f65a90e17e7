package schematest_test

import (
	"testing"

	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/schematest"
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

var placed = schema.Then(schema.Begin[PlacedV1](), func(e PlacedV1) (PlacedV2, error) {
	return PlacedV2{Order: e.Order, Cents: 100 * e.Units}, nil
})

// A test of the application, which has a payload of each version in its testdata.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestPlaced(t *testing.T)
		schematest.Run(t, placed, "testdata/placed")
	}
}
