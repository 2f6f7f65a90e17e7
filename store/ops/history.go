package ops

import (
	"context"
	"time"
)

// Historian keeps figures of a pipe over time, so that charts need no other system. Its
// methods are safe for concurrent use, also by several processes.
type Historian interface {
	// Keep stores a point, unless one was stored in the same PointSlot, and removes
	// points that are older than PointGrains lets them be. It reports whether it stored one.
	// Points of the next PointsAhead were stored before the clock was set back: their slots
	// are needed again, so Keep removes them.
	Keep(ctx context.Context, p Point) (bool, error)
	// Points lists the points from since on, the oldest first. Above 0, every chooses
	// about one point for each of its length: the first of each minute or quarter of an hour.
	// A point ahead of the store's clock is not listed.
	Points(ctx context.Context, since time.Time, every time.Duration) ([]Point, error)
}

// PointEvery is the time between two points of a pipe, and PointSlot the time of which a
// store keeps one at the most.
const (
	PointEvery = 10 * time.Second
	PointSlot  = PointEvery / 2
)

// PointsAhead is how far ahead of the store's clock points are removed. It is short, so that a
// clock that is wrong for a while costs no more than two hours of a history.
const PointsAhead = 2 * time.Hour

// Grain is how long the first point of each Every stays.
type Grain struct{ Every, Keep time.Duration }

// PointGrains are the grains of a history: together about 7,000 points of a pipe.
func PointGrains() []Grain {
	return []Grain{{PointEvery, 2 * time.Hour}, {time.Minute, 48 * time.Hour}, {15 * time.Minute, 35 * 24 * time.Hour}}
}

// Point is one look at a pipe.
type Point struct {
	At        time.Time // by the store's clock; set by the store
	Drawn     int64     // grows with the numbers of messages, and may begin anew; set by the store
	Blocked   int64     // keys that wait behind one of the first 2,000 dead letters; set by the store
	Delivered int64
	Pending   int64
	Capped    bool // Pending is a lower bound
	Lag       time.Duration
	Dead      int64
	Relays    int // alive
}

// PointOf returns what a status has for a point.
func PointOf(s *Status) Point {
	p := Point{Delivered: s.Delivered, Pending: s.Pending, Capped: s.Capped, Lag: s.Lag, Dead: s.Parked["dead"]}
	for _, i := range s.Instances {
		if i.Alive {
			p.Relays++
		}
	}
	return p
}
