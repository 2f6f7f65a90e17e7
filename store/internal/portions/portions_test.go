package portions

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/store"
)

var (
	errSlow    = errors.New("canceling statement")
	errDamaged = errors.New("invalid page")
)

func reader() *Reader {
	return New(func(err error) bool { return err == errSlow }, func(err error) bool { return err == errDamaged }) //nolint:errorlint // the very errors
}

// A lane whose view is slow, or damaged, is passed over, the next call begins behind it, and it is named
// until its view is read.
func TestALaneIsPassedOver(t *testing.T) {
	const ttl = 8 * time.Second
	for fault, want := range map[error]string{errSlow: "in time", errDamaged: errDamaged.Error()} {
		synctest.Test(t, func(t *testing.T) {
			v := reader()
			bad := store.Lane(0)
			var pages [][]store.Lane
			read := func(page []store.Lane, limit time.Duration) error {
				pages = append(pages, page)
				if !slices.Contains(page, bad) {
					return nil
				}
				time.Sleep(limit)
				return fault
			}
			lanes := []store.Lane{0, 1, 2, 3}
			began := time.Now()
			done, err := v.Read(lanes, ttl, began.Add(ttl/2), read)
			if err != nil || len(done) > 0 || time.Since(began) != ttl*3/8 {
				t.Fatalf("%v read, error %v, after %v", done, err, time.Since(began))
			}
			if all := v.Trouble(); len(all) != 1 || !strings.HasPrefix(all[0], "lane 0 ") || !strings.Contains(all[0], want) {
				t.Errorf("trouble %q", all)
			}
			done, err = v.Read(lanes, ttl, time.Time{}, read)
			if err != nil || len(done) != 3 || done[bad] || pages[1][0] != 1 {
				t.Fatalf("%v read, error %v, pages %v", done, err, pages)
			}
			if all := v.Trouble(); len(all) != 1 {
				t.Errorf("trouble %q", all)
			}
			v.Acted(errors.New("refused"))
			if all := v.Trouble(); len(all) != 2 || !strings.Contains(all[1], "refused") {
				t.Errorf("trouble %q", all)
			}
			bad = -1
			if done, err = v.Read([]store.Lane{0}, ttl, time.Time{}, read); err != nil || !done[0] || len(v.Trouble()) > 0 {
				t.Errorf("%v read, error %v, trouble %q", done, err, v.Trouble())
			}
		})
	}
}

// A call that another error ends reports it, and the next one begins behind the lane.
func TestAnErrorEndsTheCall(t *testing.T) {
	v := reader()
	var first []store.Lane
	for range 3 {
		called := false
		_, err := v.Read([]store.Lane{0, 2}, time.Second, time.Time{}, func(page []store.Lane, _ time.Duration) error {
			if !called {
				first = append(first, page[0])
			}
			called = true
			return errors.New("no connection")
		})
		if err == nil || len(v.Trouble()) > 0 {
			t.Errorf("error %v, trouble %q", err, v.Trouble())
		}
	}
	if !slices.Equal(first, []store.Lane{0, 2, 0}) {
		t.Errorf("the calls began with %v", first)
	}
}

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
			v := reader()
			for range c.beats {
				began, before := time.Now(), len(wanted)
				done, err := v.Read(wanted, ttl, began.Add(ttl), func(page []store.Lane, limit time.Duration) error {
					var need time.Duration
					for _, lane := range page {
						need += max(c.took[lane], c.took[-1], time.Millisecond)
					}
					if time.Sleep(min(need, limit)); need > limit {
						return errSlow
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
				if len(wanted) == before && len(v.Trouble()) == 0 {
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
		done, err := reader().Read([]store.Lane{1, 2, 3, 4}, time.Second, time.Now().Add(-time.Second), func(_ []store.Lane, limit time.Duration) error {
			if calls++; limit != least {
				t.Errorf("limit %s", limit)
			}
			time.Sleep(limit)
			return errSlow
		})
		if calls != 1 || len(done) > 0 || err != nil {
			t.Errorf("%d calls, done %v, error %v", calls, done, err)
		}
		done, err = reader().Read([]store.Lane{1, 2, 3, 4}, time.Second, time.Time{}, func(page []store.Lane, _ time.Duration) error {
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
