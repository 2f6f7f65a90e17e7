package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/testserver"
)

// TestMain lets a measurement start this binary as its children.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err := run(ctx, os.Args[1:])
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestPeers measures all ways with few messages: no way loses one, and Postrider neither
// doubles one nor breaks the order. The numbers mean nothing.
func TestPeers(t *testing.T) {
	if _, err := testserver.PostgresBin("15"); err != nil {
		testserver.GiveUp(t, err)
	}
	if _, err := testserver.KafkaLibs(); err != nil {
		testserver.GiveUp(t, err)
	}
	c, err := parse([]string{"--messages", "6000", "--rounds", "1", "--rate", "200", "--seconds", "2"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := measure(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	r.print(&text)
	t.Logf("\n%s", text.String())
	if !r.Gate.OK || r.Gate.Duplicates+r.Gate.Disorder > 0 {
		t.Errorf("the gate of Postrider: %+v", r.Gate)
	}
	for _, w := range r.ways {
		o := r.of(w.name)
		if !strings.Contains(text.String(), w.name) {
			t.Errorf("%s is not in the table", w.name)
		}
		_, apart := foreigners[w.name]
		switch {
		case o.Absent != "" && w.absent != nil && (apart || w.name == "debezium"):
			t.Logf("%s could not be started here: %s", w.name, o.Absent)
		case o.Absent != "":
			t.Errorf("%s: %s", w.name, o.Absent)
		case o.Rounds != 1 || o.Events <= 0 || o.RSS <= 0 || !o.Gate.OK:
			t.Errorf("%s: %+v", w.name, o)
		}
		if _, ok := r.Latency[w.name]; !ok && w.kind != client && w.absent == nil {
			t.Errorf("%s has no latency", w.name)
		}
	}
	if r.Ours.Dead != 0 {
		t.Errorf("Postrider updated or deleted %v of its messages", r.Ours.Dead)
	}
	line, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{`"gate":{"ok":true`, `"of_client_same":`, `"of_client_raw":`, `"of_go_pq_cdc":`, `"of_best_table_relay":`, `"postrider":{"events_per_s":`, `"cpu_s_per_million":`, `"rss_mib":`, `"dead_tuples":`} {
		if !strings.Contains(string(line), key) {
			t.Errorf("the JSON object has no %s:\n%s", key, line)
		}
	}
	if r.Ratios.Same == nil || r.Ratios.Raw == nil || r.Ratios.Table == nil || (r.Ratios.CDC == nil) != (r.Peers[nameCDC].Absent != "") {
		t.Errorf("ratios: %+v", r.Ratios)
	}
}

// TestGate writes a topic in which records are lost, doubled, out of order and strange.
func TestGate(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	k := &kafka{addr: addr, admin: kadm.NewClient(client)}
	if err := k.topic(t.Context(), "gate"); err != nil {
		t.Fatal(err)
	}
	send := func(i int) {
		t.Helper()
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "gate", Key: []byte(keyOf(i)), Value: []byte(payloadOf(i))}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	const n = keys + 3
	for i := range n {
		switch i {
		case 1, 7: // 1 comes late, and 7 never
		case 9:
			send(i)
			send(i)
		case 0, 2, 3, keys, keys + 1, keys + 2:
			send(i)
		}
	}
	send(1)
	send(n) // was never written
	g, err := k.count(t.Context(), "gate", n)
	if err != nil {
		t.Fatal(err)
	}
	want := gate{Delivered: 10, Lost: n - 8, Duplicates: 1, Disorder: 1, Strange: 1}
	if g != want {
		t.Errorf("got %+v, want %+v", g, want)
	}
}

// TestPeersOnMySQL does the same on MariaDB, with the peers that read it.
func TestPeersOnMySQL(t *testing.T) {
	if err := testserver.MySQLPresent(testserver.MariaDB10); err != nil {
		testserver.GiveUp(t, err)
	}
	if _, err := testserver.KafkaLibs(); err != nil {
		testserver.GiveUp(t, err)
	}
	c, err := parse([]string{"--store", testserver.MariaDB10, "--messages", "6000", "--rounds", "1", "--rate", "200", "--seconds", "2"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := measure(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	r.print(&text)
	t.Logf("\n%s", text.String())
	if !r.Gate.OK || r.Gate.Duplicates+r.Gate.Disorder > 0 {
		t.Errorf("the gate of Postrider: %+v", r.Gate)
	}
	for _, w := range r.ways {
		o := r.of(w.name)
		_, apart := foreigners[w.name]
		switch {
		case o.Absent != "" && w.absent != nil && apart:
			t.Logf("%s could not be started here: %s", w.name, o.Absent)
		case o.Absent != "":
			t.Errorf("%s: %s", w.name, o.Absent)
		case o.Rounds != 1 || o.Events <= 0 || o.RSS <= 0 || !o.Gate.OK:
			t.Errorf("%s: %+v", w.name, o)
		}
	}
}

// TestRatios compares with the better peer of each round, and leaves out what was not measured.
func TestRatios(t *testing.T) {
	c := config{rounds: 3}
	all := ways(postgres, nil)
	for _, w := range all {
		if w.name == nameCDC {
			w.absent = errors.New("not here")
		}
	}
	r := newReport(c, all, &lab{engine: &pgEngine{&testserver.Postgres{}}})
	for round, events := range []float64{100, 300, 200} {
		r.add(nameOurs, round, numbers{Events: events}, gate{OK: true})
		r.add("river", round, numbers{Events: 10}, gate{OK: true})
		if round != 1 {
			r.add("skip-locked", round, numbers{Events: 50}, gate{OK: true, Disorder: 4})
		}
	}
	r.finish()
	if r.Ratios.CDC != nil || r.Ratios.Same != nil || r.Ratios.Table == nil || *r.Ratios.Table != 4 {
		t.Errorf("ratios %+v", r.Ratios)
	}
	if r.Ours.Events != 200 || r.Peers[nameCDC].Absent != "not here" || r.Peers["skip-locked"].Gate.Disorder != 4 || r.Peers["skip-locked"].Rounds != 2 {
		t.Errorf("%+v, %+v", r.Ours, r.Peers["skip-locked"])
	}
	r.add(nameBest, 0, numbers{}, gate{OK: true, Duplicates: 1})
	if r.Gate.OK {
		t.Error("the gate passes a duplicate")
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--broker nats":     "unknown broker",
		"--messages 10":     "at least 2000 messages",
		"--output xml":      "unknown output",
		"--only river,rive": `unknown way "rive"`,
		"W1":                "unexpected argument",
	} {
		if _, err := parse(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
