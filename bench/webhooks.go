package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/bench/figures"
	"github.com/postrider/postrider/bench/rows"
	"github.com/postrider/postrider/broker/httpbroker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/pgstore"
)

// webhooksResult is the JSON object of workload webhooks.
type webhooksResult struct {
	Workload string `json:"workload"`
	Messages int    `json:"messages"`
	Rounds   int    `json:"rounds"`
	// One endpoint that takes 20 ms per message: a client that sends sequentially, and
	// the relay from PostgreSQL. Times is the ratio.
	Sequential float64 `json:"sequential_events_per_s"`
	Relay      float64 `json:"relay_events_per_s"`
	Times      float64 `json:"times"`
	// 64 such endpoints: the rate of 62 of them while the other two work, and while
	// one of the two hangs and the other answers 500.
	Undisturbed float64 `json:"undisturbed_events_per_s"`
	Disturbed   float64 `json:"disturbed_events_per_s"`
	Ratio       float64 `json:"ratio"`
	Gate        gate    `json:"gate"`
}

// webhookMessages is a backlog of about ten seconds. In a shorter run the detection of the
// hanging endpoint would take most of the time.
const webhookMessages = 100_000

const (
	hooks    = 64                    // endpoints
	hookWork = 20 * time.Millisecond // an endpoint's time per message
	hanging  = "hook-00"
	failing  = "hook-01"
)

// hookServer serves all endpoints: a plain HTTP server that shares no code with the product.
type hookServer struct {
	*httptest.Server
	mu      sync.Mutex
	ill     bool // hanging hangs, failing fails
	want    int  // messages of the counted endpoints
	arrived int
	all     chan struct{} // closed when all of them have arrived
	seen    []bool
	highest map[int]int
	gate    gate
	stop    chan struct{}
}

func newHookServer() *hookServer {
	h := &hookServer{stop: make(chan struct{})}
	h.Server = httptest.NewServer(h)
	return h
}

// begin clears the counts and expects want of n messages.
func (h *hookServer) begin(n, want int, ill bool) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ill, h.want, h.arrived, h.all = ill, want, 0, make(chan struct{})
	h.seen, h.highest, h.gate = make([]bool, n), make(map[int]int), gate{}
	return h.all
}

func (h *hookServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	payload, err := io.ReadAll(r.Body)
	name := strings.TrimPrefix(r.URL.Path, "/")
	h.mu.Lock()
	ill := h.ill
	h.mu.Unlock()
	switch {
	case err != nil:
		return
	case ill && name == hanging:
		select {
		case <-h.stop:
		case <-r.Context().Done():
		}
		return
	case ill && name == failing:
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	<-time.After(hookWork)
	h.take(name, payload)
}

// take records one message and updates the gate.
func (h *hookServer) take(name string, payload []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, err := rows.Number(payload)
	switch {
	case err != nil || i >= len(h.seen):
		h.gate.Note = "an endpoint received a message that was never written"
		return
	case h.seen[i]:
		h.gate.Duplicates++
		return
	}
	if high, ok := h.highest[i%rows.Keys]; ok && i < high {
		h.gate.Disorder++
	}
	h.seen[i], h.highest[i%rows.Keys] = true, i
	h.gate.Delivered++
	if name == hanging || name == failing {
		return
	}
	if h.arrived++; h.arrived == h.want {
		close(h.all)
	}
}

func (h *hookServer) close() { close(h.stop); h.Server.Close() }

// endpoint returns the endpoint name for topics.
func (h *hookServer) endpoint(name string, topics ...string) httpbroker.Endpoint {
	return httpbroker.Endpoint{
		Name: name, URL: h.URL + "/" + name, Topics: topics, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Secrets: httpbroker.Static("whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="),
	}
}

func runWebhooks(ctx context.Context, c config) (*webhooksResult, error) {
	c.broker = "null"
	s, err := startPG(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.close()
	h := newHookServer()
	defer h.close()
	if err := s.pg.Fill(ctx, "bench", c.messages); err != nil {
		return nil, err
	}
	// Topics by key give each key several messages; otherwise half of the keys would have
	// one.
	if _, err := s.pg.Pool.Exec(ctx, "UPDATE postrider.outbox SET topic = 'hook-' || lpad((substr(key, 5)::int % $1)::text, 2, '0')", hooks); err != nil {
		return nil, fmt.Errorf("write topics: %w", err)
	}
	var others int
	if err := s.pg.Pool.QueryRow(ctx, "SELECT count(*) FROM postrider.outbox WHERE topic <> ALL ($1)", []string{hanging, failing}).Scan(&others); err != nil {
		return nil, fmt.Errorf("count: %w", err)
	}
	one := []httpbroker.Endpoint{h.endpoint("one")}
	var many []httpbroker.Endpoint
	for n := range hooks {
		name := fmt.Sprintf("hook-%02d", n)
		many = append(many, h.endpoint(name, name))
	}
	res := &webhooksResult{Workload: "webhooks", Messages: c.messages, Rounds: c.rounds, Gate: gate{OK: true}}
	var seq, alone, calm, ill []float64
	for range c.rounds {
		for _, m := range []struct {
			to      *[]float64
			measure func() (float64, error)
		}{
			{&seq, func() (float64, error) { return h.sequential(ctx, 100) }},
			{&alone, func() (float64, error) { return h.drain(ctx, s.pg.Pool, one, c.messages, c.messages, false, res) }},
			{&calm, func() (float64, error) { return h.drain(ctx, s.pg.Pool, many, c.messages, others, false, res) }},
			{&ill, func() (float64, error) { return h.drain(ctx, s.pg.Pool, many, c.messages, others, true, res) }},
		} {
			rate, err := m.measure()
			if err != nil {
				return nil, err
			}
			*m.to = append(*m.to, rate)
		}
		last := len(seq) - 1
		say("sequential %.1f/s, relay %.0f/s; 62 of 64 endpoints %.0f/s, beside two faulty ones %.0f/s", seq[last], alone[last], calm[last], ill[last])
	}
	res.Sequential, res.Relay, res.Undisturbed, res.Disturbed = figures.Middle(seq), figures.Middle(alone), figures.Middle(calm), figures.Middle(ill)
	res.Times, res.Ratio = figures.Round(res.Relay/res.Sequential), figures.Round(res.Disturbed/res.Undisturbed)
	return res, nil
}

// sequential sends n messages sequentially with a plain client.
func (h *hookServer) sequential(ctx context.Context, n int) (float64, error) {
	h.begin(n, n, false)
	start := time.Now()
	for i := range n {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL+"/one", bytes.NewReader(fmt.Appendf(nil, "%016d%240d", i, 0)))
		if err != nil {
			return 0, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err
		}
		_, _ = io.Copy(io.Discard, resp.Body) // so that the connection is reused
		_ = resp.Body.Close()
	}
	return float64(n) / time.Since(start).Seconds(), nil
}

// drain lets a relay deliver the backlog and returns the rate of the counted endpoints,
// in messages per second.
func (h *hookServer) drain(ctx context.Context, pool *pgxpool.Pool, endpoints []httpbroker.Endpoint, n, want int, ill bool, res *webhooksResult) (float64, error) {
	for _, sql := range []string{"DELETE FROM postrider.progress", "DELETE FROM postrider.parked", "VACUUM postrider.progress, postrider.parked"} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return 0, fmt.Errorf("rewind: %w", err)
		}
	}
	sink, err := httpbroker.NewSink(endpoints, nil)
	if err != nil {
		return 0, err
	}
	defer sink.Close()
	all := h.begin(n, want, ill)
	life, end := context.WithCancel(ctx)
	defer end()
	ended := make(chan error, 1)
	// Long leases, because senders, endpoints and database share two cores.
	opts := &relay.Options{DrainTimeout: 2 * time.Second, LeaseTTL: 10 * time.Second}
	start := time.Now()
	go func() { ended <- relay.New(pgstore.New(pool, nil), sink, opts).Run(life) }()
	select {
	case <-all:
	case err := <-ended:
		if ctx.Err() != nil { // a signal ends the relay too, without an error
			return 0, errors.Join(fmt.Errorf("interrupted during delivery: %w", context.Cause(ctx)), err)
		}
		return 0, errors.Join(errors.New("the relay ended by itself"), err)
	case <-time.After(10 * time.Minute):
		return 0, errors.New("messages are missing after 10 minutes")
	}
	took := time.Since(start)
	end()
	if err := <-ended; err != nil {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	res.Gate.Delivered += h.gate.Delivered
	res.Gate.Duplicates += h.gate.Duplicates
	res.Gate.Disorder += h.gate.Disorder
	res.Gate.Lost += max(want-h.arrived, 0)
	res.Gate.OK = res.Gate.OK && h.gate.Duplicates == 0 && h.gate.Disorder == 0 && h.gate.Note == "" && h.arrived >= want
	return float64(want) / took.Seconds(), nil
}
