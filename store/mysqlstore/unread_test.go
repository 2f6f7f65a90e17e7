package mysqlstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// A lane with tens of thousands of waiting records is granted, or its view is not read in time: then
// requests of people are carried out there all the same, and status names the lane.
//
// Promises: S, C
func TestALaneWithoutItsViewIsRepairable(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		const n = 224 // 50,176 records
		for name, ttl := range map[string]time.Duration{"in time": time.Hour, "never in time": time.Millisecond} {
			t.Run(name, func(t *testing.T) {
				db := newOutbox(t, server, 2)
				parkedRows(t, db, n, 0, "CASE WHEN i = 1 THEN 'dead' ELSE 'waiting' END", "i = 1", "'k'", "0")
				s, left := New(db, nil), n*n
				beat := func() (granted bool) {
					g, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", Instance: "a", TTL: ttl})
					if err != nil {
						t.Fatal(err)
					}
					for i := range g.Lanes {
						if l := &g.Lanes[i]; l.Lane == 0 {
							if granted = true; !slices.Equal(l.Parked.Captured, []string{"k"}) || l.Parked.Records != left {
								t.Errorf("captured %q, %d records", l.Parked.Captured, l.Parked.Records)
							}
						}
					}
					return granted
				}
				if granted := beat(); granted != (ttl == time.Hour) {
					t.Fatalf("a lane with %d records is granted with a lease of %s: %v", n*n, ttl, granted)
				} else if granted {
					return
				}
				office := s.Office()
				id, err := office.Admin.Request(t.Context(), store.Act{Kind: store.ActDiscard, Seq: 1, Actor: "a", Reason: "r"})
				if err != nil {
					t.Fatal(err)
				}
				beat()
				acts, err := office.Admin.Acts(t.Context(), id)
				if err != nil || len(acts) != 1 || acts[0].Result != ops.ResultDone {
					t.Errorf("the act is %+v, error %v", acts, err)
				}
				st, err := office.Admin.Status(t.Context())
				if err != nil || len(st.Instances) != 1 || !strings.Contains(fmt.Sprint(st.Instances[0].Trouble), "lane 0") {
					t.Errorf("instances %+v, error %v", st.Instances, err)
				}
				left--
				// A longer lease is enough, and the trouble is over.
				ttl = time.Hour
				if !beat() {
					t.Error("the lane is not granted")
				}
				beat()
				st, err = office.Admin.Status(t.Context())
				if err != nil || len(st.Instances) != 1 || len(st.Instances[0].Trouble) > 0 {
					t.Errorf("instances %+v, error %v", st.Instances, err)
				}
			})
		}
	})
}
