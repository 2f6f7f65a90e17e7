package metrics_test

import (
	"net/http"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/consumer/metrics"
	"github.com/postrider/postrider/dialect"
)

// A service's consumers on one page for Prometheus.
func ExampleHandler() {
	bus := membroker.New(nil) // in a service an adapter's source
	c := consumer.New(bus.Source("billing", "orders"), consumer.SQL(nil, dialect.Postgres), &consumer.Options{Name: "billing"})

	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler(c))
}
