package top

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// The latest lanes come first, a rate is that of two looks, and no name moves the cursor.
func TestTopDraws(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	look := func(delivered int64, later time.Duration) *seenStatus {
		s := ops.Status{Pipe: "main", Delivered: delivered, Parked: map[string]int64{}}
		for i := range 20 {
			s.Lanes = append(s.Lanes, ops.LaneStatus{Lane: store.Lane(i), Lag: time.Duration(i) * time.Second, Owner: "vm\x1b[2J", Leased: true})
		}
		return &seenStatus{s, at.Add(later)}
	}
	var page bytes.Buffer
	draw(&page, "shop", nil, look(100, 0))
	if got := page.String(); !strings.Contains(got, "after the next look") || strings.Contains(got, "\x1b") {
		t.Errorf("the first look is\n%s", got)
	}
	page.Reset()
	draw(&page, "shop", look(100, 0), look(150, 2*time.Second))
	got := page.String()
	if !strings.Contains(got, "25.0/s") || strings.Count(got, "vm") != lanesShown || strings.Index(got, "\n19 ") > strings.Index(got, "\n10 ") || strings.Contains(got, "\n9 ") {
		t.Errorf("the second look is\n%s", got)
	}
	if drawn := redrawn("a\nb\n"); drawn != "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J" {
		t.Errorf("drawn %q", drawn)
	}
}
