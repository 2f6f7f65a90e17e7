package pgstore_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
)

// Seven readers find at once that the sequence was set back, and
// lift it while eight writers insert: no INSERT fails, no number is given out
// twice, and every reader gets every message.
//
// Promises: L, A
func TestSequenceIsLiftedBesideWriters(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		const rounds, readers, writers, inserts = 6, 7, 8, 60
		d := fresh(t, version, 64)
		var owners []*owner
		for i := range readers {
			o := &owner{db: d, store: d.store(fmt.Sprint("p", i)), boot: fmt.Sprint("b", i), page: 100}
			o.lease()
			owners = append(owners, o)
		}
		for round := range rounds {
			// The numbers behind it are free, and all of them lie below the cursors.
			free := d.count(`SELECT last_value FROM box.outbox_seq`)
			d.exec(`SELECT setval('box.outbox_seq', $1)`, free+1_000_000)
			d.label(fmt.Sprint("top ", round))
			for _, o := range owners {
				o.drain()
			}
			d.exec(`SELECT setval('box.outbox_seq', $1)`, free)

			var all sync.WaitGroup
			for w := range writers {
				all.Go(func() {
					for i := range inserts {
						_, err := d.pool.Exec(t.Context(), d.sql(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', $1, $2)`),
							fmt.Sprint(w, "/", i), fmt.Sprintf("%d/%d/%d", round, w, i))
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			for _, o := range owners {
				all.Go(func() { o.findsSetBack() })
			}
			all.Wait()
			for _, o := range owners {
				o.lease()
				o.drain()
			}
		}
		const rows = rounds * (1 + writers*inserts)
		if n := d.count(`SELECT count(DISTINCT seq) FROM box.outbox`); n != rows {
			t.Errorf("%d numbers for %d rows", n, rows)
		}
		for _, o := range owners {
			seen := map[string]bool{}
			for _, label := range o.seen {
				seen[label] = true
			}
			if len(seen) != rows || len(o.seen) != rows {
				t.Errorf("%s got %d of %d messages, and %d twice", o.boot, len(seen), rows, len(o.seen)-len(seen))
			}
		}
	})
}

// findsSetBack reads until it has found, or been told, that the history changed.
func (o *owner) findsSetBack() {
	for deadline := time.Now().Add(time.Minute); ; {
		_, err := o.store.Read(o.Context(), o.reads())
		switch {
		case errors.Is(err, store.ErrIdentity):
			return
		case err != nil || time.Now().After(deadline):
			o.Errorf("%s did not find that the sequence was set back: %v", o.boot, err)
			return
		}
	}
}

// A lift steps over numbers that were given out above every row that it
// can see, and stays within the partition.
//
// Promises: A
func TestLiftStepsOverWhatItCannotSee(t *testing.T) {
	for _, partitions := range []bool{false, true} {
		trap(t, func(d *db, o *owner) {
			if partitions {
				d.convert()
			}
			free, place := d.count(`SELECT last_value FROM box.outbox_seq`), d.count(`SELECT coalesce(box.partition_now(), 0)`)
			d.exec(`SELECT setval('box.outbox_seq', $1)`, free+1000)
			d.label("top")
			o.want("top")
			open := d.begin()
			for range 5 {
				d.put(open, "open")
			}
			d.exec(`SELECT setval('box.outbox_seq', $1)`, free)
			d.label("below")
			_, err := o.store.Read(t.Context(), o.reads())
			wantIs(t, err, store.ErrIdentity)
			for range 10 { // of other lanes: of the same one they would wait
				d.exec(`INSERT INTO box.outbox (topic, key) VALUES ('t', 'z')`)
			}
			d.commit(open)
			if n := d.count(`SELECT count(*) - count(DISTINCT seq) FROM box.outbox`); n != 0 {
				t.Errorf("%d numbers were given out twice", n)
			}
			if d.count(`SELECT coalesce(box.partition_now(), 0)`) != place {
				t.Error("the lift left the partition")
			}
			o.lease()
			if got := len(o.drain()); got != 16 {
				t.Errorf("%d of 16 messages", got)
			}
		})
	}
}
