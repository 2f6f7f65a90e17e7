package sqlitestore

import (
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// An instance that died before the clock was set back does not keep its lanes until
// the clock has caught up.
func TestClockSetBack(t *testing.T) {
	db, s := newOutbox(t, testLanes)
	e := &env{db: db}
	e.moved.Store(int64(time.Hour))
	if _, err := e.open().Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Second}); err != nil {
		t.Fatal(err)
	}
	st, err := s.Office().Admin.Status(t.Context())
	if err != nil || len(st.Instances) != 1 || st.Instances[0].Alive || st.Lanes[0].Leased {
		t.Errorf("status: %+v, %v", st, err)
	}
	g, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "b", TTL: time.Second})
	if err != nil || len(g.Lanes) != testLanes || g.Instances != 1 {
		t.Errorf("%d lanes of %d, %d instances, %v", len(g.Lanes), testLanes, g.Instances, err)
	}
}

func TestExecutedActsArePruned(t *testing.T) {
	pool, s := newOutbox(t, testLanes)
	_, err := pool.ExecContext(t.Context(), `INSERT INTO postrider_request (pipe, lane, seq, kind, actor, reason, created_at, done_at)
		VALUES ('main', 0, 1, 'retry', '', '', 0, ?), ('main', 0, 2, 'retry', '', '', 0, ?), ('main', 0, 3, 'retry', '', '', 0, NULL)`,
		time.Now().Add(-8*24*time.Hour).UnixMicro(), time.Now().Add(-6*24*time.Hour).UnixMicro())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Second}); err != nil {
		t.Fatal(err)
	}
	left, err := db.List[int64](t.Context(), pool, `SELECT seq FROM postrider_request ORDER BY seq`)
	if err != nil || len(left) != 2 || left[0] != 2 || left[1] != 3 {
		t.Errorf("kept %v, %v", left, err)
	}
}

// A record that is due at one look of a read and not at the next one, since the clock was set back
// in between, is announced: its owner asks again.
//
// Promises: S
func TestClockSetBackInsideARead(t *testing.T) {
	pool, s := newOutbox(t, 1)
	o := newOwner(t, pool, "a", nil)
	due := time.Now().Add(time.Hour)
	if _, err := pool.Exec(`INSERT INTO postrider_outbox (topic, not_before) VALUES ('t', ?)`, due.UnixMicro()); err != nil {
		t.Fatal(err)
	}
	b, err := s.Read(t.Context(), []store.LaneRead{{MaxRecords: 10}})
	if err != nil {
		t.Fatal(err)
	}
	o.done(0, store.Settlement{Position: b[0].Position, Park: []store.Park{{Seq: b[0].Meta[0].Seq, Message: b[0].Messages[0], State: store.Scheduled}}})
	for looks := range 8 {
		s.box.Now = func() time.Time {
			if looks--; looks >= 0 {
				return due.Add(time.Minute)
			}
			return due.Add(-time.Minute)
		}
		b, err := s.Read(t.Context(), []store.LaneRead{{MaxRecords: 10, Parked: true, Keys: []string{}}})
		if err != nil || len(b[0].Messages) == 0 && !b[0].Parked.HasDue {
			t.Errorf("the record is neither read nor announced: %+v, %v", b, err)
		}
	}
}
