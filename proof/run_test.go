package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/proof/member"
)

// TestMain also runs the test binary as an endpoint or a consumer.
func TestMain(m *testing.M) {
	if os.Getenv(endpointFile) != "" {
		fmt.Fprintln(os.Stderr, beEndpoint())
		os.Exit(2)
	}
	if os.Getenv(member.Env) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		code := beMember(ctx)
		stop()
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// TestEndpoint kills an endpoint: the requests that it has answered survive and are
// counted once.
func TestEndpoint(t *testing.T) {
	s, err := openBroker(t.Context(), webhook)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	url, _, _ := strings.Cut(s.URL, "#")
	for i := range 3 {
		resp, err := http.Post(url, "text/plain", strings.NewReader(fmt.Sprintf("k:%d:x", i+1)))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if n, err := s.counted(t.Context()); err != nil || n != i+1 || resp.StatusCode != http.StatusNoContent {
			t.Fatalf("counted %d of %d requests, %v, status %s", n, i+1, err, resp.Status)
		}
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := s.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	c := newChecker()
	if err := s.Read(t.Context(), topic, func(r brokers.Record) { c.add(r) }); err != nil {
		t.Fatal(err)
	}
	if r := c.judge(map[string]int{"k": 3}); !r.OK || r.Delivered != 3 {
		t.Errorf("%+v", r)
	}
}

// TestCampaign runs a small campaign: the shipped binary and a real broker, both killed
// repeatedly. The matrix runs one for each broker.
func TestCampaign(t *testing.T) {
	names := []string{"nats"}
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		names = brokerNames()
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
			defer cancel()
			c := Config{Broker: name, Postgres: "15", Messages: 20_000, Writers: 4, Kills: 4, BrokerKills: 4, Freeze: 3 * time.Second, Relays: 1}
			r, err := Run(ctx, c)
			if err != nil {
				testserver.GiveUp(t, err)
			}
			t.Logf("%+v", r)
			if !r.OK || r.Kills != c.Kills || r.BrokerKills+r.BrokerFreezes != c.BrokerKills || r.InFlight == 0 {
				t.Errorf("the campaign is incomplete, or a promise is broken: %+v", r)
			}
		})
	}
}

// TestFailover runs the campaign on a Patroni cluster, in the matrix: a relay with several
// hosts in its URL survives every change of the leader.
//
// Promises: L, S
func TestFailover(t *testing.T) {
	if os.Getenv("POSTRIDER_MATRIX") != "1" {
		t.Skip("eight minutes: POSTRIDER_MATRIX=1, or go run ./proof failover --kills 1 --switchovers 1 --freezes 0 --outages 0")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	c := FailoverConfig{Kills: 10, Switchovers: 10, Freezes: 1, Outages: 1, Messages: 20_000, Writers: 4, Relays: 1, Within: 3 * time.Second}
	r, err := RunFailover(ctx, c)
	if err != nil {
		testserver.GiveUp(t, err)
	}
	t.Logf("%+v", r)
	if !r.OK || len(r.Changes) != c.Kills+c.Switchovers+c.Freezes+c.Outages || r.Acknowledged == 0 {
		t.Errorf("the campaign is incomplete, or a promise is broken: %+v", r)
	}
}
