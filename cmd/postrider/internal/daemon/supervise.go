package daemon

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/postrider/postrider/cmd/postrider/internal/systemd"
)

// supervised tells the service manager, if one started the process, how its relays fare, and returns what ends that. A
// manager that cannot be reached is no reason to carry nothing.
func (p *Process) supervised(ctx context.Context, units []*unit) (end func()) {
	report := func(err error) { p.Logger.WarnContext(ctx, "service manager not notified", "error", err) }
	m, err := systemd.Open(p.LookupEnv)
	if err != nil {
		report(err)
	}
	return m.Follow(ctx, func() systemd.State { return stateOf(units) }, report)
}

// stateOf is ready and live as /readyz and /healthz are: when each relay is. The line has no error, which may name hosts.
func stateOf(units []*unit) systemd.State {
	s := systemd.State{Ready: true, Live: true}
	var waiting []string
	for _, u := range units {
		h := u.health()
		s.Live = s.Live && h.Alive
		if h.Ready {
			continue
		}
		s.Ready = false
		why := "is starting"
		if len(h.Down) > 0 {
			why = "waits for " + strings.Join(slices.Sorted(maps.Keys(h.Down)), ", ")
		}
		name := "relay"
		if u.name != "" {
			name += " " + u.name
		}
		waiting = append(waiting, name+" "+why)
	}
	const most = 3
	switch n := len(waiting); {
	case n == 0:
		s.Status = fmt.Sprintf("ready: %d of %d relays", len(units), len(units))
	case n > most:
		s.Status = fmt.Sprintf("%s and %d more", strings.Join(waiting[:most], "; "), n-most)
	default:
		s.Status = strings.Join(waiting, "; ")
	}
	return s
}
