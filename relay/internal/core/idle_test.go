package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// BenchmarkIdle is what the engine itself costs a relay that has nothing to do: one poll of its lanes.
func BenchmarkIdle(b *testing.B) {
	for _, lanes := range []int{1, 64} {
		b.Run(fmt.Sprint(lanes), func(b *testing.B) {
			e := New(port.Config{BootID: "b", TTL: 100 * 365 * 24 * time.Hour}, 1)
			now := time.Second
			grant := store.Grant{Identity: "i", Total: lanes, Instances: 1}
			for l := range lanes {
				grant.Lanes = append(grant.Lanes, store.LaneGrant{Lane: store.Lane(l), Epoch: 1, Position: store.Position("p")})
			}
			var reads, waits int
			pending := []port.Event{port.Start{}}
			for b.Loop() {
				for waits = 0; waits == 0; {
					ev := pending[0]
					pending = pending[:copy(pending, pending[1:])]
					for _, a := range e.Step(now, ev) {
						switch a := a.(type) {
						case port.Lease:
							pending = append(pending, port.Leased{ID: a.ID, Grant: grant})
						case port.Read:
							reads++
							pending = append(pending, port.ReadDone{ID: a.ID})
						case port.Wait:
							waits++
							now += a.Max
							pending = append(pending, port.Woke{ID: a.ID})
						}
					}
				}
			}
			if reads < b.N {
				b.Errorf("%d reads in %d polls", reads, b.N)
			}
		})
	}
}
