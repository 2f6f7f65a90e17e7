package pgstore_test

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore"
)

// halting is the connection of a host that dies, or is cut off, when it is
// armed: the end of what it writes never arrives, and nobody closes it.
type halting struct {
	net.Conn
	armed  *atomic.Bool
	writes *atomic.Int64
	dead   atomic.Bool
}

func (c *halting) Write(p []byte) (int, error) {
	c.writes.Add(1)
	const syncBytes = 5
	if c.dead.Load() || !c.armed.CompareAndSwap(true, false) {
		if c.dead.Load() {
			return len(p), nil
		}
		return c.Conn.Write(p)
	}
	c.dead.Store(true)
	if _, err := c.Conn.Write(p[:len(p)-syncBytes]); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *halting) Close() error {
	if c.dead.Load() {
		return nil
	}
	return c.Conn.Close()
}

// mortal is a relay whose host can die in the middle of a settle.
type mortal struct {
	*owner
	own    *pgxpool.Pool
	armed  atomic.Bool
	writes atomic.Int64
}

func (d *db) mortal(boot string) *mortal {
	d.Helper()
	m := &mortal{}
	cfg := d.pool.Config()
	dial := cfg.ConnConfig.DialFunc
	var all []net.Conn
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
		return &halting{Conn: c, armed: &m.armed, writes: &m.writes}, nil
	}
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(d.Context(), cfg)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() {
		for _, c := range all {
			_ = c.Close() // the pool would wait for an answer
		}
		pool.Close()
	})
	m.own = pool
	m.owner = &owner{db: d, store: pgstore.New(pool, &pgstore.Options{Schema: d.schema}), boot: boot, page: 10}
	return m
}

// dieSettling sends all of a settle but its last bytes. The settle before it is
// written in one piece: a half can arrive only if the network splits it.
func (m *mortal) dieSettling(s store.Settlement) store.Settlement {
	m.Helper()
	var pid int
	if err := m.own.QueryRow(m.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		m.Fatal(err)
	}
	for range 2 { // the first prepares the statements
		before := m.writes.Load()
		if lost, err := m.store.Settle(m.Context(), []store.Settlement{s}); err != nil || len(lost) > 0 {
			m.Fatal(lost, err)
		}
		s.Epoch++
		if n := m.writes.Load() - before; s.Epoch > 2 && n != 1 {
			m.Errorf("a settle was written in %d pieces", n)
		}
	}
	m.armed.Store(true)
	ctx, cancel := context.WithCancel(m.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := m.store.Settle(ctx, []store.Settlement{s})
		ended <- err
	}()
	m.await("the server has carried out what it got, and waits for the rest",
		`SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $1 AND backend_xid IS NOT NULL AND wait_event = 'ClientRead'`, pid)
	cancel()
	if err := <-ended; err == nil {
		m.Fatal("half a settle succeeded")
	}
	return s
}

// A settle of which the server got all but the end holds its lane's next number
// in an open transaction that no timeout of the server ends. It keeps nobody
// from living on and from every other lane; and when its client has been silent
// for a lease, whoever wants the lane ends it.
func TestHalfSettle(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		a, b := d.mortal("A"), d.store("main")
		ga := mustLease(t, a.store, store.LeaseRequest{BootID: "A", TTL: time.Minute, MaxLanes: 2})
		if gb := mustLease(t, b, store.LeaseRequest{BootID: "B", TTL: time.Minute}); len(ga.Lanes) != 2 || len(gb.Lanes) != 2 {
			t.Fatalf("A has %d lanes, B %d", len(ga.Lanes), len(gb.Lanes))
		}
		stuck := ga.Lanes[0]
		a.dieSettling(store.Settlement{BootID: "A", Lane: stuck.Lane, Epoch: stuck.Epoch})
		d.exec(`UPDATE box.relay SET alive_until = clock_timestamp() WHERE boot_id = 'A'`)

		start := time.Now()
		g := mustLease(t, b, store.LeaseRequest{BootID: "B", TTL: 8 * time.Second})
		if took := time.Since(start); took > 8*time.Second {
			t.Errorf("a heartbeat waited %v, a whole lease", took)
		}
		if slices.ContainsFunc(g.Lanes, func(l store.LaneGrant) bool { return l.Lane == stuck.Lane }) || len(g.Lanes) != 3 {
			t.Errorf("with one lane stuck B has %d of 4", len(g.Lanes))
		}
		until := time.Now().Add(time.Minute)
		for len(g.Lanes) < 4 && time.Now().Before(until) {
			g = mustLease(t, b, store.LeaseRequest{BootID: "B", TTL: time.Second})
		}
		if len(g.Lanes) != 4 {
			t.Error("the lane stays stuck")
		}
	})
}

// The one relay that is left is held up by its own half settle, from before its
// network came back.
func TestOwnHalfSettle(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 2)
		a, again := d.mortal("A"), d.store("main")
		lease := store.LeaseRequest{BootID: "A", TTL: 3 * time.Second}
		until := time.Now().Add(time.Minute)
		g := mustLease(t, a.store, lease)
		for len(g.Lanes) < 2 && time.Now().Before(until) { // a slow server reads the views of one lane at a time
			g = mustLease(t, a.store, lease)
		}
		if len(g.Lanes) != 2 {
			t.Fatalf("a relay alone has %d lanes of 2", len(g.Lanes))
		}
		lease.Known = map[store.Lane]int64{0: g.Lanes[0].Epoch, 1: g.Lanes[1].Epoch}
		s := a.dieSettling(store.Settlement{BootID: "A", Lane: 1, Epoch: g.Lanes[1].Epoch})
		for {
			if g := mustLease(t, again, lease); len(g.Lanes) != 2 {
				t.Fatalf("a relay that lives has %d lanes of 2", len(g.Lanes))
			}
			lost, err := again.Settle(t.Context(), []store.Settlement{s})
			if err == nil {
				if len(lost) > 0 {
					t.Error("lost: ", lost)
				}
				return
			}
			if time.Now().After(until) {
				t.Fatalf("still held up: %v", err)
			}
		}
	})
}

func mustLease(t *testing.T, s store.Store, req store.LeaseRequest) store.Grant {
	t.Helper()
	g, err := s.Lease(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return g
}
