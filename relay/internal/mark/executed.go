package mark

import "time"

// Executed are the requests of people that were settled, with the moment: a lease that was
// sent before may list them still. It is not safe for concurrent use.
type Executed map[int64]time.Duration

// Note adds requests that were settled now, and forgets those that are older than memory.
func (x *Executed) Note(requests []int64, now, memory time.Duration) {
	if *x == nil {
		*x = Executed{}
	}
	for id, at := range *x { // order does not matter: only deletes
		if at < now-memory {
			delete(*x, id)
		}
	}
	for _, id := range requests {
		(*x)[id] = now
	}
}

// Since reports whether the request was settled at that time or later.
func (x Executed) Since(id int64, at time.Duration) bool {
	settled, ok := x[id]
	return ok && settled >= at
}
