package pgstore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
	pgdb "github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/operations"
)

// aside sets messages of pipe main aside: numbers from first to last, each of its own key
// if keys is set.
func (d *db) aside(lane, first, last int, state, class, code, keys string) {
	d.Helper()
	d.exec(`INSERT INTO box.parked (pipe, lane, seq, state, captures, due_at, attempts, class, code, error, first_failed, last_attempt, created_at, not_before,
 version, schema_version, id, topic, key, type, content_type, headers, payload)
SELECT 'main', $1::int, g, $4::text, $7::text <> '' AND $4 IN ('retry', 'dead'), now() + interval '1 day', 1, $5::text, $6::text, 'no', now(), now(), now(),
 CASE WHEN $4 = 'scheduled' THEN now() + interval '1 day' END, 0, 0, gen_random_uuid(), 't', CASE WHEN $7 = '' THEN '' ELSE $7 || g END, 'm', '', '{}', ''
FROM generate_series($2::int, $3::int) g`, lane, first, last, state, class, code, keys)
}

// interrupted sends the queries of a batch one by one, and calls between after each.
type interrupted struct {
	pgx.Tx
	between func(query int)
}

func (i interrupted) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for n, q := range b.QueuedQueries {
		results := i.Tx.SendBatch(ctx, &pgx.Batch{QueuedQueries: []*pgx.QueuedQuery{q}})
		if results.Close() != nil {
			return results
		}
		i.between(n)
	}
	return i.Tx.SendBatch(ctx, &pgx.Batch{})
}

// A message that dies while the status is read is counted, before or after.
func TestStatusCountsAMessageThatDies(t *testing.T) {
	for _, version := range testserver.NewestPostgres() {
		d := fresh(t, version, 4)
		d.owner("a")
		d.aside(1, 1, 1, "retry", "failed", "C", "k")
		admin := operations.NewAdmin(pgdb.New(d.pool, d.schema, "main", time.Second), 100)
		queries := 1
		for at := 0; at < queries; at++ {
			d.exec(`UPDATE box.parked SET state = 'retry'`)
			tx := d.begin()
			seen := 0
			st, _, err := admin.StatusBy(t.Context(), interrupted{tx, func(n int) {
				if seen = n + 1; n == at {
					d.exec(`UPDATE box.parked SET state = 'dead'`)
				}
			}}, 100)
			d.commit(tx)
			if err != nil {
				t.Fatal(err)
			}
			queries = seen
			if st.Parked["dead"]+st.Parked["retry"] != 1 || st.Pending != st.Parked["retry"] || st.Lanes[1].Parked != 1 || st.Lanes[1].Pending != st.Pending {
				t.Errorf("it dies after query %d of %d: %d dead, %d retried, %d pending; of the lane %+v", at+1, queries, st.Parked["dead"], st.Parked["retry"], st.Pending, st.Lanes[1])
			}
		}
		if queries < 5 {
			t.Errorf("the status was read by %d queries", queries)
		}
	}
}

// Where a state is not counted to its end, a lane behind the end still has what it waits for.
func TestStatusOfALaneBehindTheCount(t *testing.T) {
	for _, version := range testserver.NewestPostgres() {
		d := fresh(t, version, 4)
		d.owner("a")
		d.exec(`UPDATE box.pipe SET paused = true`)
		const limit = 10
		d.aside(0, 1, 5*limit+10, "scheduled", "", "", "s")
		d.aside(3, 1000, 1004, "scheduled", "", "", "s")
		d.aside(0, 2000, 2000+5*limit+10, "dead", "", "", "")
		d.aside(2, 3000, 3004, "dead", "", "", "")
		st, err := pgstore.New(d.pool, &pgstore.Options{Schema: d.schema, CountLimit: limit}).Office().Admin.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for lane, want := range []struct {
			n, dead int64
			waits   string
		}{{5 * limit, 5 * limit, ops.WaitsPipe}, {0, 0, ops.WaitsPipe}, {0, 1, ops.WaitsPipe}, {1, 0, ops.WaitsPipe}} {
			l := st.Lanes[lane]
			if l.Parked != want.n+want.dead || l.Pending != want.n || st.WaitsFor(&l) != want.waits {
				t.Errorf("lane %d: %d set aside, %d pending, waits for %q; want %+v", lane, l.Parked, l.Pending, st.WaitsFor(&l), want)
			}
		}
		if st.Pending != 5*limit+1 || !st.Capped || !st.ParkedCapped {
			t.Errorf("%d pending, capped %t and %t", st.Pending, st.Capped, st.ParkedCapped)
		}
	}
}

// What the doctor did not look at, it says.
func TestDoctorSaysWhereItsLookEnds(t *testing.T) {
	for _, version := range testserver.NewestPostgres() {
		d := fresh(t, version, 4)
		d.owner("a")
		for code := range 32 {
			d.aside(3, 10_000+code, 10_000+code, "dead", "rejected", fmt.Sprintf("c%02d", code), "")
		}
		d.aside(3, 20_000, 20_001, "dead", "expired", "c00", "")
		s := d.store("main")
		find := func(word string) *ops.Finding { return d.ill(d.examine(s, ops.ExamineRequest{}, "parked"), word) }
		if f := find("3 messages are dead (c00), the first: rejected, number 10000"); f == nil || f.Why != "they are not delivered" || f.Data["lower_bounds"] != nil {
			t.Errorf("of two classes: %+v", f)
		}
		if f := find("other codes"); f != nil {
			t.Errorf("32 codes, and there are others: %+v", f)
		}
		d.aside(0, 1, 2000, "retry", "failed", "FULL", "k")
		d.aside(3, 30_000, 30_001, "dead", "rejected", "c32", "k")
		if f := find("are dead (c00)"); f == nil || !strings.Contains(f.Why, "none of the first 2000 keys") || f.Data["lower_bounds"] != true {
			t.Errorf("the first 2,000 keys are not blocked: %+v", f)
		}
		if f := find("messages are dead with other codes, beyond the first 32"); f == nil || f.Data["lower_bounds"] != true {
			t.Errorf("the 33rd code: %+v", f)
		}
	}
}

// No more is in progress than the window of a relay, also where few messages pass the
// pipe's filter: the view looks at the first 50,000.
func TestInProgressIsWithinReachOfAFilter(t *testing.T) {
	for _, version := range testserver.NewestPostgres() {
		d := fresh(t, version, 1)
		o := d.owner("a")
		d.exec(`UPDATE box.pipe SET types = '{yes}'`)
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k', CASE WHEN g <= 3 OR g > 50000 THEN 'yes' ELSE 'no' END FROM generate_series(1, 50020) g`)
		o.beat(func(req *store.LeaseRequest) { req.Report.Reach = 10 })
		if a, b := d.state("InProgress"), d.state("Pending"); a != 3 || b != 20 {
			t.Errorf("%d in progress, %d pending; the relay takes 10 and 3 pass of the first 50,000", a, b)
		}
	}
}
