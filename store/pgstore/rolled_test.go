package pgstore_test

import (
	"testing"

	"github.com/postrider/postrider/store/ops"
)

// The numbers that a change of partitions passes over are no messages: neither of those that a pipe has
// not carried, which a person may give up, nor of those that came in.
func TestNumbersPassedOverAreNoMessages(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := partitioned(t, version, 4)
		o := d.owner("a")
		office := o.store.Office()
		behind := func() int64 {
			t.Helper()
			pipes, err := office.Pipes.Pipes(t.Context())
			if err != nil || len(pipes) != 1 {
				t.Fatalf("%+v, error %v", pipes, err)
			}
			return pipes[0].Behind
		}
		point := func() int64 {
			t.Helper()
			d.exec(`UPDATE box.sample SET at = at - interval '1 minute'`)
			kept, err := office.History.Keep(t.Context(), ops.Point{})
			if err != nil || !kept {
				t.Fatalf("kept %v, error %v", kept, err)
			}
			return d.count(`SELECT drawn FROM box.sample ORDER BY at DESC LIMIT 1`)
		}
		d.insert(3)
		o.drain()
		d.insert(3)
		first, drawn := behind(), point()
		if first < 3 || first > 6 || drawn != 6 {
			t.Fatalf("%d behind, %d drawn", first, drawn)
		}
		for rolls := int64(1); rolls <= 2; rolls++ {
			if got := d.tend(ops.TendRequest{OlderThan: keep}); !got.Rolled {
				t.Fatalf("%+v", got)
			}
			if n := behind(); n != first+2*(rolls-1) {
				t.Errorf("after change %d: %d behind, want %d", rolls, n, first+2*(rolls-1))
			}
			if n := point(); n > drawn {
				t.Errorf("after change %d: %d drawn, %d before", rolls, n, drawn)
			}
			d.insert(2)
			if n := behind(); n != first+2*rolls {
				t.Errorf("after change %d and 2 messages: %d behind, want %d", rolls, n, first+2*rolls)
			}
			if drawn = point(); drawn > 2 {
				t.Errorf("after change %d and 2 messages: %d drawn", rolls, drawn)
			}
		}
		o.drain()
		if n := behind(); n > 2 {
			t.Errorf("all is carried, and %d are behind", n)
		}
	})
}
