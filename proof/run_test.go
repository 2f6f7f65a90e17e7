package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
)

// TestCampaign is a small one: the shipped binary and a real broker, both killed
// again and again. The matrix has one for each broker.
func TestCampaign(t *testing.T) {
	names := []string{"nats"}
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		names = brokerNames()
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			c := Config{Broker: name, Postgres: "15", Messages: 20_000, Writers: 4, Kills: 4, BrokerKills: 4, Freeze: 3 * time.Second, Relays: 1}
			r, err := Run(ctx, c)
			if err != nil {
				testserver.GiveUp(t, err)
			}
			t.Logf("%+v", r)
			if !r.OK || r.Kills != c.Kills || r.BrokerKills+r.BrokerFreezes != c.BrokerKills || r.InFlight == 0 {
				t.Errorf("the campaign proves nothing, or the opposite: %+v", r)
			}
		})
	}
}
