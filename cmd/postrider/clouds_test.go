package main

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
)

// cloud is a server with the API of a cloud's queue service, asked by the service's own
// client alone.
type cloud struct {
	create  func(t *testing.T, topic string)
	receive func(t *testing.T, topic string) []arrival // does not wait
	url     string                                     // for --broker
	remedy  string                                     // the command that creates what is missing, without its name
	suffix  string                                     // of the destinations' names
}

// arrival is a message that a consumer received.
type arrival struct{ key, body, kind string }

// relayToCloud requires every message once and each key in order. A missing destination
// has its remedy in the doctor's answer and in the log, is in the status, and gets its
// messages when it is there.
func relayToCloud(t *testing.T, server *cloud) {
	t.Helper()
	const keys, each = 20, 6
	store := outboxOn(t, testserver.SharedPostgres(t, "18"))
	orders, later := "orders"+rand.Text(), "later"+rand.Text()
	server.create(t, orders)
	var in strings.Builder
	for n := range each {
		for k := range keys {
			fmt.Fprintf(&in, `{"topic":%q,"key":"k%d","type":"order.placed","payload":%d}`+"\n", orders, k, n)
		}
	}
	fmt.Fprintf(&in, `{"topic":%q,"key":"k","type":"order.placed","payload":"late"}`+"\n", later)
	mustCLI(t, in.String(), "enqueue", "--store", store)
	remedy := server.remedy + later + server.suffix
	if got := cli(t, nil, "", "doctor", "--only", "broker", "--all", "--store", store, "--broker", server.url); got.code != exit.Findings || !strings.Contains(got.out, remedy) {
		t.Errorf("the doctor answers %d: %s%s", got.code, got.out, got.err)
	}
	if out := mustCLI(t, in.String(), "check", "--samples", "-", "--broker", server.url); !strings.Contains(out, orders+server.suffix) {
		t.Errorf("check previews no %s%s:\n%s", orders, server.suffix, out)
	}

	p := launchRelay(t, store, server.url)
	next, total := make(map[string]int), 0
	until(t, "all messages arrive", p, func() bool {
		for _, m := range server.receive(t, orders) {
			if want := fmt.Sprint(next[m.key]); m.body != want || m.kind != "order.placed" {
				t.Fatalf("received %+v, want body %s", m, want)
			}
			next[m.key]++
			total++
		}
		return total == keys*each
	})
	if len(next) != keys {
		t.Errorf("keys %v", next)
	}
	until(t, "the missing destination is logged", p, func() bool { return p.said.count(remedy) > 0 })
	until(t, "status names the missing destination", p, func() bool { // with the next report of the relay
		return strings.Contains(mustCLI(t, "", "status", "--lanes", "--store", store), later+server.suffix)
	})
	server.create(t, later)
	until(t, "the message of the missing destination arrives", p, func() bool {
		all := server.receive(t, later)
		return len(all) == 1 && all[0].body == `"late"`
	})
	if more := server.receive(t, orders); len(more) > 0 {
		t.Errorf("%d messages twice", len(more))
	}
	p.stop()
}
