package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
)

// A change of the schema waits for a transaction that writes, and says which;
// --wait 0 asks once.
func TestMigrateWaits(t *testing.T) {
	store := outboxOn(t, testserver.SharedPostgres(t, "18"))
	conn, err := pgx.Connect(t.Context(), store+"&application_name=report")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the test is over
	exec := func(text string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	exec(`BEGIN; INSERT INTO postrider.outbox (topic) VALUES ('t')`)
	once := cli(t, nil, "", "migrate", "--notify", "on", "--wait", "0", "--store", store)
	if once.code != 1 || !strings.Contains(once.err, `(application "report", open for`) || strings.Contains(once.err, "waiting") {
		t.Errorf("exit code %d, %s", once.code, once.err)
	}
	patient := cli(t, nil, "", "migrate", "--notify", "on", "--wait", "3s", "--store", store)
	if patient.code != 1 || !strings.Contains(patient.err, `waiting: postrider.outbox is in use by the transaction of session`) {
		t.Errorf("exit code %d, %s", patient.code, patient.err)
	}
	exec(`COMMIT`)
	if out := mustCLI(t, "", "migrate", "--notify", "on", "--dry-run", "--store", store); !strings.Contains(out, "notify on") {
		t.Error(out)
	}
	if out := mustCLI(t, "", "migrate", "--notify", "on", "--store", store); !strings.Contains(out, "notify on") {
		t.Error(out)
	}
	var triggers int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_trigger WHERE tgrelid = 'postrider.outbox'::regclass AND tgname = 'postrider_wake'`).Scan(&triggers); err != nil || triggers != 1 {
		t.Errorf("%d triggers, %v", triggers, err)
	}
}

// On a healthy outbox of this server adopt has nothing to do and says
// so, however many writers insert and however often it is asked; a live relay
// makes it refuse.
//
// Promises: A
func TestAdoptBesideWriters(t *testing.T) {
	const writers, adopts, inserts = 8, 7, 60
	st := outboxOn(t, testserver.SharedPostgres(t, "18"))
	pool, err := pgxpool.New(t.Context(), st+"&pool_max_conns=8")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range inserts {
				if _, err := pool.Exec(t.Context(), `INSERT INTO postrider.outbox (topic, key) VALUES ('t', gen_random_uuid()::text)`); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range adopts {
		all.Go(func() {
			if got := cli(t, nil, "", "migrate", "--adopt", "--store", st); got.code != 0 || !strings.Contains(got.out, "nothing to adopt") {
				t.Errorf("exit code %d, %s%s", got.code, got.out, got.err)
			}
		})
	}
	all.Wait()
	if n := ask(t, st, `SELECT count(DISTINCT seq)::text FROM postrider.outbox`); n != strconv.Itoa(writers*inserts) {
		t.Errorf("%s numbers for %d rows", n, writers*inserts)
	}
	p := launchRelay(t, st, "memory:")
	until(t, "the relay is alive", p, func() bool { return ask(t, st, `SELECT count(*)::text FROM postrider.relay`) == "1" })
	if got := cli(t, nil, "", "migrate", "--adopt", "--store", st); got.code != exit.Usage || !strings.Contains(got.err, "relays are alive") {
		t.Errorf("beside a relay: exit code %d, %s%s", got.code, got.out, got.err)
	}
	p.stop()
	if out := mustCLI(t, "", "migrate", "--adopt", "--dry-run", "--store", st); !strings.Contains(out, "nothing to adopt") {
		t.Errorf("dry run: %s", out)
	}
}

// TestMigrateThatLostItsConnection: it is an outage, and the same command continues.
func TestMigrateThatLostItsConnection(t *testing.T) {
	pg := testserver.SharedPostgres(t, "18")
	store := outboxOn(t, pg)
	conn, err := pgx.Connect(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the test is over
	if _, err := conn.Exec(t.Context(), `BEGIN; INSERT INTO postrider.outbox (topic) VALUES ('t')`); err != nil {
		t.Fatal(err)
	}
	ended := make(chan result, 1)
	go func() { ended <- cli(t, nil, "", "migrate", "--notify", "on", "--wait", "1m", "--store", store) }()
	// It waits for the lock for a moment at a time: its session is ended within one.
	until(t, "the migration has lost its session", nil, func() bool {
		rows, err := pg.Query(t.Context(), database(t, store), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'postrider-migrate' AND wait_event_type = 'Lock'`)
		return err == nil && rows[0][0] != "0"
	})
	got := <-ended
	if got.code != exit.Unreachable || !strings.Contains(got.err, "run the same command again") {
		t.Errorf("exit code %d, want %d\n%s", got.code, exit.Unreachable, got.err)
	}
	if _, err := conn.Exec(t.Context(), `COMMIT`); err != nil {
		t.Fatal(err)
	}
	if out := mustCLI(t, "", "migrate", "--notify", "on", "--store", store); !strings.Contains(out, "notify on") {
		t.Error(out)
	}
}

// TestTooManyConnections: the server has answered, and what it lacks is named.
func TestTooManyConnections(t *testing.T) {
	pg := testserver.SharedPostgres(t, "18")
	store := outboxOn(t, pg)
	role := "few_" + database(t, store)
	for _, sql := range []string{
		fmt.Sprintf(`CREATE ROLE %s LOGIN CONNECTION LIMIT 0`, role), fmt.Sprintf(`GRANT USAGE ON SCHEMA postrider TO %s`, role),
	} {
		if _, err := pg.Query(t.Context(), database(t, store), sql); err != nil {
			t.Fatal(err)
		}
	}
	got := cli(t, nil, "", "status", "--store", as(t, store, role, ""))
	if got.code != exit.Unreachable || !strings.Contains(got.err, "the database has too many connections: ") || strings.Contains(got.err, "cannot be reached") {
		t.Errorf("exit code %d, want %d\n%s", got.code, exit.Unreachable, got.err)
	}
}

// TestReadOnlyPhasePasses: a relay that starts on a server that is read-only for a while
// waits for the end of it: a supervisor would not start it again after exit code 2.
func TestReadOnlyPhasePasses(t *testing.T) {
	pg := testserver.SharedPostgres(t, "18")
	store := outboxOn(t, pg)
	set := func(sql string) {
		t.Helper()
		if _, err := pg.Query(t.Context(), "postgres", `ALTER DATABASE `+database(t, store)+sql); err != nil {
			t.Fatal(err)
		}
	}
	set(` SET default_transaction_read_only = on`)
	p := launchRelay(t, store, "memory:")
	until(t, "the relay says that it waits", p, func() bool { return p.said.count("the server is read-only") > 0 })
	set(` RESET default_transaction_read_only`)
	until(t, "the relay has its lanes", p, func() bool {
		rows, err := pg.Query(t.Context(), database(t, store), `SELECT count(*) FROM postrider.progress WHERE owner <> ''`)
		return err == nil && rows[0][0] != "0"
	})
	p.stop()
}
