package db

import (
	"math"

	"github.com/postrider/postrider/store"
)

// Stand is where one lane stands: everything up to Floor is settled, and above open gaps some
// numbers up to Top.
type Stand struct{ Floor, Top int64 }

// Times is a row of postrider_times: where all lanes stood, and which messages were settled since
// the row before. The zero value knows nothing.
type Times struct {
	High  int64  // the highest floor
	Lanes []byte // see migration 0010
}

const (
	laneBytes = 10
	noFloor   = math.MaxUint32 // the floor is too far below High: unknown
	farthest  = 1<<24 - 1      // a width is cut off there; a top that is as far away is unknown
)

// part is a number of some bytes of a lane, 0 of a lane that the row does not have.
func (t Times) part(lane store.Lane, from, bytes int) (n int64) {
	begin := int(lane)*laneBytes + from
	if begin+bytes > len(t.Lanes) {
		return 0
	}
	for _, b := range t.Lanes[begin : begin+bytes] {
		n = n<<8 | int64(b)
	}
	return n
}

// floor is the number up to which the messages of a lane were settled, if the row tells it.
func (t Times) floor(lane store.Lane) (n int64, known bool) {
	below := t.part(lane, 0, 4)
	return t.High - below, below != noFloor && (int(lane)+1)*laneBytes <= len(t.Lanes)
}

// Floor is the number up to which the messages of a lane were settled, 0 if it is unknown.
func (t Times) Floor(lane store.Lane) int64 {
	if n, known := t.floor(lane); known {
		return n
	}
	return 0
}

// top is the highest number of a lane that was settled, if the row tells it.
func (t Times) top(lane store.Lane) (n int64, known bool) {
	floor, known := t.floor(lane)
	above := t.part(lane, 7, 3)
	return floor + above, known && above != farthest
}

// Dates reports whether the row has the time of a message.
func (t Times) Dates(lane store.Lane, seq int64) bool {
	floor, known := t.floor(lane)
	return known && seq <= floor && seq > floor-t.part(lane, 4, 3)
}

// Next is the row behind t, whether a lane has moved, and a number above which are all messages
// that the row dates. What was above an open gap in t is not dated: nobody knows whether it was
// settled before. The row behind the zero value dates nothing.
func (t Times) Next(lanes []Stand) (next Times, low int64, moved bool) {
	for _, l := range lanes {
		next.High = max(next.High, l.Floor)
	}
	low = next.High
	for i, l := range lanes {
		lane := store.Lane(i) //nolint:gosec // at most 4,096
		below, width := min(next.High-l.Floor, noFloor), int64(0)
		floor, known := t.floor(lane)
		moved = moved || known && l.Floor > floor || !known && below != noFloor
		if top, known := t.top(lane); known && below != noFloor {
			moved = moved || l.Top > top
			width = min(max(l.Floor-top, 0), farthest)
		}
		if width > 0 {
			low = min(low, l.Floor-width)
		}
		next.Lanes = appendBytes(next.Lanes, below, 4)
		next.Lanes = appendBytes(next.Lanes, width, 3)
		next.Lanes = appendBytes(next.Lanes, min(max(l.Top-l.Floor, 0), farthest), 3)
	}
	return next, low, moved
}

func appendBytes(to []byte, n int64, bytes int) []byte {
	for i := bytes - 1; i >= 0; i-- {
		to = append(to, byte(n>>(8*i)))
	}
	return to
}
