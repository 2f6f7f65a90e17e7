package views

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/store"
)

// A lane whose view is slow, or damaged, is passed over, the next call begins behind it, and it is named
// until its view is read.
func TestALaneIsPassedOver(t *testing.T) {
	const ttl = 8 * time.Second
	for code, want := range map[string]string{"57014": "in time", "XX001": "invalid page"} {
		synctest.Test(t, func(t *testing.T) {
			var v Views
			bad := store.Lane(0)
			var pages [][]store.Lane
			read := func(page []store.Lane, limit time.Duration) error {
				pages = append(pages, page)
				if !slices.Contains(page, bad) {
					return nil
				}
				time.Sleep(limit)
				return &pgconn.PgError{Code: code, Message: "invalid page"}
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
	var v Views
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
