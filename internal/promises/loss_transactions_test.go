package promises

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// begin opens a transaction. The test ends it.
func (r *rig) begin() pgx.Tx {
	r.Helper()
	tx, err := r.pool.Begin(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // ended already unless the test failed
	return tx
}

// raw inserts one message with a given version, without the row locks of the table
// truth, so that transactions overlap freely.
func (r *rig) raw(tx pgx.Tx, key string, version int) {
	r.Helper()
	if _, err := tx.Exec(r.Context(), `INSERT INTO postrider.outbox (topic, key, payload, version)
		VALUES ($1, $2, convert_to($2 || ':' || $3::bigint, 'UTF8'), $3::bigint)`, r.topic, key, version); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) commit(tx pgx.Tx) {
	r.Helper()
	if err := tx.Commit(r.Context()); err != nil {
		r.Fatal(err)
	}
}

// soon bounds the wait for an event that needs no waiting. It is far above the few
// milliseconds of the event and far below any open transaction.
const soon = 3 * time.Second

// othersFlow commits messages and waits until they have arrived.
func (r *rig) othersFlow(sink *memory, n int) {
	r.Helper()
	want := sink.len() + n
	r.write(n)
	r.until(soon, "others' messages arrive", func() bool { return sink.len() >= want })
}

// Promises: A
func TestLongTransaction(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		r := newRig(t, version)
		sink, tx := &memory{}, r.begin()
		r.raw(tx, "long", 1)
		_, stop := r.relay(sink, nil)
		r.othersFlow(sink, 500)
		// The next owner must know the running transactions.
		stop()
		r.relay(sink, nil)
		r.othersFlow(sink, 500)
		r.raw(tx, "long", 2)
		r.othersFlow(sink, 50)
		if sink.has("long:1") || sink.has("long:2") {
			t.Error("an uncommitted message was delivered")
		}
		r.commit(tx)
		r.until(soon, "the long transaction's messages arrive", func() bool { return sink.has("long:2") })
		r.drained(soon)
		r.atMost(r.check(sink.arrived()), 0)
		r.nothingParked()
	})
}

// reads returns the number of index entries of the outbox that were read, and the number
// of scans.
func (r *rig) reads() (entries, scans int64) {
	r.Helper()
	if err := r.pool.QueryRow(r.Context(), `SELECT sum(idx_tup_read)::bigint, sum(idx_scan)::bigint FROM pg_stat_user_indexes
		WHERE schemaname = 'postrider' AND relname = 'outbox'`).Scan(&entries, &scans); err != nil {
		r.Fatal(err)
	}
	return entries, scans
}

func TestBulkLoad(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		r := newRig(t, version)
		rows := int64(100_000 * scale())
		sink := &memory{}
		r.relay(sink, nil)
		r.othersFlow(sink, 50)
		before, scans := r.reads()
		tx := r.begin()
		if _, err := tx.Exec(t.Context(), `INSERT INTO postrider.outbox (topic, key, payload, version)
			SELECT $1, 'bulk' || i % 500, convert_to('bulk' || i % 500 || ':' || i / 500 + 1, 'UTF8'), i / 500 + 1
			FROM generate_series(0, $2::int - 1) i`, r.topic, rows); err != nil {
			t.Fatal(err)
		}
		r.othersFlow(sink, 200)

		// Statistics arrive up to a second late, so the bound covers all polls together:
		// those that pass the uncommitted rows, those that search for the rows of other
		// transactions, and the many that find no row.
		_, loaded := r.reads()
		r.until(10*time.Second, "the relay continues to poll", func() bool { _, now := r.reads(); return now >= loaded+lanes*60 })
		after, scansAfter := r.reads()
		if after-before > rows*3/2+rows*int64(r.lapses()) { // each lapse reads them once more
			t.Errorf("%d polls of a lane read %d index entries while %d rows were uncommitted: the polls read them repeatedly",
				scansAfter-scans, after-before, rows)
		}
		t.Logf("%d index entries in %d probes", after-before, scansAfter-scans)
		r.othersFlow(sink, 50)

		r.commit(tx)
		want := int(rows) + 300
		r.until(30*time.Second*time.Duration(scale()), "the bulk load arrives", func() bool { return sink.len() >= want })
		r.drained(soon)
		r.atMost(r.check(sink.arrived()), 0)
	})
}

func TestSavepointLoop(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		r := newRig(t, version)
		sink := &memory{}
		r.relay(sink, nil)
		tx := r.begin()
		// More subtransactions than a snapshot lists, every third one rolled back.
		loop := func(from int) {
			if _, err := tx.Exec(t.Context(), fmt.Sprintf(`DO $$ BEGIN FOR i IN %d..%d LOOP
				BEGIN
					INSERT INTO postrider.outbox (topic, key, payload, version)
					VALUES ('%s', 'save', convert_to('save:' || i, 'UTF8'), i);
				END;
				BEGIN
					INSERT INTO postrider.outbox (topic, key, payload, version)
					VALUES ('%[3]s', 'save', convert_to('save:' || i, 'UTF8'), i);
					RAISE EXCEPTION 'undone';
				EXCEPTION WHEN raise_exception THEN NULL;
				END;
			END LOOP; END $$`, from, from+299, r.topic)); err != nil {
				t.Fatal(err)
			}
		}
		loop(1)
		r.othersFlow(sink, 100)
		loop(301)
		r.othersFlow(sink, 100)
		r.commit(tx)
		r.until(soon, "the loop's messages arrive", func() bool { return sink.has("save:600") })
		r.drained(soon)
		r.atMost(r.check(sink.arrived()), 0)
	})
}

func TestPreparedTransaction(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		r := newRig(t, version)
		sink := &memory{}
		_, stop := r.relay(sink, nil)
		prepare := func(name, key string) string {
			tx := r.begin()
			r.raw(tx, key, 1)
			name += r.topic[len("promise-"):]
			if _, err := tx.Exec(t.Context(), `PREPARE TRANSACTION '`+name+`'`); err != nil {
				t.Fatal(err)
			}
			_ = tx.Rollback(t.Context()) // the session no longer has a transaction
			return name
		}
		kept, undone := prepare("kept", "two-phase"), prepare("undone", "undone")
		r.othersFlow(sink, 300)
		stop()
		r.relay(sink, nil)
		r.othersFlow(sink, 300)
		if sink.has("two-phase:1") || sink.has("undone:1") {
			t.Error("a prepared message was delivered before its commit")
		}
		r.exec(`ROLLBACK PREPARED '` + undone + `'`)
		r.exec(`COMMIT PREPARED '` + kept + `'`)
		r.until(soon, "the prepared message arrives", func() bool { return sink.has("two-phase:1") })
		r.drained(soon)
		r.atMost(r.check(sink.arrived()), 0)
	})
}

// TestOppositeCommits commits two transactions in the opposite order of their numbers,
// with and without a third one after the first of them.
func TestOppositeCommits(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		r := newRig(t, version)
		sink := &memory{}
		r.relay(sink, nil)
		for i := 1; i <= 60; i++ {
			low, high := r.begin(), r.begin()
			r.raw(low, "low", 2*i-1)
			r.raw(high, "high", i)
			r.commit(high)
			r.until(soon, "the higher number arrives first", func() bool { return sink.has("high:" + strconv.Itoa(i)) })
			r.commit(low)
			if i%2 == 0 { // the relay may or may not have seen the commit
				r.until(soon, "the lower number arrives", func() bool { return sink.has("low:" + strconv.Itoa(2*i-1)) })
			}
			after := r.begin()
			r.raw(after, "low", 2*i)
			r.commit(after)
		}
		r.drained(soon)
		r.atMost(r.check(sink.arrived()), 0)
	})
}
