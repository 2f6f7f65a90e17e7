package views

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// Heartbeats in a row read all views but those that no heartbeat can read, and none takes longer than
// three eighths of the lease.
func TestPortionsMakeProgress(t *testing.T) {
	const ttl = 8 * time.Second
	for name, c := range map[string]struct {
		took  map[store.Lane]time.Duration // 0: a millisecond
		never store.Lane
		beats int
	}{
		"fast":                       {nil, -1, 1},
		"each a second":              {map[store.Lane]time.Duration{-1: time.Second}, -1, 8},
		"each the time of one":       {map[store.Lane]time.Duration{-1: 2900 * time.Millisecond}, -1, 16},
		"one is too slow":            {map[store.Lane]time.Duration{3: time.Hour}, 3, 2},
		"the first lane is too slow": {map[store.Lane]time.Duration{0: time.Hour}, 0, 2},
		"the last lane is too slow":  {map[store.Lane]time.Duration{15: time.Hour}, 15, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			wanted := []store.Lane{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
			slow := store.Lane(-1)
			for range c.beats {
				began, before := time.Now(), len(wanted)
				done, behind, err := portions(turned(wanted, slow), ttl, began.Add(ttl), func(page []store.Lane, limit time.Duration) error {
					var need time.Duration
					for _, lane := range page {
						need += max(c.took[lane], c.took[-1], time.Millisecond)
					}
					if time.Sleep(min(need, limit)); need > limit {
						return &mysql.MySQLError{Number: db.ErrStatementTimeout}
					}
					return nil
				})
				if err != nil {
					t.Fatal(name, err)
				}
				if took := time.Since(began); took > ttl*3/8 {
					t.Errorf("%s: a heartbeat took %s", name, took)
				}
				wanted = slices.DeleteFunc(wanted, func(l store.Lane) bool { return done[l] })
				if slow = behind; len(wanted) == before && behind == -1 {
					t.Errorf("%s: a heartbeat without progress", name)
				}
			}
			if len(wanted) > 1 || len(wanted) == 1 && wanted[0] != c.never {
				t.Errorf("%s: without a view are %v", name, wanted)
			}
		})
	}
}

// A heartbeat that has no time left tries one lane, and one whose statement fails grants what was read.
func TestPortionsEnd(t *testing.T) {
	broken := errors.New("broken")
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		done, _, err := portions([]store.Lane{1, 2, 3, 4}, time.Second, time.Now().Add(-time.Second), func(_ []store.Lane, limit time.Duration) error {
			if calls++; limit != least {
				t.Errorf("limit %s", limit)
			}
			time.Sleep(limit)
			return &mysql.MySQLError{Number: db.ErrQueryTimeout}
		})
		if calls != 1 || len(done) > 0 || err != nil {
			t.Errorf("%d calls, done %v, error %v", calls, done, err)
		}
		done, _, err = portions([]store.Lane{1, 2, 3, 4}, time.Second, time.Time{}, func(page []store.Lane, _ time.Duration) error {
			if len(page) > 1 {
				return broken
			}
			return nil
		})
		if len(done) != 1 || !done[1] || !errors.Is(err, broken) {
			t.Errorf("done %v, error %v", done, err)
		}
	})
}

// A lane is known to its owner as long as its own settlements alone have moved it.
func TestOnlyOwnSettlementsKeepALaneKnown(t *testing.T) {
	s := New(nil)
	for _, epoch := range []int64{5, 6, 7, 9} { // another instance had the lane under epoch 8
		s.Settled("a", 1, epoch)
	}
	for _, c := range []struct {
		boot                  string
		known, epoch, settled int64
		want                  bool
	}{
		{"a", 8, 8, 5, true},    // nothing has moved it
		{"a", 9, 10, 9, true},   // a settlement
		{"a", 10, 11, 10, true}, // a settlement without an answer
		{"a", 9, 11, 10, true},  // both
		{"a", 9, 11, 9, false},  // a settlement, and it was taken
		{"a", 7, 10, 9, false},  // it was taken in between
		{"a", 9, 12, 11, false}, // more than this store has settled
		{"b", 9, 11, 10, false}, // another instance
		{"a", 11, 10, 9, false}, // an epoch that never was
	} {
		if got := s.Moved(c.boot, 1, c.known, c.epoch, c.settled); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if s.Forget(); s.Moved("a", 1, 9, 11, 10) {
		t.Error("the lane is known in another database")
	}
}
