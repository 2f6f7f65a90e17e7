package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/internal/uuidv7"
)

// guide runs the blocks of a page of docs/guides on a PostgreSQL and a broker with a topic of its own.
type guide struct {
	*testing.T
	text, dir string
	store     string
	env       []string
	pool      *pgxpool.Pool
	js        jetstream.JetStream
	stream    jetstream.Stream
	topic     string
	said      safeBuffer // by the relay

	committed atomic.Int64
	last      sync.Map // the last number of each key
}

func openGuide(t *testing.T, page string) *guide {
	t.Helper()
	broker := testserver.SharedNATS(t).URL
	g := guideOn(t, page, broker)
	nc, err := nats.Connect(broker)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if g.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	g.stream, err = g.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: g.topic, Subjects: []string{g.topic}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.js.DeleteStream(context.WithoutCancel(t.Context()), g.topic); err != nil {
			t.Errorf("delete the stream: %v", err)
		}
	})
	return g
}

// guideOn is a guide whose relay sends to the broker.
func guideOn(t *testing.T, page, broker string) *guide {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "guides", page))
	if err != nil {
		t.Fatal(err)
	}
	g := &guide{T: t, text: string(text), dir: t.TempDir(), topic: "guide-" + strings.TrimSuffix(page, ".md")}
	if err := os.Symlink(os.Args[0], filepath.Join(g.dir, "postrider")); err != nil {
		t.Fatal(err)
	}
	g.store = testserver.SharedPostgres(t, "18").Database(t)
	g.env = append(config.Environ(map[string]string{"POSTRIDER_STORE": g.store, "POSTRIDER_BROKER": broker, "POSTRIDER_LISTEN": "127.0.0.1:0"}),
		asProgram+"=1", "PATH="+g.dir+":"+os.Getenv("PATH"))
	cfg, err := pgxpool.ParseConfig(g.store)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 10
	if g.pool, err = pgxpool.NewWithConfig(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.pool.Close)
	return g
}

// blocks returns the fenced blocks of a language in a section; "" is before the first one.
func (g *guide) blocks(section, language string) (blocks []string) {
	g.Helper()
	part, _, _ := strings.Cut(g.text, "\n## ")
	if section != "" {
		_, after, found := strings.Cut(g.text, "\n## "+section)
		if !found {
			g.Fatalf("the guide has no section %q", section)
		}
		part, _, _ = strings.Cut(after, "\n## ")
	}
	for _, m := range fenced.FindAllStringSubmatch(part, -1) {
		if m[1] == language {
			blocks = append(blocks, m[2])
		}
	}
	if len(blocks) == 0 {
		g.Fatalf("section %q has no block of %s", section, language)
	}
	return blocks
}

// sh runs the commands of a section. A relay runs until the test ends.
func (g *guide) sh(section string) {
	g.Helper()
	for line := range strings.Lines(g.blocks(section, "sh")[0]) {
		g.run(strings.TrimSpace(line))
	}
}

func (g *guide) run(line string) {
	g.Helper()
	ctx, cancel := context.WithTimeout(g.Context(), 10*time.Minute)
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+line)
	cmd.Dir, cmd.Env = g.dir, g.env
	if line != "postrider relay" {
		defer cancel()
		if out, err := cmd.CombinedOutput(); err != nil {
			g.Fatalf("%s: %v\n%s", line, err, out)
		}
		return
	}
	cmd.Cancel, cmd.Stderr = func() error { return cmd.Process.Signal(os.Interrupt) }, &g.said
	if err := cmd.Start(); err != nil {
		g.Fatal(err)
	}
	g.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // interrupted
		if g.Failed() {
			g.Logf("the relay:\n%s", g.said.String())
		}
	})
}

// sql runs a section's block and returns the last number. A lock that is not free is asked for again.
func (g *guide) sql(section string) (n int64) {
	g.Helper()
	text := g.blocks(section, "sql")[0]
	for {
		conn, err := g.pool.Acquire(g.Context())
		if err != nil {
			g.Fatal(err)
		}
		results, err := conn.Conn().PgConn().Exec(g.Context(), text).ReadAll()
		conn.Release()
		if busy := (*pgconn.PgError)(nil); errors.As(err, &busy) && busy.Code == "55P03" {
			continue
		}
		if err != nil {
			g.Fatalf("%s: %v", text, err)
		}
		if last := results[len(results)-1]; len(last.Rows) == 1 {
			fmt.Sscan(string(last.Rows[0][0]), &n)
		}
		return n
	}
}

type event struct {
	Key string `json:"k"`
	N   int64  `json:"n"`
}

// traffic commits events from four writers until the function that it returns is called.
// insert writes an event, and after says what follows its commit.
func (g *guide) traffic(insert func(tx pgx.Tx, e event) (after func(), err error)) (stop func()) {
	g.Helper()
	if _, err := g.pool.Exec(g.Context(), `CREATE TABLE counter (key text PRIMARY KEY, n bigint NOT NULL);`); err != nil {
		g.Fatal(err)
	}
	ctx, cancel := context.WithCancel(g.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for pace := time.Tick(4 * time.Millisecond); ; {
				select {
				case <-ctx.Done():
					return
				case <-pace:
				}
				if err := g.write(fmt.Sprint("k", rand.IntN(12)), insert); err != nil {
					g.Errorf("a writer ended: %v", err)
					return
				}
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// write commits the next event of a key. Every tenth is rolled back.
func (g *guide) write(key string, insert func(tx pgx.Tx, e event) (func(), error)) error {
	tx, err := g.pool.Begin(g.Context())
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(g.Context())) }() // committed in most cases
	e := event{Key: key}
	const next = `INSERT INTO counter VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET n = counter.n + 1 RETURNING n`
	if err := tx.QueryRow(g.Context(), next, key).Scan(&e.N); err != nil {
		return err
	}
	after, err := insert(tx, e)
	if err != nil || rand.IntN(10) == 0 {
		return err
	}
	if err := tx.Commit(g.Context()); err != nil {
		return err
	}
	g.committed.Add(1)
	for {
		had, _ := g.last.LoadOrStore(key, e.N)
		if had.(int64) >= e.N || g.last.CompareAndSwap(key, had, e.N) {
			break
		}
	}
	after()
	return nil
}

// publish is how the service, or its poller, did it before.
func (g *guide) publish(id, payload string) error {
	m := nats.NewMsg(g.topic)
	m.Data = []byte(payload)
	m.Header.Set("postrider-id", id)
	_, err := g.js.PublishMsg(g.Context(), m)
	return err
}

// pending returns the number of messages that the relay has to send.
func (g *guide) pending() int64 {
	g.Helper()
	var n int64
	if err := g.pool.QueryRow(g.Context(), `SELECT count(*) FROM postrider.messages WHERE state <> 'Sent'`).Scan(&n); err != nil {
		g.Fatal(err)
	}
	return n
}

// arrived returns the numbers of each key in the order of the stream.
func (g *guide) arrived() map[string][]int64 {
	g.Helper()
	info, err := g.stream.Info(g.Context())
	if err != nil {
		g.Fatal(err)
	}
	all := map[string][]int64{}
	for seq := uint64(1); seq <= info.State.LastSeq; seq++ {
		raw, err := g.stream.GetMsg(g.Context(), seq)
		if err != nil {
			g.Fatal(err)
		}
		var e event
		if err := json.Unmarshal(raw.Data, &e); err != nil {
			g.Fatal(err)
		}
		all[e.Key] = append(all[e.Key], e.N)
	}
	return all
}

// grown waits until so many more events are committed.
func (g *guide) grown(by int64) {
	g.Helper()
	if os.Getenv("POSTRIDER_MATRIX") != "" {
		by *= 20
	}
	want := g.committed.Load() + by
	until(g.T, "more events are committed", nil, func() bool { return g.Failed() || g.committed.Load() >= want })
}

// poll is one turn of the old poller.
func (g *guide) poll() error {
	return pgx.BeginFunc(g.Context(), g.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(g.Context(), `SELECT id, payload::text FROM event WHERE status = 'new' ORDER BY id LIMIT 50 FOR UPDATE`)
		if err != nil {
			return err
		}
		type row struct {
			ID      int64
			Payload string
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
		if err != nil {
			return err
		}
		for _, r := range found {
			if err := g.publish(fmt.Sprint(r.ID), r.Payload); err != nil {
				return err
			}
			if _, err := tx.Exec(g.Context(), `UPDATE event SET status = 'sent' WHERE id = $1`, r.ID); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestGuideStatusColumn follows the guide under traffic, steps back, and follows it again: each
// event arrives once, in the order of its key.
//
// Promises: L, O
func TestGuideStatusColumn(t *testing.T) {
	g := openGuide(t, "status-column.md")
	g.sql("")
	stopPoller := g.poller()
	stopTraffic := g.traffic(func(tx pgx.Tx, e event) (func(), error) {
		payload, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		_, err = tx.Exec(t.Context(), `INSERT INTO event (topic, key, type, payload) VALUES ($1, $2, 'event', $3)`, g.topic, e.Key, payload)
		return func() {}, err
	})
	g.grown(150)
	g.sh("1.")
	for turn := range 2 {
		until(t, "the relay has paused", nil, func() bool { return strings.Count(g.said.String(), "pipe paused") > turn })
		g.sql("2.")
		g.grown(50) // while the poller still drains
		until(t, "the poller has drained", nil, func() bool { return t.Failed() || g.sql("3.") == 0 })
		stopPoller()
		g.sh("3.")
		g.grown(150)
		if n := g.sql("4."); n != 0 {
			t.Errorf("%d events are lost", n)
		}
		g.sql("Step back")
		g.grown(50)
		until(t, "the relay has drained", nil, func() bool { return g.pending() == 0 })
		stopPoller = g.poller()
		g.grown(50)
		g.run("postrider pipe pause main")
	}
	stopTraffic()
	until(t, "the poller has drained", nil, func() bool { return t.Failed() || g.sql("3.") == 0 })
	stopPoller()
	total := g.checkArrived()
	var relayed int64
	if err := g.pool.QueryRow(t.Context(), `SELECT count(*) FROM postrider.outbox`).Scan(&relayed); err != nil {
		t.Fatal(err)
	}
	if relayed < 200 {
		t.Errorf("the relay has sent %d of %d", relayed, total)
	}
	t.Logf("%d events committed, %d arrived once and in order, %d by the relay; two switches and two steps back", g.committed.Load(), total, relayed)
}

// TestGuidePublishAfterCommit follows the guide while one process in thirty dies between
// commit and publish. What the old way lost arrives, and the relay's copies are in order.
//
// Promises: L, O
func TestGuidePublishAfterCommit(t *testing.T) {
	g := openGuide(t, "publish-after-commit.md")
	var both, alone, lost atomic.Int64
	var outbox, publishes atomic.Bool
	var ids uuidv7.Generator
	publishes.Store(true)
	insertion, _, _ := strings.Cut(g.blocks("2.", "sql")[0], "VALUES") // the guide's columns
	stopTraffic := g.traffic(func(tx pgx.Tx, e event) (func(), error) {
		payload, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		id, publish := ids.New(), publishes.Load()
		writes := outbox.Load()
		if writes {
			_, err = tx.Exec(t.Context(), insertion+`VALUES ($1, $2, $3, 'event', $4)`, id, g.topic, e.Key, payload)
		}
		return func() {
			switch {
			case !publish:
				alone.Add(1)
			case rand.IntN(30) == 0: // the process has died
				if writes {
					lost.Add(1)
				}
			default:
				if err := g.publish(id, string(payload)); err != nil {
					t.Errorf("publish: %v", err)
				}
				if writes {
					both.Add(1)
				}
			}
		}, err
	})
	g.grown(50)
	g.sh("1.")
	outbox.Store(true)
	g.grown(150)
	until(t, "a process dies between commit and publish", nil, func() bool { return lost.Load() > 2 })
	publishes.Store(false)
	g.sh("3.")
	g.grown(150)
	until(t, "the relay has sent what was lost", nil, func() bool { return g.relayed() > both.Load()+lost.Load() })
	// Back, and again.
	g.sh("Step back")
	publishes.Store(true)
	g.grown(100)
	publishes.Store(false)
	g.sh("3.")
	stopTraffic()
	until(t, "the relay has drained", nil, func() bool { return g.pending() == 0 })
	g.sh("4.")

	rows, err := g.pool.Query(t.Context(), `SELECT id::text, key, (convert_from(payload, 'UTF8')::jsonb->>'n')::bigint FROM postrider.outbox ORDER BY key, 3`)
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		ID, Key string
		N       int64
	}
	committed, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		t.Fatal(err)
	}
	copies, order := g.copies()
	once, want := int64(0), map[string][]int64{}
	for _, r := range committed {
		want[r.Key] = append(want[r.Key], r.N)
		switch copies[r.ID] {
		case 0:
			t.Errorf("number %d of %s has not arrived", r.N, r.Key)
		case 1:
			once++
		}
	}
	for key, numbers := range want {
		if !slices.Equal(order[key], numbers) {
			t.Errorf("%s: the relay sent %v, want %v", key, order[key], numbers)
		}
	}
	if once != alone.Load()+lost.Load() {
		t.Errorf("%d arrived once, want %d that were never published and %d that were lost", once, alone.Load(), lost.Load())
	}
	t.Logf("%d in the outbox: %d published before and sent again, %d lost by the old way and sent, %d sent by the relay alone", len(committed), both.Load(), lost.Load(), alone.Load())
}

// relayed returns the number of messages that the relay has sent.
func (g *guide) relayed() (n int64) {
	g.Helper()
	if err := g.pool.QueryRow(g.Context(), `SELECT count(*) FROM postrider.messages WHERE state = 'Sent'`).Scan(&n); err != nil {
		g.Fatal(err)
	}
	return n
}

// copies returns how often each id arrived, and the numbers of each key that the relay sent.
func (g *guide) copies() (ids map[string]int, order map[string][]int64) {
	g.Helper()
	ids, order = map[string]int{}, map[string][]int64{}
	info, err := g.stream.Info(g.Context())
	if err != nil {
		g.Fatal(err)
	}
	for seq := uint64(1); seq <= info.State.LastSeq; seq++ {
		raw, err := g.stream.GetMsg(g.Context(), seq)
		if err != nil {
			g.Fatal(err)
		}
		var e event
		if err := json.Unmarshal(raw.Data, &e); err != nil {
			g.Fatal(err)
		}
		ids[raw.Header.Get("postrider-id")]++
		if raw.Header.Get(nats.MsgIdHdr) != "" { // the relay's
			order[e.Key] = append(order[e.Key], e.N)
		}
	}
	return ids, order
}
