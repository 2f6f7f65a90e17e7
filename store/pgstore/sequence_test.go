package pgstore_test

import (
	"sync"
	"testing"

	"github.com/postrider/postrider/store/pgstore"
)

// What a read takes for the highest number was given out: every 32nd
// nextval leaves a higher one in the sequence's row for a moment, which a plain
// SELECT sees, and a position up to there would pass over messages to come.
//
// Promises: L
func TestNumbersThatWereNotGivenOutAreNotRead(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 1)
		var writers sync.WaitGroup
		for range 3 {
			writers.Go(func() {
				if _, err := d.pool.Exec(t.Context(), d.sql(`SELECT max(nextval('box.outbox_seq')) FROM generate_series(1, 500000)`)); err != nil {
					t.Error(err)
				}
			})
		}
		// The server looks, as often as it can: at what a round trip costs it would be rare.
		_, err := d.pool.Exec(t.Context(), `DO $$ DECLARE n bigint; last bigint := 0; BEGIN
			FOR i IN 1..1000000 LOOP
				n := (`+pgstore.StandsSQL(d.schema)+`);
				IF n < last THEN RAISE 'look %: the sequence stands at %, and stood at % before', i, n, last; END IF;
				EXIT WHEN n >= 1500000;
				last := n;
			END LOOP; END $$`)
		if err != nil {
			t.Error(err)
		}
		writers.Wait()
		d.exec(`SELECT setval('box.outbox_seq', 2000000, false)`) // as a conversion to partitions leaves it
		if n := d.count(pgstore.StandsSQL(d.schema)); n != 1999999 {
			t.Errorf("the sequence stands at %d, want 1999999: the next number is 2000000", n)
		}
	})
}
