package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/sqlitestore"
)

// The status and the doctor tell what a lane waits for, with the error of the broker.
func TestStatusTellsWhatLanesWaitFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.db")
	url := "sqlite:" + path
	mustCLI(t, "", "migrate", "--store", url, "--lanes", "1")
	mustCLI(t, `{"topic":"orders","key":"k","payload_text":"x"}`+"\n", "enqueue", "--store", url)
	if out := mustCLI(t, "", "status", "--lanes", "--store", url); !strings.Contains(out, "a relay: none holds the lane") {
		t.Errorf("without a relay:\n%s", out)
	}
	if out := mustCLI(t, "", "key", "show", "never", "--store", url); !strings.Contains(out, "unknown") || !strings.Contains(out, "no unsent message of this key") || strings.Contains(out, "postrider relay") {
		t.Errorf("of a key that no message has:\n%s", out)
	}
	s, err := sqlitestore.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	held := []store.Held{{Destination: "orders", Since: time.Now(), Code: "UNKNOWN_TOPIC", Error: "no such topic"}}
	req := store.LeaseRequest{BootID: "a", Instance: "host/1", TTL: time.Minute, Report: store.Report{Held: held, Trouble: []string{"destination orders is down"}}}
	if _, err := s.Lease(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	newest, err := s.Office().Samples.Newest(t.Context(), 1, 0)
	if err != nil || len(newest) != 1 {
		t.Fatal(newest, err)
	}
	const command = "postrider doctor --only relays"
	const reason = "the destination orders: UNKNOWN_TOPIC: no such topic"
	for want, args := range map[string][]string{
		"waits for":                     {"status"},
		"WAITS FOR":                     {"status", "--lanes"},
		"next: " + command + "\n":       {"key", "show", "k"},
		"state      Pending":            {"message", "show", newest[0].ID},
		`"waits_for":"` + reason:        {"status", "-o", "json"},
		"relay host/1 sends nothing to": {"doctor", "--only", "relays"},
	} {
		got := cli(t, nil, "", append(args, "--store", url)...)
		if !strings.Contains(got.out, want) || !strings.Contains(got.out, reason) || strings.Contains(got.out, "orders is down\n") {
			t.Errorf("%v: code %d\n%s%s", args, got.code, got.out, got.err)
		}
	}
}

// A held destination is named at the lanes that have messages for it, and at no others.
func TestLanesWaitForTheirOwnDestinations(t *testing.T) {
	for name, url := range map[string]string{
		"sqlite":   "sqlite:" + filepath.Join(t.TempDir(), "shop.db"),
		"postgres": testserver.SharedPostgres(t, "18").Database(t),
	} {
		t.Run(name, func(t *testing.T) {
			mustCLI(t, "", "migrate", "--store", url, "--lanes", "2")
			lines := `{"topic":"orders","key":"k","payload_text":"x"}` + "\n"
			for i := range 20 {
				lines += fmt.Sprintf(`{"topic":"mails","key":"m%d","payload_text":"x"}`+"\n", i)
			}
			mustCLI(t, lines, "enqueue", "--store", url)
			st, err := open.Store(&open.Settings{Store: url})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			req := store.LeaseRequest{BootID: "a", Instance: "host/1", TTL: time.Minute, Report: store.Report{Held: []store.Held{{Destination: "orders", Since: time.Now(), Error: "no such topic"}}}}
			if _, err := st.Store.Lease(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			held := 0
			for _, l := range statusOf(t, url).Lanes {
				if l.WaitsFor != "" {
					held++
				}
				if l.Pending == 0 || l.WaitsFor != "" && l.WaitsFor != "the destination orders: no such topic" {
					t.Errorf("%+v", l)
				}
			}
			if held != 1 {
				t.Errorf("%d lanes wait for orders, want 1", held)
			}
		})
	}
}
