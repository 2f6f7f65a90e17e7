package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/testserver"
)

// endpoint receives events as {"k": KEY, "n": NUMBER} and rejects those of one key.
type endpoint struct {
	*httptest.Server
	mu       sync.Mutex
	rejected string
	got      map[string][]int
	asked    int // for the rejected key
}

func newEndpoint(t *testing.T) *endpoint {
	t.Helper()
	e := &endpoint{got: map[string][]int{}}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event struct {
			K string
			N int
		}
		text, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(text, &event)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		switch {
		case err != nil:
			w.WriteHeader(http.StatusInternalServerError)
		case event.K == e.rejected:
			e.asked++
			w.WriteHeader(http.StatusUnprocessableEntity)
		default:
			e.got[event.K] = append(e.got[event.K], event.N)
		}
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *endpoint) broker() string {
	return e.URL + "/hook#unsigned=true&insecure=true&allow=127.0.0.1"
}

func (e *endpoint) reject(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rejected = key
}

func (e *endpoint) of(key string) []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.got[key])
}

func (e *endpoint) rejections() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked
}

// team is the table that a team wrote, in one of the databases.
type team struct {
	*testing.T
	db    *sql.DB
	my    bool
	store string
}

func newTeam(t *testing.T, store string) *team {
	t.Helper()
	db, d, err := open.SQL(store, 16)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	g := &team{t, db, d == dialect.MySQL, store}
	mustCLI(t, "", "migrate", "--store", store, "--lanes", "4")
	ddl := `CREATE TABLE event (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL DEFAULT 'orders', key text NOT NULL, payload text NOT NULL, status text NOT NULL DEFAULT 'Pending',
 locked_until timestamptz, lock_owner text, attempt_count int NOT NULL DEFAULT 0, last_error varchar(40), sent_at timestamptz)`
	if g.my {
		ddl = "CREATE TABLE event (id BIGINT AUTO_INCREMENT PRIMARY KEY, topic VARCHAR(50) NOT NULL DEFAULT 'orders', `key` VARCHAR(50) NOT NULL, payload TEXT NOT NULL, status VARCHAR(20) NOT NULL DEFAULT 'Pending'," +
			" locked_until DATETIME(6), lock_owner VARCHAR(50), attempt_count INT NOT NULL DEFAULT 0, last_error VARCHAR(40), sent_at DATETIME(6))"
	}
	g.run(ddl)
	return g
}

func onBoth(t *testing.T, test func(*team)) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) { test(newTeam(t, testserver.SharedPostgres(t, "18").Database(t))) })
	for _, version := range testserver.MySQLVersions() {
		t.Run(version, func(t *testing.T) { test(newTeam(t, testserver.SharedMySQL(t, version).Database(t))) })
	}
}

// run executes a statement. PostgreSQL has no backquotes.
func (g *team) run(text string) {
	g.Helper()
	if !g.my {
		text = strings.ReplaceAll(text, "`", `"`)
	}
	if _, err := g.db.ExecContext(g.Context(), text); err != nil {
		g.Fatalf("%s: %v", text, err)
	}
}

func (g *team) ask(query string) (answer string) {
	g.Helper()
	var got sql.NullString
	if err := g.db.QueryRowContext(g.Context(), query).Scan(&got); err != nil {
		g.Fatalf("%s: %v", query, err)
	}
	return got.String
}

// insert is a row whose message has its own number.
func (g *team) insert(key string, n int, status string) {
	g.Helper()
	g.run(fmt.Sprintf("INSERT INTO event (`key`, payload, status) VALUES ('%s', '{\"k\":\"%s\",\"n\":%d}', '%s')", key, key, n, status))
}

func (g *team) rows() string {
	if g.my {
		return g.ask("SELECT GROUP_CONCAT(CONCAT(status, IF(sent_at IS NULL, '', '+')) ORDER BY id SEPARATOR ' ') FROM event")
	}
	return g.ask(`SELECT string_agg(status || CASE WHEN sent_at IS NULL THEN '' ELSE '+' END, ' ' ORDER BY id) FROM event`)
}

func (g *team) want(rows string) {
	g.Helper()
	if got := g.rows(); got != rows {
		g.Errorf("the table has  %q\nwant           %q", got, rows)
	}
}

// untilRows has a mirror look until the table has the rows.
func (g *team) untilRows(what, rows string, p *process) {
	g.Helper()
	until(g.T, what+": "+rows, p, func() bool {
		mustCLI(g.T, "", "adopt", "mirror", "event", "--once", "--store", g.store)
		return g.rows() == rows
	})
}

// TestAdoptInPlace has what an adoption in place promises: pending rows stay pending until their messages are settled,
// the old relay's locks are waited for, a dead letter is one in the table too, and set back to pending by hand it is
// sent again, once.
//
// Promises: L, O
func TestAdoptInPlace(t *testing.T) {
	onBoth(t, func(g *team) {
		e := newEndpoint(g.T)
		g.insert("a", 1, "Sent")
		g.insert("a", 2, "Pending")
		g.insert("b", 1, "DeadLetter")
		g.insert("c", 1, "InProgress")
		g.insert("a", 3, "Failed")
		lock := `UPDATE event SET locked_until = clock_timestamp() + interval '3 seconds', lock_owner = 'old-1' WHERE status = 'InProgress'`
		free := `SELECT count(*) FROM event WHERE locked_until > clock_timestamp()`
		if g.my {
			lock = `UPDATE event SET locked_until = UTC_TIMESTAMP(6) + INTERVAL 3 SECOND, lock_owner = 'old-1' WHERE status = 'InProgress'`
			free = `SELECT COUNT(*) FROM event WHERE locked_until > UTC_TIMESTAMP(6)`
		}
		g.run(lock)
		move := []string{"adopt", "event", "--in-place", "--store", g.store}
		if got := cli(g.T, nil, "", append(move, "--yes", "--reason", "test", "--wait", "0s")...); got.code != exit.Failure || !strings.Contains(got.err, "in its hands") {
			g.Errorf("beside a lock: exit code %d\n%s", got.code, got.err)
		}
		mustCLI(g.T, "", append(move, "--yes", "--reason", "test")...)
		if n := g.ask(free); n != "0" {
			g.Errorf("%s rows were locked when the table was adopted", n)
		}
		g.insert("a", 4, "Pending")
		g.insert("d", 1, "Sent")
		g.want("Sent Pending DeadLetter InProgress Failed Pending Sent")

		e.reject("c")
		p := launchRelay(g.T, g.store, e.broker())
		g.untilRows("what was sent", "Sent Sent+ DeadLetter DeadLetter Sent+ Sent+ Sent", p)
		if got := e.of("a"); !slices.Equal(got, []int{2, 3, 4}) {
			g.Errorf("key a: %v arrived", got)
		}
		if got := g.ask("SELECT CONCAT(attempt_count, ' ', last_error) FROM event WHERE id = 4"); !strings.HasPrefix(got, "1 ") || len(got) < 10 {
			g.Errorf("attempts and error of the dead letter: %q", got)
		}
		// It is rejected once more, which makes it a dead letter again.
		p.stop()
		before := e.rejections()
		g.run("UPDATE event SET status = 'Pending' WHERE id = 4")
		for range 2 { // the old death is not written again while the retry waits for a relay
			mustCLI(g.T, "", "adopt", "mirror", "event", "--once", "--store", g.store)
			g.want("Sent Sent+ DeadLetter Pending Sent+ Sent+ Sent")
		}
		p = launchRelay(g.T, g.store, e.broker())
		g.untilRows("the dead letter is one again", "Sent Sent+ DeadLetter DeadLetter Sent+ Sent+ Sent", p)
		if n := e.rejections() - before; n != 1 {
			g.Errorf("a row that was set back was tried %d times", n)
		}
		e.reject("")
		g.run("UPDATE event SET status = 'Pending' WHERE status = 'DeadLetter'") // the old relay's too
		g.untilRows("both are sent", "Sent Sent+ Sent+ Sent+ Sent+ Sent+ Sent", p)
		for key, n := range map[string]int{"b": 1, "c": 1, "d": 0} {
			if got := e.of(key); len(got) != n {
				g.Errorf("key %s: %v arrived, want %d", key, got, n)
			}
		}
		// Another relay works here.
		p.stop()
		g.insert("a", 5, "Pending")
		g.run("UPDATE event SET status = 'Sent' WHERE status = 'Pending'")
		p = launchRelay(g.T, g.store, e.broker())
		until(g.T, "it is sent", p, func() bool { return len(e.of("a")) == 4 })
		said := ""
		until(g.T, "the mirror has seen it", p, func() bool {
			got := cli(g.T, nil, "", "adopt", "mirror", "event", "--once", "--store", g.store)
			said += got.err
			return got.code == 0 && strings.Contains(got.out, "left  0") || strings.Contains(said, "another program")
		})
		if !strings.Contains(said, "another program settled or removed 1 row") {
			g.Errorf("the mirror says %q", said)
		}
		p.stop()
		mustCLI(g.T, "", "adopt", "undo", "event", "--store", g.store, "--yes", "--reason", "test")
		g.insert("a", 6, "Pending")
		if got := mustCLI(g.T, "", "adopt", "status", "event", "--store", g.store); !strings.Contains(got, "not adopted") {
			g.Errorf("status says %s", got)
		}
		if n := statusOf(g.T, g.store).Pending; n != 0 {
			g.Errorf("%d messages are pending after the step back", n)
		}
	})
}

// traffic commits events of twelve keys, numbered by key, until the function that it returns is called. last has the
// numbers. A key is one writer's, so its rows are in the order of its commits.
func (g *team) traffic(last map[string]*atomic.Int64) (stop func()) {
	ctx, cancel := context.WithCancel(g.Context())
	every := 25 * time.Millisecond
	if g.my { // on PostgreSQL the backfill of two commands at once is slower than writers of this pace
		every = 2 * time.Millisecond
	}
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for pace := time.Tick(every); ctx.Err() == nil; <-pace {
				key := fmt.Sprint("k", 4*rand.IntN(3)+w)
				if err := g.write(key, last[key].Load()+1); err != nil && !busy(err) && g.Context().Err() == nil {
					g.Errorf("a writer ended: %v", err)
					return
				} else if err == nil {
					last[key].Add(1)
				}
			}
		})
	}
	return func() { cancel(); writers.Wait() }
}

// write commits an event, after one that it takes back.
func (g *team) write(key string, n int64) error {
	tx, err := g.db.BeginTx(g.Context(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	text := "INSERT INTO event (`key`, payload) VALUES ('%s', '{\"k\":\"%s\",\"n\":%d}')"
	if !g.my {
		text = strings.ReplaceAll(text, "`", `"`)
	}
	for _, query := range []string{"SAVEPOINT a", fmt.Sprintf(text, key, key, -1), "ROLLBACK TO SAVEPOINT a", fmt.Sprintf(text, key, key, n)} {
		if _, err := tx.ExecContext(g.Context(), query); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// TestAdoptInPlaceTraffic adopts a table in place under traffic, twice at once, and kills the command in its backfill,
// relays and mirrors. Each committed event arrives, in the order of its key, and in the end each row is sent.
//
// Promises: L, O
func TestAdoptInPlaceTraffic(t *testing.T) {
	if os.Getenv("POSTRIDER_MATRIX") == "" {
		t.Skip("in the matrix only: POSTRIDER_MATRIX=1")
	}
	onBoth(t, func(g *team) {
		const backlog = 2500
		e, last := newEndpoint(g.T), map[string]*atomic.Int64{}
		for k := range 12 {
			last[fmt.Sprint("k", k)] = &atomic.Int64{}
		}
		bulk := `INSERT INTO event (key, payload) SELECT 'bulk' || n % 10, json_build_object('k', 'bulk' || n % 10, 'n', n / 10 + 1)::text FROM generate_series(0, 2499) AS n ORDER BY n`
		if g.my {
			bulk = "INSERT INTO event (`key`, payload) SELECT CONCAT('bulk', n % 10), JSON_OBJECT('k', CONCAT('bulk', n % 10), 'n', FLOOR(n / 10) + 1) FROM (WITH RECURSIVE h (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM h WHERE i < 49) SELECT x.i * 50 + y.i AS n FROM h AS x JOIN h AS y) AS g ORDER BY n"
		}
		g.insert("old", 1, "Sent") // the team's word for it
		g.run(bulk)
		stop := g.traffic(last)
		move := []string{"adopt", "event", "--in-place", "--store", g.store, "--yes", "--reason", "test"}
		// Killed when it has copied a batch: it waits for a row in the middle, which somebody holds.
		entries := func() string {
			if g.my {
				return g.ask("SELECT COUNT(*) FROM postrider_inplace_event")
			}
			return g.ask("SELECT count(*) FROM postrider.inplace_event")
		}
		hold, err := g.db.BeginTx(g.Context(), nil)
		if err != nil {
			g.Fatal(err)
		}
		if _, err := hold.ExecContext(g.Context(), "SELECT id FROM event WHERE id = 1500 FOR UPDATE"); err != nil {
			g.Fatal(err)
		}
		first := launch(g.T, move...)
		exists := "SELECT count(*) FROM pg_tables WHERE tablename = 'inplace_event'"
		if g.my {
			exists = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'postrider_inplace_event'"
		}
		until(g.T, "a batch is copied", first, func() bool { return g.ask(exists) == "1" && entries() == "1000" })
		both := "3" // the session of the killed one waits too
		waiting := "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
		if g.my {
			both = "2" // it may have timed out
			waiting = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND INFO LIKE 'SELECT%FOR UPDATE'"
		}
		until(g.T, "it waits for the row that somebody holds", first, func() bool { return g.ask(waiting) >= "1" })
		first.signal(syscall.SIGKILL)
		<-first.done
		// Two at once.
		second, third := launch(g.T, move...), launch(g.T, move...)
		until(g.T, "both wait for the row that somebody holds", second, func() bool { return g.ask(waiting) >= both })
		if err := hold.Rollback(); err != nil {
			g.Fatal(err)
		}
		codes := []exit.Code{second.ends(3 * time.Minute), third.ends(3 * time.Minute)}
		if codes[0] != 0 && codes[1] != 0 {
			g.Fatalf("two at once: exit codes %v\n%s\n%s", codes, second.said, third.said)
		}
		for i, p := range []*process{second, third} {
			if codes[i] != 0 && !strings.Contains(p.said.String(), "adopted already") {
				g.Errorf("the one that came too late says\n%s", p.said)
			}
		}
		written := func() string { return g.ask("SELECT count(*) FROM event WHERE status = 'Sent'") }
		for turn := range 3 { // relays and mirrors are killed while they work
			relay, mirror := launchRelay(g.T, g.store, e.broker()), launch(g.T, "adopt", "mirror", "event", "--every", "20ms", "--store", g.store)
			before := written()
			until(g.T, "the mirror has written", relay, func() bool { return written() != before })
			if turn == 2 {
				stop()
				until(g.T, "every row is sent", relay, func() bool {
					return g.ask("SELECT count(*) FROM event WHERE id > 1 AND (status <> 'Sent' OR sent_at IS NULL)") == "0"
				})
			}
			mirror.signal(syscall.SIGKILL)
			relay.signal(syscall.SIGKILL)
			<-mirror.done
			<-relay.done
		}
		if n := entries(); n != "0" {
			g.Errorf("%s messages are left to write back", n)
		}
		total, repeated := 0, 0
		for k := range 10 {
			n := &atomic.Int64{}
			n.Store(backlog / 10)
			last[fmt.Sprint("bulk", k)] = n
		}
		for key, n := range last {
			most := 0
			for _, got := range e.of(key) {
				switch {
				case got == most+1:
					most++
					total++
				case got <= most && got > 0: // after a kill
					repeated++
				default:
					g.Errorf("%s: event %d arrived after %d", key, got, most)
				}
			}
			if int64(most) != n.Load() {
				g.Errorf("%s: %d events arrived of %d", key, most, n.Load())
			}
		}
		copies := "SELECT count(*) - count(DISTINCT id) FROM postrider.outbox"
		if g.my {
			copies = "SELECT COUNT(*) - COUNT(DISTINCT id) FROM postrider_outbox"
		}
		if n := g.ask(copies); n != "0" {
			g.Errorf("%s rows were copied twice", n)
		}
		g.Logf("%d events arrived in order, %d more than once; 1 kill of the backfill, 3 of the relay, 3 of the mirror; two at once ended with %v", total, repeated, codes)
	})
}

// TestAdoptInPlaceKeyReturns deletes a row whose message waits, and inserts another one with its key: the insert
// succeeds, and each row has its message.
//
// Promises: A
func TestAdoptInPlaceKeyReturns(t *testing.T) {
	onBoth(t, func(g *team) {
		g.insert("z", 1, "Sent")
		mustCLI(g.T, "", "adopt", "event", "--in-place", "--yes", "--reason", "test", "--store", g.store)
		insert, count := "INSERT INTO event (id, `key`, payload) OVERRIDING SYSTEM VALUE VALUES (7, 'a', '{\"k\":\"a\",\"n\":%d}')", "SELECT count(*) FROM postrider.outbox"
		if g.my {
			insert, count = "INSERT INTO event (id, `key`, payload) VALUES (7, 'a', '{\"k\":\"a\",\"n\":%d}')", "SELECT COUNT(*) FROM postrider_outbox"
		}
		for n := range 2 {
			g.run(fmt.Sprintf(insert, n))
			g.run("DELETE FROM event WHERE payload LIKE '%0}'")
		}
		if got := g.ask(count); got != "2" {
			g.Errorf("%s messages, want 2", got)
		}
		broker := newEndpoint(g.T)
		relay := launchRelay(g.T, g.store, broker.broker())
		g.untilRows("the second message was sent", "Sent Sent+", relay)
	})
}
