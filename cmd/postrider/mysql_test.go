package main

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
)

// The commands create an outbox in MySQL and show what plain SQL writes into it. A missing
// ability is an error that names it.
func TestMySQL(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a server")
	}
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
			if got.code != exit.Usage || !strings.HasPrefix(got.err, "postrider: retention: not supported by this store (mysql): ") {
				t.Errorf("prune: exit code %d\n%s", got.code, got.err)
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
