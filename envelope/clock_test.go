package envelope

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A clock that has seen a second before writes what the standard library writes.
func TestClock(t *testing.T) {
	t.Parallel()
	east := time.FixedZone("east", 5*3600+1800)
	starts := []time.Time{
		time.Unix(0, 0), time.Unix(-1, 0), time.Date(2026, 12, 31, 23, 59, 59, 0, time.UTC), time.Date(2026, 1, 1, 0, 0, 0, 0, east),
		time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	random := rand.New(rand.NewPCG(1, 2))
	var c clock
	for range 20_000 {
		at := starts[random.IntN(len(starts))].Add(time.Duration(random.IntN(3)) * time.Second)
		switch random.IntN(3) {
		case 0:
			at = at.Add(time.Duration(random.IntN(1e6)) * time.Microsecond)
		case 1:
			at = at.Add(time.Duration(random.IntN(1e9)))
		}
		want := at.UTC().Format(time.RFC3339Nano)
		if got := string(c.append(nil, at)); got != want {
			t.Fatalf("after second %d: %s, want %s", c.second, got, want)
		}
		if got := string(c.append([]byte("x"), at)); got != "x"+want {
			t.Fatalf("again: %s, want x%s", got, want)
		}
	}
}
