package main

import (
	"bufio"
	"context"
	"database/sql"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/sqlitestore"
)

const child = "SAGA_TEST_DB" // the database of a process that is to be killed

func TestMain(m *testing.M) {
	if db := os.Getenv(child); db != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		cfg := config{db: db, orders: sizes().orders, patience: time.Minute, lease: 300 * time.Millisecond, out: os.Stdout, log: log}
		if err := run(ctx, &cfg); err != nil {
			log.Error("the saga has ended", "error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// sizes are those of the test: of CI, or of the matrix.
func sizes() (s struct{ orders, kills int }) {
	s.orders, s.kills = 60, 6
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		s.orders, s.kills = 1000, 60
	}
	return s
}

// TestKilledAtRandom: whatever is killed when, every order ends in a legal state.
//
// Promises: E
func TestKilledAtRandom(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "saga.db")
		killAndFinish(t, file)
		db, err := sqlitestore.OpenDB(file)
		legal(t, db, err)
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		url := testserver.SharedPostgres(t, "18").Database(t)
		killAndFinish(t, url)
		db, err := sql.Open("pgx", url)
		legal(t, db, err)
	})
}

// killAndFinish runs the program again and again: it is killed after some steps
// each time, and in the end left alone.
func killAndFinish(t *testing.T, db string) {
	t.Helper()
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	size, kills := sizes(), 0
	for kills < size.kills {
		most := 8 * size.orders / size.kills // there are about four steps to an order
		if ended := launch(t, db, 1+rng.IntN(most/2)); ended {
			break
		}
		kills++
	}
	if kills < size.kills/2 {
		t.Errorf("killed %d times only", kills)
	}
	if !launch(t, db, -1) {
		t.Error("did not come to its end")
	}
}

// launch runs the program until it ends, or kills it after so many lines.
func launch(t *testing.T, db string, lines int) (ended bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), child+"="+db)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for in := bufio.NewScanner(out); in.Scan(); n++ {
		if n+1 == lines {
			_ = cmd.Process.Kill()
		}
	}
	err = cmd.Wait()
	if err != nil && (lines < 0 || n < lines) {
		t.Fatalf("after %d lines: %v", n, err)
	}
	return err == nil
}

// legal asks the tables, not the program.
func legal(t *testing.T, db *sql.DB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	n := sizes().orders
	for query, want := range map[string]int{
		"SELECT count(*) FROM saga": n,
		"SELECT count(*) FROM saga WHERE state NOT IN ('shipped', 'refused', 'cancelled')": 0,
		// an order is shipped once, or never
		"SELECT count(*) FROM (SELECT order_id FROM shipment GROUP BY order_id HAVING count(*) > 1) twice":  0,
		"SELECT count(*) FROM saga WHERE (state = 'shipped') <> (id IN (SELECT order_id FROM shipment))":    0,
		"SELECT count(*) FROM saga WHERE (state = 'shipped') <> (id IN (SELECT order_id FROM reservation))": 0,
		"SELECT 1000000 - free - (SELECT coalesce(sum(qty), 0) FROM reservation) FROM stock":                0,
		"SELECT count(*) FROM saga WHERE state = 'refused' AND id IN (SELECT order_id FROM booking)":        0,
		"SELECT count(DISTINCT state) FROM saga":                                                            3,
		// who got the goods has paid for them once; everybody else has their money back
		`SELECT count(*) FROM saga LEFT JOIN (SELECT order_id, sum(amount) AS paid, count(*) AS bookings FROM booking GROUP BY order_id) b ON order_id = id
			WHERE coalesce(paid, 0) <> CASE state WHEN 'shipped' THEN saga.amount ELSE 0 END
			OR coalesce(bookings, 0) > CASE state WHEN 'shipped' THEN 1 ELSE 2 END`: 0,
	} {
		var got int
		if err := db.QueryRow(query).Scan(&got); err != nil {
			t.Errorf("%s: %v", query, err)
		} else if got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
}
