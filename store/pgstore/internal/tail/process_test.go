package tail_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/tail"
)

// relayEnv has the URL of the server on which a child process reads the log.
const relayEnv = "POSTRIDER_TAIL_TEST_RELAY"

func TestMain(m *testing.M) {
	if url := os.Getenv(relayEnv); url != "" {
		fmt.Fprintln(os.Stderr, readForEver(url))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// readForEver reads the log until the process is killed.
func readForEver(url string) error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	bell := tail.New(db.New(pool, "box", "main", time.Second), tail.Log)
	bell.Name("CHILD")
	for err == nil {
		err = bell.Wait(ctx, time.Second)
	}
	return err
}

// relay starts a process that reads the log. It ends with the test at the latest.
func (b *box) relay() *os.Process {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), relayEnv+"="+b.server.URL)
	cmd.Stderr = b.Output()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have been killed before
		_ = cmd.Wait()
	})
	return cmd.Process
}

// A relay that is killed while the server creates its slot leaves the slot for as long as the server
// waits for open transactions, which is lock_timeout. The open transaction may still commit.
//
// Promises: S, G
func TestAKilledRelayLeavesNoSlot(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		t.Parallel()
		b := serves(t, version)
		tx, err := b.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }() // committed below
		if _, err := tx.Exec(t.Context(), `INSERT INTO box.outbox (topic) VALUES ('open')`); err != nil {
			t.Fatal(err)
		}
		relay := b.relay()
		b.until("the slot waits for the transaction", func() bool {
			return b.slots() == 1 && b.count(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'postrider tail' AND wait_event_type = 'Lock'`) == 1
		})
		if err := relay.Kill(); err != nil {
			t.Fatal(err)
		}
		b.until("no slot is left", func() bool {
			return b.slots() == 0 && b.count(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'postrider tail'`) == 0
		})
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A relay that is suspended holds up the shutdown of the server for wal_sender_timeout, which its
// session has set: the server has none here.
//
// Promises: A
func TestASuspendedRelayDelaysNoShutdown(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		t.Parallel()
		b := serves(t, version)
		b.exec(`ALTER SYSTEM SET wal_sender_timeout = 0`)
		b.exec(`SELECT pg_reload_conf()`)
		relay := b.relay()
		b.until("the log is read", func() bool {
			return b.count(`SELECT count(*) FROM pg_stat_replication WHERE application_name = 'postrider tail' AND state = 'streaming'`) == 1
		})
		if err := relay.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		b.exec(`INSERT INTO box.outbox (topic) VALUES ('t')`)
		if err := b.server.Stop(); err != nil {
			t.Fatal(err)
		}
		said, err := os.ReadFile(filepath.Join(b.server.Dir, "server.log"))
		if err != nil || !strings.Contains(string(said), "database system is shut down") {
			t.Errorf("the server did not end by itself (%v)", err)
		}
	})
}
