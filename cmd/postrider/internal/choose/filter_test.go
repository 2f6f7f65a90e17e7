package choose

import (
	"testing"
	"time"

	"github.com/postrider/postrider/store/ops"
)

func TestFrom(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]ops.AddPipe{
		"now":                       {From: ops.FromNow},
		"beginning":                 {From: ops.FromBeginning},
		"90m":                       {From: ops.FromTime, Time: now.Add(-90 * time.Minute)},
		"2026-11-21T13:00:00+02:00": {From: ops.FromTime, Time: now.Add(-time.Hour)},
	} {
		var got ops.AddPipe
		if err := From(text, now, &got); err != nil || got.From != want.From || !got.Time.Equal(want.Time) {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-5m", "yesterday", "2026-11-21"} {
		if err := From(text, now, &ops.AddPipe{}); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}
