package natsbroker

import (
	"context"
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

func TestAnUnreachableServerIsSaid(t *testing.T) {
	sink, err := Open("nats://u:hunter2@127.0.0.1:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{{Topic: "orders"}}})
	if len(errs) != 1 || errs[0] == nil {
		t.Fatalf("Deliver = %v, want one error", errs)
	}
	text := errs[0].Error()
	if broker.Classify(errs[0]).Class != broker.ClassOutage || !strings.Contains(text, "not connected") || strings.Contains(text, "headers") {
		t.Errorf("Deliver = %v, want an outage that says there is no connection", errs[0])
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel() // with a connection a round trip would begin; without one the reason is known
	if _, err := sink.Probe(ended, []string{"orders"}); err == nil || !strings.Contains(err.Error(), "not connected") {
		t.Errorf("Probe = %v, want an error that says there is no connection", err)
	}
	if strings.Contains(text, "hunter2") {
		t.Errorf("the error repeats the password: %s", text)
	}
}
