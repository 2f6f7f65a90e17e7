package main

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

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
