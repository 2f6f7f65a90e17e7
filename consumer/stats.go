package consumer

import "sync/atomic"

// Stats counts what a [Consumer] has done since it was made.
type Stats struct {
	Effects    int64 // messages whose handler ran and was committed
	Duplicates int64 // dropped: the inbox had them
	Stale      int64 // dropped: a later version was applied
	Stashed    int64 // kept in the database until those before them have come
	Retries    int64 // failed and tried again later
	Dead       int64 // given up
}

type counts struct{ effects, duplicates, stale, stashed, retries, dead atomic.Int64 }

// Stats may be called at any time.
func (c *Consumer[Tx]) Stats() Stats {
	n := &c.counts
	return Stats{
		Effects: n.effects.Load(), Duplicates: n.duplicates.Load(), Stale: n.stale.Load(),
		Stashed: n.stashed.Load(), Retries: n.retries.Load(), Dead: n.dead.Load(),
	}
}
