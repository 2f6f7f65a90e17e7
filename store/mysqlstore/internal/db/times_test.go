package db

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/postrider/postrider/store"
)

// Whatever the numbers are, a row dates those messages that were settled between two looks and
// lay above no gap, or none.
func TestTimesDateWhatWasSettledBetween(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a schedule, no secret
		lanes := make([]Stand, 1+r.IntN(5))
		var times Times
		for row := range 20 {
			before := append([]Stand(nil), lanes...)
			for i := range lanes {
				l := &lanes[i]
				l.Floor += []int64{0, 0, 1, 100, 60_000, 40_000_000, math.MaxUint32}[r.IntN(7)]
				if l.Floor = max(l.Floor, 0); r.IntN(10) == 0 {
					l.Floor = max(0, l.Floor-5) // a position that was moved back
				}
				if l.Top = max(l.Top, l.Floor); r.IntN(3) == 0 {
					l.Top += []int64{1, 50, 20_000_000}[r.IntN(3)]
				}
			}
			next, low, moved := times.Next(lanes)
			some, must := row == 0, false
			for i, l := range lanes {
				some = some || l.Floor > before[i].Floor || l.Top > before[i].Top || times.Floor(store.Lane(i)) == 0
				must = must || l.Floor > before[i].Floor && times.Floor(store.Lane(i)) != 0
				for _, seq := range []int64{before[i].Floor, before[i].Floor + 1, before[i].Top, before[i].Top + 1, l.Floor - 100, l.Floor - 1, l.Floor, l.Floor + 1, l.Top} {
					right := row > 0 && seq > before[i].Top && seq <= l.Floor
					dated := next.Dates(store.Lane(i), seq)
					if dated && (!right || seq <= low || seq > next.High) {
						t.Fatalf("seed %d, row %d: message %d of lane %d is dated, above %d; it went from %+v to %+v", seed, row, seq, i, low, before[i], l)
					}
					near := next.High-l.Floor < math.MaxUint32 && times.High-before[i].Floor < math.MaxUint32 && l.Floor-seq < farthest && before[i].Top-before[i].Floor < farthest
					if right && near && !dated {
						t.Fatalf("seed %d, row %d: message %d of lane %d is not dated; it went from %+v to %+v", seed, row, seq, i, before[i], l)
					}
				}
				if floor := next.Floor(store.Lane(i)); floor != l.Floor && (floor != 0 || next.High-l.Floor < math.MaxUint32) {
					t.Fatalf("seed %d, row %d: lane %d stands at %d, want %d", seed, row, i, floor, l.Floor)
				}
			}
			if must && !moved {
				t.Fatalf("seed %d, row %d: a lane has moved from %+v to %+v", seed, row, before, lanes)
			}
			if moved && !some {
				t.Fatalf("seed %d, row %d: nothing has moved from %+v to %+v", seed, row, before, lanes)
			}
			times = next
		}
	}
}
