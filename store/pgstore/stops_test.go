package pgstore_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// A destination that is stopped stays so for every relay of its pipe, and for no
// other pipe, until somebody resumes it; each change is one entry in the journal.
//
// Promises: S
func TestStops(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 2)
		st := d.store("main")
		told := func(want ...string) {
			t.Helper()
			for _, boot := range []string{"a", "b"} {
				g, err := d.store("main").Lease(t.Context(), store.LeaseRequest{BootID: boot, TTL: time.Minute})
				if err != nil || !slices.Equal(g.Stopped, want) {
					t.Fatalf("relay %s is told that %q are stopped, want %q, %v", boot, g.Stopped, want, err)
				}
			}
		}
		set := func(name string, resume, want bool) {
			t.Helper()
			changed, err := st.Office().Stops.SetStop(t.Context(), store.SetStop{Destination: name, Resume: resume, Actor: "ann", Reason: "410"})
			if err != nil || changed != want {
				t.Fatalf("changed %v, want %v, %v", changed, want, err)
			}
		}
		told()
		set("billing", false, true)
		set("billing", false, false)
		set("a shop", false, true)
		told("a shop", "billing")
		other, err := d.store("other").Lease(t.Context(), store.LeaseRequest{BootID: "c", TTL: time.Minute})
		if err != nil || len(other.Stopped) != 0 {
			t.Errorf("another pipe is told of %q, %v", other.Stopped, err)
		}
		list, err := st.Office().Stops.Stops(t.Context())
		if err != nil || len(list) != 2 || list[1].Destination != "billing" || list[1].Actor != "ann" || list[1].Reason != "410" || list[1].Since.IsZero() {
			t.Errorf("stopped are %+v, %v", list, err)
		}
		status, err := st.Office().Admin.Status(t.Context())
		if err != nil || len(status.Stops) != 2 || len(status.Holds) != 0 {
			t.Errorf("status says %+v and %+v, %v", status.Stops, status.Holds, err)
		}
		found, err := st.Office().Doctor.Examine(t.Context(), ops.ExamineRequest{Only: []string{"pipes"}})
		if err != nil || len(found) != 2 || found[0].Severity != ops.Warning {
			t.Errorf("the doctor says %+v, %v", found, err)
		}
		set("billing", true, true)
		set("billing", true, false)
		told("a shop")
		want := []string{"endpoint stop", "endpoint stop", "endpoint resume"}
		entries, err := st.Office().Journal.Entries(t.Context(), ops.JournalQuery{Actor: "ann"})
		if err != nil || len(entries) != len(want) {
			t.Fatalf("the journal has %+v, %v", entries, err)
		}
		for i, e := range entries {
			if e.Act != want[len(want)-1-i] || e.Pipe != "main" || e.Reason != "410" {
				t.Errorf("entry %+v", e)
			}
		}
		d.exec(`DELETE FROM box.pipe WHERE name = 'other'`)
		if _, err := d.store("other").Office().Stops.SetStop(t.Context(), store.SetStop{Destination: "x", Actor: "ann"}); !errors.Is(err, store.ErrNoPipe) {
			t.Errorf("a stop in a pipe that is not there: %v", err)
		}
	})
}
