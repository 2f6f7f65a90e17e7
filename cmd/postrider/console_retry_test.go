package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/testserver"
)

// deadOfKeys makes a dead letter of each of n keys, and a message that waits behind every tenth,
// as a night with a destination that refused everything leaves them.
const deadOfKeys = `SELECT setval('postrider.outbox_seq', %[1]d * 3);
UPDATE postrider.pipe SET pos = %[1]d * 3, next_xid = pg_current_xact_id()::text::bigint;
INSERT INTO postrider.parked (pipe, lane, seq, state, captures, due_at, attempts, class, code, error, first_failed, last_attempt, created_at,
 version, schema_version, id, topic, key, type, content_type, headers, payload)
SELECT 'main', ((hashtextextended('key-' || g, 0) & 9223372036854775807) %% 8)::smallint, g + s.n * %[1]d, s.state, s.n = 0, now(), 5 - 5 * s.n, 'rejected', 'NO', 'no', now(), now(), now(),
 0, 0, gen_random_uuid(), '%[2]s', 'key-' || g, 'm', '', '{}', convert_to(s.n::text, 'UTF8')
FROM generate_series(1, %[1]d) g JOIN (VALUES (0, 'dead'), (1, 'waiting')) s(n, state) ON s.n = 0 OR g %% 10 = 0;
ANALYZE postrider.parked`

// TestRetryFromConsole: all dead letters are sent again by one form of the console, while the relay is
// killed again and again, and then the console. Each message reaches the broker once, and what waited behind
// it comes after it.
//
// Promises: L, O
func TestRetryFromConsole(t *testing.T) {
	n, kills := 2000, 2
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		n, kills = 100_000, 5
	}
	store, s := outboxOn(t, testserver.SharedPostgres(t, "18")), newStream(t, testserver.SharedNATS(t).URL, 1000)
	conn, err := pgx.Connect(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.PgConn().Exec(t.Context(), fmt.Sprintf(deadOfKeys, n, s.topic)).ReadAll(); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	broker := testserver.SharedNATS(t).URL
	run := func() *process { return launchRelay(t, store, broker, "--lease-ttl", "2s") }
	relay, b := run(), openConsole(t, store)
	form, answer := b.do("do/retry?all=1", "reason", "the destination works again")
	if !strings.Contains(form, "000 records in 8 lanes") || !strings.Contains(answer, "Order ") {
		t.Errorf("the form:\n%s\nthe answer:\n%s", form, answer)
	}
	for i := range kills {
		until(t, "more messages arrive", relay, func() bool { return s.count() > n*(2*i+1)/(3*kills) })
		relay.signal(syscall.SIGKILL)
		relay.ends(time.Minute)
		if i == 0 {
			b.p.signal(syscall.SIGKILL)
		}
		relay = run()
	}
	all := n + n/10
	until(t, "every message arrives", relay, func() bool {
		return s.count() >= all && ask(t, store, `SELECT count(*)::text FROM postrider.parked`) == "0"
	})
	if open := ask(t, store, `SELECT count(*)::text FROM postrider.request WHERE done_at IS NULL`); open != "0" {
		t.Errorf("%s parts of the order are open", open)
	}
	relay.stop()
	ids, sent := map[string]bool{}, map[string]string{}
	reader, err := s.js.OrderedConsumer(t.Context(), s.topic, jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for got := 0; got < s.count(); {
		batch, err := reader.Fetch(5000)
		if err != nil {
			t.Fatal(err)
		}
		for m := range batch.Messages() {
			got++
			id, key := m.Headers().Get("postrider-id"), m.Headers().Get("postrider-key")
			if ids[id] {
				t.Errorf("message %s of key %s arrived twice", id, key)
			}
			ids[id] = true
			sent[key] += string(m.Data())
		}
	}
	for i := 1; i <= n; i++ {
		want := "0"
		if i%10 == 0 {
			want = "01"
		}
		if got := sent[fmt.Sprint("key-", i)]; got != want {
			t.Errorf("key-%d: the messages %q arrived, want %q", i, got, want)
		}
	}
	t.Logf("%d dead letters and %d messages behind them, %d kills of the relay and one of the console: %d messages arrived", n, n/10, kills, len(ids))
}
