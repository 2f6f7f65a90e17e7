package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
)

func orderOf(t *testing.T, out string) orderAnswer {
	t.Helper()
	var o orderAnswer
	if err := json.Unmarshal([]byte(out), &o); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return o
}

// TestRepair is a night on call: messages are refused, a key is blocked, skipped
// and repaired, a key and a lane are paused and resumed, and what a consumer has
// lost is replayed, with a relay that lives and with none.
func TestRepair(t *testing.T) {
	file := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	mustCLI(t, "", "migrate", "--store", file)
	for name, store := range map[string]string{"postgres": outboxOn(t, testserver.SharedPostgres(t, "18")), "sqlite": file} {
		t.Run(name, func(t *testing.T) { repairOn(t, store) })
	}
}

func repairOn(t *testing.T, store string) {
	t.Helper()
	broker := testserver.SharedNATS(t).URL
	s := newStream(t, broker, 1000)
	on := func(args ...string) string {
		return mustCLI(t, "", append(args, "--store", store, "--actor", "ann")...)
	}
	fails := func(code exit.Code, want string, args ...string) {
		t.Helper()
		if got := cli(t, nil, "", append(args, "--store", store)...); got.code != code || !strings.Contains(got.err, want) {
			t.Errorf("%v: exit code %d, %s; want %d, %s", args, got.code, got.err, code, want)
		}
	}
	fails(2, "give --reason", "dead", "discard", "7")
	fails(2, "no records selected", "replay", "--yes", "--reason", "r")
	fails(2, "missing reason", "replay", "--all", "--yes")
	fails(2, "one of them", "pause", "--reason", "r")
	fails(2, "write NAME=VALUE", "dead", "retry", "--all", "--set-header", "x")
	fails(2, "write a time such as", "replay", "--since", "yesterday")
	if out := on("skip", "--key", "nobody", "--reason", "r", "--yes"); !strings.Contains(out, "nothing matches") {
		t.Errorf("skip of nothing prints %q", out)
	}
	fails(1, "there is no lane 4000", "pause", "--lane", "4000", "--reason", "r")

	relay := launchRelay(t, store, broker)
	mustCLI(t, s.message("a", 4000)+s.message("a", 20)+s.message("b", 4000)+s.message("c", 10), "enqueue", "--store", store)
	until(t, "two dead letters", relay, func() bool { return len(deadOf(t, store)) == 2 && s.count() == 1 })
	if out := on("dead", "retry", "--topic", s.topic, "--class", "rejected"); !strings.Contains(out, "would concern 2 records") || !strings.Contains(out, "add --yes --reason WHY") {
		t.Errorf("a count prints %q", out)
	}
	// Key a continues without its head, which stays a dead letter.
	on("skip", "--key", "a", "--reason", "the shop must open", "--yes")
	until(t, "the messages of key a arrive", relay, func() bool { return s.count() == 2 && len(deadOf(t, store)) == 2 })
	if d := deadOf(t, store, "--key", "a"); len(d) != 1 || d[0].BlocksKey {
		t.Errorf("after the skip: %+v", d)
	}
	// The cause is repaired elsewhere: another topic takes what is large.
	large := newStream(t, broker, 10_000)
	o := orderOf(t, on("dead", "retry", "--topic", s.topic, "--set-topic", large.topic, "--set-header", "mended=yes", "--reason", "moved", "--yes", "-o", "json"))
	if !o.Done || o.Moved != 2 || o.Planned != 2 {
		t.Errorf("order %+v", o)
	}
	until(t, "both arrive at the other topic", relay, func() bool { return large.count() == 2 && len(deadOf(t, store)) == 0 })

	// A paused key waits, others flow.
	if out := on("pause", "--key", "a", "--reason", "importer is mended"); !strings.Contains(out, "key a  pause  done") {
		t.Errorf("pause prints %q", out)
	}
	mustCLI(t, s.message("a", 10)+s.message("d", 10), "enqueue", "--store", store)
	until(t, "key d flows and key a waits", relay, func() bool { st := statusOf(t, store); return s.count() == 3 && st.Parked["waiting"] == 1 })
	if out := on("status"); !strings.Contains(out, "key a since") {
		t.Errorf("status prints %q", out)
	}
	on("resume", "--key", "a", "--reason", "mended")
	until(t, "the messages of key a arrive", relay, func() bool { return s.count() == 4 })

	// Replays reach the stream although it has had the ids a moment ago.
	o = orderOf(t, on("replay", "--key", "d", "--topic", s.topic, "--reason", "lost by the index", "--yes", "-o", "json"))
	if !o.Done || o.Moved != 1 {
		t.Errorf("replay %+v", o)
	}
	until(t, "what is replayed arrives", relay, func() bool { return s.count() == 5 })
	relay.stop()
	if out := on("replay", "--key", "c", "--reason", "later", "--yes"); !strings.Contains(out, "no relay lives") {
		t.Errorf("a replay without a relay prints %q", out)
	}
	on("pause", "--key", "d", "--reason", "nobody lives")
	var entries []answer.Entry
	if err := json.Unmarshal([]byte(on("journal", "-o", "json")), &entries); err != nil {
		t.Fatal(err)
	}
	acts := map[string]int{}
	for _, e := range entries {
		if e.Actor != "ann" || e.Reason == "" {
			t.Errorf("entry %+v", e)
		}
		acts[e.Act+" "+e.Result]++
	}
	for _, want := range []string{"skip asked", "skip done", "retry asked", "retry done", "pause asked", "pause done", "resume done", "replay asked", "replay done"} {
		if acts[want] == 0 {
			t.Errorf("the journal has no %q: %v", want, acts)
		}
	}
}
