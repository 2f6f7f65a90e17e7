package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/schema/registry"
)

// framed is the fault of a child whose sink writes Confluent's format.
const framed = "framed"

// framingResult is the JSON object of the workload framing: medians over the rounds, of drains
// of the same outbox one after the other.
type framingResult struct {
	Workload string  `json:"workload"`
	Messages int     `json:"messages"`
	Rounds   int     `json:"rounds"`
	Plain    perCase `json:"plain"`
	Framed   perCase `json:"framed"`
	Ratio    float64 `json:"framed_of_plain"` // events per second
	CPU      float64 `json:"framed_of_plain_cpu"`
}

type perCase struct {
	Events float64 `json:"events_per_s"`
	CPU    float64 `json:"cpu_s_per_million"`
}

// runFraming drains a backlog plain and framed, in turns.
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
	var plain, with []w1Round
	for i := -1; i < c.rounds; i++ { // the first one warms up
		var one, two w1Round
		for n, r := range map[string]*w1Round{"": &one, framed: &two} { // in either order
			if err := r.relay(ctx, c, s.pool, s.pg, s.b, n); err != nil {
				return nil, err
			}
		}
		say("round %d: plain %.0f/s, framed %.0f/s", i+1, rate(c.messages, one.drain.took), rate(c.messages, two.drain.took))
		if i >= 0 {
			plain, with = append(plain, one), append(with, two)
		}
	}
	res := &framingResult{Workload: "framing", Messages: c.messages, Rounds: c.rounds}
	events := func(r w1Round) float64 { return rate(c.messages, r.drain.took) }
	cpu := func(r w1Round) float64 { return perMillion(r.drain.cpu, c.messages) }
	res.Plain, res.Framed = perCase{median(plain, events), median(plain, cpu)}, perCase{median(with, events), median(with, cpu)}
	res.Ratio, res.CPU = round(res.Framed.Events/res.Plain.Events), round(res.Framed.CPU/res.Plain.CPU)
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
