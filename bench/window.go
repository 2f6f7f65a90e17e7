package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/postrider/postrider/bench/figures"
)

// windowResult is the JSON object of the window workload: a backlog drained to RabbitMQ
// with the automatic window and with fixed ones in turn.
type windowResult struct {
	Workload string `json:"workload"`
	Broker   string `json:"broker"`
	Messages int    `json:"messages"`
	Rounds   int    `json:"rounds"`
	Gate     gate   `json:"gate"`
	// Events per second of the relay and of the client's own loop, medians over the
	// rounds.
	Automatic float64            `json:"automatic_events_per_s"`
	Fixed     map[string]float64 `json:"fixed_events_per_s"`
	Produce   float64            `json:"produce_only_events_per_s"`
	// OfBest is the median over the rounds of the automatic window's rate, divided by
	// the rate of the fixed window that is fastest over all rounds.
	OfBest float64 `json:"automatic_of_best_fixed"`
}

// fixedWindows are compared with the automatic window, which is 0.
var fixedWindows = [...]int{128, 512, 2048, 8192}

func runWindow(ctx context.Context, c config) (*windowResult, error) {
	if c.broker != "rabbitmq" {
		return nil, errors.New("only RabbitMQ has an automatic window: use --broker rabbitmq")
	}
	s, err := startServers(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.close()
	say("writing %d messages", c.messages)
	if err := s.db.Fill(ctx, "bench", c.messages); err != nil {
		return nil, err
	}
	res := &windowResult{Workload: "window", Broker: c.broker, Messages: c.messages, Rounds: c.rounds, Fixed: make(map[string]float64)}
	rates := make(map[int][]float64)
	for round := range c.rounds + 1 { // the first round warms up
		for n := range len(fixedWindows) + 2 {
			n = (n + round) % (len(fixedWindows) + 2) // rotate the order, so that no window always follows the same one
			window, r, err := s.tryWindow(ctx, c, n, res)
			if err != nil {
				return nil, fmt.Errorf("round %d: %w", round, err)
			}
			say("round %d: window %s: %.0f/s", round, windowName(window), r)
			if round > 0 {
				rates[window] = append(rates[window], r)
			}
		}
	}
	res.summarize(rates)
	return res, nil
}

// produceOnly is, in place of a window, the client's own loop.
const produceOnly = -1

func windowName(window int) string {
	switch window {
	case produceOnly:
		return "of the client's own loop"
	case 0:
		return "automatic"
	}
	return strconv.Itoa(window)
}

// tryWindow measures the n-th contestant.
func (s *servers) tryWindow(ctx context.Context, c config, n int, res *windowResult) (window int, perSecond float64, err error) {
	if err := s.b.reset(ctx, "bench"); err != nil {
		return 0, 0, err
	}
	count := strconv.Itoa(c.messages)
	if n > len(fixedWindows) {
		u, err := childRun(ctx, "produce", s.b.Name, s.b.URL, "bench", count, "")
		return produceOnly, figures.Rate(c.messages, u.took), err
	}
	url := s.b.URL
	if n > 0 {
		window = fixedWindows[n-1]
		url += "?window=" + strconv.Itoa(window)
	}
	if err := s.db.Rewind(ctx); err != nil {
		return window, 0, err
	}
	u, err := childRun(ctx, "relay", s.url(), s.b.Name, url, count, "")
	if err != nil {
		return window, 0, err
	}
	g, err := s.b.check(ctx, "bench", c.messages)
	if err == nil && !g.OK {
		err = fmt.Errorf("window %s: the gate failed: %+v", windowName(window), g)
	}
	res.Gate = g
	return window, figures.Rate(c.messages, u.took), err
}

func (res *windowResult) summarize(rates map[int][]float64) {
	best := 0
	for _, window := range fixedWindows {
		r := figures.Middle(slices.Clone(rates[window]))
		res.Fixed[strconv.Itoa(window)] = r
		if best == 0 || r > res.Fixed[strconv.Itoa(best)] {
			best = window
		}
	}
	res.Automatic, res.Produce = figures.Middle(slices.Clone(rates[0])), figures.Middle(slices.Clone(rates[produceOnly]))
	ratios := make([]float64, len(rates[0]))
	for i := range ratios {
		ratios[i] = figures.Round(rates[0][i] / rates[best][i])
	}
	res.OfBest = figures.Middle(ratios)
}
