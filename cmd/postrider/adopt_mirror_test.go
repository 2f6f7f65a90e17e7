package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/testserver"
)

// TestAdoptMirror writes back what was sent, and nothing else. A step back keeps what the mirror needs while
// messages are left, and a new adoption continues with them.
func TestAdoptMirror(t *testing.T) {
	t.Run("postgres", func(t *testing.T) { testMirror(t, testserver.SharedPostgres(t, "18").Database(t)) })
	for _, version := range testserver.MySQLVersions() {
		t.Run(version, func(t *testing.T) { testMirror(t, testserver.SharedMySQL(t, version).Database(t)) })
	}
}

func testMirror(t *testing.T, store string) {
	t.Helper()
	db, d, err := open.SQL(store, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	run := func(text string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	ask := func(query string) (answer string) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), query).Scan(&answer); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		return answer
	}
	ddl, list, view, mirror := `CREATE TABLE event (part text, id bigint GENERATED ALWAYS AS IDENTITY, topic text, payload text, status text DEFAULT 'Pending', sent_at timestamptz, PRIMARY KEY (part, id))`,
		`SELECT string_agg(status || CASE WHEN sent_at IS NULL THEN '' ELSE '+' END, ' ' ORDER BY id) FROM event`, "postrider.messages", `SELECT count(*)::text FROM pg_tables WHERE tablename = 'mirror_event'`
	if d == dialect.MySQL {
		ddl = `CREATE TABLE event (part VARCHAR(9), id BIGINT AUTO_INCREMENT UNIQUE, topic VARCHAR(50), payload TEXT, status VARCHAR(20) DEFAULT 'Pending', sent_at DATETIME(6), PRIMARY KEY (part, id))`
		list, view = `SELECT GROUP_CONCAT(CONCAT(status, IF(sent_at IS NULL, '', '+')) ORDER BY id SEPARATOR ' ') FROM event`, "postrider_messages"
		mirror = `SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'postrider_mirror_event'`
	}
	relay := func() {
		t.Helper()
		var said bytes.Buffer
		cmd := exec.CommandContext(t.Context(), os.Args[0], "relay", "--store", store, "--broker", "stdout:", "--listen", "127.0.0.1:0")
		cmd.Env, cmd.Stderr = append(config.Environ(map[string]string{}), asProgram+"=1"), &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		until(t, "the relay has sent all", nil, func() bool { return ask("SELECT count(*) FROM "+view+" WHERE state <> 'Sent'") == "0" })
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("relay: %v\n%s", err, said.String())
		}
	}
	want := func(rows string) {
		t.Helper()
		if got := ask(list); got != rows {
			t.Errorf("the table has %q, want %q", got, rows)
		}
	}
	mustCLI(t, "", "migrate", "--store", store, "--lanes", "4")
	run(ddl)
	run(`INSERT INTO event (part, topic, payload, status) VALUES ('a', 'orders', '1', 'Sent'), ('a', 'orders', '2', 'Pending'), ('b', 'orders', '3', 'Pending')`)
	if got := cli(t, nil, "", "adopt", "mirror", "event", "--once", "--store", store); got.code != 2 {
		t.Errorf("a mirror of nothing: exit code %d\n%s", got.code, got.err)
	}
	mustCLI(t, "", "adopt", "event", "--mirror", "--store", store, "--yes", "--reason", "test")
	run(`INSERT INTO event (part, topic, payload) VALUES ('a', 'orders', '4'), ('b', 'orders', '5')`)
	mustCLI(t, "", "adopt", "mirror", "event", "--once", "--store", store)
	want("Sent Postrider Postrider Postrider Postrider")
	relay()
	run(`INSERT INTO event (part, topic, payload) VALUES ('a', 'orders', '6')`)
	if got := mustCLI(t, "", "adopt", "mirror", "event", "--once", "--store", store, "--output", "json"); !strings.Contains(got, `"written":4`) || !strings.Contains(got, `"left":1`) {
		t.Errorf("the mirror says %s", got)
	}
	want("Sent Sent+ Sent+ Sent+ Sent+ Postrider")

	if got := mustCLI(t, "", "adopt", "undo", "event", "--store", store, "--yes", "--reason", "test"); !strings.Contains(got, "1 message to write back") {
		t.Errorf("undo says %s", got)
	}
	run(`INSERT INTO event (part, topic, payload) VALUES ('a', 'orders', '7')`)
	want("Sent Sent+ Sent+ Sent+ Sent+ Postrider Pending")
	if got := mustCLI(t, "", "adopt", "status", "event", "--store", store); !strings.Contains(got, "no longer adopted") {
		t.Errorf("status says %s", got)
	}
	mustCLI(t, "", "adopt", "event", "--mirror", "--store", store, "--yes", "--reason", "test")
	want("Sent Sent+ Sent+ Sent+ Sent+ Postrider Postrider")
	relay()
	mustCLI(t, "", "adopt", "mirror", "event", "--once", "--store", store)
	want("Sent Sent+ Sent+ Sent+ Sent+ Sent+ Sent+")
	mustCLI(t, "", "adopt", "undo", "event", "--store", store, "--yes", "--reason", "test")
	if n := ask(mirror); n != "0" {
		t.Errorf("the mirror's table is still there")
	}
	if got := mustCLI(t, "", "adopt", "status", "event", "--store", store); !strings.Contains(got, "not adopted") {
		t.Errorf("status says %s", got)
	}
}

// TestAdoptMirrorKeepsUnsettled: on MySQL and MariaDB a row is written back only when its message is settled: not
// above the position of its lane, in a hole, or among numbers that were given up.
func TestAdoptMirrorKeepsUnsettled(t *testing.T) {
	for _, version := range testserver.MySQLVersions() {
		t.Run(version, func(t *testing.T) {
			g := newTeam(t, testserver.SharedMySQL(t, version).Database(t))
			g.insert("k", 1, "Pending")
			mustCLI(t, "", "adopt", "event", "--mirror", "--store", g.store, "--yes", "--reason", "test")
			const one = `(SELECT seq FROM postrider_outbox)`
			reach := func(pos, holes string) {
				g.run(`UPDATE postrider_progress SET pos = ` + pos + `, holes = ` + holes)
			}
			for _, state := range []struct {
				name      string
				set, undo func()
			}{
				{"above the position", func() {}, func() { reach(one, `'[]'`) }},
				{"in a hole", func() { reach(one, `CONCAT('[[', `+one+`, ',', `+one+`, ']]')`) }, func() { reach(one, `'[]'`) }},
				{
					"given up", func() {
						g.run(`INSERT INTO postrider_dropped (pipe, high, low, dropped_at) SELECT 'main', seq, seq, 0 FROM postrider_outbox`)
					},
					func() { g.run(`DELETE FROM postrider_dropped`) },
				},
			} {
				state.set()
				if out := mustCLI(t, "", "adopt", "mirror", "event", "--once", "--store", g.store, "--output", "json"); !strings.Contains(out, `"written":0`) || !strings.Contains(out, `"left":1`) {
					t.Errorf("%s: the mirror says %s", state.name, out)
				}
				state.undo()
			}
			if out := mustCLI(t, "", "adopt", "mirror", "event", "--once", "--store", g.store, "--output", "json"); !strings.Contains(out, `"written":1`) {
				t.Errorf("settled: the mirror says %s", out)
			}
		})
	}
}
