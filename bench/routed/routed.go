// Package routed opens sinks with a route, for the workload that measures what routes and frames cost.
package routed

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/schema/registry"
)

// Plain opens a sink of Kafka with a route of the format plain.
func Plain(url string) (broker.Sink, func(), error) {
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

// Framed opens a sink of Kafka that writes Confluent's format, with a registry that has one schema.
func Framed(ctx context.Context, url string) (broker.Sink, func(), error) {
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
