package main

import (
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/pgstore"
)

const oneMessage = `{"topic":"orders","key":"o-1","type":"order.placed","payload":{"qty":1}}` + "\n"

// mustCLI runs a command that has to work.
func mustCLI(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	got := cli(t, nil, stdin, args...)
	if got.code != 0 {
		t.Fatalf("%v: exit code %d\n%s%s", args, got.code, got.out, got.err)
	}
	return got.out
}

// outboxOn makes an outbox in an empty database.
func outboxOn(t *testing.T, pg *testserver.Postgres) (store string) {
	t.Helper()
	return pg.Copy(t, "outbox", func(store string) error {
		if got := cli(t, nil, "", "migrate", "--store", store, "--lanes", "8"); got.code != 0 {
			return errors.New(got.err)
		}
		return nil
	})
}

// as is the URL for another user.
func as(t *testing.T, store, user, password string) string {
	t.Helper()
	u, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	if password == "" {
		u.User = url.User(user)
	}
	return u.String()
}

func database(t *testing.T, store string) string {
	t.Helper()
	u, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(u.Path, "/")
}

func statusOf(t *testing.T, store string) answer.Status {
	t.Helper()
	var found answer.Status
	if err := json.Unmarshal([]byte(mustCLI(t, "", "status", "-o", "json", "--store", store)), &found); err != nil {
		t.Fatal(err)
	}
	return found
}

// Every refusal of a real server is one line with its exit code, the same in
// every command, and without the password.
func TestExitCodesOnPostgres(t *testing.T) {
	pg := testserver.StartPostgres(t, "18") // of its own: roles and logins are changed
	sql := func(store, text string) {
		t.Helper()
		if _, err := pg.Query(t.Context(), database(t, store), text); err != nil {
			t.Fatal(err)
		}
	}
	good := outboxOn(t, pg)
	empty, newer, readOnly := pg.Database(t), outboxOn(t, pg), outboxOn(t, pg)
	sql(newer, `INSERT INTO postrider.migration VALUES (99, 'of tomorrow', '')`)
	sql(readOnly, `ALTER DATABASE `+database(t, readOnly)+` SET default_transaction_read_only = on`)
	sql(good, `CREATE ROLE nobody_special LOGIN; CREATE ROLE guarded LOGIN PASSWORD 'right horse'; CREATE ROLE hidden LOGIN`)
	hidden := outboxOn(t, pg)
	sql(hidden, `ALTER TABLE postrider.outbox ENABLE ROW LEVEL SECURITY; GRANT USAGE ON SCHEMA postrider TO hidden;
		GRANT ALL ON ALL TABLES IN SCHEMA postrider TO hidden; GRANT ALL ON ALL SEQUENCES IN SCHEMA postrider TO hidden`)
	guard(t, pg, "guarded")

	relay := []string{"relay", "--broker", "memory:", "--listen", ""}
	status, enqueue, dead := []string{"status"}, []string{"enqueue"}, []string{"dead", "list"}
	for _, tc := range []struct {
		name, store string
		code        exit.Code
		want        string
		commands    [][]string
	}{
		{"no outbox", empty, 5, "has no outbox: run `postrider migrate`", [][]string{relay, status, enqueue, dead, {"migrate", "status"}}},
		{"newer schema", newer, 5, "is at version 99, newer than", [][]string{relay, status, enqueue, dead, {"migrate"}, {"migrate", "status"}, {"migrate", "down", "--yes"}}},
		{"no database", strings.Replace(good, database(t, good), "nowhere", 1), 2, `database "nowhere" does not exist`, [][]string{relay, status, enqueue, {"migrate"}}},
		{"wrong password", as(t, good, "guarded", "hunter2"), 2, "password authentication failed", [][]string{relay, status, enqueue, dead, {"migrate"}}},
		{"no such user", as(t, good, "stranger", "hunter2"), 2, "stranger", [][]string{relay, status, enqueue, dead, {"migrate"}}},
		{"no privilege", as(t, good, "nobody_special", ""), 2, "permission denied for schema postrider", [][]string{relay, status, enqueue, dead}},
		{"row security", as(t, hidden, "hidden", ""), 2, "row security on postrider.outbox hides rows", [][]string{relay, status}},
		{"read-only", readOnly, 4, "the server is read-only", [][]string{{"migrate", "down", "--yes"}}},
		{"other lanes", good, 2, "the outbox has 8 lanes, not 16", [][]string{{"migrate", "--lanes", "16"}}},
		{"unreachable", "postgres://u:hunter2@127.0.0.1:1/db", 4, "the database cannot be reached", [][]string{status, enqueue, dead, {"migrate"}}},
	} {
		for _, command := range tc.commands {
			t.Run(tc.name+"/"+strings.Join(command, " "), func(t *testing.T) {
				got := cli(t, nil, oneMessage, append(command, "--store", tc.store, "--log-level", "error")...)
				if got.code != tc.code || !strings.Contains(got.err, tc.want) {
					t.Errorf("exit code %d, want %d; stderr %q, want %q in it", got.code, tc.code, got.err, tc.want)
				}
				if strings.Count(got.err, "\n") != 1 || strings.Contains(got.err+got.out, "hunter2") {
					t.Errorf("stderr is not one line without the password:\n%s", got.err)
				}
			})
		}
	}
}

// guard makes the server ask one role for its password.
func guard(t *testing.T, pg *testserver.Postgres, role string) {
	t.Helper()
	file := filepath.Join(pg.Dir, "data", "pg_hba.conf")
	old, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append([]byte("host all "+role+" 127.0.0.1/32 scram-sha-256\n"), old...), 0o600)
	}
	if err == nil {
		_, err = pg.Query(t.Context(), "postgres", "SELECT pg_reload_conf()")
	}
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the server asks for passwords", nil, func() bool {
		rows, err := pg.Query(t.Context(), "postgres", "SELECT count(*) FROM pg_hba_file_rules WHERE auth_method = 'scram-sha-256'")
		return err == nil && rows[0][0] == "1"
	})
}

func TestFailIfLag(t *testing.T) {
	file := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	mustCLI(t, "", "migrate", "--store", file)
	for name, store := range map[string]string{"postgres": outboxOn(t, testserver.SharedPostgres(t, "18")), "sqlite": file} {
		t.Run(name, func(t *testing.T) {
			mustCLI(t, "", "status", "--fail-if-lag", "1us", "--store", store)
			mustCLI(t, oneMessage, "enqueue", "--store", store)
			for _, output := range []string{"text", "json"} { // no relay lives
				got := cli(t, nil, "", "status", "--fail-if-lag", "1us", "-o", output, "--store", store)
				if got.code != 3 || !strings.Contains(got.err, "above the 1µs of --fail-if-lag") || !strings.Contains(got.out, "pending") {
					t.Errorf("%s: exit code %d, want 3 and the status too\n%s%s", output, got.code, got.out, got.err)
				}
			}
			got := cli(t, nil, "", "status", "--watch", "--fail-if-lag", "1us", "--store", store)
			if got.code != 3 {
				t.Errorf("--watch: exit code %d, want 3\n%s", got.code, got.err)
			}
			mustCLI(t, "", "status", "--fail-if-lag", "1h", "--store", store)
		})
	}
}

func TestMigrateTwiceAtOnce(t *testing.T) {
	store := testserver.SharedPostgres(t, "18").Database(t)
	outs := make(chan result, 2)
	for range 2 {
		go func() { outs <- cli(t, nil, "", "migrate", "--store", store) }()
	}
	a, b := <-outs, <-outs
	text := a.out + b.out
	if a.code != 0 || b.code != 0 || strings.Count(text, "done") != pgstore.Version {
		t.Errorf("codes %d and %d, want every step done by one of them\n%s%s%s", a.code, b.code, text, a.err, b.err)
	}
}

// What --print-sql prints is what migrate does.
func TestPrintedSQLWorks(t *testing.T) {
	pg := testserver.SharedPostgres(t, "18")
	store := pg.Database(t)
	up := mustCLI(t, "", "migrate", "--print-sql", "--store", "postgres:", "--schema", "my_box", "--lanes", "4")
	if _, err := pg.Query(t.Context(), database(t, store), up); err != nil {
		t.Fatal(err)
	}
	mustCLI(t, oneMessage, "enqueue", "--store", store, "--schema", "my_box")
	if got := mustCLI(t, "", "migrate", "--store", store, "--schema", "my_box", "--lanes", "4"); !strings.Contains(got, "nothing to do") {
		t.Errorf("migrate after the printed statements: %s", got)
	}
	down := mustCLI(t, "", "migrate", "down", "--print-sql", "--store", store, "--schema", "my_box")
	if _, err := pg.Query(t.Context(), database(t, store), down); err != nil {
		t.Fatal(err)
	}
	if got := cli(t, nil, "", "status", "--store", store, "--schema", "my_box"); got.code != 5 {
		t.Errorf("status after the printed removal: exit code %d, want 5", got.code)
	}
}
