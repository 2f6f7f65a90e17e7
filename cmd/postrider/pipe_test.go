package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/ops"
)

// TestPipeCommands adds a pipe, runs, pauses, resumes and removes it, and looks
// at what its relay does each time.
func TestPipeCommands(t *testing.T) {
	file := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	mustCLI(t, "", "migrate", "--store", file)
	t.Run("postgres", func(t *testing.T) {
		pipeCommands(t, outboxOn(t, testserver.SharedPostgres(t, "18")), `pipe "audit" of schema "postrider" was removed`)
	})
	t.Run("sqlite", func(t *testing.T) { pipeCommands(t, file, `pipe "audit" does not exist`) })
}

// pipeCommands has a relay that ends with these words when its pipe is removed.
func pipeCommands(t *testing.T, outbox, removed string) {
	t.Helper()
	server := testserver.StartNATS(t)
	s := newStream(t, server.URL, -1)
	on := func(args ...string) string { return mustCLI(t, "", append(args, "--store", outbox)...) }
	fails := func(code exit.Code, want string, args ...string) {
		t.Helper()
		if got := cli(t, nil, "", append(args, "--store", outbox)...); got.code != code || !strings.Contains(got.err, want) {
			t.Errorf("%v: exit code %d, %s; want %d, %s", args, got.code, got.err, code, want)
		}
	}
	write := func() { mustCLI(t, s.message("a", 10)+s.message("b", 10), "enqueue", "--store", outbox) }
	pipes := func() map[string]ops.Pipe {
		t.Helper()
		var found []ops.Pipe
		if err := json.Unmarshal([]byte(on("pipe", "list", "-o", "json")), &found); err != nil {
			t.Fatal(err)
		}
		byName := map[string]ops.Pipe{}
		for _, p := range found {
			byName[p.Name] = p
		}
		return byName
	}

	fails(2, "make it with `postrider pipe add audit --from now`", "relay", "--pipe", "audit", "--broker", server.URL, "--listen", "")
	fails(2, "missing start", "pipe", "add", "audit")
	fails(2, "which is in the future", "pipe", "add", "audit", "--from", time.Now().Add(time.Hour).Format(time.RFC3339))
	fails(2, "a star before its end", "pipe", "add", "audit", "--from", "now", "--topic", "a*b")
	fails(2, "is not a valid name for a pipe", "pipe", "add", "a b", "--from", "now")
	write()
	if out := on("pipe", "add", "audit", "--from", "beginning", "--key", "a*", "--header", "x=y"); !strings.Contains(out, "key=a* header:x=y") {
		t.Errorf("add says %q", out)
	}
	fails(1, "pipe already exists", "pipe", "add", "audit", "--from", "now")
	on("pipe", "remove", "audit")
	on("pipe", "add", "audit", "--from", "beginning")
	relay := launchRelay(t, outbox, server.URL, "--pipe", "audit", "--lease-ttl", "500ms")
	until(t, "the pipe has carried what was there", relay, func() bool { return s.count() == 2 })
	on("pipe", "pause", "audit", "--reason", "the broker moves")
	relay.says(`msg="pipe paused"`, 1)
	write()
	until(t, "the pipe is paused and its relay lives", relay, func() bool { // whose lease is short
		p := pipes()["audit"]
		return p.Paused && p.PausedFor == "the broker moves" && p.Relays == 1 && p.Behind >= 2
	})
	if out := on("status", "--pipe", "audit"); !strings.Contains(out, "paused: `postrider pipe resume audit`") {
		t.Errorf("status says %q", out)
	}
	until(t, "what was sent is settled", relay, func() bool {
		got := cli(t, nil, "", "pipe", "remove", "audit", "--store", outbox)
		return got.code == exit.Failure && strings.Contains(got.err, "has not carried 2 messages, 0 parked")
	})
	if n := s.count(); n != 2 {
		t.Errorf("%d messages were sent, 2 before the pause", n)
	}
	on("pipe", "resume", "audit")
	until(t, "the resumed pipe has sent its messages", relay, func() bool { return s.count() == 4 })
	on("pipe", "remove", "audit", "--forfeit", "4")
	if code := relay.ends(3 * time.Minute); code != exit.Usage {
		t.Errorf("exit code %d after the pipe was removed, want %d:\n%s", code, exit.Usage, relay.said)
	}
	if relay.said.count(removed) != 1 {
		t.Errorf("the relay does not say once why it ends:\n%s", relay.said)
	}
	if _, there := pipes()["audit"]; there {
		t.Error("the pipe is still there")
	}
	fails(1, "no such pipe", "pipe", "pause", "audit")
}

// A misspelt pipe is an error on SQLite too, and --make-pipe makes one that is meant.
func TestPipeThatDoesNotExist(t *testing.T) {
	server := testserver.StartNATS(t)
	s := newStream(t, server.URL, -1)
	store := "sqlite:" + t.TempDir() + "/shop.db"
	mustCLI(t, "", "migrate", "--store", store)
	for _, line := range []string{"status", "key show k", "relay --listen= --broker " + server.URL, "status --lanes"} {
		got := cli(t, nil, "", append(strings.Fields(line), "--pipe", "audit", "--store", store)...)
		if got.code != exit.Usage || !strings.Contains(got.err, `pipe "audit" does not exist`) {
			t.Errorf("%s: exit code %d, %s", line, got.code, got.err)
		}
	}
	if got := cli(t, nil, "", "doctor", "--pipe", "audit", "--store", store); got.code != exit.Findings || !strings.Contains(got.out, `pipe "audit" does not exist`) {
		t.Errorf("doctor: exit code %d, %s%s", got.code, got.out, got.err)
	}
	relay := launchRelay(t, store, server.URL, "--pipe", "audit", "--make-pipe")
	until(t, "the pipe is there", relay, func() bool { return cli(t, nil, "", "status", "--pipe", "audit", "--store", store).code == exit.OK })
	mustCLI(t, s.message("a", 10), "enqueue", "--store", store)
	until(t, "the pipe carries", relay, func() bool { return s.count() == 1 })
}

func TestPipeOfAStoreWithoutPipes(t *testing.T) {
	got := cli(t, nil, "", "pipe", "list", "--store", "memory:")
	if got.code != exit.Usage || !strings.Contains(got.err, "PostgreSQL has") {
		t.Errorf("exit code %d, %s", got.code, got.err)
	}
}

// Each command that looks at a pipe refuses one that does not exist: an empty list would say
// that nothing is wrong.
func TestUnknownPipeIsRefused(t *testing.T) {
	file := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	mustCLI(t, "", "migrate", "--store", file)
	for _, outbox := range []string{file, outboxOn(t, testserver.SharedPostgres(t, "18"))} {
		for _, args := range [][]string{
			{"status"},
			{"status", "--lanes"},
			{"dead", "list"},
			{"dead", "list", "--all"},
			{"dead", "show", "1"},
			{"dead", "retry", "1", "--reason", "r"},
			{"key", "show", "k"},
			{"message", "show", "01a20ee2-2bdf-74a6-88d0-e6f79c3a6ff9"},
			{"dead", "retry", "--topic", "t", "--reason", "r", "--yes"},
			{"pause", "--lane", "1", "--reason", "r"},
			{"relay", "--broker", "stdout:", "--listen", ""},
		} {
			got := cli(t, nil, "", append(args, "--store", outbox, "--pipe", "nope")...)
			lacks := strings.Contains(got.err, "not supported by this store")
			if !lacks && (got.code != 2 || !strings.Contains(got.err, `pipe "nope"`)) {
				t.Errorf("%s %v: exit code %d\n%s%s", outbox, args, got.code, got.out, got.err)
			}
		}
	}
}
