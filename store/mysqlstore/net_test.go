package mysqlstore

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
)

const insert = `INSERT INTO postrider_outbox (topic) VALUES ('t')`

// carry reads every lane and settles what it read, and returns the numbers.
func carry(t *testing.T, s *Store, boot string, g *store.Grant) (seqs []int64) {
	t.Helper()
	seqs, err := tryCarry(t, s, boot, g)
	if err != nil {
		t.Fatal(err)
	}
	return seqs
}

// tryCarry is carry where the read may fail.
func tryCarry(t *testing.T, s *Store, boot string, g *store.Grant) (seqs []int64, err error) {
	t.Helper()
	var reads []store.LaneRead
	for _, l := range g.Lanes {
		reads = append(reads, store.LaneRead{Lane: l.Lane, Epoch: l.Epoch, MaxRecords: 10_000})
	}
	batches, err := s.Read(t.Context(), reads)
	if err != nil {
		return nil, err
	}
	var settle []store.Settlement
	for i, b := range batches {
		for _, m := range b.Meta {
			seqs = append(seqs, m.Seq)
		}
		settle = append(settle, store.Settlement{BootID: boot, Lane: b.Lane, Epoch: g.Lanes[i].Epoch, Position: b.Position, Delivered: len(b.Meta)})
		g.Lanes[i].Epoch++
	}
	if lost, err := s.Settle(t.Context(), settle); err != nil || len(lost) > 0 {
		t.Fatalf("lost %v, error %v", lost, err)
	}
	slices.Sort(seqs)
	return seqs, nil
}

// A row whose number was taken for dead, as after a clock that was set back, is
// delivered when it comes, and a person is told.
//
// Promises: L
func TestARowThatWasGivenUpIsDelivered(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 2)
		late, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := late.ExecContext(t.Context(), insert); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := db.ExecContext(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
		s := New(db, nil)
		g := lease(t, s, "a")
		if got := carry(t, s, "a", &g); !slices.Equal(got, []int64{4}) {
			t.Fatalf("read %v", got)
		}
		giveUp(t, s, holes.Set{{First: 1, Last: 3}})
		if got := carry(t, s, "a", &g); len(got) > 0 {
			t.Fatalf("read %v", got)
		}
		if _, err := db.ExecContext(t.Context(), `UPDATE postrider_times SET at = at - 60000000`); err != nil { // a minute later
			t.Fatal(err)
		}
		g = lease(t, s, "a")
		if err := late.Commit(); err != nil {
			t.Fatal(err)
		}
		states, err := list[string](t.Context(), db, `SELECT state FROM postrider_messages ORDER BY seq`)
		if want := []string{"InProgress", "InProgress", "InProgress", "Sent"}; err != nil || !slices.Equal(states, want) {
			t.Errorf("states %v, want %v; error %v", states, want, err)
		}
		// The owner does not look for a while, and another instance does: the owner is fenced.
		other := New(db, nil)
		if _, err := other.Lease(t.Context(), store.LeaseRequest{BootID: "b", Observe: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Read(t.Context(), []store.LaneRead{{Lane: 0, MaxRecords: 1}}); !errors.Is(err, store.ErrIdentity) || !strings.Contains(err.Error(), "3 numbers that were given up have rows now, the first is 1") {
			t.Fatalf("error %v", err)
		}
		lanes, err := list[store.Lane](t.Context(), db, `SELECT DISTINCT lane FROM postrider_outbox WHERE seq <= 3 ORDER BY lane`)
		if err != nil {
			t.Fatal(err)
		}
		for _, lane := range lanes {
			if lost, err := s.Settle(t.Context(), []store.Settlement{{BootID: "a", Lane: lane, Epoch: g.Lanes[lane].Epoch}}); err != nil || !slices.Equal(lost, []store.Lane{lane}) {
				t.Errorf("a settlement of who had passed them: lost %v, error %v", lost, err)
			}
		}
		g = lease(t, s, "a")
		if got := carry(t, s, "a", &g); !slices.Equal(got, []int64{1, 2, 3}) {
			t.Fatalf("read %v", got)
		}
		if st, err := s.Office().Admin.Status(t.Context()); err != nil || st.Pending != 0 || len(st.Alarms) != 1 || !strings.Contains(st.Alarms[0], "3 messages were sent out of order") {
			t.Errorf("pending %d, alarms %q, error %v", st.Pending, st.Alarms, err)
		}
		if dated, err := list[int64](t.Context(), db, `SELECT seq FROM postrider_messages WHERE seq <= 3 AND sent_at IS NOT NULL`); err != nil || len(dated) > 0 {
			t.Errorf("%v have the time when their lane passed them, error %v", dated, err)
		}
		if left, err := list[int64](t.Context(), db, `SELECT high FROM postrider_dropped`); err != nil || len(left) > 0 {
			t.Errorf("numbers %v are looked for, error %v", left, err)
		}
	})
}

// hole returns a transaction with number 1, behind which number 2 is committed.
func hole(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	late, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.ExecContext(t.Context(), insert); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), insert); err != nil {
		t.Fatal(err)
	}
	return late
}

// giveUp makes a store give up numbers as a barrier does that is wrong.
func giveUp(t *testing.T, s *Store, dead holes.Set) {
	t.Helper()
	if err := s.drop(t.Context(), s.box.DB, dead); err != nil {
		t.Fatal(err)
	}
	s.eye.holes.Bury(dead, nil)
}

// Two instances find the same row whose number was given up. One has it read again, and its lane is settled behind it,
// before the other one begins: the message is sent once.
//
// Promises: D
func TestARowThatTwoInstancesFindIsDeliveredOnce(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		late := hole(t, db)
		s := New(db, nil)
		g := lease(t, s, "a")
		carry(t, s, "a", &g)
		giveUp(t, s, holes.Set{{First: 1, Last: 1}})
		carry(t, s, "a", &g)
		if err := late.Commit(); err != nil {
			t.Fatal(err)
		}
		began := false
		other := New(hooked(t, urlOf(t, server, db), func(query string) {
			if !strings.Contains(query, "FOR UPDATE") || began { // other has found the row, and locks
				return
			}
			began = true
			if err := sweep(t, New(db, nil)); !errors.Is(err, store.ErrIdentity) {
				t.Errorf("the first instance: error %v", err)
			}
			g = lease(t, s, "a")
			if got := carry(t, s, "a", &g); !slices.Equal(got, []int64{1}) {
				t.Errorf("read %v", got)
			}
		}), nil)
		if err := sweep(t, other); err != nil && !errors.Is(err, store.ErrIdentity) || !began {
			t.Fatalf("the second instance: began %v, error %v", began, err)
		}
		g = lease(t, s, "a")
		if got := carry(t, s, "a", &g); len(got) > 0 {
			t.Errorf("read %v again", got)
		}
	})
}

// One instance gives up a number that another one still waits for. Its row comes, and the other one delivers it: the
// message is sent once.
//
// Promises: D
func TestARowThatOnlyOneGaveUpIsDeliveredOnce(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 1)
		late := hole(t, db)
		s, other := New(db, nil), New(db, nil)
		g := lease(t, s, "a")
		carry(t, s, "a", &g)
		giveUp(t, other, holes.Set{{First: 1, Last: 1}})
		if err := late.Commit(); err != nil {
			t.Fatal(err)
		}
		var got []int64
		for range 4 {
			some, err := tryCarry(t, s, "a", &g)
			if got = append(got, some...); err != nil && !errors.Is(err, store.ErrIdentity) {
				t.Fatal(err)
			}
			if err := sweep(t, other); err != nil && !errors.Is(err, store.ErrIdentity) {
				t.Fatal(err)
			}
			other.eye.sweepAt = 0
			g = lease(t, s, "a")
		}
		if !slices.Equal(got, []int64{1}) {
			t.Errorf("read %v, want the late one once", got)
		}
	})
}

// What is given up is noted by every instance and once.
func TestWhatIsGivenUpIsNotedOnce(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		s := New(newOutbox(t, server, 1), nil)
		for _, set := range []holes.Set{{{First: 5, Last: 9}, {First: 12, Last: 12}}, {{First: 5, Last: 9}}, {{First: 1, Last: 2}, {First: 4, Last: 14}}} {
			if err := s.drop(t.Context(), s.box.DB, set); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.dropped(t.Context(), s.box.DB, 0, 100, 100, "")
		if want := (holes.Set{{First: 1, Last: 2}, {First: 4, Last: 4}, {First: 5, Last: 9}, {First: 10, Last: 11}, {First: 12, Last: 12}, {First: 13, Last: 14}}); err != nil || !slices.Equal(got, want) {
			t.Errorf("noted %v, want %v; error %v", got, want, err)
		}
		if _, err := s.box.DB.ExecContext(t.Context(), `UPDATE postrider_dropped SET dropped_at = dropped_at - ? WHERE high < 12`, (2 * droppedFor).Microseconds()); err != nil {
			t.Fatal(err)
		}
		if err := sweep(t, s); err != nil {
			t.Fatal(err)
		}
		got, err = s.dropped(t.Context(), s.box.DB, 0, 100, 100, "")
		if want := (holes.Set{{First: 12, Last: 12}, {First: 13, Last: 14}}); err != nil || !slices.Equal(got, want) {
			t.Errorf("after a day: noted %v, want %v; error %v", got, want, err)
		}
	})
}

// Ranges that two instances noted at the same time can overlap: a row that comes is
// removed from each of them, and its lane is read again once.
func TestRangesThatOverlapAreRevivedOnce(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		s := New(newOutbox(t, server, 1), nil)
		for _, set := range []holes.Set{{{First: 9, Last: 10}}, {{First: 3, Last: 12}}} {
			if err := s.note(t.Context(), s.box.DB, set); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.box.DB.ExecContext(t.Context(), `INSERT INTO postrider_outbox (seq, topic) VALUES (7, 't')`); err != nil {
			t.Fatal(err)
		}
		if err := sweep(t, s); !errors.Is(err, store.ErrIdentity) {
			t.Fatalf("error %v", err)
		}
		if err := sweep(t, s); err != nil {
			t.Errorf("the second sweep: %v", err)
		}
		got, err := s.dropped(t.Context(), s.box.DB, 0, 100, 100, "")
		if want := (holes.Set{{First: 3, Last: 6}, {First: 9, Last: 10}, {First: 8, Last: 12}}); err != nil || !slices.Equal(got, want) {
			t.Errorf("noted %v, want %v; error %v", got, want, err)
		}
		// What either of them has noted is not noted again.
		if err := s.drop(t.Context(), s.box.DB, holes.Set{{First: 5, Last: 12}}); err != nil {
			t.Fatal(err)
		}
		got, err = s.dropped(t.Context(), s.box.DB, 0, 100, 100, "")
		if want := (holes.Set{{First: 3, Last: 6}, {First: 7, Last: 7}, {First: 9, Last: 10}, {First: 8, Last: 12}}); err != nil || !slices.Equal(got, want) {
			t.Errorf("noted %v, want %v; error %v", got, want, err)
		}
	})
}

// Rows of one transaction between those of another make a hole of each: positions stay
// small, and a person is told what the rest waits for.
//
// Promises: L, G
func TestHolesHaveABound(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		const most = mostOpen + 1000
		db := newOutbox(t, server, 2)
		long, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		// Numbers are written by hand: 10, 20, 30 ... are uncommitted, and one behind each is not.
		rows := func(from int) string {
			return fmt.Sprintf(`INSERT INTO postrider_outbox (seq, topic) WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 1000)
				SELECT (i + %d) * 10 + %%d, 't' FROM r`, from)
		}
		for from := 0; from < most; from += 1000 {
			if _, err := long.ExecContext(t.Context(), fmt.Sprintf(rows(from), 0)); err != nil {
				t.Fatal(err)
			}
			if _, err := db.ExecContext(t.Context(), fmt.Sprintf(rows(from), 1)); err != nil {
				t.Fatal(err)
			}
		}
		s := New(db, nil)
		g := lease(t, s, "a")
		got := carry(t, s, "a", &g)
		// A slow machine gives up the numbers beside the uncommitted ones first, in some reads.
		for reads := 0; err == nil && reads < 1000; reads++ {
			var more []int64
			more, err = tryCarry(t, s, "a", &g)
			got = append(got, more...)
		}
		var unusable *store.UnusableError
		if !errors.As(err, &unusable) || !unusable.Passing || !strings.Contains(err.Error(), "4000 gaps") {
			t.Fatalf("%d rows were read, then error %v", len(got), err)
		}
		if len(got) != mostOpen || got[len(got)-1] != mostOpen*10+1 {
			t.Fatalf("%d rows were read, the last is %d", len(got), got[len(got)-1])
		}
		st, err := s.Office().Admin.Status(t.Context())
		if err != nil || len(st.Alarms) != 1 || !strings.Contains(st.Alarms[0], "messages are held up behind 4000 gaps") {
			t.Errorf("alarms %q, error %v", st.Alarms, err)
		}
		if longest, err := list[int](t.Context(), db, `SELECT MAX(LENGTH(holes)) FROM postrider_progress`); err != nil || longest[0] > 200_000 {
			t.Errorf("the longest position has %v bytes, error %v", longest, err)
		}
		if err := long.Rollback(); err != nil {
			t.Fatal(err)
		}
		// Both are the clocks of this store alone.
		s.born = s.born.Add(-2 * patience)
		for reads := 0; len(got) < most && reads < 100; reads++ {
			got = append(got, carry(t, s, "a", &g)...)
		}
		if len(got) != most {
			t.Errorf("%d of %d rows came", len(got), most)
		}
	})
}

// Positions that do not fit into one statement together are settled as one.
func TestLongPositionsAreSettledTogether(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		const lanes = 64
		db := newOutbox(t, server, lanes)
		s := New(db, nil)
		g := lease(t, s, "a")
		p := holes.Position{At: 1 << 50}
		for i := range int64(mostOpen) {
			p.Open = append(p.Open, holes.Range{First: 1<<40 + 2*i, Last: 1<<40 + 2*i})
		}
		var settle []store.Settlement
		for _, l := range g.Lanes {
			settle = append(settle, store.Settlement{BootID: "a", Lane: l.Lane, Epoch: l.Epoch, Position: p.Encode()})
		}
		settle[lanes-1].Epoch--
		if lost, err := s.Settle(t.Context(), settle); err != nil || !slices.Equal(lost, []store.Lane{lanes - 1}) {
			t.Fatalf("lost %v, error %v", lost, err)
		}
		moved, err := list[int](t.Context(), db, `SELECT COUNT(*) FROM postrider_progress WHERE pos = ?`, p.At)
		if err != nil || moved[0] != lanes-1 {
			t.Errorf("%v lanes have moved, error %v", moved, err)
		}
		if lost, err := s.Settle(t.Context(), settle); err != nil || !slices.Equal(lost, []store.Lane{lanes - 1}) {
			t.Errorf("the same again: lost %v, error %v", lost, err)
		}
	})
}

// sweep is one sweep on a connection of its own.
func sweep(t *testing.T, s *Store) error {
	t.Helper()
	return s.onOne(t.Context(), "sweep", func(conn *sql.Conn) error { return s.sweep(t.Context(), conn) })
}
