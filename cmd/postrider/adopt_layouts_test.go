package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/adopt"
	"github.com/postrider/postrider/internal/testserver"
)

// copied is a message of the outbox.
type copied struct{ ID, Topic, Key, Type, Payload, Headers string }

const copiedRows = `SELECT id::text, topic, key, type, convert_from(payload, 'UTF8'), headers::text FROM postrider.outbox ORDER BY seq`

// layoutCase is a table that a library or a team has made.
type layoutCase struct {
	name, ddl, table string
	before           string // rows that are there
	insert           string // a row that comes after
	flags            []string
	want             []string // topic key type payload of all messages, in order
	after            string   // a query about the team's table
	rows             string   // its answer
}

func layoutCases() []layoutCase {
	const id = "'0198e2a4-7c11-7d3e-9a51-0f7d5b1c2e1"
	return []layoutCase{
		{
			name: "status with the words of a textbook", table: `"OutboxMessages"`,
			ddl: `CREATE TABLE "OutboxMessages" ("Id" uuid PRIMARY KEY, "Seq" bigint GENERATED ALWAYS AS IDENTITY UNIQUE, "Topic" varchar(100) NOT NULL, "AggregateId" varchar(50) NOT NULL, "EventType" varchar(100) NOT NULL,
 "Payload" text NOT NULL, "Headers" jsonb, "Status" varchar(20) NOT NULL DEFAULT 'Pending', "LockedUntil" timestamptz, "LockOwner" text, "AttemptCount" int NOT NULL DEFAULT 0, "NextAttemptAt" timestamptz,
 "LastError" text, "CreatedAt" timestamptz NOT NULL DEFAULT now(), "SentAt" timestamptz)`,
			before: `INSERT INTO "OutboxMessages" ("Id", "Topic", "AggregateId", "EventType", "Payload", "Status", "LockedUntil", "Headers") VALUES
 (` + id + `1', 'orders', 'o-1', 'placed', '{"n":1}', 'Sent', NULL, NULL), (` + id + `2', 'orders', 'o-1', 'paid', '{"n":2}', 'InProgress', now() - interval '1 minute', NULL),
 (` + id + `3', 'orders', 'o-1', 'sent', '{"n":3}', 'Failed', NULL, '{"tenant": "a", "postrider-x": "no", "n": 7}'), (` + id + `4', 'orders', 'o-2', 'placed', '{"n":4}', 'DeadLetter', NULL, NULL), (` + id + `5', 'orders', 'o-1', 'closed', '{"n":5}', 'Pending', NULL, NULL)`,
			insert: `INSERT INTO "OutboxMessages" ("Id", "Topic", "AggregateId", "EventType", "Payload") VALUES (` + id + `6', 'orders', 'o-1', 'late', '{"n":6}') ON CONFLICT DO NOTHING;
 INSERT INTO "OutboxMessages" ("Id", "Topic", "AggregateId", "EventType", "Payload") VALUES (` + id + `6', 'orders', 'o-1', 'twice', '{"n":0}') ON CONFLICT DO NOTHING;
 UPDATE "OutboxMessages" SET "Status" = 'Pending' WHERE "Status" = 'DeadLetter'`,
			want:  []string{`orders o-1 paid {"n":2}`, `orders o-1 sent {"n":3} {"n": "7", "tenant": "a"}`, `orders o-1 closed {"n":5}`, `orders o-1 late {"n":6}`, `orders o-2 placed {"n":4}`},
			after: `SELECT string_agg("Status", ' ' ORDER BY "Seq") FROM "OutboxMessages"`, rows: "Sent Postrider Postrider Postrider Postrider Postrider",
		},
		{
			name: "status in an enum without a word for it", table: "outbox_events",
			ddl:    `CREATE TYPE event_state AS ENUM ('PENDING', 'SENT'); CREATE TABLE outbox_events (id bigserial PRIMARY KEY, event_type text NOT NULL, aggregate_id bigint NOT NULL, payload json NOT NULL, state event_state NOT NULL DEFAULT 'PENDING', published_at timestamp)`,
			before: `INSERT INTO outbox_events (event_type, aggregate_id, payload) VALUES ('placed', 1, '1'), ('paid', 1, '2')`, insert: `INSERT INTO outbox_events (event_type, aggregate_id, payload) VALUES ('placed', 2, '3')`, flags: []string{"--topic", "orders"},
			want: []string{`orders 1 placed 1`, `orders 1 paid 2`, `orders 2 placed 3`}, after: `SELECT string_agg(state::text, ' ') FROM outbox_events`, rows: "SENT SENT SENT",
		},
		{
			name: "published flag", table: "outbox",
			ddl:    `CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), topic text NOT NULL, key text, payload bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT clock_timestamp(), published boolean NOT NULL DEFAULT false, published_at timestamptz)`,
			before: `INSERT INTO outbox (topic, key, payload, published) VALUES ('orders', 'a', '1', true), ('orders', 'a', '2', false); INSERT INTO outbox (topic, payload) VALUES ('orders', '3')`,
			insert: `INSERT INTO outbox (topic, key, payload) VALUES ('orders', 'a', '4'), ('orders', 'a', '5'); INSERT INTO outbox (topic, key, payload, published) VALUES ('orders', 'a', '6', true)`,
			want:   []string{`orders a  2`, `orders   3`, `orders a  4`, `orders a  5`}, after: `SELECT count(*) FILTER (WHERE published) || ' ' || count(published_at) FROM outbox`, rows: "6 4",
		},
		{
			name: "a time of processing", table: "messages",
			ddl:    `CREATE TABLE messages (id uuid PRIMARY KEY, occurred_on_utc timestamp NOT NULL, type text NOT NULL, content jsonb NOT NULL, processed_on_utc timestamp, error text)`,
			before: `INSERT INTO messages VALUES (` + id + `1', '2026-01-01', 'placed', '1', NULL), (` + id + `2', '2026-01-02', 'paid', '2', '2026-01-02')`, insert: `INSERT INTO messages VALUES (` + id + `3', '2026-01-03', 'closed', '3', NULL)`, flags: []string{"--topic", "orders"},
			want: []string{`orders  placed 1`, `orders  closed 3`}, after: `SELECT count(processed_on_utc)::text FROM messages`, rows: "3",
		},
		{
			name: "debezium", table: "outboxevent",
			ddl:    `CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb)`,
			before: `INSERT INTO outboxevent VALUES (` + id + `1', 'order', 'o-1', 'placed', '1')`,
			insert: `INSERT INTO outboxevent VALUES (` + id + `2', 'order', 'o-1', 'paid', '2'); WITH i AS (INSERT INTO outboxevent VALUES (` + id + `3', 'order', 'o-2', 'placed', '3') RETURNING id) SELECT 1 FROM i; DELETE FROM outboxevent WHERE id = ` + id + `3'`,
			want:   []string{`order o-1 paid 2`, `order o-2 placed 3`}, after: `SELECT count(*)::text FROM outboxevent`, rows: "1",
		},
		{
			name: "watermill", table: "watermill_orders",
			ddl: `CREATE TABLE "watermill_orders" ("offset" BIGSERIAL, "uuid" VARCHAR(36) NOT NULL, "created_at" TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, "payload" JSON DEFAULT NULL, "metadata" JSON DEFAULT NULL,
 "transaction_id" xid8 NOT NULL, PRIMARY KEY ("transaction_id", "offset"))`,
			before: `INSERT INTO watermill_orders (uuid, payload, metadata, transaction_id) VALUES (` + id + `1', '1', '{}', pg_current_xact_id())`,
			insert: `INSERT INTO watermill_orders (uuid, payload, metadata, transaction_id) VALUES (` + id + `2', '{"n":2}', '{"tenant":"a"}', pg_current_xact_id()), ('01J5ZZ-no-uuid', '{"n":3}', '{}', pg_current_xact_id())`,
			want:   []string{`orders   {"n":2} {"tenant": "a"}`, `orders   {"n":3}`}, after: `SELECT count(*)::text FROM watermill_orders`, rows: "1",
		},
		{
			name: "rows that the service works on first", table: "outbox",
			ddl:    `CREATE TYPE stage AS ENUM ('new', 'processing', 'sent', 'postrider'); CREATE TABLE outbox (id bigserial PRIMARY KEY, topic text NOT NULL, payload text NOT NULL, status stage NOT NULL)`,
			before: `SELECT 1`,
			insert: `INSERT INTO outbox (topic, payload, status) VALUES ('orders', '1', 'processing'); UPDATE outbox SET status = 'new'`,
			want:   []string{`orders   1`}, after: `SELECT status::text FROM outbox LIMIT 1`, rows: "postrider",
		},
		{
			name: "an id that may be missing", table: "outbox",
			ddl:    `CREATE TABLE outbox (id bigserial PRIMARY KEY, event_id uuid, topic text NOT NULL, payload text NOT NULL, published boolean NOT NULL DEFAULT false)`,
			before: `INSERT INTO outbox (event_id, topic, payload, published) VALUES (` + id + `1', 'orders', '1', true)`,
			insert: `INSERT INTO outbox (topic, payload) VALUES ('orders', '2')`,
			want:   []string{`orders   2`}, after: `SELECT bool_and(published)::text FROM outbox`, rows: "true",
		},
		{
			name: "watermill's forwarder", table: "watermill_forwarder_topic",
			ddl: `CREATE TABLE "watermill_forwarder_topic" ("offset" BIGSERIAL, "uuid" VARCHAR(36) NOT NULL, "created_at" TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, "payload" JSON DEFAULT NULL, "metadata" JSON DEFAULT NULL,
 "transaction_id" xid8 NOT NULL, PRIMARY KEY ("transaction_id", "offset"))`,
			insert: `INSERT INTO watermill_forwarder_topic (uuid, payload, metadata, transaction_id) VALUES (gen_random_uuid(), '{"destination_topic":"paid","uuid":` + strings.ReplaceAll(id, "'", `"`) + `1","payload":"eyJuIjoxfQ==","metadata":{"a":"b"}}', '{}', pg_current_xact_id())`,
			want:   []string{`paid   {"n":1} {"a": "b"}`}, after: `SELECT count(*)::text FROM watermill_forwarder_topic`, rows: "0",
		},
		{
			name: "river", table: "river_job",
			ddl: `CREATE TYPE river_job_state AS ENUM ('available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running', 'scheduled');
 CREATE TABLE river_job (id bigserial PRIMARY KEY, state river_job_state NOT NULL DEFAULT 'available', attempt smallint NOT NULL DEFAULT 0, max_attempts smallint NOT NULL, attempted_at timestamptz, created_at timestamptz NOT NULL DEFAULT NOW(),
 finalized_at timestamptz, scheduled_at timestamptz NOT NULL DEFAULT NOW(), priority smallint NOT NULL DEFAULT 1, args jsonb NOT NULL, attempted_by text[], errors jsonb[], kind text NOT NULL, metadata jsonb NOT NULL DEFAULT '{}',
 queue text NOT NULL DEFAULT 'default', tags varchar(255)[] NOT NULL DEFAULT '{}', unique_key bytea, unique_states bit(8),
 CONSTRAINT finalized_or_finalized_at_null CHECK ((finalized_at IS NULL AND state NOT IN ('cancelled', 'completed', 'discarded')) OR (finalized_at IS NOT NULL AND state IN ('cancelled', 'completed', 'discarded'))))`,
			before: `INSERT INTO river_job (max_attempts, args, kind, queue) VALUES (5, '1', 'placed', 'orders'); INSERT INTO river_job (max_attempts, args, kind, state, scheduled_at) VALUES (5, '2', 'paid', 'scheduled', now() + interval '1 hour')`,
			insert: `INSERT INTO river_job (max_attempts, args, kind, queue) VALUES (5, '3', 'placed', 'orders')`,
			want:   []string{`orders  placed 1`, `default  paid 2`, `orders  placed 3`}, after: `SELECT string_agg(state::text, ' ') FROM river_job`, rows: "completed completed completed",
		},
		{
			name: "pg-boss", table: "pgboss.job",
			ddl: `CREATE SCHEMA pgboss; CREATE TYPE pgboss.job_state AS ENUM ('created', 'retry', 'active', 'completed', 'expired', 'cancelled', 'failed');
 CREATE TABLE pgboss.job (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), name text NOT NULL, priority integer NOT NULL DEFAULT 0, data jsonb, state pgboss.job_state NOT NULL DEFAULT 'created', retrylimit integer NOT NULL DEFAULT 0,
 retrycount integer NOT NULL DEFAULT 0, retrydelay integer NOT NULL DEFAULT 0, retrybackoff boolean NOT NULL DEFAULT false, startafter timestamptz NOT NULL DEFAULT now(), startedon timestamptz, singletonkey text, singletonon timestamp,
 expirein interval NOT NULL DEFAULT interval '15 minutes', createdon timestamptz NOT NULL DEFAULT now(), completedon timestamptz, keepuntil timestamptz NOT NULL DEFAULT now() + interval '14 days', on_complete boolean NOT NULL DEFAULT false, output jsonb)`,
			before: `INSERT INTO pgboss.job (name, data) VALUES ('orders', '1')`, insert: `INSERT INTO pgboss.job (name, data, singletonkey) VALUES ('orders', '2', 'o-1')`,
			want: []string{`orders   1`, `orders o-1  2`}, after: `SELECT string_agg(state::text, ' ') || ' ' || count(completedon) FROM pgboss.job`, rows: "completed completed 2",
		},
	}
}

// TestAdoptLayouts adopts a table of each layout as its library makes it: pending rows and new ones are
// copied once, in order, and after a step back none is.
//
// Promises: L, O
func TestAdoptLayouts(t *testing.T) {
	for _, c := range layoutCases() {
		t.Run(c.name, func(t *testing.T) {
			store := testserver.SharedPostgres(t, "18").Database(t)
			conn, err := pgx.Connect(t.Context(), store)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
			run := func(text string) {
				t.Helper()
				if _, err := conn.Exec(t.Context(), text); err != nil {
					t.Fatalf("%s: %v", text, err)
				}
			}
			messages := func() (all []string) {
				t.Helper()
				rows, err := conn.Query(t.Context(), copiedRows)
				if err != nil {
					t.Fatal(err)
				}
				found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[copied])
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range found {
					all = append(all, strings.TrimSuffix(fmt.Sprintf("%s %s %s %s %s", m.Topic, m.Key, m.Type, m.Payload, m.Headers), " {}"))
				}
				return all
			}
			mustCLI(t, "", "migrate", "--store", store, "--lanes", "4")
			run(c.ddl)
			run(c.before)
			adopt := append([]string{"adopt", c.table, "--store", store}, c.flags...)
			plan := mustCLI(t, "", adopt...)
			if got := messages(); len(got) != 0 || !strings.Contains(plan, "Nothing was changed") {
				t.Fatalf("a plan has changed something: %v\n%s", got, plan)
			}
			mustCLI(t, "", append(adopt, "--yes", "--reason", "test")...)
			run(c.insert)
			if got := messages(); strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("copied\n%s\nwant\n%s\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"), plan)
			}
			var rows string
			if err := conn.QueryRow(t.Context(), c.after).Scan(&rows); err != nil || rows != c.rows {
				t.Errorf("the table has %q, want %q (%v)", rows, c.rows, err)
			}
			mustCLI(t, "", "adopt", "undo", c.table, "--store", store, "--yes", "--reason", "test")
			run(strings.NewReplacer("c2e1", "c2f1", `'n', `, ``).Replace(c.insert))
			if got := messages(); len(got) != len(c.want) {
				t.Errorf("%d messages after the step back, want %d", len(got), len(c.want))
			}
		})
	}
}

// TestAdoptRefuses has each refusal with what it advises.
func TestAdoptRefuses(t *testing.T) {
	server := testserver.SharedPostgres(t, "18")
	store := server.Database(t)
	conn, err := pgx.Connect(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	if got := cli(t, nil, "", "adopt", "event", "--store", store); got.code != exit.Schema {
		t.Errorf("without an outbox: exit code %d\n%s", got.code, got.err)
	}
	mustCLI(t, "", "migrate", "--store", store, "--lanes", "4")
	const columns = `(id bigserial PRIMARY KEY, topic text NOT NULL, payload text NOT NULL, status text NOT NULL DEFAULT 'new'`
	setup := `CREATE TABLE event ` + columns + `); CREATE VIEW seen AS SELECT * FROM event;
 CREATE TABLE parted (id bigint, topic text, payload text, status text) PARTITION BY RANGE (id);
 CREATE TABLE months (id bigint PRIMARY KEY, topic text, payload text, status text DEFAULT 'new') PARTITION BY RANGE (id); CREATE TABLE first PARTITION OF months FOR VALUES FROM (0) TO (9);
 CREATE TABLE keyless (topic text, payload text, status text DEFAULT 'new');
 CREATE TABLE odd (id int PRIMARY KEY, a text, b text);
 CREATE TABLE words ` + columns + `); INSERT INTO words (topic, payload, status) VALUES ('a', 'b', 'florp');
 CREATE TABLE codes ` + columns + ` CHECK (status IN ('new', 'sent')));
 CREATE TABLE narrow (id bigserial PRIMARY KEY, topic text, payload text, status varchar(4) DEFAULT 'new');
 CREATE TABLE stuck ` + columns + `); INSERT INTO stuck (topic, payload, status) VALUES ('a', 'b', 'processing'), ('a', 'b', 'new');
 CREATE TABLE huge (id bigserial PRIMARY KEY, topic text, key text, payload text, status text DEFAULT 'new'); INSERT INTO huge (topic, key, payload) VALUES ('a', repeat('k', 513), 'b');
 CREATE TABLE state_of (name text PRIMARY KEY); INSERT INTO state_of VALUES ('new'), ('sent');
 CREATE TABLE looked ` + columns + ` REFERENCES state_of); INSERT INTO looked (topic, payload, status) VALUES ('a', 'b', 'sent');
 CREATE DOMAIN state_d AS text CHECK (VALUE IN ('new', 'sent'));
 CREATE TABLE domained (id bigserial PRIMARY KEY, topic text NOT NULL, payload text NOT NULL, status state_d NOT NULL DEFAULT 'new'); INSERT INTO domained (topic, payload, status) VALUES ('a', 'b', 'sent');
 CREATE TABLE paired (id bigserial PRIMARY KEY, topic text NOT NULL, payload text NOT NULL, published boolean NOT NULL DEFAULT false, done_on timestamptz, CHECK (published = (done_on IS NOT NULL)));
 INSERT INTO paired (topic, payload) VALUES ('a', 'b'); INSERT INTO paired (topic, payload, published, done_on) VALUES ('a', 'b', true, now());
 CREATE FUNCTION machine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.status = ''postrider'' THEN RAISE EXCEPTION ''no such state''; END IF; RETURN NEW; END';
 CREATE TABLE watched ` + columns + `); CREATE TRIGGER machine BEFORE UPDATE ON watched FOR EACH ROW EXECUTE FUNCTION machine(); INSERT INTO watched (topic, payload, status) VALUES ('a', 'b', 'sent');
 CREATE TABLE buried ` + columns + ` CHECK (status <> 'dead' OR topic = 'x')); INSERT INTO buried (topic, payload, status) VALUES ('x', 'b', 'dead'), ('a', 'b', 'sent');
 CREATE TABLE silent (id bigserial PRIMARY KEY, topic text, payload text, status text DEFAULT 'new'); INSERT INTO silent (topic, payload, status) VALUES (NULL, 'b', 'sent');
 INSERT INTO silent (topic, payload, status) SELECT 'a', 'b', 'sent' FROM generate_series(1, 100);
 CREATE TABLE unset (id bigserial PRIMARY KEY, topic text NOT NULL, payload text NOT NULL, status text); INSERT INTO unset (topic, payload, status) VALUES ('a', 'b', NULL), ('a', 'b', 'new');
 CREATE TABLE untimed ` + columns + `, locked_until timestamptz); INSERT INTO untimed (topic, payload, status) VALUES ('a', 'b', 'processing'), ('a', 'b', 'new');
 CREATE TABLE topicless (id bigserial PRIMARY KEY, payload text, status text DEFAULT 'new');
 CREATE TABLE named ` + columns + `); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TRIGGER postrider_adopt BEFORE INSERT ON named FOR EACH ROW EXECUTE FUNCTION f();
 CREATE ROLE adopt_guest LOGIN; GRANT USAGE ON SCHEMA postrider TO adopt_guest; GRANT SELECT ON ALL TABLES IN SCHEMA postrider TO adopt_guest; GRANT SELECT ON event TO adopt_guest; GRANT INSERT ON postrider.audit TO adopt_guest;
 CREATE TABLE hidden ` + columns + `, tenant text DEFAULT 'x'); INSERT INTO hidden (topic, payload) VALUES ('a', 'b'); ALTER TABLE hidden OWNER TO adopt_guest; ALTER TABLE hidden ENABLE ROW LEVEL SECURITY; ALTER TABLE hidden FORCE ROW LEVEL SECURITY;
 CREATE POLICY one ON hidden USING (tenant = 'y'); GRANT CREATE ON SCHEMA postrider TO adopt_guest; GRANT INSERT ON postrider.outbox TO adopt_guest;`
	if _, err := conn.Exec(t.Context(), setup); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := conn.Exec(context.WithoutCancel(t.Context()), `DROP OWNED BY adopt_guest; DROP ROLE adopt_guest`); err != nil {
			t.Error(err)
		}
	})
	bad := filepath.Join(t.TempDir(), "bad.yml")
	if err := os.WriteFile(bad, []byte("topic: nowhere\nstate: {column: status, pending: [new], handed: new}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	guest := strings.Replace(store, "postgres@", "adopt_guest@", 1)
	for _, c := range []struct {
		name string
		args []string
		code exit.Code
		want string
	}{
		{"no table", []string{"nothing"}, exit.Usage, "the table does not exist"},
		{"view", []string{"seen"}, exit.Usage, "it is a view"},
		{"partitioned", []string{"parted"}, exit.Usage, "it is a partitioned table"},
		{"a partition", []string{"first", "--yes", "--reason", "x"}, exit.Usage, "it is a partition"},
		{"no key", []string{"keyless"}, exit.Usage, `ALTER TABLE "public"."keyless" ADD PRIMARY KEY`},
		{"unknown layout", []string{"odd"}, exit.Usage, "the columns payload, status are missing"},
		{"another layout", []string{"event", "--layout", "river"}, exit.Usage, "the columns kind, args, state"},
		{"no such layout", []string{"event", "--layout", "kafka"}, exit.Usage, "use status, published"},
		{"unknown word", []string{"words"}, exit.Usage, `the meaning of "florp"`},
		{"a constraint", []string{"codes"}, exit.Usage, `refuses status = "postrider"`},
		{"a short column", []string{"narrow"}, exit.Usage, "takes 4 characters"},
		{"in progress", []string{"stuck", "--yes", "--reason", "x"}, exit.Failure, "--take-in-progress"},
		{"in progress without a time", []string{"untimed", "--yes", "--reason", "x"}, exit.Failure, "1 row is processing"},
		{"no topic", []string{"topicless"}, exit.Usage, "give --topic NAME"},
		{"a topic that is missing", []string{"silent"}, exit.Usage, "topic: {sql:"},
		{"rows of no known state", []string{"unset"}, exit.Usage, "1 row of no known state"},
		{"rows that a policy hides", []string{"hidden", "--yes", "--reason", "x", "--store", guest}, exit.Usage, "row-level security"},
		{"another trigger", []string{"named", "--yes", "--reason", "x"}, exit.Usage, "did not make"},
		{"rows that cannot be messages", []string{"huge", "--yes", "--reason", "x"}, exit.Usage, "key_must_be_at_most_512_bytes"},
		{"a foreign key of the state", []string{"looked", "--yes", "--reason", "x"}, exit.Usage, `violates foreign key constraint`},
		{"a domain", []string{"domained", "--yes", "--reason", "x"}, exit.Usage, `state_d`},
		{"a constraint over two columns", []string{"paired", "--drain", "--yes", "--reason", "x"}, exit.Usage, `paired_check`},
		{"a trigger that watches states", []string{"watched", "--yes", "--reason", "x"}, exit.Usage, `no such state`},
		{"a state of dead letters", []string{"buried", "--in-place", "--yes", "--reason", "x"}, exit.Usage, `buried_check`},
		{"no right", []string{"event", "--yes", "--reason", "x", "--store", guest}, exit.Usage, "missing privileges"},
		{"no reason", []string{"event", "--yes"}, exit.Usage, "missing reason"},
		{"bad mapping", []string{"event", "--mapping", bad}, exit.Usage, `no column "nowhere"`},
		{"no file", []string{"event", "--mapping", bad + "x"}, exit.Usage, "no such file"},
		{"two sources", []string{"event", "--mapping", bad, "--layout", "status"}, exit.Usage, "exclude each other"},
		{"handed without a state", []string{"event", "--handed", "new"}, exit.Usage, "choose another one"},
		{"take in progress of nothing", []string{"event", "--take-in-progress"}, exit.Usage, "has no effect"},
		{"two tables", []string{"event", "words"}, exit.Usage, "give one table"},
		{"nothing to undo", []string{"undo", "event", "--yes", "--reason", "x"}, exit.Usage, "is not adopted"},
		{"nothing to mirror", []string{"mirror", "event", "--once"}, exit.Usage, "is not adopted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := cli(t, nil, "", append([]string{"adopt", "--store", store, "--wait", "0s"}[:3], c.args...)...)
			if got.code != c.code || !strings.Contains(got.err, c.want) {
				t.Errorf("exit code %d, want %d with %q\n%s%s", got.code, c.code, c.want, got.out, got.err)
			}
		})
	}
	// A table that others hold is asked for again, and then given up.
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO event (topic, payload) VALUES ('a', 'b')`); err != nil {
		t.Fatal(err)
	}
	got := cli(t, nil, "", "adopt", "event", "--yes", "--reason", "x", "--wait", "300ms", "--store", store)
	if got.code != exit.Failure || !strings.Contains(got.err, "other transactions hold the table") {
		t.Errorf("a busy table: exit code %d\n%s", got.code, got.err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	got = cli(t, nil, "", "adopt", "event", "--yes", "--reason", "x", "--store", store)
	if got.code != exit.OK {
		t.Fatalf("exit code %d\n%s", got.code, got.err)
	}
	if got := cli(t, nil, "", "adopt", "event", "--yes", "--reason", "x", "--store", store); got.code != exit.Usage || !strings.Contains(got.err, "adopted already") {
		t.Errorf("twice: exit code %d\n%s", got.code, got.err)
	}
	// Another command adopts the table between the plan and the work, and in the middle of the work.
	for _, name := range []string{`"Before"`, `"Meanwhile"`} {
		if _, err := conn.Exec(t.Context(), `CREATE TABLE `+name+` `+columns+`)`); err != nil {
			t.Fatal(err)
		}
		other := func() { mustCLI(t, "", "adopt", name, "--yes", "--reason", "x", "--store", store) }
		d, plan := planned(t, store, name)
		if name == `"Before"` {
			other()
		} else {
			held, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := held.Exec(t.Context(), `LOCK TABLE `+name+` IN ROW EXCLUSIVE MODE`); err != nil {
				t.Fatal(err)
			}
			var once sync.Once
			d.Waiting = func(error) {
				once.Do(func() {
					if err := held.Rollback(t.Context()); err != nil {
						t.Error(err)
					}
					other()
				})
			}
		}
		var refused *adopt.RefusedError
		if _, err := d.Adopt(t.Context(), plan); !errors.As(err, &refused) || refused.Reason != adopt.Already {
			t.Errorf("adopted by another command %s: %v", name, err)
		}
	}
	var status struct {
		Adopted struct{ Actor string }
		Found   struct{ Pending, Unknown int }
	}
	if _, err := conn.Exec(t.Context(), `INSERT INTO event (topic, payload, status) VALUES ('a', 'b', 'queued')`); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(mustCLI(t, "", "adopt", "status", "event", "--store", store, "--output", "json")), &status); err != nil || status.Adopted.Actor == "" || status.Found.Unknown != 1 {
		t.Errorf("status: %+v, %v", status, err)
	}
	if got := mustCLI(t, "", "journal", "--store", store); !strings.Contains(got, "adopt") {
		t.Errorf("the journal has no adoption:\n%s", got)
	}
}

// planned plans the adoption of a table.
func planned(t *testing.T, store, name string) (adopt.DB, *adopt.Plan) {
	t.Helper()
	pool, err := sql.Open("pgx", store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	d := adopt.DB{SQL: pool, Dialect: adopt.Postgres, Schema: "postrider", Wait: time.Minute}
	table, err := d.Look(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	m, err := adopt.Propose(table, "", func(column string) ([]string, error) { return d.Words(t.Context(), table, column) })
	if err != nil {
		t.Fatal(err)
	}
	found, err := d.Find(t.Context(), table, &m)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := adopt.NewPlan(table, m, found, adopt.Options{Schema: d.Schema, Actor: "second", At: time.Now().UTC().Format(time.RFC3339)})
	if err != nil {
		t.Fatal(err)
	}
	return d, plan
}

// TestAdoptHoldsWritersBriefly has a table whose rows take long to look at: the look under the lock is ended, nothing is
// changed, and the refusal names what helps.
//
// Promises: A
func TestAdoptHoldsWritersBriefly(t *testing.T) {
	onBoth(t, func(g *team) {
		g.insert("a", 1, "Pending")
		table, err := (adopt.DB{SQL: g.db, Dialect: g.dialect()}).Look(g.Context(), "event")
		if err != nil {
			g.Fatal(err)
		}
		m, err := adopt.Propose(table, "", func(string) ([]string, error) { return []string{"Pending", "Sent"}, nil })
		if err != nil {
			g.Fatal(err)
		}
		if m.Rows = "pg_catalog.pg_sleep(0.2) IS NOT NULL"; g.my {
			m.Rows = "SLEEP(0.2) = 0"
		}
		plan, err := adopt.NewPlan(table, m, adopt.Found{}, adopt.Options{Schema: "postrider"})
		if err != nil {
			g.Fatal(err)
		}
		for _, held := range []time.Duration{time.Millisecond, 0} {
			g.run("UPDATE event SET status = 'Pending'") // the backfill has copied it
			// Rows that come between the backfill and the lock.
			d := adopt.DB{SQL: g.db, Dialect: g.dialect(), Schema: "postrider", Wait: time.Minute, Held: held}
			d.Copied = func(int64) { g.run("UPDATE event SET status = 'Pending'") }
			_, err = d.Adopt(g.Context(), plan)
			var refused *adopt.RefusedError
			if held == 0 {
				if err != nil {
					g.Error(err)
				}
				continue
			}
			if !errors.As(err, &refused) || refused.Reason != adopt.NotPossible || !strings.Contains(refused.Fix, "add an index") {
				g.Errorf("error %v", err)
			}
			if table, err = d.Look(g.Context(), "event"); err != nil || table.Adopted != nil || table.Half {
				g.Errorf("the table was changed: %+v, %v", table, err)
			}
		}
	})
}

func (g *team) dialect() adopt.Dialect {
	if g.my {
		return adopt.MySQL
	}
	return adopt.Postgres
}

// TestAdoptScript runs what --print-sql prints: with rows left to copy it makes no trigger, and again it copies the rest.
//
// Promises: L
func TestAdoptScript(t *testing.T) {
	g := newTeam(t, testserver.SharedPostgres(t, "18").Database(t))
	g.run("INSERT INTO event (key, payload) SELECT 'k', 'p' FROM generate_series(1, 3001)")
	script := mustCLI(t, "", "adopt", "event", "--print-sql", "--store", g.store)
	if _, err := g.db.ExecContext(t.Context(), script); err == nil || !strings.Contains(err.Error(), "rows are left") {
		t.Fatalf("error %v", err)
	}
	for range 2 { // the first part of a script that failed as a whole is rolled back too
		g.run(script[:strings.Index(script, "BEGIN")])
	}
	g.run(script)
	if got := g.ask("SELECT count(*) || ' ' || (SELECT count(*) FROM pg_trigger WHERE tgname = 'postrider_adopt') FROM postrider.outbox"); got != "3001 1" {
		t.Errorf("messages and triggers: %s, want 3001 1", got)
	}
}
