package mysqlstore

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

// beats is what a heartbeat need not do each time: a relay has one or two a second. Times
// are those of Store.elapsed, but for those of the server.
type beats struct {
	mu       sync.Mutex
	tidyFrom time.Duration // old rows are removed not before
	report   string        // as the table has it, of one boot id; "": unknown
	tellFrom time.Duration // it is written again then
	sampleAt int64         // the server's time before which there is nothing to sample
}

// forget has the next heartbeat do everything: the database is another one, or the instance left.
func (b *beats) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tidyFrom, b.report, b.sampleAt = 0, "", 0
}

// tidies reports whether old rows are to be removed now.
func (b *beats) tidies(at time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at < b.tidyFrom {
		return false
	}
	b.tidyFrom = at + tidyEvery
	return true
}

// told reports whether the table has the report.
func (b *beats) told(report string, at time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.report == report && at < b.tellFrom
}

// tell notes that the table has the report.
func (b *beats) tell(report string, at time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.report, b.tellFrom = report, at+reportEvery
}

// samples reports whether there may be something to sample. at is the server's time, which
// can be set back.
func (b *beats) samples(at int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return at >= b.sampleAt || b.sampleAt-at > 2*time.Minute.Microseconds()
}

// sampled notes when there is something to sample next.
func (b *beats) sampled(next int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sampleAt = next
}
