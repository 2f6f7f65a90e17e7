package health

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/relay/internal/port"
)

// Destinations are the reported outages of single destinations. One of which a part is down
// fails and works in one call after the other: after a few relapses in a row its outage ends
// once nothing has failed for a while. It is not safe for concurrent use.
type Destinations map[string]*destination

type destination struct {
	fails    bool          // as of the last answer
	down     bool          // in a reported outage
	relapses int           // outages in a row that began soon after the last one
	worksAt  time.Duration // when it recovered, if it has
	upAt     time.Duration // when the last outage ended
	said     Reasons
}

// Fails records that a destination is down. It returns the fact to report, or nil.
func (d Destinations) Fails(now time.Duration, name string, err error) port.Fact {
	x := d[name]
	if x == nil {
		x = &destination{relapses: -1}
		d[strings.Clone(name)] = x
	}
	x.fails = true
	switch {
	case !x.down:
		x.down, x.said = true, nil
		x.relapses++
		x.said.Fresh(err)
		return port.HealthChanged{Part: "destination " + name, Down: true, Err: err}
	case x.said.Fresh(err):
		return port.ReasonChanged{Part: "destination " + name, Err: err}
	}
	return nil
}

// Works records that a destination has recovered, or untried, that nothing was sent there for
// long. It returns the end of the outage if it must be reported now, and nil otherwise.
func (d Destinations) Works(now time.Duration, name string, untried bool) port.Fact {
	x := d[name]
	if x == nil || !x.fails {
		return nil
	}
	x.fails, x.worksAt = false, now
	if !untried && now < x.endsAt() {
		return nil
	}
	x.down, x.upAt = false, now
	return port.HealthChanged{Part: "destination " + name, Untried: untried}
}

// Ends returns the ends of outages that must be reported now, and forgets what is long past.
func (d Destinations) Ends(now time.Duration) (facts []port.Fact) {
	if len(d) == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(d)) {
		switch x := d[name]; {
		case x.fails:
		case x.down && now >= x.endsAt():
			x.down, x.upAt = false, now
			facts = append(facts, port.HealthChanged{Part: "destination " + name})
		case !x.down && now >= x.upAt+RelapseWithin:
			delete(d, name)
		}
	}
	return facts
}

// Times calls at with the moments at which an outage may end.
func (d Destinations) Times(at func(time.Duration)) {
	for _, x := range d { // order does not matter
		if x.down && !x.fails {
			at(x.endsAt())
		}
	}
}

func (x *destination) endsAt() time.Duration {
	if x.relapses <= RelapsesMost {
		return x.worksAt
	}
	return x.worksAt + calmAfter(x.relapses)
}

// calmAfter is the time without a failure that ends an outage after more than RelapsesMost.
func calmAfter(relapses int) time.Duration {
	return min(PartCalm<<min(relapses-RelapsesMost-1, 4), CalmMost)
}
