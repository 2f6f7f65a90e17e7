package mysqlstore

import (
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/housekeeping"
	"github.com/postrider/postrider/store/ops"
)

// The times of 64 lanes that are busy all day take about a megabyte. Nothing is noted while
// no lane moves.
func TestTimesOfADayHaveABound(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		const minutes = 24 * 60
		pool := newOutbox(t, server, 64)
		o := newOwner(t, pool, "a")
		sample := func() {
			t.Helper()
			later := time.Now().Add(time.Hour).UnixMicro() // the minute is over
			if _, err := housekeeping.Sample(t.Context(), &db.Outbox{DB: pool, Pipe: DefaultPipe}, pool, later); err != nil {
				t.Fatal(err)
			}
		}
		o.exec(`DELETE FROM postrider_times`)
		o.exec(`UPDATE postrider_progress SET pos = 100000000000`)
		for range minutes {
			o.exec(`UPDATE postrider_progress SET pos = pos + 60000 + lane, settled_at = ` + now)
			sample()
		}
		if n := o.count(`SELECT COUNT(*) FROM postrider_times`); n != minutes {
			t.Errorf("%d rows of %d minutes", n, minutes)
		}
		sample()
		if n := o.count(`SELECT COUNT(*) FROM postrider_times`); n != minutes {
			t.Errorf("a row is noted in which no lane has moved: %d of %d minutes", n, minutes)
		}
		const days = 16
		for n := 1; n < days; n *= 2 {
			o.exec(`INSERT INTO postrider_times (pipe, at, sent, high, low, lanes)
				SELECT pipe, at + ? * 86400000000, sent, high + ? * 86400000, low + ? * 86400000, lanes FROM postrider_times ORDER BY pipe, at`, n, n, n)
		}
		o.exec(`ANALYZE TABLE postrider_times`)
		pages := o.count(`SELECT data_length + index_length FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'postrider_times'`)
		t.Logf("a day takes %d bytes of pages", pages/days)
		if pages/days > 1_300_000 {
			t.Errorf("%d days take %d bytes of pages", days, pages)
		}
	})
}

// Retention keeps the times of messages that it keeps, and no others.
func TestTimesStayWithTheirMessages(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		pool := newOutbox(t, server, 1)
		o := newOwner(t, pool, "a")
		for _, name := range []string{"a", "b", "c"} {
			o.put("k", name)
			o.step()
			o.minute()
			if name == "a" { // another pipe begins behind it, and never settles the others
				if _, err := New(pool, &Options{Pipe: "slow", MakePipe: true}).Lease(t.Context(), store.LeaseRequest{BootID: "s", Instance: "s", TTL: time.Minute}); err != nil {
					t.Fatal(err)
				}
			}
		}
		o.exec(`UPDATE postrider_times SET at = at - 401 * 86400000000`)
		if done, err := o.s.Office().Retention.Tidy(t.Context(), ops.TidyRequest{}); err != nil || done["times"] != 1 {
			t.Errorf("tidying removes %v, want the first row, which dates nothing; error %v", done, err)
		}
		before := o.count(`SELECT sent_at FROM postrider_messages WHERE pipe = 'main' AND type = 'b'`)
		if n := o.prune(ops.PruneRequest{}); n != 1 {
			t.Errorf("%d rows removed, want a", n)
		}
		if n := o.count(`SELECT COUNT(*) FROM postrider_times WHERE pipe = 'main'`); n != 2 {
			t.Errorf("%d times are left, want those of b and c", n)
		}
		if after := o.count(`SELECT COALESCE(sent_at, 0) FROM postrider_messages WHERE pipe = 'main' AND type = 'b'`); after != before {
			t.Errorf("b was sent at %d, and before at %d", after, before)
		}
	})
}
