package pgstore_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// tailed is an outbox with a publication on a server of its own, and a store that is woken by
// the log.
func tailed(t *testing.T, version string) (*testserver.Postgres, *db, *pgstore.Store) {
	t.Helper()
	pg := testserver.StartPostgres(t, version)
	d := &db{T: t, pool: newPool(t, pg.URL), schema: "box", lanes: 4}
	if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4, Tail: true}); err != nil {
		t.Fatal(err)
	}
	return pg, d, pgstore.New(d.pool, &pgstore.Options{Schema: d.schema, Wake: pgstore.Reading})
}

func (d *db) awaitLog(s *pgstore.Store) {
	d.Helper()
	for until := time.Now().Add(2 * time.Minute); s.Info().Wake().Using != "log"; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			d.Fatalf("the log is off: %s", s.Info().Wake())
		}
	}
}

// The database is killed again and again while 64 writers work and a relay is woken by its log:
// every message that was committed arrives, in the order of its key, and none that was not.
// Status, doctor and a conversion to partitions know the log.
//
// Promises: L, P, O, S
func TestTheLogAndADatabaseThatDies(t *testing.T) {
	kills := 3
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		kills = 20
	}
	onOwn(t, func(t *testing.T, version string) {
		pg, d, s := tailed(t, version)
		broker := membroker.New(nil)
		running, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.New(s, broker.Sink(), nil).Run(running) }()
		d.awaitLog(s)

		writing, stop := context.WithCancel(t.Context())
		var writers sync.WaitGroup
		for w := range 64 {
			writers.Go(func() { d.scribble(writing, fmt.Sprintf("k%d", w)) })
		}
		for range kills {
			before := broker.Len("t")
			for until := time.Now().Add(2 * time.Minute); broker.Len("t") < before+100; time.Sleep(time.Millisecond) {
				if time.Now().After(until) {
					t.Fatal("no message moves")
				}
			}
			d.crash(pg)
		}
		stop()
		writers.Wait()
		d.awaitLog(s)
		found := d.examine(s, ops.ExamineRequest{}, "wake")
		for until := time.Now().Add(time.Minute); !strings.Contains(found[0].What, "woken by the log") && time.Now().Before(until); {
			found = d.examine(s, ops.ExamineRequest{}, "wake")
		}
		status, err := s.Office().Admin.Status(t.Context())
		if err != nil || len(status.Instances) != 1 || status.Instances[0].Wake != "log" || found[0].Severity != ops.OK {
			t.Errorf("status %+v, %v; doctor %+v", status.Instances, err, found)
		}

		d.convert()
		d.awaitLog(s)
		if n := d.count(`SELECT count(*) FROM pg_publication_tables WHERE pubname = 'box_tail' AND tablename = 'outbox'`); n != 1 {
			t.Error("the publication did not follow the conversion to partitions")
		}
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'last', '0')`)
		total := d.count(`SELECT count(*) FROM box.outbox`)
		d.await("everything is settled", `SELECT sum(delivered) >= $1 FROM box.lane_cursor`, total)
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		d.await("no slot is left", `SELECT count(*) = 0 FROM pg_replication_slots`)
		d.compare(broker)
	})
}

// scribble writes messages of one key, numbered by its rows, until ctx ends. Some roll back.
func (d *db) scribble(ctx context.Context, key string) {
	for i := 0; ctx.Err() == nil; i++ {
		tx, err := d.pool.Begin(ctx)
		if err != nil {
			continue // the server is away
		}
		_, err = tx.Exec(ctx, `INSERT INTO box.outbox (topic, key, type) SELECT 't', $1, (count(*))::text FROM box.outbox WHERE key = $1`, key)
		if err == nil && i%20 == 0 {
			_, err = tx.Exec(ctx, `SELECT pg_sleep(0.2)`) // a long one
		}
		if err == nil && i%7 != 6 {
			err = tx.Commit(ctx)
		}
		if err != nil || i%7 == 6 {
			_ = tx.Rollback(context.WithoutCancel(ctx)) // gone with the connection at worst
		}
	}
}

// compare wants the first arrival of every committed message, and of no other, in the order of
// its key.
func (d *db) compare(broker *membroker.Broker) {
	d.Helper()
	rows, err := d.pool.Query(d.Context(), `SELECT id::text, key FROM box.outbox ORDER BY seq`)
	if err != nil {
		d.Fatal(err)
	}
	defer rows.Close()
	want, committed := map[string][]string{}, map[string]bool{}
	for rows.Next() {
		var id, key string
		if err := rows.Scan(&id, &key); err != nil {
			d.Fatal(err)
		}
		want[key], committed[id] = append(want[key], id), true
	}
	got, seen := map[string]int{}, map[string]bool{}
	for _, e := range broker.Log("t") {
		switch id, key := e.Message.ID, e.Message.Key; {
		case !committed[id]:
			d.Errorf("phantom %s of key %s", id, key)
		case seen[id]:
		case got[key] >= len(want[key]) || want[key][got[key]] != id:
			d.Fatalf("key %s: %s came out of order as number %d", key, id, got[key])
		default:
			seen[id] = true
			got[key]++
		}
	}
	if len(seen) != len(committed) {
		d.Errorf("%d of %d messages arrived", len(seen), len(committed))
	}
}

// An idle relay that may pause for long sends at once what the log tells it.
func TestTheLogIsFast(t *testing.T) {
	_, d, s := tailed(t, "18")
	if fast := latency(t, d, s, 10*time.Second); fast > 3*time.Second {
		t.Errorf("half of the messages took longer than %v: %s", fast, s.Info().Wake())
	}
}
