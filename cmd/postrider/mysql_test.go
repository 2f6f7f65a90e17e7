package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/demo"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
)

// The commands create an outbox in MySQL and show what plain SQL writes into it. A missing
// ability is an error that names it.
func TestMySQL(t *testing.T) {
	for _, version := range testserver.MySQLVersions() {
		t.Run(version, func(t *testing.T) {
			server := testserver.SharedMySQL(t, version)
			url := server.Database(t)
			mustCLI(t, "", "migrate", "--store", url, "--lanes", "4")
			query := "insert into postrider_outbox (topic, `key`, payload) values ('orders', 'k', '{}')"
			if _, err := server.Query(t.Context(), url[strings.LastIndex(url, "/")+1:], query); err != nil {
				t.Fatal(err)
			}
			if got := cli(t, nil, "", "status", "--store", url, "--output", "json"); got.code != 0 || !strings.Contains(got.out, `"pending":1,`) {
				t.Errorf("status: exit code %d\n%s%s", got.code, got.out, got.err)
			}
			if got := cli(t, nil, "", "status", "--store", url, "--pipe", "nobody"); got.code != exit.Usage || !strings.Contains(got.err, `pipe "nobody" does not exist`) {
				t.Errorf("status of an unknown pipe: exit code %d\n%s%s", got.code, got.out, got.err)
			}
			got := cli(t, nil, "", "prune", "--older-than", "1h", "--reason", "test", "--store", url)
			if got.code != exit.OK || !strings.Contains(got.out, "0 rows") {
				t.Errorf("prune: exit code %d\n%s%s", got.code, got.out, got.err)
			}
			got = cli(t, nil, "", "prune", "--payload-retention", "1h", "--older-than", "2h", "--reason", "test", "--store", url)
			if got.code != exit.Usage || !strings.Contains(got.err, "it lacks removal of payloads") {
				t.Errorf("prune --payloads: exit code %d\n%s", got.code, got.err)
			}
			mustCLI(t, "", "pipe", "add", "audit", "--from", "beginning", "--topic", "orders", "--reason", "test", "--store", url)
			if got := cli(t, nil, "", "pipe", "list", "--store", url); got.code != exit.OK || !strings.Contains(got.out, "topic=orders") {
				t.Errorf("pipe list: exit code %d\n%s%s", got.code, got.out, got.err)
			}
			mustCLI(t, "", "pipe", "pause", "audit", "--reason", "test", "--store", url)
			if got := cli(t, nil, "", "status", "--store", url, "--pipe", "audit"); got.code != exit.OK || !strings.Contains(strings.ToLower(got.out), "paused") {
				t.Errorf("status of a paused pipe: exit code %d\n%s%s", got.code, got.out, got.err)
			}
			mustCLI(t, "", "pipe", "remove", "audit", "--forfeit", "1", "--reason", "test", "--store", url)
			got = cli(t, nil, "", "dead", "retry", "--all", "--yes", "--reason", "test", "--store", url)
			if got.code == exit.Failure || strings.Contains(got.err, "not supported") {
				t.Errorf("dead retry of nothing: exit code %d\n%s%s", got.code, got.out, got.err)
			}
			if got := cli(t, nil, "", "journal", "--store", url, "--output", "json"); got.code != exit.OK {
				t.Errorf("journal: exit code %d\n%s", got.code, got.err)
			}
			if got := cli(t, nil, "", "doctor", "--store", url); !strings.Contains(got.out, "no heartbeat from a relay") {
				t.Errorf("doctor: exit code %d\n%s%s", got.code, got.out, got.err)
			}
			got = cli(t, nil, "", "migrate", "--store", url, "--adopt")
			if got.code != exit.OK || !strings.Contains(got.out, "nothing to adopt") {
				t.Errorf("migrate --adopt of a healthy outbox: exit code %d\n%s%s", got.code, got.out, got.err)
			}
		})
	}
}

// The demo has a database of its own on the server, and leaves nothing behind.
func TestDemoOnMySQL(t *testing.T) {
	server := testserver.SharedMySQL(t, testserver.MariaDB10)
	got := cli(t, nil, "", "demo", "--orders", "60", "--kill", "1", "--output", "json", "--store", server.Database(t))
	if got.code != 0 {
		t.Fatalf("exit code %d\n%s\n%s", got.code, got.out, got.err)
	}
	var answer demo.Answer
	if err := json.Unmarshal([]byte(got.out), &answer); err != nil {
		t.Fatalf("stdout is no JSON object: %v\n%s", err, got.out)
	}
	if answer.Orders != 60 || answer.Messages != 180 || answer.Effects != 180 || answer.Lost != 0 || answer.Phantom != 0 || answer.OutOfOrder != 0 || answer.DoubleEffects != 0 {
		t.Errorf("counted %+v", answer)
	}
	left, err := server.Query(t.Context(), "", "show databases like 'postrider_demo_%'")
	if err != nil || len(left) > 0 {
		t.Errorf("databases %v are left, error %v", left, err)
	}
}
