package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
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
				{"in a hole", func() { reach(one, `CONCAT('[[', `+one+`, ',', `+one+`, ']]')`) }, func() { reach(one, `NULL`) }},
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

// TestAdoptMirrorReadsFewRows runs the statements that a mirror repeats, in place, behind 20,000 numbers that were given up: a
// relay waits for each statement that began before a gap was seen, so none of them may read what grows.
func TestAdoptMirrorReadsFewRows(t *testing.T) {
	for _, version := range testserver.MySQLVersions() {
		t.Run(version, func(t *testing.T) {
			g := newTeam(t, testserver.SharedMySQL(t, version).Database(t))
			g.insert("k", 1, "Sent")
			for range 3 {
				g.run("INSERT INTO event (`key`, payload) SELECT 'k', '{}' FROM (WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) SELECT i FROM n) AS x")
			}
			move := []string{"adopt", "event", "--in-place", "--store", g.store}
			var plan struct{ Mirror []string }
			if err := json.Unmarshal([]byte(mustCLI(t, "", append(move, "--output", "json")...)), &plan); err != nil || len(plan.Mirror) == 0 {
				t.Fatalf("plan %+v, %v", plan, err)
			}
			mustCLI(t, "", append(move, "--yes", "--reason", "test")...)
			// The numbers of the rows are far above those that were given up.
			g.run("UPDATE postrider_outbox SET seq = seq + 1000000 ORDER BY seq DESC")
			g.run("UPDATE postrider_inplace_event SET seq = seq + 1000000 ORDER BY seq DESC")
			g.run("INSERT INTO postrider_dropped (pipe, high, low, dropped_at) SELECT 'main', x.i * 1000 + y.i, x.i * 1000 + y.i, 0 FROM (WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20) SELECT i FROM n) AS x JOIN (WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999) SELECT i FROM n) AS y")
			for _, text := range plan.Mirror {
				if !strings.HasPrefix(text, "SELECT") {
					continue
				}
				var args []any
				switch {
				case strings.Contains(text, "postrider_inplace_event"):
					args = []any{0, "main"}
				case strings.Contains(text, "postrider_dropped"):
					args = []any{"main", 1000001}
				default:
					args = []any{"main", 0}
				}
				if n := g.reads(text, args...); n > 10000 {
					t.Errorf("%d rows were read by\n%s", n, text)
				}
			}
			at := func(n int) string {
				return g.ask(fmt.Sprintf("SELECT seq FROM postrider_outbox ORDER BY seq LIMIT %d, 1", n))
			}
			g.run("UPDATE postrider_progress SET pos = 2000000, holes = '[[5,7],[" + at(0) + "," + at(0) + "]]'")
			g.run("INSERT INTO postrider_dropped (pipe, high, low, dropped_at) VALUES ('main', " + at(8) + ", " + at(3) + ", 0)")
			if out := mustCLI(t, "", "adopt", "mirror", "event", "--once", "--store", g.store, "--output", "json"); !strings.Contains(out, `"left":7`) {
				t.Errorf("one row in a hole and six that were given up: the mirror says %s", out)
			}
		})
	}
}

// TestAdoptMirrorReadsItsRange: a mirror on PostgreSQL reads the messages that it writes back, and not the whole
// outbox for each page of them.
//
// Promises: S
func TestAdoptMirrorReadsItsRange(t *testing.T) {
	const others, ours = 30_000, 2_500
	g := newTeam(t, testserver.SharedPostgres(t, "18").Database(t))
	mustCLI(t, "", "adopt", "event", "--mirror", "--store", g.store, "--yes", "--reason", "test")
	other := fmt.Sprintf(`INSERT INTO postrider.outbox (topic, key) SELECT 'other', g::text FROM generate_series(1, %d) AS g`, others)
	g.run(other)
	g.run(fmt.Sprintf(`INSERT INTO event (key, payload) SELECT g::text, '{}' FROM generate_series(1, %d) AS g`, ours))
	g.run(other)
	relay := launchRelay(g.T, g.store, "stdout:")
	until(t, "all is sent", relay, func() bool {
		return g.ask("SELECT (sum(delivered) >= "+fmt.Sprint(2*others+ours)+")::text FROM postrider.lane_cursor") == "true"
	})
	relay.signal(os.Interrupt)
	<-relay.done
	g.run("ANALYZE")
	reads := func() int64 {
		g.run("SELECT pg_stat_clear_snapshot()")
		n, err := strconv.ParseInt(g.ask("SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables WHERE schemaname = 'postrider' AND relname = 'outbox'"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := reads()
	if out := mustCLI(t, "", "adopt", "mirror", "event", "--once", "--store", g.store, "--output", "json"); !strings.Contains(out, fmt.Sprintf(`"written":%d`, ours)) || !strings.Contains(out, `"left":0`) {
		t.Errorf("the mirror says %s", out)
	}
	if n := reads() - before; n > others {
		t.Errorf("the mirror has read %d rows of %d to write back %d", n, 2*others+ours, ours)
	}
	if n := g.ask("SELECT count(*) FROM event WHERE sent_at IS NOT NULL"); n != fmt.Sprint(ours) {
		t.Errorf("%s of %d rows are written back", n, ours)
	}
}

// reads returns how many rows a query reads.
func (g *team) reads(query string, args ...any) (n int64) {
	g.Helper()
	conn, err := g.db.Conn(g.Context())
	if err != nil {
		g.Fatal(err)
	}
	defer conn.Close()
	count := func() (sum int64) {
		rows, err := conn.QueryContext(g.Context(), `SHOW SESSION STATUS LIKE 'Handler_read%'`)
		if err != nil {
			g.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var name string
			var one int64
			if err := rows.Scan(&name, &one); err != nil {
				g.Fatal(err)
			}
			sum += one
		}
		if err := rows.Err(); err != nil {
			g.Fatal(err)
		}
		return sum
	}
	before := count()
	rows, err := conn.QueryContext(g.Context(), query, args...)
	if err != nil {
		g.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	for rows.Next() {
	}
	if err := rows.Err(); err != nil {
		g.Fatal(err)
	}
	return count() - before // the rows are read: the connection is free
}
