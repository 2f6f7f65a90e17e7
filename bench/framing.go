package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/postrider/postrider/bench/figures"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/schema/registry"
)

// Faults of a child whose sink has a router: one that writes the format plain, and one that
// writes Confluent's.
const (
	routed = "routed"
	framed = "framed"
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
	if err := fill(ctx, s.pool, "bench", c.messages); err != nil {
		return nil, err
	}
	events := func(r w1Round) float64 { return figures.Rate(c.messages, r.drain.took) }
	cpu := func(r w1Round) float64 { return figures.PerMillion(r.drain.cpu, c.messages) } // µs per message
	orders := [][]string{
		{"", routed, framed}, {framed, routed, ""}, {routed, framed, ""}, {"", framed, routed}, {framed, "", routed}, {routed, "", framed},
	}
	rounds := map[string][]w1Round{}
	for i := -1; i < c.rounds; i++ { // the first one warms up
		round := map[string]w1Round{}
		for _, fault := range orders[(i+1)%len(orders)] {
			var r w1Round
			if err := r.relay(ctx, c, s.pool, s.pg, s.b, fault); err != nil {
				return nil, err
			}
			round[fault] = r
		}
		none, plain, with := round[""], round[routed], round[framed]
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
		None: middle(""), Plain: middle(routed), Framed: middle(framed), Framing: ratios(framed, routed), Routing: ratios(routed, ""),
	}
	res.Verdict = res.Framing.Events.Verdict(1 - framingBar)
	res.CPU = res.Framing.CPU.VerdictMost(1 + framingBar)
	return res, nil
}

// openRouted opens a sink with a route, of the format plain or of Confluent's with a registry
// that has one schema.
func openRouted(ctx context.Context, url, fault string) (broker.Sink, func(), error) {
	if fault == framed {
		return openFramed(ctx, url)
	}
	table, err := route.New([]route.Rule{{}})
	if err != nil {
		return nil, nil, err
	}
	sink, err := kafkabroker.Open(url, &kafkabroker.SinkOptions{Route: table.Route})
	if err != nil {
		return nil, nil, err
	}
	return sink, sink.Close, nil
}

// openFramed opens a sink that writes Confluent's format, with a registry that has one schema.
func openFramed(ctx context.Context, url string) (broker.Sink, func(), error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	answer := func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"subject":"bench-value","version":1,"id":7,"schema":"\"bytes\""}`))
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(answer)}
	go func() { _ = server.Serve(l) }()
	schemas, err := registry.Open("http://"+l.Addr().String(), nil)
	if err != nil {
		return nil, nil, err
	}
	if err := schemas.Resolve(ctx, envelope.Schema{Subject: "bench-value", Version: 1}); err != nil { // a drain asks once, whatever its length
		return nil, nil, err
	}
	table, err := route.New([]route.Rule{{Format: envelope.Confluent, SchemaVersion: 1}})
	if err != nil {
		return nil, nil, err
	}
	sink, err := kafkabroker.Open(url, &kafkabroker.SinkOptions{Route: schemas.Router(table.Route)})
	if err != nil {
		return nil, nil, err
	}
	return schemas.Sink(sink), func() {
		sink.Close()
		schemas.Close()
		_ = server.Close()
	}, nil
}
