package daemon

import (
	"testing"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
)

// A payload that a consumer must fetch is as young as lets it stay long enough.
func TestClaimsStayHalfOfTheRetention(t *testing.T) {
	set, engine := open.Settings{Store: "postgres://h/db"}, Engine{ClaimAbove: 100}
	for _, tc := range []struct {
		keeps admin.KeeperOptions
		want  time.Duration
	}{
		{admin.KeeperOptions{OlderThan: 10 * time.Hour}, 5 * time.Hour},
		{admin.KeeperOptions{OlderThan: 10 * time.Hour, Payloads: 4 * time.Hour}, 2 * time.Hour},
		{admin.KeeperOptions{Off: true}, 0},
	} {
		if p, err := engine.claims(&set, &tc.keeps); err != nil || p.MaxAge != tc.want || p.Schema != "postrider" {
			t.Errorf("%+v: %+v, %v", tc.keeps, p, err)
		}
	}
}
