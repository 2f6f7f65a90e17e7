package pgstore_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// BenchmarkDrain reads and settles a backlog of 256-byte messages of 100,000
// keys in 64 lanes with nobody behind it: the store's own share of a relay.
func BenchmarkDrain(b *testing.B) {
	const n = 200_000
	pool := benchPool(b)
	exec := func(text string) {
		b.Helper()
		if _, err := pool.Exec(b.Context(), text); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		b.StopTimer()
		exec(`DROP SCHEMA IF EXISTS bench CASCADE`)
		s := pgstore.New(pool, &pgstore.Options{Schema: "bench"})
		if _, err := s.Office().Migrator.Migrate(b.Context(), ops.MigrateRequest{}); err != nil {
			b.Fatal(err)
		}
		exec(`INSERT INTO bench.outbox (topic, key, type, payload) SELECT 'orders', 'k' || g % 100000, 'placed', convert_to(repeat('x', 256), 'UTF8')
			FROM generate_series(1, 200000) g`)
		exec(`VACUUM ANALYZE bench.outbox`)
		g, err := s.Lease(b.Context(), store.LeaseRequest{BootID: "b", TTL: time.Minute})
		if err != nil {
			b.Fatal(err)
		}
		var wal int64
		if err := pool.QueryRow(b.Context(), `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&wal); err != nil {
			b.Fatal(err)
		}
		cpu, start := cpuTime(), time.Now()
		b.StartTimer()
		if got := drainAll(b, s, g); got != n {
			b.Fatalf("%d of %d", got, n)
		}
		b.ReportMetric(n/time.Since(start).Seconds(), "msg/s")
		b.ReportMetric((cpuTime()-cpu).Seconds()*1e6/n, "cpu-s/M")
		var after int64
		if err := pool.QueryRow(b.Context(), `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&after); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(after-wal)/n, "wal-B/msg")
	}
}

func drainAll(b *testing.B, s *pgstore.Store, g store.Grant) int {
	b.Helper()
	total := 0
	reads := make([]store.LaneRead, len(g.Lanes))
	for i, l := range g.Lanes {
		reads[i] = store.LaneRead{Lane: l.Lane, Epoch: l.Epoch, After: l.Position, MaxRecords: 1000, MaxBytes: 1 << 20}
	}
	for {
		n := 0
		for at := 0; at < len(reads); at += 8 { // eight lanes at a time
			batches, err := s.Read(b.Context(), reads[at:at+8])
			if err != nil {
				b.Fatal(err)
			}
			var settle []store.Settlement
			for _, batch := range batches {
				r := readOf(reads, batch.Lane)
				if string(batch.Position) != string(r.After) {
					settle = append(settle, store.Settlement{BootID: "b", Lane: r.Lane, Epoch: r.Epoch, Position: batch.Position, Delivered: len(batch.Messages)})
					r.After = batch.Position
					r.Epoch++
				}
				n += len(batch.Messages)
			}
			if _, err := s.Settle(b.Context(), settle); err != nil {
				b.Fatal(err)
			}
		}
		if total += n; n == 0 {
			return total
		}
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchPool is a pool as a relay has it.
func benchPool(b *testing.B) *pgxpool.Pool {
	b.Helper()
	cfg, err := pgstore.ParseConfig(testserver.SharedPostgres(b, "15").URL)
	if err != nil {
		b.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

// BenchmarkIdleRead polls 64 lanes in which nothing happens.
func BenchmarkIdleRead(b *testing.B) {
	pool := benchPool(b)
	s := pgstore.New(pool, &pgstore.Options{Schema: "idle"})
	if _, err := s.Office().Migrator.Migrate(b.Context(), ops.MigrateRequest{}); err != nil {
		b.Fatal(err)
	}
	g, err := s.Lease(b.Context(), store.LeaseRequest{BootID: "b", TTL: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	var reads []store.LaneRead
	for _, l := range g.Lanes {
		reads = append(reads, store.LaneRead{Lane: l.Lane, Epoch: l.Epoch, After: l.Position, MaxRecords: 1000})
	}
	cpu := cpuTime()
	for b.Loop() {
		if _, err := s.Read(b.Context(), reads); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-us/op")
}
