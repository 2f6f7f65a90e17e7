package testserver

import (
	"context"
	"testing"
)

func TestRabbitMQ(t *testing.T) {
	needServers(t)
	for _, version := range RabbitMQVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			r := StartRabbitMQ(t, version)
			check(t, r, func(ctx context.Context) error { return r.ready(ctx) })
		})
	}
}
