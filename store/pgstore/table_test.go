package pgstore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

func wantIs(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want %v", err, target)
	}
}

func (d *db) count(text string) int64 {
	d.Helper()
	var n int64
	if err := d.pool.QueryRow(d.Context(), d.sql(text)).Scan(&n); err != nil {
		d.Fatal(err)
	}
	return n
}

func (d *db) state(name string) int64 {
	d.Helper()
	return d.count(`SELECT count(*) FROM box.messages WHERE state = '` + name + `'`)
}

func TestPlainInsert(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type, payload) VALUES ('orders', 'order-1', 'order.placed', '{"n":1}')`)
		d.exec(`INSERT INTO box.outbox (topic) VALUES ('orders')`)
		got := o.drain() // two lanes: no order between them
		slices.Sort(got)
		if !slices.Equal(got, []string{"", "order.placed"}) {
			t.Errorf("delivered %q", got)
		}
	})
}

func TestConstraintsSpeak(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		for values, constraint := range map[string]string{
			`(topic) VALUES ('')`:                                                                       "topic_must_be_1_to_255_bytes",
			`(topic) VALUES (repeat('é', 128))`:                                                         "topic_must_be_1_to_255_bytes",
			`(topic, key) VALUES ('t', repeat('x', 513))`:                                               "key_must_be_at_most_512_bytes",
			`(topic, type) VALUES ('t', repeat('x', 256))`:                                              "type_must_be_at_most_255_bytes",
			`(topic, content_type) VALUES ('t', repeat('x', 256))`:                                      "content_type_must_be_at_most_255_bytes",
			`(topic, payload) VALUES ('t', repeat('x', 16777217)::bytea)`:                               "payload_must_be_at_most_16_mib",
			`(topic, version) VALUES ('t', -1)`:                                                         "version_must_not_be_negative",
			`(topic, schema_version) VALUES ('t', -1)`:                                                  "schema_version_must_not_be_negative",
			`(topic, headers) VALUES ('t', '[]')`:                                                       "headers_must_be_at_most_64_plain_strings_of_16_kib",
			`(topic, headers) VALUES ('t', '{"a":1}')`:                                                  "headers_must_be_at_most_64_plain_strings_of_16_kib",
			`(topic, headers) VALUES ('t', '{"":"x"}')`:                                                 "headers_must_be_at_most_64_plain_strings_of_16_kib",
			`(topic, headers) VALUES ('t', '{"Postrider-x":"x"}')`:                                      "headers_must_not_begin_with_postrider",
			`(topic, headers) VALUES ('t', '{"a":"x","postrider-x":"x"}')`:                              "headers_must_not_begin_with_postrider",
			`(topic, headers) VALUES ('t', '{"a":"x\ny"}')`:                                             "headers_must_be_at_most_64_plain_strings_of_16_kib",
			`(topic, headers) VALUES ('t', '{"a b":"x"}')`:                                              "headers_must_be_at_most_64_plain_strings_of_16_kib",
			`(topic, headers) VALUES ('t', '{"a":"x","b":null}')`:                                       "headers_must_be_at_most_64_plain_strings_of_16_kib",
			`(topic, headers) VALUES ('t', '{"a":"x","b":{"c":"d"}}')`:                                  "headers_must_be_at_most_64_plain_strings_of_16_kib",
			`(topic, headers) VALUES ('t', '{"a":"x","b c":"d"}')`:                                      "headers_must_be_at_most_64_plain_strings_of_16_kib",
			`(topic, headers) VALUES ('t', '{"a":"x","é":"d"}')`:                                        "headers_must_be_at_most_64_plain_strings_of_16_kib",
			`(topic, headers) VALUES ('t', '{"a":"x","pOstrider-id":"d"}')`:                             "headers_must_not_begin_with_postrider",
			`(topic, headers) VALUES ('t', '"{\"a\": \"b\"}"')`:                                         "headers_must_be_at_most_64_plain_strings_of_16_kib",
			`(topic, headers) SELECT 't', jsonb_object_agg('k' || g, '') FROM generate_series(1, 65) g`: "headers_must_be_at_most_64_plain_strings_of_16_kib",
			`(topic, headers) SELECT 't', jsonb_build_object('k', repeat('x', 16384))`:                  "headers_must_be_at_most_64_plain_strings_of_16_kib",
		} {
			_, err := d.pool.Exec(t.Context(), d.sql(`INSERT INTO box.outbox `+values))
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.ConstraintName != constraint {
				t.Errorf("%.60s: got %v, want %s", values, err, constraint)
			}
		}
		d.exec(`INSERT INTO box.outbox (topic, headers) VALUES ('t', '{"trace":"é", "a": "postrider-x", "b": "{\"postrider-x", "c": ", \"postrider-x\": \"", "x-postrider-": ""}')`)
		d.exec(`INSERT INTO box.outbox (topic, headers) VALUES ('t', '{"a/b":"a \"quoted\" \\ value, \"postrider-x\": \t","c":""}')`)
		d.exec(`INSERT INTO box.outbox (topic, headers) SELECT 't', jsonb_object_agg('k' || g, '') FROM generate_series(1, 64) g`)
		d.exec(`INSERT INTO box.outbox (topic, headers) SELECT 't', jsonb_build_object('k', repeat('x', 16383))`)
	})
}

// The hash and the number of lanes are frozen: these values hold for ever.
func TestGoldenLanes(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 64)
		for key, lane := range goldenLanes {
			var got int
			err := d.pool.QueryRow(t.Context(), d.sql(`INSERT INTO box.outbox (id, topic, key)
				VALUES ('01890a5d-ac96-774b-bcce-b302099a8057', 't', $1) RETURNING lane`), key).Scan(&got)
			if err != nil || got != lane {
				t.Errorf("key %q is in lane %d, want %d (%v)", key, got, lane, err)
			}
		}
	})
}

// Promises: Q
func TestMessagesView(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		late := d.begin()
		d.put(late, "late")
		for _, label := range []string{"sent", "failed", "dead"} {
			tx := d.begin()
			d.do(tx, `INSERT INTO box.outbox (topic, key, type) VALUES ('t', $1, $1)`, label)
			d.commit(tx)
		}
		batches := o.read()
		for _, b := range batches {
			st := store.Settlement{BootID: "a", Lane: b.Lane, Epoch: o.grant[b.Lane].Epoch, Position: b.Position, Delivered: 1}
			for i, m := range b.Messages {
				if m.Type != "sent" {
					park := store.Park{Seq: b.Meta[i].Seq, Message: m, State: store.Dead, Captures: true, Attempts: 1, Class: "failed"}
					if m.Type == "failed" {
						park.State, park.DueIn = store.Retry, time.Minute
					}
					st.Park = append(st.Park, park)
				}
			}
			if _, err := o.store.Settle(t.Context(), []store.Settlement{st}); err != nil {
				t.Fatal(err)
			}
		}
		d.commit(late)
		states := map[string]string{}
		rows, err := d.pool.Query(t.Context(), d.sql(`SELECT type, state FROM box.messages`))
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var label, state string
			if err := rows.Scan(&label, &state); err != nil {
				t.Fatal(err)
			}
			states[label] = state
		}
		for label, want := range map[string]string{"late": "InProgress", "sent": "Sent", "failed": "Failed", "dead": "DeadLetter"} {
			if states[label] != want {
				t.Errorf("%s is %s, want %s", label, states[label], want)
			}
		}
		if _, err := o.store.Lease(t.Context(), store.LeaseRequest{BootID: "a", Leave: true, TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		if n := d.state("Pending"); n != 1 {
			t.Errorf("%d Pending with nobody alive, want 1", n)
		}
	})
}

// Promises: O
func TestSequenceHasNoCache(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		if n := d.count(`SELECT seqcache FROM pg_sequence WHERE seqrelid = 'box.outbox_seq'::regclass`); n != 1 {
			t.Errorf("the sequence caches %d numbers", n)
		}
	})
}

// Promises: C
func TestRowSecurityIsRefused(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		role := strings.ToLower(d.schema) + "_rls"
		d.role(role)
		d.exec(`ALTER TABLE box.outbox ENABLE ROW LEVEL SECURITY`)
		s := pgstore.New(d.as(role), &pgstore.Options{Schema: d.schema})
		_, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "b", TTL: time.Minute})
		wantIs(t, err, store.ErrUnusable)
		if !strings.Contains(err.Error(), "row security") {
			t.Errorf("error does not name the cause: %v", err)
		}
	})
}

func TestReadOnlyServer(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		role := strings.ToLower(d.schema) + "_ro"
		d.role(role)
		d.exec(`ALTER ROLE ` + role + ` SET default_transaction_read_only = on`)
		s := pgstore.New(d.as(role), &pgstore.Options{Schema: d.schema})
		_, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "b", TTL: time.Minute})
		wantPassing(t, err)
	})
}

func TestMissingAndNewerSchema(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := empty(t, version, 4)
		_, err := d.store("main").Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute})
		wantIs(t, err, store.ErrSchema)
		if _, err = d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{}); err != nil {
			t.Fatal(err)
		}
		d.exec(`INSERT INTO box.migration (version, name, checksum) VALUES (99, 'future', '')`)
		_, err = d.store("main").Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute})
		wantIs(t, err, store.ErrSchema)
		_, err = d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{})
		wantIs(t, err, store.ErrSchema)
		d.exec(`DELETE FROM box.migration WHERE version = 99`)
		d.exec(`UPDATE box.migration SET checksum = 'x'`)
		_, err = d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{})
		wantIs(t, err, store.ErrUnusable)
	})
}

func TestMigrateTwiceAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := empty(t, version, 4)
		var wg sync.WaitGroup
		steps := make(chan int, 8)
		for range 8 {
			wg.Go(func() {
				done, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{})
				if err != nil {
					t.Error(err)
				}
				steps <- len(done)
			})
		}
		wg.Wait()
		close(steps)
		total := 0
		for n := range steps {
			total += n
		}
		if total != pgstore.Version {
			t.Errorf("%d steps were done by 8 at once, want %d", total, pgstore.Version)
		}
	})
}

func TestPrintedSQLIsTheSchema(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := empty(t, version, 16)
		text, err := d.store("main").Office().Migrator.SQL(0, pgstore.Version)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := d.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		if _, err := conn.Conn().PgConn().Exec(t.Context(), text).ReadAll(); err != nil {
			t.Fatal(err)
		}
		done, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{})
		if err != nil || len(done) != 0 {
			t.Errorf("migrate after the printed statements: %v, %v", done, err)
		}
		if n := d.count(`SELECT lanes FROM box.outbox_info`); n != 16 {
			t.Errorf("%d lanes", n)
		}
	})
}

// A second pipe starts from now, and what runs at that moment belongs to it.
func TestNewPipeStartsFromNow(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'before')`)
		open := d.begin()
		d.put(open, "open")
		second := &owner{db: d, store: d.store("audit"), boot: "x", page: 10}
		second.lease()
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'after')`)
		second.want("after")
		d.commit(open)
		second.want("open")
		o.want("before", "open", "after")
	})
}

func TestBadNamesDoNoIO(t *testing.T) {
	for _, schema := range []string{`x"; DROP SCHEMA public; --`, "1a", strings.Repeat("a", 64), "a b"} {
		s := pgstore.New(nil, &pgstore.Options{Schema: schema})
		_, err := s.Lease(context.Background(), store.LeaseRequest{BootID: "a"})
		wantIs(t, err, store.ErrUnusable)
	}
}
