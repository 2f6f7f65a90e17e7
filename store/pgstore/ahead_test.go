package pgstore_test

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// early counts what a store returns ahead of its table.
type early struct {
	*pgstore.Store
	rows atomic.Int64
}

func (e *early) Read(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
	batches, err := e.Store.Read(ctx, reads)
	for i := range batches {
		if batches[i].Ahead {
			e.rows.Add(int64(len(batches[i].Messages)))
		}
	}
	return batches, err
}

// eager is a reader that asks for rows ahead.
type eager struct {
	*owner
	number uint64
	known  map[store.Lane]uint64
	after  map[store.Lane]store.Position
	ahead  map[int64]postrider.Message // what came ahead, by number
	table  map[int64]postrider.Message // what the table brought
	lanes  map[int64]store.Lane
}

func (d *db) eager(s *pgstore.Store) *eager {
	d.Helper()
	e := &eager{
		owner: &owner{db: d, store: s, boot: "a"}, known: map[store.Lane]uint64{}, after: map[store.Lane]store.Position{},
		ahead: map[int64]postrider.Message{}, table: map[int64]postrider.Message{}, lanes: map[int64]store.Lane{},
	}
	e.lease()
	return e
}

// read reads all lanes, ahead where it may be.
func (e *eager) read(ahead bool) {
	e.Helper()
	if err := e.store.Wait(e.Context(), time.Millisecond); err != nil {
		e.Fatal(err)
	}
	reads := e.reads()
	for i := range reads {
		r := &reads[i]
		e.number++
		r.After, r.MaxRecords, r.MaxBytes = e.after[r.Lane], 100, 32<<20
		r.Ahead, r.Number, r.Known = ahead, e.number, e.known[r.Lane]
	}
	batches, err := e.store.Read(e.Context(), reads)
	if err != nil {
		e.Fatal(err)
	}
	for i := range reads {
		e.known[reads[i].Lane] = reads[i].Number
	}
	for _, b := range batches {
		into := e.table
		if b.Ahead {
			into = e.ahead
		} else {
			e.after[b.Lane] = b.Position
		}
		for i, m := range b.Messages {
			seq := b.Meta[i].Seq
			if lane, ok := e.lanes[seq]; ok && lane != b.Lane {
				e.Errorf("row %d is of lanes %d and %d", seq, lane, b.Lane)
			}
			into[seq], e.lanes[seq] = m, b.Lane
		}
	}
}

// until reads until a condition holds.
func (e *eager) until(what string, holds func() bool) {
	e.Helper()
	for end := time.Now().Add(2 * time.Minute); !holds(); {
		if time.Now().After(end) {
			e.Fatalf("%s: never; the store says %s", what, e.store.Info().Wake())
		}
		e.read(true)
		if e.number%512 == 0 {
			e.read(false)
		}
	}
}

// some writes messages of all kinds until one of them came ahead.
func (e *eager) some() {
	e.Helper()
	before := len(e.ahead)
	e.until("a row goes ahead", func() bool {
		e.exec(`INSERT INTO box.outbox (topic, key, type, payload, content_type, headers, version, schema_version)
			VALUES ('t', 'k', 'one', '\x00ff', 'application/json', '{"a":"ä","b":"2"}', 7, 3), ('t', '', '', '', '', '{}', 0, 0), ('t', 'größe', 'x', decode(repeat('00', 9000), 'hex'), '', '{}', 0, 0)`)
		e.read(true)
		return len(e.ahead) > before
	})
}

// Rows go ahead of the table as the table has them, in the lane that the table has, with or
// without partitions. A publication of the number alone rings only, and scheduled messages and large
// transactions go by way of the table.
//
// Promises: P, O
func TestRowsGoAheadAsTheTableHasThem(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		_, d, s := tailed(t, version)
		e := d.eager(s)
		e.some()
		var keys []string
		for i := range 200 {
			keys = append(keys, strings.Repeat(string(rune('a'+i%26)), i%40)+fmt.Sprint(i))
		}
		d.exec(`INSERT INTO box.outbox (topic, key) SELECT 't', k FROM unnest($1::text[]) k`, keys)
		e.until("all rows of a transaction come", func() bool { return len(e.ahead)+len(e.table) > 200 })
		before := len(e.ahead)
		d.exec(`INSERT INTO box.outbox (topic, key, not_before) VALUES ('t', 'k', now() + interval '1 hour')`)
		d.exec(`INSERT INTO box.outbox (topic, key) SELECT 't', g::text FROM generate_series(1, 1000) g`)
		total := int(d.count(`SELECT count(*) FROM box.outbox`))
		e.until("the table brings all", func() bool { e.read(false); return len(e.table) == total })
		if len(e.ahead) != before {
			t.Errorf("%d rows went ahead that may not", len(e.ahead)-before)
		}
		for seq, m := range e.ahead {
			if !reflect.DeepEqual(m, e.table[seq]) {
				t.Errorf("row %d is %+v ahead and %+v in the table", seq, m, e.table[seq])
			}
		}
		t.Logf("%d of %d rows went ahead", len(e.ahead), total)
		if os.Getenv("POSTRIDER_MATRIX") != "1" {
			return
		}
		d.convert()
		e.some()

		for why, sql := range map[string]string{
			"the publication has the number alone": `ALTER PUBLICATION box_tail SET TABLE box.outbox (seq)`,
			"the publication hides rows":           `ALTER PUBLICATION box_tail SET TABLE box.outbox WHERE (topic = 'other')`,
		} {
			d.exec(sql)
			e.rest(why, ``)
			if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Tail: true}); err != nil {
				t.Fatal(err)
			}
			e.some()
		}
	})
}

// rest writes until some rows in a row came from the table alone.
func (e *eager) rest(why, set string) {
	e.Helper()
	for end, calm := time.Now().Add(time.Minute), 0; calm < 20; calm++ {
		if time.Now().After(end) {
			e.Fatalf("%s: rows go ahead", why)
		}
		ahead, table := len(e.ahead), len(e.table)
		if _, err := e.pool.Exec(e.Context(), `BEGIN; `+set+`INSERT INTO `+e.schema+`.outbox (topic) VALUES ('t'); COMMIT`); err != nil {
			e.Fatal(err)
		}
		for len(e.ahead) == ahead && len(e.table) == table {
			e.read(true)
			e.read(false)
		}
		if len(e.ahead) > ahead {
			calm = 0
		}
		if err := e.store.Wait(e.Context(), 20*time.Millisecond); err != nil {
			e.Fatal(err)
		}
	}
}

// Writers of few keys, each behind its lock, with rollbacks, large and long transactions, while
// sessions are ended and the publication is dropped and made again: every message that was committed arrives
// once, in the order of its key, and many ahead of the table. The books balance.
//
// Promises: L, P, O, D, Q
func TestRowsAheadAndALogThatBreaks(t *testing.T) {
	seconds := 4
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		seconds = 60
	}
	onOwn(t, func(t *testing.T, version string) {
		_, d, s := tailed(t, version)
		e := &early{Store: s}
		broker := membroker.New(nil)
		running, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.New(e, broker.Sink(), nil).Run(running) }()
		d.awaitLog(s)
		writing, stop := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second)
		defer stop()
		var writers sync.WaitGroup
		for range 6 {
			writers.Go(func() { d.jostle(writing) })
		}
		breaks := time.NewTicker(1500 * time.Millisecond)
		defer breaks.Stop()
		for turn := 0; writing.Err() == nil; turn++ {
			select {
			case <-writing.Done():
				continue
			case <-breaks.C:
			}
			if turn%3 < 2 {
				d.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active`)
				continue
			}
			d.exec(`DROP PUBLICATION box_tail`)
			if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Tail: true}); err != nil {
				t.Error(err)
			}
		}
		writers.Wait()
		total := d.count(`SELECT count(*) FROM box.outbox`)
		d.await("everything is settled", `SELECT sum(delivered) >= $1 FROM box.lane_cursor`, total)
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		d.compare(broker)
		if n := len(broker.Log("t")); int64(n) != total {
			t.Errorf("%d copies of %d messages", n, total)
		}
		d.balanced(s, ops.AuditRequest{Full: true})
		if e.rows.Load() == 0 {
			t.Errorf("no row of %d went ahead", total)
		}
		t.Logf("%d of %d rows went ahead", e.rows.Load(), total)
	})
}

// jostle writes messages of a few keys that others write too, until ctx ends. Its commits wait for their
// answer: a commit whose answer nobody waits for may still add rows after the caller has counted them.
func (d *db) jostle(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		tx, err := d.pool.Begin(ctx)
		if err != nil {
			continue
		}
		rows := 1
		if i%200 == 50 {
			rows = 300
		}
		_, err = tx.Exec(ctx, `SELECT pg_sleep(0.005), pg_advisory_xact_lock(x) FROM (SELECT 1000 + $1::int AS x) y`, i%3)
		if err == nil {
			_, err = tx.Exec(ctx, `INSERT INTO `+d.schema+`.outbox (topic, key) SELECT 't', 'k' || $1::int::text FROM generate_series(1, $2)`, i%3, rows)
		}
		if err == nil && i%11 == 3 {
			_, err = tx.Exec(ctx, `SELECT pg_sleep(0.05)`)
		}
		if err == nil && i%7 != 6 {
			err = tx.Commit(context.WithoutCancel(ctx))
		}
		if err != nil || i%7 == 6 {
			_ = tx.Rollback(context.WithoutCancel(ctx))
		}
	}
}
