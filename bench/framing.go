package main

import (
	"context"
	"fmt"

	"github.com/postrider/postrider/bench/figures"
)

// Faults of a child whose sink has a router: one that writes the format plain, and one that
// writes Confluent's.
const (
	plainRoute = "plain-route"
	framed     = "framed"
)

// framingBar is the part of throughput and CPU that the format may cost.
const framingBar = 0.03

// framingResult is the JSON object of the workload framing, of drains of one outbox in turns.
type framingResult struct {
	Workload string        `json:"workload"`
	Messages int           `json:"messages"`
	Rounds   int           `json:"rounds"`
	None     perCase       `json:"without_route"`
	Plain    perCase       `json:"plain_route"`
	Framed   perCase       `json:"framed"`
	Framing  framingRatios `json:"framed_of_plain_route"`
	Routing  framingRatios `json:"plain_route_of_none"`
	Verdict  string        `json:"verdict"`     // of the bar on events per second of framing
	CPU      string        `json:"verdict_cpu"` // of the bar on CPU per message of framing
}

type perCase struct {
	Events float64 `json:"events_per_s"`
	CPU    float64 `json:"cpu_us_per_message"`
}

type framingRatios struct {
	Events figures.Paired `json:"events_per_s"`
	CPU    figures.Paired `json:"cpu_us_per_message"`
}

// runFraming drains a backlog without a route, with one of the format plain and framed, in
// turns; each round has the next order.
func runFraming(ctx context.Context, c config) (*framingResult, error) {
	if c.broker != "kafka" {
		return nil, fmt.Errorf("workload framing is for --broker kafka\n%w", errUsage)
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
	events := func(r w1Round) float64 { return figures.Rate(c.messages, r.drain.took) }
	cpu := func(r w1Round) float64 { return figures.PerMillion(r.drain.cpu, c.messages) } // µs per message
	orders := [][]string{
		{"", plainRoute, framed}, {framed, plainRoute, ""}, {plainRoute, framed, ""}, {"", framed, plainRoute}, {framed, "", plainRoute}, {plainRoute, "", framed},
	}
	rounds := map[string][]w1Round{}
	for i := -1; i < c.rounds; i++ { // the first one warms up
		round := map[string]w1Round{}
		for _, fault := range orders[(i+1)%len(orders)] {
			var r w1Round
			if err := r.relay(ctx, c, s, fault); err != nil {
				return nil, err
			}
			round[fault] = r
		}
		none, plain, with := round[""], round[plainRoute], round[framed]
		say("round %d: no route %.0f/s, %.2f µs of CPU; plain %.0f/s, %.2f µs; framed %.0f/s, %.2f µs; framed of plain %.3f",
			i+1, events(none), cpu(none), events(plain), cpu(plain), events(with), cpu(with), events(with)/events(plain))
		if i >= 0 {
			for fault, r := range round {
				rounds[fault] = append(rounds[fault], r)
			}
		}
	}
	ratios := func(of, base string) framingRatios {
		var e, u []float64
		for i := range rounds[of] {
			e = append(e, events(rounds[of][i])/events(rounds[base][i]))
			u = append(u, cpu(rounds[of][i])/cpu(rounds[base][i]))
		}
		return framingRatios{figures.Pairs(e), figures.Pairs(u)}
	}
	middle := func(fault string) perCase { return perCase{median(rounds[fault], events), median(rounds[fault], cpu)} }
	res := &framingResult{
		Workload: "framing", Messages: c.messages, Rounds: c.rounds,
		None: middle(""), Plain: middle(plainRoute), Framed: middle(framed), Framing: ratios(framed, plainRoute), Routing: ratios(plainRoute, ""),
	}
	res.Verdict = res.Framing.Events.Verdict(1 - framingBar)
	res.CPU = res.Framing.CPU.VerdictMost(1 + framingBar)
	return res, nil
}
