package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/postrider/postrider/admin"
)

// A preview shows the Nats-Msg-Id that the relay sends: without --pipe that of the pipe main.
func TestCheckShowsThePipeInTheMessageID(t *testing.T) {
	const sample = `{"topic":"orders","key":"k","type":"order.placed","payload":1}`
	for pipe, want := range map[string]string{"": "main/orders/", "search": "search/orders/"} {
		args := []string{"check", "--broker", "nats://127.0.0.1:1", "--samples", "-", "-o", "json"}
		if pipe != "" {
			args = append(args, "--pipe", pipe)
		}
		var found []admin.Checked
		if err := json.Unmarshal([]byte(mustCLI(t, sample, args...)), &found); err != nil || len(found) != 1 {
			t.Fatalf("pipe %q: %+v, %v", pipe, found, err)
		}
		if id := found[0].Headers["Nats-Msg-Id"]; !strings.HasPrefix(id, want) {
			t.Errorf("pipe %q: Nats-Msg-Id is %q, want it to begin with %s", pipe, id, want)
		}
	}
}
