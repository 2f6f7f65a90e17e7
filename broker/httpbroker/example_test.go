package httpbroker_test

import (
	"fmt"
	"net/http"
	"time"

	"github.com/postrider/postrider/broker/httpbroker"
)

func ExampleOpen() {
	sink, err := httpbroker.Open("https://hooks.example.com/in#secret-env=HOOK_SECRET&rate=100", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sink.Close()
	// relay.New(store, sink, nil).Run(ctx)
}

func ExampleOpenSource() {
	source, err := httpbroker.OpenSource("http://127.0.0.1:8080/#secret-env=HOOK_SECRET&insecure=true", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer source.Close()
	// consumer.New(source, ...).Run(ctx)
}

// Two endpoints: the first that names a topic gets its messages.
func ExampleNewSink() {
	sink, err := httpbroker.NewSink([]httpbroker.Endpoint{
		{Name: "billing", Topics: []string{"orders.*"}, URL: "https://billing.example.com/hooks", Secrets: httpbroker.File("/run/secrets/billing")},
		{Name: "rest", URL: "https://hooks.example.com/in", Secrets: httpbroker.File("/run/secrets/rest"), Rate: 100},
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sink.Close()
	// relay.New(store, sink, nil).Run(ctx)
}

// A source in a server of the application.
func ExampleNewSource() {
	source, err := httpbroker.NewSource(&httpbroker.SourceOptions{Secrets: httpbroker.File("/run/secrets/billing")})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer source.Close()
	mux := http.NewServeMux()
	mux.Handle("POST /hooks", source)
	server := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	_ = server // and consumer.New(source, ...).Run(ctx)
}
