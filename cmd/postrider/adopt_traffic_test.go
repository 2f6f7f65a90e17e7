package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/internal/testserver"
)

// site is a table of events on MySQL with writers and an old relay.
type site struct {
	*testing.T
	db        *sql.DB
	store     string
	committed atomic.Int64

	mu  sync.Mutex
	old map[string][]int64 // that the old relay has sent, by key
}

const siteTables = "CREATE TABLE event (id BIGINT AUTO_INCREMENT PRIMARY KEY, topic VARCHAR(50) NOT NULL, `key` VARCHAR(50) NOT NULL, payload JSON NOT NULL, status VARCHAR(20) NOT NULL DEFAULT 'new', sent_at DATETIME(6), KEY (status, id));" +
	" CREATE TABLE counter (name VARCHAR(50) PRIMARY KEY, n BIGINT NOT NULL)"

// busy reports an error that a writer repeats.
func busy(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && (e.Number == 1205 || e.Number == 1213)
}

// write commits the next event of a key. Every tenth is rolled back.
func (s *site) write(ctx context.Context, key string) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // committed in most cases
	for _, text := range []string{
		"INSERT INTO counter VALUES ('" + key + "', 1) ON DUPLICATE KEY UPDATE n = n + 1",
		"INSERT INTO event (topic, `key`, payload) SELECT 'orders', name, JSON_OBJECT('n', n) FROM counter WHERE name = '" + key + "'",
	} {
		if _, err := tx.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	if rand.IntN(10) == 0 {
		return nil
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	s.committed.Add(1)
	return nil
}

// traffic writes until the function that it returns is called.
func (s *site) traffic() (stop func()) {
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(s.Context())
	for range 4 {
		wg.Go(func() {
			for pace := time.Tick(4 * time.Millisecond); ctx.Err() == nil; <-pace {
				if err := s.write(s.Context(), fmt.Sprint("k", rand.IntN(12))); err != nil && !busy(err) {
					s.Errorf("a writer ended: %v", err)
					return
				}
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

func (s *site) grown(by int64) {
	s.Helper()
	want := s.committed.Load() + by
	until(s.T, "more events are committed", nil, func() bool { return s.Failed() || s.committed.Load() >= want })
}

// poll is one turn of the old relay.
func (s *site) poll(ctx context.Context) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // committed in most cases
	rows, err := tx.QueryContext(ctx, "SELECT id, `key`, JSON_EXTRACT(payload, '$.n') FROM event WHERE status = 'new' ORDER BY id LIMIT 100 FOR UPDATE")
	if err != nil {
		return err
	}
	defer rows.Close()
	type one struct {
		id, n int64
		key   string
	}
	var found []one
	for rows.Next() {
		var o one
		if err := rows.Scan(&o.id, &o.key, &o.n); err != nil {
			return err
		}
		found = append(found, o)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, o := range found {
		if _, err := tx.ExecContext(ctx, "UPDATE event SET status = 'sent', sent_at = UTC_TIMESTAMP(6) WHERE id = ?", o.id); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range found {
		s.old[o.key] = append(s.old[o.key], o.n)
	}
	return nil
}

func (s *site) poller() (stop func()) {
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(s.Context())
	wg.Go(func() {
		for pace := time.Tick(10 * time.Millisecond); ctx.Err() == nil; <-pace {
			if err := s.poll(s.Context()); err != nil && !busy(err) {
				s.Errorf("the old relay ended: %v", err)
				return
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

func (s *site) count(query string, args ...any) (n int64) {
	s.Helper()
	if err := s.db.QueryRowContext(s.Context(), query, args...).Scan(&n); err != nil {
		s.Fatalf("%s: %v", query, err)
	}
	return n
}

// killed runs a command as a program and kills it with SIGKILL when it has copied the rows before one in the
// middle of the backlog, which somebody holds.
func (s *site) killed(middle int, args ...string) {
	s.Helper()
	tx, err := s.db.BeginTx(s.Context(), nil)
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }() // always
	var id int64
	if err := tx.QueryRowContext(s.Context(), "SELECT id FROM event WHERE status = 'new' ORDER BY id LIMIT 1 OFFSET ?", middle).Scan(&id); err != nil {
		s.Fatal(err)
	}
	if _, err := tx.ExecContext(s.Context(), "SELECT id FROM event WHERE id = ? FOR UPDATE", id); err != nil {
		s.Fatal(err)
	}
	cmd := exec.CommandContext(s.Context(), os.Args[0], args...)
	cmd.Env = append(config.Environ(map[string]string{}), asProgram+"=1")
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	until(s.T, "a batch is copied", nil, func() bool { return s.count("SELECT COUNT(*) FROM event WHERE status = 'postrider'") > 0 })
	if err := cmd.Process.Kill(); err != nil {
		s.Fatal(err)
	}
	_ = cmd.Wait() // killed
	s.Logf("killed after %d rows", s.count("SELECT COUNT(*) FROM event WHERE status = 'postrider'"))
}

// TestAdoptMySQLTraffic adopts a table under traffic: the command is killed in its backfill and run again,
// and after a step back the old relay continues. Each event is sent by one of the two, once and in the order of its key.
//
// Promises: L, O
func TestAdoptMySQLTraffic(t *testing.T) {
	for _, version := range testserver.MySQLVersions() {
		t.Run(version, func(t *testing.T) {
			store := testserver.SharedMySQL(t, version).Database(t)
			s := &site{T: t, store: store, db: openMySQLPool(t, store), old: map[string][]int64{}}
			mustCLI(t, "", "migrate", "--store", store, "--lanes", "8")
			if _, err := s.db.ExecContext(t.Context(), siteTables); err != nil {
				t.Fatal(err)
			}
			stopPoller, stopTraffic := s.poller(), s.traffic()
			s.grown(50)
			stopPoller()
			const rows = 2500
			for range rows / 500 {
				text := "INSERT INTO event (topic, `key`, payload) SELECT 'orders', CONCAT('bulk', seq % 10), JSON_OBJECT('n', 0) FROM (WITH RECURSIVE g (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM g WHERE seq < 500) SELECT seq FROM g) AS x"
				if _, err := s.db.ExecContext(t.Context(), text); err != nil {
					t.Fatal(err)
				}
			}
			move := []string{"adopt", "event", "--store", store, "--yes", "--reason", "test"}
			s.killed(1500, move...)
			s.grown(50) // nobody sends them meanwhile
			mustCLI(t, "", move...)
			s.grown(100)
			mustCLI(t, "", "adopt", "undo", "event", "--store", store, "--yes", "--reason", "test")
			stopPoller = s.poller()
			s.grown(50)
			stopTraffic()
			until(t, "the old relay has drained", nil, func() bool { return t.Failed() || s.count("SELECT COUNT(*) FROM event WHERE status = 'new'") == 0 })
			stopPoller()
			s.check(rows)
		})
	}
}

// check compares what was committed with what the old relay has sent and the outbox holds. While the table was adopted
// the outbox has the numbers of a key in between.
func (s *site) check(bulk int64) {
	s.Helper()
	if n := s.count("SELECT COUNT(*) FROM postrider_outbox WHERE `key` LIKE 'bulk%'"); n != bulk {
		s.Errorf("%d of %d rows of the backlog are in the outbox", n, bulk)
	}
	if twice := s.count("SELECT COUNT(*) - COUNT(DISTINCT id) FROM postrider_outbox"); twice != 0 {
		s.Errorf("%d rows were copied twice", twice)
	}
	rows, err := s.db.QueryContext(s.Context(), "SELECT CONVERT(`key` USING utf8mb4), JSON_EXTRACT(CONVERT(payload USING utf8mb4), '$.n') FROM postrider_outbox WHERE `key` LIKE 'k%' ORDER BY seq")
	if err != nil {
		s.Fatal(err)
	}
	defer rows.Close()
	ours, total := map[string][]int64{}, int64(0)
	for rows.Next() {
		var key string
		var n int64
		if err := rows.Scan(&key, &n); err != nil {
			s.Fatal(err)
		}
		ours[key] = append(ours[key], n)
		total++
	}
	if err := rows.Err(); err != nil {
		s.Fatal(err)
	}
	relayed := total
	for key, numbers := range s.old {
		total += int64(len(numbers))
		all := append(slices.Clone(numbers), ours[key]...)
		if len(ours[key]) > 0 { // where the old relay continued
			at, _ := slices.BinarySearch(numbers, ours[key][0])
			all = slices.Concat(numbers[:at], ours[key], numbers[at:])
		}
		for i, n := range all {
			if n != int64(i+1) {
				s.Errorf("%s: event %d is number %d of its key", key, n, i+1)
				break
			}
		}
	}
	if total != s.committed.Load() || relayed < 100 {
		s.Errorf("%d committed, %d sent or copied, %d of them copied", s.committed.Load(), total, relayed)
	}
	s.Logf("%d committed, each once and in order, %d of them copied, and %d of a backlog", total, relayed, bulk)
}

// TestAdoptMySQLOrderOfABatch holds a row in the middle of the table while a batch is chosen, and commits two events of
// a key meanwhile: the first has its row before that one, the second behind it. They keep their order.
//
// Promises: O
func TestAdoptMySQLOrderOfABatch(t *testing.T) {
	for _, version := range testserver.MySQLVersions() {
		t.Run(version, func(t *testing.T) {
			store := testserver.SharedMySQL(t, version).Database(t)
			s := &site{T: t, store: store, db: openMySQLPool(t, store)}
			mustCLI(t, "", "migrate", "--store", store, "--lanes", "4")
			type execer interface {
				ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
			}
			run := func(db execer, text string) {
				t.Helper()
				if _, err := db.ExecContext(t.Context(), text); err != nil {
					t.Fatalf("%s: %v", text, err)
				}
			}
			insert := func(id, key string, n int) string {
				return fmt.Sprintf("INSERT INTO event (id, topic, `key`, payload) VALUES ('%s', 'orders', '%s', '%d')", id, key, n)
			}
			run(s.db, "CREATE TABLE event (id CHAR(36) PRIMARY KEY, n BIGINT NOT NULL AUTO_INCREMENT UNIQUE, topic VARCHAR(50) NOT NULL, `key` VARCHAR(50) NOT NULL, payload VARCHAR(50) NOT NULL, status VARCHAR(20) NOT NULL DEFAULT 'new')")
			run(s.db, insert("m", "x", 0))
			holder, err := s.db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = holder.Rollback() }() // it is over in most cases
			run(holder, "UPDATE event SET topic = 'orders' WHERE id = 'm'")
			run(holder, "SELECT id FROM event WHERE id = 'm' FOR UPDATE")
			var wg sync.WaitGroup
			wg.Go(func() {
				mustCLI(t, "", "adopt", "event", "--store", store, "--yes", "--reason", "test")
			})
			until(t, "the backfill waits for the row", nil, func() bool {
				return s.count("SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%event%'") > 0
			})
			run(s.db, insert("a", "k", 1))
			run(s.db, insert("z", "k", 2))
			if err := holder.Rollback(); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			var got string
			if err := s.db.QueryRowContext(t.Context(), "SELECT GROUP_CONCAT(CONVERT(payload USING utf8mb4) ORDER BY seq) FROM postrider_outbox WHERE `key` = 'k'").Scan(&got); err != nil || got != "1,2" {
				t.Errorf("the key's events are %q, want 1,2 (%v)", got, err)
			}
		})
	}
}
