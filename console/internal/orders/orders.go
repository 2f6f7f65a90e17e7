// Package orders finds the orders of a pipe in its journal.
package orders

import (
	"context"
	"slices"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Shown is how many orders Find returns at most, and Read how many entries of the journal it reads
// for them: an order has one, and one more for each lane that has carried it out.
const (
	Shown = 20
	Read  = 20 * page
	page  = 1000
)

// Find returns the journal's entries of orders, the newest first, up to Shown. before limits them to entries older
// than that one; 0 sets no limit. next is the value of before for the following page, 0 after the last page.
func Find(ctx context.Context, j ops.Journal, pipe string, before int64) (found []ops.JournalEntry, next int64, err error) {
	query := ops.JournalQuery{Pipe: pipe, Before: before, Limit: page}
	for range Read / page {
		entries, err := j.Entries(ctx, query)
		if err != nil {
			return nil, 0, err
		}
		for i := range entries {
			if !asks(&entries[i]) {
				continue
			}
			if len(found) == Shown {
				return found, found[len(found)-1].ID, nil
			}
			found = append(found, entries[i])
		}
		if len(entries) < page {
			return found, 0, nil
		}
		query.Before = entries[len(entries)-1].ID
	}
	return found, query.Before, nil
}

// asks reports whether an entry is the asking for many records.
func asks(e *ops.JournalEntry) bool {
	kinds := []store.ActKind{store.ActRetry, store.ActDiscard, store.ActSkip, store.ActReplay}
	return e.Ask == 0 && e.Seq == 0 && slices.Contains(kinds, store.ActKind(e.Act))
}
