// Package backoff computes how long a failed call or message waits.
package backoff

import (
	"math/rand/v2"
	"time"

	"github.com/postrider/postrider/relay/internal/port"
)

// Jittered draws between a tenth and the whole of base doubled per failure, at most limit.
func Jittered(rng *rand.Rand, base, limit time.Duration, failures int) time.Duration {
	d := doubled(base, limit, failures)
	low := max(d/10, time.Millisecond)
	if d <= low {
		return low
	}
	return low + time.Duration(rng.Int64N(int64(d-low)+1))
}

// Retry is the time until a message that has failed attempts times is tried again.
func Retry(rng *rand.Rand, r port.Backoff, attempts int) time.Duration {
	var d time.Duration
	if n := len(r.Delays); n > 0 {
		d = r.Delays[min(max(attempts, 1), n)-1]
	} else {
		d = doubled(r.Base, r.Max, attempts)
	}
	if random := time.Duration(float64(d) * min(r.Jitter, 1)); random > 0 {
		d -= time.Duration(rng.Int64N(int64(random)))
	}
	return d
}

func doubled(base, limit time.Duration, failures int) time.Duration {
	d := base
	for i := 1; i < failures && d < limit; i++ {
		d *= 2
	}
	return min(d, limit)
}

// Earliest returns the earlier of two moments. 0 stands for no moment.
func Earliest(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}
