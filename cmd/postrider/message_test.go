package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore"
)

// The life of a message and of its key, as a person sees them, each with the command
// that repairs it.
func TestMessageShow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.db")
	url := "sqlite:" + path
	mustCLI(t, "", "migrate", "--store", url, "--lanes", "1")
	mustCLI(t, strings.Repeat(`{"topic":"orders","key":"it's","payload_text":"secret text"}`+"\n", 3), "enqueue", "--store", url)
	st, err := sqlitestore.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	newest, err := st.Office().Samples.Newest(t.Context(), 3, 0)
	if err != nil {
		t.Fatal(err)
	}
	first, second, third := newest[2].ID, newest[1].ID, newest[0].ID
	show := func(id string, more ...string) (l answer.Life) {
		t.Helper()
		args := append([]string{"message", "show", id, "--store", url}, more...)
		out := mustCLI(t, "", append(args, "-o", "json")...)
		if err := json.Unmarshal([]byte(out), &l); err != nil {
			t.Fatal(err)
		}
		text := mustCLI(t, "", args...)
		if lines := strings.Split(strings.TrimSpace(text), "\n"); l.Do != "" && lines[len(lines)-1] != "next: "+l.Do || l.Do == "" && strings.Contains(text, "next:") || strings.Contains(text+out, "secret text") {
			t.Errorf("the text does not end with the command %q, or shows the payload:\n%s", l.Do, text)
		}
		return l
	}
	wants := func(id, state, do string) answer.Life {
		t.Helper()
		l := show(id)
		if l.State != state || l.Do != do || l.Topic != "orders" || l.Key != "it's" || time.Since(l.Enqueued) > time.Minute {
			t.Errorf("message %s: %+v, want state %s and the command %q", id, l, state, do)
		}
		return l
	}
	wants(first, ops.StatePending, "postrider relay")

	grant, err := st.Lease(t.Context(), store.LeaseRequest{BootID: "b", Instance: "till", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if l := wants(first, ops.StateInProgress, "postrider doctor --only relays,lanes,lag,parked"); l.Owner != "till" {
		t.Errorf("the owner is %q", l.Owner)
	}
	b, err := st.Read(t.Context(), []store.LaneRead{{MaxRecords: 10}})
	if err != nil {
		t.Fatal(err)
	}
	settle := func(epoch int64, position store.Position, park ...store.Park) {
		t.Helper()
		s := store.Settlement{BootID: "b", Epoch: grant.Lanes[0].Epoch + epoch, Position: position, Park: park}
		if lost, err := st.Settle(t.Context(), []store.Settlement{s}); err != nil || len(lost) > 0 {
			t.Fatal(lost, err)
		}
	}
	at := func(i int, p store.Park) store.Park {
		p.Seq, p.Message = b[0].Meta[i].Seq, b[0].Messages[i]
		return p
	}
	failed := store.Park{State: store.Retry, Captures: true, DueIn: time.Hour, Attempts: 1, Class: "failed", Code: "NOT_NOW", Error: "come back"}
	settle(0, b[0].Position, at(1, failed), at(2, store.Park{State: store.Waiting}))
	wants(first, ops.StateSent, "")
	l := wants(second, ops.StateFailed, "postrider dead retry 2 --reason WHY")
	if left := time.Until(l.NextAttempt); left < 50*time.Minute || left > time.Hour || len(l.History) != 1 || l.History[0].Code != "NOT_NOW" {
		t.Errorf("next attempt %v, history %+v", l.NextAttempt, l.History)
	}
	if l := wants(third, ops.StatePending, "postrider message show "+second); l.Behind != "2" {
		t.Errorf("it waits behind %q", l.Behind)
	}
	if out := mustCLI(t, "", "dead", "list", "--all", "--store", url); !strings.Contains(out, "NEXT ATTEMPT") {
		t.Errorf("list prints no next attempt:\n%s", out)
	}
	gone := failed
	gone.State, gone.Attempts = store.Dead, 2
	settle(1, nil, at(1, gone))
	wants(second, ops.StateDead, "postrider dead retry 2 --reason WHY")
	if out := mustCLI(t, "", "dead", "show", "2", "--store", url); strings.Count(out, "NOT_NOW") != 3 {
		t.Errorf("show prints no attempts:\n%s", out)
	}
	if out := mustCLI(t, "", "dead", "list", "--code", "NOT_NOW", "--store", url); !strings.Contains(out, second) && !strings.Contains(out, "come back") {
		t.Errorf("list by code:\n%s", out)
	}
	var k answer.Key
	if err := json.Unmarshal([]byte(mustCLI(t, "", "key", "show", "it's", "--store", url, "-o", "json")), &k); err != nil {
		t.Fatal(err)
	}
	if k.State != "blocked" || k.Parked["waiting"] != 1 || k.Parked["dead"] != 1 || k.Head == nil || k.Head.ID != second || k.Do != "postrider dead retry 2 --reason WHY" {
		t.Errorf("key: %+v", k)
	}
	if text := mustCLI(t, "", "key", "show", "it's", "--store", url); !strings.HasSuffix(text, "next: "+k.Do+"\n") || !strings.Contains(text, "till") {
		t.Errorf("key:\n%s", text)
	}
	mustCLI(t, "", "migrate", "inbox", "--store", url)
	if l := show(first, "--consumer", "billing"); l.Consumer == nil || l.Consumer.Claim != "" {
		t.Errorf("a consumer that did not receive it: %+v", l.Consumer)
	}
	for args, want := range map[string]string{
		"01900000-0000-7000-8000-000000000000": "--at",
		"5f0a9d1c-3b52-4a7e-9c33-0f6f1c2d3e4f": "not a UUIDv7",
		"x":                                    "must be a UUID",
	} {
		if got := cli(t, nil, "", "message", "show", args, "--store", url); got.code == 0 || !strings.Contains(got.err, want) || strings.Count(got.err, "\n") != 1 {
			t.Errorf("%s: exit code %d: %s", args, got.code, got.err)
		}
	}
}
