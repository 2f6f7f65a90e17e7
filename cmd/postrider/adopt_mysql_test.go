package main

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/mysqlstore"
)

func mysqlLayouts() []layoutCase {
	const id = "'0198e2a4-7c11-7d3e-9a51-0f7d5b1c2e1"
	return []layoutCase{
		{
			name: "status with the words of a textbook", table: "OutboxMessages",
			ddl: "CREATE TABLE OutboxMessages (Id BIGINT AUTO_INCREMENT PRIMARY KEY, EventId CHAR(36) NOT NULL, Topic VARCHAR(100) NOT NULL, AggregateId VARCHAR(50) NOT NULL, EventType VARCHAR(100) NOT NULL, Payload JSON NOT NULL, Headers JSON," +
				" Status VARCHAR(20) NOT NULL DEFAULT 'Pending', LockedUntil DATETIME(6), AttemptCount INT NOT NULL DEFAULT 0, NextAttemptAt DATETIME, CreatedAt DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), SentAt DATETIME(6), UNIQUE (EventId))",
			before: `INSERT INTO OutboxMessages (EventId, Topic, AggregateId, EventType, Payload, Status, LockedUntil, Headers) VALUES
 (` + id + `1', 'orders', 'o-1', 'placed', '{"n":1}', 'Sent', NULL, NULL), (` + id + `2', 'orders', 'o-1', 'paid', '{"n":2}', 'InProgress', UTC_TIMESTAMP() - INTERVAL 1 MINUTE, NULL),
 (` + id + `3', 'orders', 'o-1', 'sent', '{"n":3}', 'Failed', NULL, '{"tenant":"a"}'), (` + id + `4', 'orders', 'o-2', 'placed', '{"n":4}', 'DeadLetter', NULL, NULL), (` + id + `5', 'orders', 'o-1', 'closed', '{"n":5}', 'Pending', NULL, NULL)`,
			insert: `INSERT IGNORE INTO OutboxMessages (EventId, Topic, AggregateId, EventType, Payload) VALUES (` + id + `6', 'orders', 'o-1', 'late', '{"n":6}'), (` + id + `6', 'orders', 'o-1', 'twice', '{"n":0}'), (` + id + `7', 'orders', 'o-1', 'later', '{"n":7}');
 UPDATE OutboxMessages SET Status = 'Pending' WHERE Status = 'DeadLetter';
 INSERT INTO OutboxMessages (EventId, Topic, AggregateId, EventType, Payload) VALUES (` + id + `1', 'orders', 'o-1', 'placed', '{"n":8}') ON DUPLICATE KEY UPDATE Payload = VALUES(Payload), Status = VALUES(Status)`,
			want:  []string{`orders o-1 paid {"n":2}`, `orders o-1 sent {"n":3} {"tenant":"a"}`, `orders o-1 closed {"n":5}`, `orders o-1 late {"n":6}`, `orders o-1 later {"n":7}`, `orders o-2 placed {"n":4}`, `orders o-1 placed {"n":8}`},
			after: `SELECT GROUP_CONCAT(DISTINCT Status) FROM OutboxMessages`, rows: "Postrider",
		},
		{
			name: "status in an enum without a word for it", table: "outbox_events",
			ddl:    "CREATE TABLE outbox_events (id BINARY(16) PRIMARY KEY, event_type TEXT NOT NULL, aggregate_id BIGINT NOT NULL, payload LONGBLOB NOT NULL, state ENUM('PENDING', 'SENT') NOT NULL DEFAULT 'PENDING', created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))",
			before: `INSERT INTO outbox_events (id, event_type, aggregate_id, payload) VALUES (0x0198e2a47c117d3e9a510f7d5b1c2e11, 'placed', 1, '1'); INSERT INTO outbox_events (id, event_type, aggregate_id, payload) VALUES (0x0198e2a47c117d3e9a510f7d5b1c2e12, 'paid', 1, '2')`,
			insert: `INSERT INTO outbox_events (id, event_type, aggregate_id, payload) VALUES (UNHEX(REPLACE(UUID(), '-', '')), 'placed', 2, '3')`, flags: []string{"--topic", "orders"},
			want: []string{`orders 1 placed 1`, `orders 1 paid 2`, `orders 2 placed 3`}, after: `SELECT GROUP_CONCAT(DISTINCT state) FROM outbox_events`, rows: "SENT",
		},
		{
			name: "published flag", table: "outbox",
			ddl:    "CREATE TABLE outbox (id INT AUTO_INCREMENT PRIMARY KEY, topic TEXT NOT NULL, `key` VARCHAR(40), payload MEDIUMTEXT NOT NULL, published TINYINT(1) NOT NULL DEFAULT 0, published_at DATETIME NULL)",
			before: "INSERT INTO outbox (topic, `key`, payload, published) VALUES ('orders', 'a', '1', 1), ('orders', 'a', '2', 0), ('orders', NULL, '3', 0)",
			insert: "INSERT INTO outbox (topic, `key`, payload, published) VALUES ('orders', 'a', '4', 0), ('orders', 'a', '5', 1), ('orders', 'a', 'ü6', 0)",
			want:   []string{`orders a  2`, `orders   3`, `orders a  4`, `orders a  ü6`}, after: `SELECT CONCAT(SUM(published), ' ', COUNT(published_at)) FROM outbox`, rows: "6 4",
		},
		{
			name: "a time of publishing", table: "messages",
			ddl:    "CREATE TABLE messages (id CHAR(36) PRIMARY KEY, type VARCHAR(50) NOT NULL, content LONGTEXT NOT NULL, created_at DATETIME(6) NOT NULL, published_at TIMESTAMP NULL)",
			before: `INSERT INTO messages VALUES (` + id + `1', 'placed', '1', '2026-01-01', NULL), (` + id + `2', 'paid', '2', '2026-01-02', '2026-01-02')`, insert: `INSERT INTO messages VALUES (` + id + `3', 'closed', '3', '2026-01-03', NULL)`, flags: []string{"--topic", "orders"},
			want: []string{`orders  placed 1`, `orders  closed 3`}, after: `SELECT COUNT(published_at) FROM messages`, rows: "3",
		},
		{
			name: "debezium", table: "outboxevent",
			ddl:    "CREATE TABLE outboxevent (id CHAR(36) PRIMARY KEY, aggregatetype VARCHAR(255) NOT NULL, aggregateid VARCHAR(255) NOT NULL, type VARCHAR(255) NOT NULL, payload JSON)",
			before: `INSERT INTO outboxevent VALUES (` + id + `1', 'order', 'o-1', 'placed', '1')`,
			insert: `INSERT INTO outboxevent VALUES (` + id + `2', 'order', 'o-1', 'paid', '2'); INSERT INTO outboxevent VALUES (` + id + `3', 'order', 'o-2', 'placed', '3'); DELETE FROM outboxevent WHERE id = ` + id + `3'`,
			want:   []string{`order o-1 paid 2`, `order o-2 placed 3`}, after: `SELECT COUNT(*) FROM outboxevent`, rows: "2",
		},
		{
			name: "watermill", table: "watermill_orders",
			ddl:    "CREATE TABLE watermill_orders (`offset` BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, `uuid` VARCHAR(36) NOT NULL, `created_at` TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, `payload` JSON DEFAULT NULL, `metadata` JSON DEFAULT NULL)",
			before: `INSERT INTO watermill_orders (uuid, payload, metadata) VALUES (` + id + `1', '1', '{}')`, insert: `INSERT INTO watermill_orders (uuid, payload, metadata) VALUES (UUID(), '{"n":2}', '{"tenant":"a"}'), ('01J5ZZ-no-uuid', '{"n":3}', '{}')`,
			want: []string{`orders   {"n":2} {"tenant":"a"}`, `orders   {"n":3}`}, after: `SELECT COUNT(*) FROM watermill_orders`, rows: "3",
		},
		{
			name: "watermill's forwarder", table: "watermill_forwarder_topic",
			ddl:    "CREATE TABLE watermill_forwarder_topic (`offset` BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, `uuid` VARCHAR(36) NOT NULL, `created_at` TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, `payload` JSON DEFAULT NULL, `metadata` JSON DEFAULT NULL)",
			insert: `INSERT INTO watermill_forwarder_topic (uuid, payload, metadata) VALUES (UUID(), '{"destination_topic":"paid","uuid":` + strings.ReplaceAll(id, "'", `"`) + `1","payload":"eyJuIjoxfQ==","metadata":{"a":"b"}}', '{}')`,
			want:   []string{`paid   {"n":1} {"a":"b"}`}, after: `SELECT COUNT(*) FROM watermill_forwarder_topic`, rows: "1",
		},
		{
			name: "an insert that is repeated, and an update after one that failed", table: "event",
			ddl:    "CREATE TABLE event (id BIGINT AUTO_INCREMENT PRIMARY KEY, event_id CHAR(36) NOT NULL UNIQUE, topic VARCHAR(50) NOT NULL, `key` VARCHAR(50) NOT NULL, payload JSON NOT NULL, seen INT NOT NULL DEFAULT 0, status VARCHAR(20) NOT NULL DEFAULT 'new')",
			before: "INSERT INTO event (event_id, topic, `key`, payload, status) VALUES (" + id + "1', 'orders', 'a', '1', 'sent')",
			insert: "INSERT INTO event (event_id, topic, `key`, payload) VALUES (" + id + "2', 'orders', 'a', '2');" +
				" INSERT INTO event (event_id, topic, `key`, payload) VALUES (" + id + "2', 'orders', 'a', '2') ON DUPLICATE KEY UPDATE id = id;" +
				" INSERT INTO event (event_id, topic, `key`, payload) VALUES (" + id + "2', 'orders', 'a', '2') ON DUPLICATE KEY UPDATE seen = seen + 1;" +
				" INSERT IGNORE INTO event (event_id, topic, `key`, payload) VALUES (" + id + "2', 'orders', 'a', '2');" +
				" UPDATE event SET seen = 9 WHERE event_id = " + id + "2';" +
				" INSERT INTO event (event_id, topic, `key`, payload) VALUES (" + id + "2', 'orders', 'a', '3') ON DUPLICATE KEY UPDATE payload = VALUES(payload), status = 'new'",
			want: []string{`orders a  2`, `orders a  3`}, after: "SELECT CONCAT(GROUP_CONCAT(status ORDER BY id), ' ', MAX(seen)) FROM event", rows: "sent,postrider 9",
		},
		{
			name: "rows that the old relay has sent, updated after an insert that failed", table: "outbox",
			ddl:    "CREATE TABLE outbox (id INT AUTO_INCREMENT PRIMARY KEY, topic VARCHAR(50) NOT NULL, `key` VARCHAR(40) UNIQUE, payload MEDIUMTEXT NOT NULL, seen INT NOT NULL DEFAULT 0, published TINYINT(1) NOT NULL DEFAULT 0)",
			before: "INSERT INTO outbox (topic, `key`, payload, published) VALUES ('orders', 'a', '1', 1)",
			insert: "INSERT IGNORE INTO outbox (topic, `key`, payload) VALUES ('orders', 'a', '2'); UPDATE outbox SET seen = 1; INSERT INTO outbox (topic, `key`, payload) VALUES ('orders', 'a', '3') ON DUPLICATE KEY UPDATE seen = 2",
			after:  "SELECT GROUP_CONCAT(published, seen) FROM outbox", rows: "12",
		},
		{
			name: "a time that an upsert sets back", table: "messages",
			ddl:    "CREATE TABLE messages (id CHAR(36) PRIMARY KEY, type VARCHAR(50) NOT NULL, content LONGTEXT NOT NULL, created_at DATETIME(6) NOT NULL, published_at DATETIME NULL)",
			before: "INSERT INTO messages VALUES (" + id + "1', 'placed', '1', '2026-01-01', '2026-01-02')",
			insert: "INSERT INTO messages VALUES (" + id + "1', 'placed', '2', '2026-01-01', NULL) ON DUPLICATE KEY UPDATE content = VALUES(content), published_at = VALUES(published_at)",
			flags:  []string{"--topic", "orders"}, want: []string{`orders  placed 2`}, after: "SELECT COUNT(*) FROM messages WHERE published_at > '2026-01-03'", rows: "1",
		},
		{
			name: "an id that may be missing", table: "outbox",
			ddl:    "CREATE TABLE outbox (id BIGINT AUTO_INCREMENT PRIMARY KEY, event_id CHAR(36), topic VARCHAR(50) NOT NULL, payload VARCHAR(50) NOT NULL, published TINYINT(1) NOT NULL DEFAULT 0)",
			before: "INSERT INTO outbox (event_id, topic, payload, published) VALUES (" + id + "1', 'orders', '1', 1)",
			insert: "INSERT INTO outbox (topic, payload) VALUES ('orders', '2')",
			want:   []string{`orders   2`}, after: "SELECT SUM(published) FROM outbox", rows: "2",
		},
		{
			name: "rows that the service works on first", table: "outbox",
			ddl:    "CREATE TABLE outbox (id BIGINT AUTO_INCREMENT PRIMARY KEY, topic VARCHAR(50) NOT NULL, payload VARCHAR(50) NOT NULL, status ENUM('new', 'processing', 'sent', 'postrider') NOT NULL)",
			insert: "INSERT INTO outbox (topic, payload, status) VALUES ('orders', '1', 'processing'); UPDATE outbox SET status = 'new'",
			want:   []string{`orders   1`}, after: "SELECT status FROM outbox LIMIT 1", rows: "postrider",
		},
		{
			name: "words of a binary enum", table: "outbox_events",
			ddl:    "CREATE TABLE outbox_events (id BIGINT AUTO_INCREMENT PRIMARY KEY, topic VARCHAR(50) NOT NULL, payload VARCHAR(50) NOT NULL, state ENUM('PENDING', 'SENT') COLLATE utf8mb4_bin NOT NULL)",
			before: "INSERT INTO outbox_events (topic, payload, state) VALUES ('orders', '1', 'PENDING')",
			insert: "INSERT INTO outbox_events (topic, payload, state) VALUES ('orders', '2', 'PENDING')",
			want:   []string{`orders   1`, `orders   2`}, after: "SELECT GROUP_CONCAT(DISTINCT state) FROM outbox_events", rows: "SENT",
		},
		{
			name: "words of a binary enum with a default, which is in the key too", table: "outbox_events", flags: []string{"--mirror"},
			ddl:    "CREATE TABLE outbox_events (id BIGINT AUTO_INCREMENT, kind ENUM('Paid', 'PAID') COLLATE utf8mb4_bin NOT NULL DEFAULT 'PAID', topic VARCHAR(50) NOT NULL, payload VARCHAR(50) NOT NULL, state ENUM('PENDING', 'SENT') COLLATE utf8mb4_bin NOT NULL DEFAULT 'PENDING', PRIMARY KEY (id, kind))",
			before: "INSERT INTO outbox_events (topic, payload) VALUES ('orders', '1')",
			insert: "INSERT INTO outbox_events (topic, payload) VALUES ('orders', '2')",
			want:   []string{`orders  PAID 1`, `orders  PAID 2`}, after: "SELECT GROUP_CONCAT(DISTINCT state) FROM outbox_events", rows: "SENT",
		},
		{
			name: "a key of 16 bytes", table: "outbox",
			ddl:    "CREATE TABLE outbox (id BIGINT AUTO_INCREMENT PRIMARY KEY, topic VARCHAR(50) NOT NULL, aggregate_id BINARY(16) NOT NULL, payload VARCHAR(50) NOT NULL, published TINYINT(1) NOT NULL DEFAULT 0)",
			before: "INSERT INTO outbox (topic, aggregate_id, payload) VALUES ('orders', 0x0198e2a47c117d3e9a510f7d5b1c2e11, '1')",
			insert: "INSERT INTO outbox (topic, aggregate_id, payload) VALUES ('orders', 0x0198e2a47c117d3e9a510f7d5b1c2e11, '2')",
			want:   []string{`orders 0198e2a4-7c11-7d3e-9a51-0f7d5b1c2e11  1`, `orders 0198e2a4-7c11-7d3e-9a51-0f7d5b1c2e11  2`}, after: "SELECT SUM(published) FROM outbox", rows: "2",
		},
		{
			name: "a key of other bytes", table: "outbox",
			ddl:    "CREATE TABLE outbox (id BIGINT AUTO_INCREMENT PRIMARY KEY, topic VARCHAR(50) NOT NULL, aggregate_id VARBINARY(20) NOT NULL, payload VARCHAR(50) NOT NULL, published TINYINT(1) NOT NULL DEFAULT 0)",
			before: "INSERT INTO outbox (topic, aggregate_id, payload) VALUES ('orders', 0xff00, '1')",
			insert: "INSERT INTO outbox (topic, aggregate_id, payload) VALUES ('orders', 0xfe00, '2')",
			want:   []string{`orders ff00  1`, `orders fe00  2`}, after: "SELECT SUM(published) FROM outbox", rows: "2",
		},
		{
			name: "a flag of Hibernate", table: "outbox",
			ddl:    "CREATE TABLE outbox (id BIGINT AUTO_INCREMENT PRIMARY KEY, topic VARCHAR(50) NOT NULL, payload VARCHAR(50) NOT NULL, published BIT(1) NOT NULL DEFAULT b'0')",
			before: "INSERT INTO outbox (topic, payload, published) VALUES ('orders', '1', b'1')",
			insert: "INSERT INTO outbox (topic, payload) VALUES ('orders', '2')",
			want:   []string{`orders   2`}, after: "SELECT SUM(published = b'1') FROM outbox", rows: "2",
		},
	}
}

// TestAdoptLayoutsMySQL is TestAdoptLayouts on MySQL and MariaDB.
//
// Promises: L, O
func TestAdoptLayoutsMySQL(t *testing.T) {
	for _, version := range testserver.MySQLVersions() {
		for _, c := range mysqlLayouts() {
			t.Run(version+"/"+c.name, func(t *testing.T) {
				store := testserver.SharedMySQL(t, version).Database(t)
				db := openMySQLPool(t, store)
				run := func(text string) {
					t.Helper()
					if _, err := db.ExecContext(t.Context(), text); err != nil && text != "" {
						t.Fatalf("%s: %v", text, err)
					}
				}
				messages := func() (all []string) {
					t.Helper()
					rows, err := db.QueryContext(t.Context(), "SELECT topic, `key`, type, payload, REPLACE(REPLACE(headers, ', ', ','), ': ', ':') FROM postrider_outbox ORDER BY seq")
					if err != nil {
						t.Fatal(err)
					}
					defer rows.Close()
					for rows.Next() {
						var m copied
						if err := rows.Scan(&m.Topic, &m.Key, &m.Type, &m.Payload, &m.Headers); err != nil {
							t.Fatal(err)
						}
						m.Payload = strings.ReplaceAll(m.Payload, ": ", ":")
						all = append(all, strings.TrimSuffix(fmt.Sprintf("%s %s %s %s %s", m.Topic, m.Key, m.Type, m.Payload, m.Headers), " {}"))
					}
					if err := rows.Err(); err != nil {
						t.Fatal(err)
					}
					return all
				}
				mustCLI(t, "", "migrate", "--store", store, "--lanes", "4")
				run(c.ddl)
				run(c.before)
				adopt := append([]string{"adopt", c.table, "--store", store}, c.flags...)
				plan := mustCLI(t, "", adopt...)
				mustCLI(t, "", append(adopt, "--yes", "--reason", "test")...)
				run(c.insert)
				if got := messages(); strings.Join(got, "\n") != strings.Join(c.want, "\n") {
					t.Errorf("copied\n%s\nwant\n%s\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"), plan)
				}
				var rows string
				if err := db.QueryRowContext(t.Context(), c.after).Scan(&rows); err != nil || rows != c.rows {
					t.Errorf("the table has %q, want %q (%v)", rows, c.rows, err)
				}
				if got := cli(t, nil, "", append(adopt, "--yes", "--reason", "test")...); got.code != exit.Usage || !strings.Contains(got.err, "adopted already") {
					t.Errorf("twice: exit code %d\n%s", got.code, got.err)
				}
				mustCLI(t, "", "adopt", "undo", c.table, "--store", store, "--yes", "--reason", "test")
				run(strings.ReplaceAll(c.insert, "c2e1", "c2f1"))
				if got := messages(); len(got) != len(c.want) {
					t.Errorf("%d messages after the step back, want %d", len(got), len(c.want))
				}
			})
		}
	}
}

func openMySQLPool(t *testing.T, store string) *sql.DB {
	t.Helper()
	db, err := mysqlstore.OpenDB(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// TestAdoptHalf breaks an adoption off between two triggers, and a step back: the status reports it, and a step back
// removes what is left. An adoption continues.
//
// Promises: L
func TestAdoptHalf(t *testing.T) {
	for _, version := range testserver.MySQLVersions() {
		t.Run(version, func(t *testing.T) {
			store := testserver.SharedMySQL(t, version).Database(t)
			db := openMySQLPool(t, store)
			mustCLI(t, "", "migrate", "--store", store, "--lanes", "4")
			run := func(text string) {
				t.Helper()
				if _, err := db.ExecContext(t.Context(), text); err != nil {
					t.Fatalf("%s: %v", text, err)
				}
			}
			run("CREATE TABLE event (id BIGINT AUTO_INCREMENT PRIMARY KEY, topic VARCHAR(50) NOT NULL, payload VARCHAR(50) NOT NULL, status VARCHAR(20) NOT NULL DEFAULT 'new')")
			adopt := []string{"adopt", "event", "--store", store, "--yes", "--reason", "test"}
			undo := []string{"adopt", "undo", "event", "--store", store, "--yes", "--reason", "test"}
			for _, gone := range [][]string{{"bi"}, {"bi", "bu", "au"}, {"bi", "ai"}} {
				mustCLI(t, "", adopt...)
				for _, of := range gone {
					run("DROP TRIGGER postrider_" + of + "_event")
				}
				if status := mustCLI(t, "", "adopt", "status", "event", "--store", store); !strings.Contains(status, "half adopted") {
					t.Errorf("without %v the status is\n%s", gone, status)
				}
				if len(gone) > 1 {
					mustCLI(t, "", adopt...)
					run("DROP TRIGGER postrider_bi_event")
				}
				mustCLI(t, "", undo...)
				var n int
				if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = DATABASE() AND EVENT_OBJECT_TABLE = 'event'").Scan(&n); err != nil || n != 0 {
					t.Errorf("%d triggers are left without %v (%v)", n, gone, err)
				}
				if got := cli(t, nil, "", undo...); got.code != exit.Usage || !strings.Contains(got.err, "is not adopted") {
					t.Errorf("undone twice: exit code %d\n%s", got.code, got.err)
				}
			}
		})
	}
}
