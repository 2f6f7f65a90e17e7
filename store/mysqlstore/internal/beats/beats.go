// Package beats knows what a heartbeat need not do each time: a relay has one or two a second.
package beats

import (
	"sync"
	"time"
)

const (
	// tidyEvery is how often old rows are removed.
	tidyEvery = time.Minute
	// reportEvery is how often a report is written that has not changed.
	reportEvery = time.Minute
)

// Beats remembers what the heartbeats of one store have done. Its times count from the store's
// beginning, but for those of the server. It is safe for concurrent use.
type Beats struct {
	mu       sync.Mutex
	tidyFrom time.Duration // old rows are removed not before
	report   string        // as the table has it, of one boot id; "": unknown
	tellFrom time.Duration // it is written again then
	sampleAt int64         // the server's time from which on lanes are looked at again
}

// Forget has the next heartbeat do everything: the database is another one, or the instance left.
func (b *Beats) Forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tidyFrom, b.report, b.sampleAt = 0, "", 0
}

// Tidies reports whether old rows are to be removed now.
func (b *Beats) Tidies(at time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at < b.tidyFrom {
		return false
	}
	b.tidyFrom = at + tidyEvery
	return true
}

// Told reports whether the table has the report.
func (b *Beats) Told(report string, at time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.report == report && at < b.tellFrom
}

// Tell notes that the table has the report.
func (b *Beats) Tell(report string, at time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.report, b.tellFrom = report, at+reportEvery
}

// Samples reports whether lanes may have moved. at is the server's time, which can be set back.
func (b *Beats) Samples(at int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return at >= b.sampleAt || b.sampleAt-at > 2*time.Minute.Microseconds()
}

// Sampled notes when lanes are to be looked at next, by the server's time.
func (b *Beats) Sampled(next int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sampleAt = next
}
