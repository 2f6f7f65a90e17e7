package httpbroker

import (
	"net/http"
	"slices"
	"sync"
)

// inlet bounds the request bodies that are read at once. The sender is unknown until
// its whole body is verified, so a slow body must not keep others out: when all
// places are taken, the oldest read is ended.
type inlet struct {
	most int

	mu     sync.Mutex
	bodies []*arrival // oldest first
}

// arrival is a body that is being read.
type arrival struct {
	cut   func() error // ends its read; called under mu
	ended bool
}

// crowded returns the answer to a body that got no place, or lost it.
func crowded() answer {
	return answer{status: http.StatusTooManyRequests, delay: retryLater, text: "too many requests are being read"}
}

// begin takes a place. It returns nil if all are taken and the server cannot end
// a read.
func (in *inlet) begin(cut func() error) *arrival {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.bodies) >= in.most {
		oldest := in.bodies[0]
		if err := oldest.cut(); err != nil {
			return nil
		}
		oldest.ended = true
		in.bodies = in.bodies[1:]
	}
	b := &arrival{cut: cut}
	in.bodies = append(in.bodies, b)
	return b
}

// end gives the place back and reports whether the body had lost it. cut is not
// called after end.
func (in *inlet) end(b *arrival) (taken bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !b.ended {
		in.bodies = slices.DeleteFunc(in.bodies, func(o *arrival) bool { return o == b })
	}
	return b.ended
}
