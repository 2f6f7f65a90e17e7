package sqlitestore

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/postrider/postrider/store/ops"
)

// A clock that was set back hides what lies ahead of it and frees the slots of the next two hours.
func TestHistoryAfterTheClockWasSetBack(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "shop.db"))
	s := New(db, nil)
	if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 1}); err != nil {
		t.Fatal(err)
	}
	h := s.Office().History
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	now := start
	s.box.Now = func() time.Time { return now }
	for _, ahead := range []time.Duration{0, 10 * time.Minute, 24 * time.Hour} {
		now = start.Add(ahead)
		if kept, err := h.Keep(t.Context(), ops.Point{Dead: 1}); err != nil || !kept {
			t.Fatalf("kept %v, error %v", kept, err)
		}
	}
	for _, c := range []struct {
		ahead time.Duration
		kept  bool
		want  int
	}{{time.Second, false, 1}, {10 * time.Minute, true, 2}, {24 * time.Hour, false, 3}} {
		now = start.Add(c.ahead)
		kept, err := h.Keep(t.Context(), ops.Point{Dead: 2})
		all, perr := h.Points(t.Context(), time.Time{}, 0)
		if err != nil || perr != nil || kept != c.kept || len(all) != c.want {
			t.Errorf("after %s: kept %v, %d points, errors %v, %v, want %v and %d", c.ahead, kept, len(all), err, perr, c.kept, c.want)
		}
	}
}

// After 36 days of points, ten seconds apart at the end, about as many are left as the grains
// say, and none of a minute or a quarter of an hour is missing that has not ended.
func TestHistoryThins(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "shop.db"))
	s := New(db, nil)
	if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 1}); err != nil {
		t.Fatal(err)
	}
	h := s.Office().History
	now := time.Date(2026, 1, 1, 0, 0, 3, 0, time.UTC)
	s.box.Now = func() time.Time { return now }
	keep := func(p ops.Point) {
		t.Helper()
		if kept, err := h.Keep(t.Context(), p); err != nil || !kept {
			t.Fatalf("kept %v, error %v", kept, err)
		}
	}
	end := now.Add(36 * 24 * time.Hour)
	for now.Before(end) {
		keep(ops.Point{Delivered: 1})
		switch left := end.Sub(now); { // as dense as is needed
		case left > 50*time.Hour:
			now = now.Add(15 * time.Minute)
		case left > 3*time.Hour:
			now = now.Add(time.Minute)
		default:
			now = now.Add(10 * time.Second)
		}
	}
	for _, c := range []struct {
		since       time.Duration
		every       time.Duration
		least, most int
	}{
		{40 * 24 * time.Hour, 15 * time.Minute, 35*96 - 2, 35*96 + 2}, // 35 days of quarters
		{47 * time.Hour, time.Minute, 47*60 - 2, 47*60 + 2},
		{110 * time.Minute, 0, 110*6 - 2, 110*6 + 2},
		{40 * 24 * time.Hour, 0, 6500, 7200},
	} {
		got, err := h.Points(t.Context(), now.Add(-c.since), c.every)
		if err != nil || len(got) < c.least || len(got) > c.most {
			t.Errorf("since %s, every %s: %d points, error %v, want %d to %d", c.since, c.every, len(got), err, c.least, c.most)
		}
	}
}
