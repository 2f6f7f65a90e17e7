package pgstore_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore"
)

// A message of a writer with synchronous_commit = off is not read
// with durable=flush before it is on disk; without, a crash makes it a phantom.
//
// Promises: P
func TestDurableFlush(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		for durable, phantoms := range map[pgstore.Durability]int64{pgstore.Committed: 1, pgstore.Flushed: 0} {
			t.Run("durable="+string(durable), func(t *testing.T) {
				pg, d := lazy(t, version)
				d.stopWalWriter()
				o := d.owner("a")
				o.store = pgstore.New(d.pool, &pgstore.Options{Schema: d.schema, Durable: durable})
				d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'safe')`)
				tx := d.begin()
				d.do(tx, `SET LOCAL synchronous_commit = off`)
				d.put(tx, "careless")
				d.commit(tx)
				batches, err := o.store.Read(t.Context(), o.reads())
				if err != nil || len(batches) != 1 || len(batches[0].Messages) != 2 {
					t.Fatalf("read %+v, %v", batches, err)
				}
				d.crash(pg)
				if n := 2 - d.count(`SELECT count(*) FROM box.outbox`); n != phantoms {
					t.Errorf("%d of 2 messages were read and do not exist, want %d", n, phantoms)
				}
			})
		}
	})
}

// stopWalWriter suspends the process that would flush what nobody waits for.
func (d *db) stopWalWriter() {
	d.Helper()
	pid := d.count(`SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'`)
	p, err := os.FindProcess(int(pid))
	if err != nil {
		d.Fatal(err)
	}
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		d.Fatal(err)
	}
}

// With durable=replay no message is read that a promoted standby
// might not have.
//
// Promises: P
func TestDurableReplay(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		p := newPair(t, version)
		o := p.owner("a")
		o.store = pgstore.New(p.pool, &pgstore.Options{Schema: p.schema, Durable: pgstore.Replayed})
		p.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'first')`)
		o.want("first")
		p.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'second')`)
		p.caughtUp()
		if _, err := p.standby.Query(t.Context(), "postgres", `SELECT pg_wal_replay_pause()`); err != nil {
			t.Fatal(err)
		}
		p.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'third')`)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := o.store.Read(ctx, o.reads())
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a read while the standby does not replay: %v", err)
		}
		if _, err := p.standby.Query(t.Context(), "postgres", `SELECT pg_wal_replay_resume()`); err != nil {
			t.Fatal(err)
		}
		batches, err := o.store.Read(t.Context(), o.reads())
		n := 0
		for _, b := range batches {
			n += len(b.Messages)
		}
		if err != nil || n != 2 {
			t.Fatalf("read %d messages, %v, want 2", n, err)
		}
		p.promote()
		if n := p.count(`SELECT count(*) FROM box.outbox`); n != 3 {
			t.Errorf("the promoted standby has %d of 3 messages that were read", n)
		}
		p.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'fourth')`)
		o.lease()
		if _, err = o.store.Read(t.Context(), o.reads()); err == nil || !strings.Contains(err.Error(), "no standby is connected") {
			t.Errorf("a read without a standby: %v", err)
		}
	})
}

func TestDurabilityOfAConnectionString(t *testing.T) {
	for conn, want := range map[string]pgstore.Durability{
		"postgres://postgres@127.0.0.1:1/x?durable=flush":  pgstore.Flushed,
		"host=127.0.0.1 port=1 user=postgres durable=lazy": "lazy",
		"postgres://postgres@127.0.0.1:1/x":                pgstore.Committed,
	} {
		cfg, err := pgstore.ParseConfig(conn)
		if err != nil {
			t.Fatal(err)
		}
		if got := pgstore.TakeDurability(cfg); got != want {
			t.Errorf("%s: %q, want %q", conn, got, want)
		}
		if _, there := cfg.ConnConfig.RuntimeParams["durable"]; there {
			t.Errorf("%s: the server would be told of it", conn)
		}
	}
	_, err := pgstore.New(nil, &pgstore.Options{Durable: "lazy"}).Lease(t.Context(), store.LeaseRequest{BootID: "a"})
	wantIs(t, err, store.ErrUnusable)
}
