package ops_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/postrider/postrider/store/ops"
)

type (
	pipes = ops.Pipes // so that a field and a method do not share a name
	stops = ops.Stops
)

// Each field that may be nil or false has an ability, and Need asks for that field.
func TestEachFieldIsAnAbility(t *testing.T) {
	gives := map[ops.Ability]func(*ops.Office){
		ops.CanAudit:     func(o *ops.Office) { o.Books = struct{ ops.Auditor }{} },
		ops.CanDiagnose:  func(o *ops.Office) { o.Doctor = struct{ ops.Doctor }{} },
		ops.CanEmpty:     func(o *ops.Office) { o.Empties = true },
		ops.CanErase:     func(o *ops.Office) { o.Eraser = struct{ ops.Eraser }{} },
		ops.CanFind:      func(o *ops.Office) { o.Finder = struct{ ops.Finder }{} },
		ops.CanHistory:   func(o *ops.Office) { o.History = struct{ ops.Historian }{} },
		ops.CanHold:      func(o *ops.Office) { o.Holds = true },
		ops.CanJournal:   func(o *ops.Office) { o.Journal = struct{ ops.Journal }{} },
		ops.CanOrder:     func(o *ops.Office) { o.Orders = struct{ ops.Orders }{} },
		ops.CanPartition: func(o *ops.Office) { o.Partitions = struct{ ops.Partitioner }{} },
		ops.CanPipe:      func(o *ops.Office) { o.Pipes = struct{ pipes }{} },
		ops.CanRecord:    func(o *ops.Office) { o.Records = struct{ ops.Recorder }{} },
		ops.CanRetain:    func(o *ops.Office) { o.Retention = struct{ ops.Retainer }{} },
		ops.CanRole:      func(o *ops.Office) { o.Roles = struct{ ops.Roles }{} },
		ops.CanSample:    func(o *ops.Office) { o.Samples = struct{ ops.Sampler }{} },
		ops.CanStop:      func(o *ops.Office) { o.Stops = struct{ stops }{} },
		ops.CanStrict:    func(o *ops.Office) { o.Strict = struct{ ops.StrictKeys }{} },
	}
	fields := 0
	office := reflect.TypeFor[ops.Office]()
	for i := range office.NumField() {
		if f := office.Field(i); f.Type.Kind() == reflect.Bool || f.Type.Kind() == reflect.Interface && f.Name != "Admin" && f.Name != "Migrator" {
			fields++
		}
	}
	if all := ops.Abilities(); len(all) != fields || len(gives) != fields {
		t.Errorf("%d fields may be empty, for %d abilities, of which %d are tested", fields, len(all), len(gives))
	}
	for _, given := range ops.Abilities() {
		var o ops.Office
		gives[given](&o)
		for _, asked := range ops.Abilities() {
			if err := o.Need(asked); (err == nil) != (asked == given) || o.Has(asked) != (asked == given) {
				t.Errorf("an office with %s: %s is %v, error %v", given, asked, o.Has(asked), err)
			}
		}
	}
}

// The error of a missing ability is one line: what, in which kind of store, why.
func TestMissing(t *testing.T) {
	o := ops.Office{Kind: "sqlite", Lacks: map[ops.Ability]string{ops.CanPartition: "the outbox is one table in one file"}}
	err := o.Need(ops.CanPartition)
	const want = "partitions: not supported by this store (sqlite): the outbox is one table in one file"
	if err == nil || err.Error() != want || !errors.Is(err, ops.ErrUnsupported) {
		t.Errorf("error %q, want %q", err, want)
	}
	if o.Has("wings") || o.Need("wings") == nil {
		t.Error("an office has wings")
	}
}
