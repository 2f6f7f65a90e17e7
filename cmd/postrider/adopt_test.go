package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// poller runs turns of the old relay until the function that it returns is called.
func (g *guide) poller() (stop func()) {
	ctx, cancel := context.WithCancel(g.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for pace := time.Tick(10 * time.Millisecond); ctx.Err() == nil; <-pace {
			if err := g.poll(); err != nil {
				g.Errorf("the poller ended: %v", err)
				return
			}
		}
	})
	return func() { cancel(); running.Wait() }
}

// backlog commits so many rows that nobody has sent, of ten keys.
func (g *guide) backlog(turn, rows int) {
	g.Helper()
	const insert = `INSERT INTO event (topic, key, type, payload) SELECT $1, 'bulk' || $2::text || '-' || n % 10, 'event',
 jsonb_build_object('k', 'bulk' || $2::text || '-' || n % 10, 'n', n / 10 + 1) FROM generate_series(0, $3 - 1) AS n ORDER BY n`
	if _, err := g.pool.Exec(g.Context(), insert, g.topic, fmt.Sprint(turn), rows); err != nil {
		g.Fatal(err)
	}
	g.committed.Add(int64(rows))
	for k := range 10 {
		g.last.Store(fmt.Sprintf("bulk%d-%d", turn, k), int64(rows/10))
	}
}

// killInBackfill runs a command and kills it with SIGKILL when it has copied some rows of a backlog: it
// waits for a row in their middle.
func (g *guide) killInBackfill(line string, rows int) {
	g.Helper()
	copied := func() (n int) {
		if err := g.pool.QueryRow(g.Context(), `SELECT count(*) FROM event WHERE status = 'postrider' AND key LIKE 'bulk%'`).Scan(&n); err != nil {
			g.Fatal(err)
		}
		return n
	}
	before := copied()
	err := pgx.BeginFunc(g.Context(), g.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(g.Context(), `SELECT FROM event WHERE id = (SELECT id FROM event WHERE status = 'new' AND key LIKE 'bulk%' ORDER BY id OFFSET $1 LIMIT 1) FOR UPDATE`, rows/2); err != nil {
			return err
		}
		cmd := exec.CommandContext(g.Context(), "sh", "-c", "exec "+line)
		cmd.Dir, cmd.Env = g.dir, g.env
		if err := cmd.Start(); err != nil {
			return err
		}
		until(g.T, "a batch is copied", nil, func() bool { return copied() > before })
		err := cmd.Process.Kill()
		_ = cmd.Wait() // killed
		g.Logf("killed after %d of %d rows", copied()-before, rows)
		return err
	})
	if err != nil {
		g.Fatal(err)
	}
}

// checkArrived fails unless each event arrived once, in the order of its key.
func (g *guide) checkArrived() (total int) {
	g.Helper()
	arrived := g.arrived()
	g.last.Range(func(key, last any) bool {
		got := arrived[key.(string)]
		for i, n := range got {
			if n != int64(i+1) {
				g.Errorf("%v: event %d is number %d of its key", key, n, i+1)
				break
			}
		}
		if int64(len(got)) != last.(int64) {
			g.Errorf("%v: %d of %d events arrived", key, len(got), last)
		}
		total += len(got)
		return true
	})
	if int64(total) != g.committed.Load() {
		g.Errorf("%d committed, %d arrived", g.committed.Load(), total)
	}
	return total
}

// TestGuideAdopt follows the guide under traffic: the old relay stops, ours takes over, and back,
// again and again. The command is killed in its backfill each time. Each event arrives once, in the order of its key.
//
// Promises: L, O
func TestGuideAdopt(t *testing.T) {
	g := openGuide(t, "adopt.md")
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
	g.grown(100)
	g.sh("1.")
	g.sh("2.")
	const rows = 3000
	turns := 1
	if os.Getenv("POSTRIDER_MATRIX") != "" {
		turns = 3
	}
	for turn := range turns {
		stopPoller()
		g.backlog(turn, rows)
		move := strings.TrimSpace(g.blocks("3.", "sh")[0])
		g.killInBackfill(move, rows)
		g.grown(50) // nobody sends them meanwhile
		g.run(move)
		g.grown(100)
		if n := g.sql("4."); n != 0 {
			t.Errorf("%d events are lost", n)
		}
		g.sh("Step back")
		g.grown(50)
		until(t, "the relay has drained", nil, func() bool { return g.pending() == 0 })
		stopPoller = g.poller()
		g.grown(50)
	}
	stopPoller()
	// With a mirror, the rows tell what was sent.
	mirror := strings.Split(strings.TrimSpace(g.blocks("Write back", "sh")[0]), "\n")
	g.run(mirror[0])
	g.grown(100)
	stopTraffic()
	until(t, "the relay has drained", nil, func() bool { return g.pending() == 0 })
	g.run(mirror[1])
	var unsent int64
	const query = `SELECT count(*) FROM event e JOIN postrider.outbox o ON o.id = md5('public.event:' || e.id)::uuid
 WHERE o.seq >= (SELECT min(seq) FROM postrider.messages WHERE created_at > (SELECT max(at) FROM postrider.audit WHERE act = 'adopt' AND result = 'asked')) AND (e.status <> 'sent' OR e.sent_at IS NULL)`
	if err := g.pool.QueryRow(t.Context(), query).Scan(&unsent); err != nil {
		t.Fatal(err)
	}
	if unsent != 0 {
		t.Errorf("the mirror has left %d rows", unsent)
	}
	g.sh("Step back")
	total := g.checkArrived()
	t.Logf("%d events committed and arrived once, in order; %d switches and steps back, %d kills", total, turns+1, turns)
}
