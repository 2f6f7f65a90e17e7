package main

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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

// Promise A. On a healthy outbox of this server adopt has nothing to do and says
// so, however many writers insert and however often it is asked; a live relay
// makes it refuse.
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
	if got := cli(t, nil, "", "migrate", "--adopt", "--store", st); got.code != exitUsage || !strings.Contains(got.err, "relays are alive") {
		t.Errorf("beside a relay: exit code %d, %s%s", got.code, got.out, got.err)
	}
	p.stop()
	if out := mustCLI(t, "", "migrate", "--adopt", "--dry-run", "--store", st); !strings.Contains(out, "nothing to adopt") {
		t.Errorf("dry run: %s", out)
	}
}
