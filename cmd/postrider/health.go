package main

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/postrider/postrider/relay"
)

// logger is the part of slog.Logger that the listener needs.
type logger interface {
	Info(msg string, args ...any)
	Error(msg string, args ...any)
}

type healthAnswer struct {
	OK       bool     `json:"ok"`
	Running  bool     `json:"running"`
	Draining bool     `json:"draining"`
	Down     []string `json:"down,omitempty"` // parts, without the error: the listener has no authentication
}

// healthHandler answers probes. /healthz looks at the event loop alone: a
// restart does not mend a database that is down.
func healthHandler(health func() relay.Health, metrics http.Handler) http.Handler {
	answer := func(w http.ResponseWriter, h relay.Health, ok bool) {
		a := healthAnswer{OK: ok, Running: h.Running, Draining: h.Draining}
		for part := range h.Down {
			a.Down = append(a.Down, part)
		}
		slices.Sort(a.Down)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(a) // the prober has gone: nobody to tell
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		h := health()
		answer(w, h, h.Alive)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		h := health()
		answer(w, h, h.Ready)
	})
	mux.Handle("GET /metrics", metrics)
	return mux
}
