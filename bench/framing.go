package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/postrider/postrider/bench/figures"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/schema/registry"
)

// framed is the fault of a child whose sink writes Confluent's format.
const framed = "framed"

// framingBar is the part of its throughput that the format may cost.
const framingBar = 0.03

// framingResult is the JSON object of the workload framing, of pairs of drains of one outbox.
type framingResult struct {
	Workload string         `json:"workload"`
	Messages int            `json:"messages"`
	Rounds   int            `json:"rounds"`
	Plain    perCase        `json:"plain"`
	Framed   perCase        `json:"framed"`
	Ratio    figures.Paired `json:"framed_of_plain"` // events per second
	CPU      figures.Paired `json:"framed_of_plain_cpu"`
	Verdict  string         `json:"verdict"` // of the bar on events per second
}

type perCase struct {
	Events float64 `json:"events_per_s"`
	CPU    float64 `json:"cpu_us_per_message"`
}

// runFraming drains a backlog plain and framed in turns, first the one and then the other.
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
	var plain, with []w1Round
	var ratios, cpus []float64
	for i := -1; i < c.rounds; i++ { // the first one warms up
		var one, two w1Round
		order := []string{"", framed}
		if i%2 == 0 {
			slices.Reverse(order)
		}
		for _, fault := range order {
			r := &one
			if fault == framed {
				r = &two
			}
			if err := r.relay(ctx, c, s.pool, s.pg, s.b, fault); err != nil {
				return nil, err
			}
		}
		say("round %d: plain %.0f/s, %.2f µs of CPU; framed %.0f/s, %.2f µs; ratio %.3f", i+1, events(one), cpu(one), events(two), cpu(two), events(two)/events(one))
		if i >= 0 {
			plain, with = append(plain, one), append(with, two)
			ratios, cpus = append(ratios, events(two)/events(one)), append(cpus, cpu(two)/cpu(one))
		}
	}
	res := &framingResult{Workload: "framing", Messages: c.messages, Rounds: c.rounds, Ratio: figures.Pairs(ratios), CPU: figures.Pairs(cpus)}
	res.Plain, res.Framed = perCase{median(plain, events), median(plain, cpu)}, perCase{median(with, events), median(with, cpu)}
	res.Verdict = res.Ratio.Verdict(1 - framingBar)
	return res, nil
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
