package doctor

import (
	"testing"
	"time"

	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// No test server reaches these ages.
func TestFrozenIsJudgedByAge(t *testing.T) {
	for _, tc := range []struct {
		age, limit int64
		want       ops.Severity
	}{
		{100_000_000, 200_000_000, ops.OK},
		{399_000_000, 200_000_000, ops.OK},
		{401_000_000, 200_000_000, ops.Warning},
		{1_100_000_000, 1_000_000_000, ops.Warning},
		{1_600_000_000, 2_000_000_000, ops.Critical},
	} {
		if got := frozen(tc.age, tc.limit); got != tc.want {
			t.Errorf("frozen(%d, %d) = %s, want %s", tc.age, tc.limit, got, tc.want)
		}
	}
	p := &patient{Outbox: db.New(nil, "postrider", "main", 0)}
	if f := p.unfrozen("outbox", 1_600_000_000, ops.Critical); f.SQL[0] != `VACUUM (FREEZE) "postrider"."outbox"` || f.Why == "" {
		t.Errorf("%+v", f)
	}
}

func TestSettingTimes(t *testing.T) {
	for text, want := range map[string]time.Duration{"500": 500 * time.Millisecond, "5s": 5 * time.Second, "2min": 2 * time.Minute, "1h": time.Hour, "0": 0} {
		if got, ok := settingTime(text); !ok || got != want {
			t.Errorf("settingTime(%q) = %v, %t, want %v", text, got, ok, want)
		}
	}
	if _, ok := settingTime("soon"); ok {
		t.Error(`settingTime accepts "soon"`)
	}
}
