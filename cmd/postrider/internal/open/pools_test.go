package open

import "testing"

// TestPoolsOfTheEnvironment: relays whose database is that of PGHOST and the like share a pool
// which is as large as for any other database, and closes behind the last of them.
func TestPoolsOfTheEnvironment(t *testing.T) {
	for _, store := range []string{"postgres://db.example.com/shop", "postgres:"} {
		sets := []*Settings{{Store: store, Pipe: "main"}, {Store: store, Pipe: "audit"}}
		shared := NewPools(sets)
		var closes []func()
		for _, set := range sets {
			set.Pools = shared
			st, err := Store(set)
			if err != nil {
				t.Fatal(err)
			}
			closes = append(closes, st.Close)
		}
		if len(shared.made) != 1 {
			t.Fatalf("%s: there are %d pools", store, len(shared.made))
		}
		for _, pool := range shared.made {
			if n := pool.Config().MaxConns; n != firstConns+moreConns {
				t.Errorf("%s: the pool of two relays has %d connections", store, n)
			}
		}
		for _, end := range closes {
			end()
		}
		for key, n := range shared.users {
			if n != 0 {
				t.Errorf("%s: %q has %d users after the last one left", store, key, n)
			}
		}
	}
}
