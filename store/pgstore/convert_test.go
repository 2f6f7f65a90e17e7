package pgstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func (d *db) convert() {
	d.Helper()
	if _, err := d.store("main").Office().Migrator.Migrate(d.Context(), ops.MigrateRequest{Partition: true}); err != nil {
		d.Fatal(err)
	}
}

func (d *db) label(label string) {
	d.Helper()
	d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', $1)`, label)
}

// Writers of every kind and a reader continue while the outbox
// is converted and partitions are made, changed and dropped without a pause.
//
// Promises: L, O
func TestNothingLostAcrossPartitions(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 8)
		o := d.owner("a")
		o.page = 20
		var committed sync.Map
		var failed atomic.Value
		var writers, tender sync.WaitGroup
		until := time.Now().Add(raceFor / 2)
		try := func(work func() error) {
			if err := work(); err != nil {
				failed.Store(err)
			}
		}
		for w := range 8 {
			writers.Go(func() { try(func() error { return d.write(t.Context(), w, until, &committed) }) })
		}
		writers.Go(func() { try(func() error { return d.copyIn(t.Context(), 1000, until, &committed) }) })
		var dropped, rolled int
		drained := make(chan struct{})
		tender.Go(func() { try(func() error { return d.convertAndTend(t.Context(), drained, &rolled, &dropped) }) })
		beside(&writers, func() { o.step() })
		for o.step() > 0 {
		}
		o.drain()
		close(drained)
		tender.Wait()
		if err := failed.Load(); err != nil {
			t.Fatal(err)
		}
		checkDelivery(t, o.seen, &committed)
		t.Logf("%d changes of partition, %d drops", rolled, dropped)
		if rolled == 0 || dropped == 0 {
			t.Error("no partition changed or none was dropped: the test proves little")
		}
	})
}

// convertAndTend ends when all is read and a last look has been taken.
func (d *db) convertAndTend(ctx context.Context, drained <-chan struct{}, rolled, dropped *int) error {
	s := d.store("main")
	if _, err := s.Office().Migrator.Migrate(ctx, ops.MigrateRequest{Partition: true}); err != nil {
		return err
	}
	for last := false; !last; {
		select {
		case <-drained:
			last = true
		default:
		}
		if _, err := s.Office().Books.Audit(ctx, ops.AuditRequest{}); err != nil {
			return err
		}
		got, err := s.Office().Partitions.Tend(ctx, ops.TendRequest{Every: time.Nanosecond})
		if err != nil {
			return err
		}
		if got.Rolled {
			*rolled++
		}
		*dropped += got.Dropped
	}
	return nil
}

// copyIn writes by COPY.
func (d *db) copyIn(ctx context.Context, w int, until time.Time, committed *sync.Map) error {
	for n := 0; time.Now().Before(until); n += 10 {
		rows := make([][]any, 10)
		for i := range rows {
			rows[i] = []any{"t", fmt.Sprintf("%d.0", w), fmt.Sprintf("%d.0:%d", w, n+i)}
		}
		if _, err := d.pool.CopyFrom(ctx, pgx.Identifier{d.schema, "outbox"}, []string{"topic", "key", "type"}, pgx.CopyFromRows(rows)); err != nil {
			return fmt.Errorf("copy: %w", err)
		}
		for i := range rows {
			committed.Store(fmt.Sprintf("%d.0:%d", w, n+i), true)
		}
	}
	return nil
}

// A transaction that is as old as you like inserts into whatever the outbox has
// become, and what it wrote is delivered before it is dropped.
//
// Promises: L
func TestLongTransactionAcrossPartitions(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		older := d.begin()
		d.do(older, `SELECT pg_current_xact_id()`)
		d.label("before")
		o.want("before")
		d.convert()
		long := d.begin()
		d.put(long, "long 0")
		for i := range 2 {
			d.label(fmt.Sprint("short ", i))
			if got := d.tend(ops.TendRequest{OlderThan: keep}); !got.Rolled || got.Made != 1 {
				t.Fatalf("round %d: %+v", i, got)
			}
			d.put(long, fmt.Sprint("long ", i+1))
		}
		d.put(older, "older")
		o.want("short 0", "short 1")
		if got := d.tend(ops.TendRequest{}); got.Dropped != 0 || got.Rolled || !got.Busy {
			t.Errorf("dropped, or went on, under an open transaction: %+v", got)
		}
		d.put(long, "long 3")
		d.commit(long)
		d.commit(older)
		if got := d.tend(ops.TendRequest{}); got.Dropped != 0 || got.HeldBy != "main" {
			t.Errorf("dropped before a straggler was delivered: %+v", got)
		}
		o.want("long 0", "long 1", "long 2", "older", "long 3")
		if got := d.tend(ops.TendRequest{}); got.Dropped != 3 || got.Rows != 8 {
			t.Errorf("all is settled: %+v", got)
		}
	})
}

// What has inserted keeps the conversion waiting, and nobody else for long.
func TestConversionWaitsForWriters(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		open := d.begin()
		d.put(open, "open")
		converted := make(chan error, 1)
		go func() {
			_, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Partition: true})
			converted <- err
		}()
		for i := range 5 {
			start := time.Now()
			d.label(fmt.Sprint("m", i))
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("an INSERT took %s", took)
			}
		}
		select {
		case err := <-converted:
			t.Fatalf("converted under an open INSERT: %v", err)
		default:
		}
		o.want("m0", "m1", "m2", "m3", "m4")
		d.put(open, "more")
		d.commit(open)
		if err := <-converted; err != nil {
			t.Fatal(err)
		}
		o.want("open", "more")
		if p, err := o.store.Office().Partitions.Partitions(t.Context()); err != nil || len(p.List) != 3 {
			t.Errorf("%+v, %v", p, err)
		}
	})
}

// A conversion that dies in any of its steps leaves an outbox that works, and
// the next one finishes it; so do several at once.
func TestConversionKilledAtEachStep(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		steps := o.store.ConversionSQL()
		for i := range len(steps) + 1 {
			for _, done := range steps[:i] {
				if i < len(steps) {
					d.exec(done)
				}
			}
			if i < len(steps) {
				tx := d.begin()
				d.do(tx, steps[i])
				var pid int
				if err := tx.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
					t.Fatal(err)
				}
				d.exec(`SELECT pg_terminate_backend($1, 10000)`, pid)
			} else {
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() {
						if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Partition: true}); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
			}
			label := fmt.Sprint("after ", i)
			d.label(label)
			o.want(label)
		}
		steps2, err := o.store.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Partition: true})
		if err != nil || len(steps2) != 0 {
			t.Errorf("a partitioned outbox is partitioned again: %v, %v", steps2, err)
		}
		if p, err := o.store.Office().Partitions.Partitions(t.Context()); err != nil || len(p.List) != 3 || p.Alarm() != "" {
			t.Errorf("%+v, %v", p, err)
		}
	})
}

// Everything that hangs on the table hangs on the new one.
func TestConversionKeepsWhatDepends(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		role := strings.ToLower(d.schema) + "_w"
		d.exec(`CREATE ROLE ` + role)
		d.Cleanup(func() {
			for _, text := range []string{`DROP OWNED BY ` + role, `DROP ROLE ` + role} {
				if _, err := d.pool.Exec(context.Background(), text); err != nil {
					t.Errorf("%s: %v", text, err)
				}
			}
		})
		for _, text := range []string{
			`GRANT INSERT (topic, key) ON box.outbox TO ` + role,
			`GRANT SELECT ON box.outbox TO ` + role + ` WITH GRANT OPTION`,
			`CREATE VIEW box.mine WITH (security_barrier = true) AS SELECT topic, count(*) AS n FROM box.outbox GROUP BY topic`,
			`CREATE FUNCTION box.how_many() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM box.outbox; END`,
			`CREATE FUNCTION box.mark() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.content_type := ''marked''; RETURN NEW; END'`,
			`CREATE TRIGGER mark BEFORE INSERT ON box.outbox FOR EACH ROW EXECUTE FUNCTION box.mark()`,
			`ALTER TABLE box.outbox ENABLE ALWAYS TRIGGER mark`,
			`CREATE INDEX by_type ON box.outbox (type)`,
			`ALTER TABLE box.outbox ALTER payload SET STORAGE EXTERNAL`,
			`ALTER TABLE box.outbox ADD CONSTRAINT no_z CHECK (type <> 'z')`,
			`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'old')`,
		} {
			d.exec(text)
		}
		const shape = `SELECT md5(string_agg(x, E'\n' ORDER BY x)) FROM (
			SELECT format('%s %s %s %s %s %s', attname, atttypid, attnotnull, attgenerated, attstorage, attacl) FROM pg_attribute a
			 WHERE attrelid = 'box.outbox'::regclass AND attnum > 0
			UNION ALL SELECT relacl::text || relowner FROM pg_class WHERE oid = 'box.outbox'::regclass
			UNION ALL SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'box.outbox'::regclass
			UNION ALL SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'box.outbox'::regclass AND contype <> 'n'
			UNION ALL SELECT substring(indexdef FROM 'USING.*') FROM pg_indexes WHERE schemaname = $1 AND tablename = 'outbox'
			UNION ALL SELECT pg_get_triggerdef(oid) || tgenabled::text FROM pg_trigger WHERE tgrelid = 'box.outbox'::regclass
			UNION ALL SELECT obj_description('box.outbox'::regclass)
			UNION ALL SELECT relname || reloptions::text || relacl::text FROM pg_class WHERE relnamespace = ('"' || $1 || '"')::regnamespace AND relkind = 'v'
			) s(x)`
		look := func() (sum string) {
			if err := d.pool.QueryRow(t.Context(), d.sql(shape), d.schema).Scan(&sum); err != nil {
				t.Fatal(err)
			}
			return sum
		}
		before := look()
		d.convert()
		if after := look(); after != before {
			t.Error("the table is not what it was")
		}
		d.label("new")
		d.label("newer")
		if n := d.count(`SELECT n FROM box.mine`); n != 3 {
			t.Errorf("the view has %d rows", n)
		}
		if n := d.count(`SELECT box.how_many()`); n != 3 {
			t.Errorf("the function counts %d rows", n)
		}
		if n := d.count(`SELECT count(*) FROM box.outbox WHERE content_type = 'marked'`); n != 3 {
			t.Errorf("the trigger saw %d rows", n)
		}
		if n := d.count(`SELECT count(*) FROM box.messages`); n != 3 {
			t.Errorf("the view messages has %d rows", n)
		}
		if n := d.count(`SELECT count(*) FROM pg_class WHERE relname ~ '^outbox_p[0-9]+$' AND relnamespace = '"` + d.schema +
			`"'::regnamespace AND reloptions = '{autovacuum_vacuum_insert_scale_factor=0.05}'`); n != 3 {
			t.Errorf("%d of 3 partitions have the table's options", n)
		}
		o.want("old", "new", "newer")
	})
}

// What cannot be made again from its text is named before anything is changed.
func TestConversionRefuses(t *testing.T) {
	trap(t, func(d *db, _ *owner) {
		d.exec(`CREATE MATERIALIZED VIEW box.counted AS SELECT count(*) FROM box.outbox`)
		d.exec(`CREATE TABLE box.ref (lane smallint, seq bigint, CONSTRAINT to_outbox FOREIGN KEY (lane, seq) REFERENCES box.outbox)`)
		_, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Partition: true})
		wantIs(t, err, store.ErrUnusable)
		for _, word := range []string{"materialized view", "counted", "to_outbox"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("error lacks %q: %v", word, err)
			}
		}
		if n := d.count(`SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_partition_bound'`); n != 0 {
			t.Error("something was changed")
		}
	})
}
