package daemon

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/postrider/postrider/relay"
)

type healthAnswer struct {
	OK       bool     `json:"ok"`
	Running  bool     `json:"running"`
	Draining bool     `json:"draining"`
	Down     []string `json:"down,omitempty"` // parts, without the error: the listener has no authentication
}

// healthOf is what a probe is told of one relay.
func healthOf(h relay.Health, ok bool) healthAnswer {
	a := healthAnswer{OK: ok, Running: h.Running, Draining: h.Draining}
	for part := range h.Down {
		a.Down = append(a.Down, part)
	}
	slices.Sort(a.Down)
	return a
}

// fleetAnswer is what a probe is told of a process with several relays: ok when
// each of them is.
type fleetAnswer struct {
	OK     bool                    `json:"ok"`
	Relays map[string]healthAnswer `json:"relays"`
}

// healthHandler answers probes. /healthz looks at the event loops alone: a
// restart does not repair a database that is down.
func healthHandler(units []*unit, metrics http.Handler) http.Handler {
	answer := func(w http.ResponseWriter, good func(relay.Health) bool) {
		all := fleetAnswer{OK: true, Relays: map[string]healthAnswer{}}
		var a any = &all
		for _, u := range units {
			h := u.health()
			one := healthOf(h, good(h))
			all.OK = all.OK && one.OK
			all.Relays[u.name] = one
			if u.name == "" || len(units) == 1 {
				a = &one
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !all.OK {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(a) // the prober has gone: nobody to tell
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, func(h relay.Health) bool { return h.Alive })
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, func(h relay.Health) bool { return h.Ready })
	})
	mux.HandleFunc("GET /scale", func(w http.ResponseWriter, _ *http.Request) {
		loads := make([]load, len(units))
		for i, u := range units {
			loads[i] = u.load()
		}
		serveScale(w, loads)
	})
	mux.Handle("GET /metrics", metrics)
	return mux
}

// load is the work that waits for one relay and its like.
type load struct {
	pending int64
	known   bool // the database has answered
	down    bool // a part is down: what waits is no load
}

func (u *unit) load() load {
	l := load{down: len(u.health().Down) > 0}
	if l.down {
		return l
	}
	s, up := u.meter.look()
	if up {
		l.pending, l.known = s.Pending, true
	}
	return l
}

// serveScale answers an autoscaler with the backlog. During an outage it gets an error instead,
// and leaves the number of relays as it is: another relay reaches no broker either.
func serveScale(w http.ResponseWriter, loads []load) {
	var answer struct {
		Pending int64  `json:"pending"`
		Reason  string `json:"reason,omitempty"`
	}
	for _, l := range loads {
		switch {
		case l.down:
			answer.Reason = "a database or destination is down"
		case !l.known && answer.Reason == "":
			answer.Reason = "the backlog is unknown"
		}
		answer.Pending += l.pending
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if answer.Reason != "" {
		answer.Pending = 0
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(answer) // the client has gone: nobody to tell
}
