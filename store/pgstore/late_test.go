package pgstore_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// countingConn counts the bytes that come from the server.
type countingConn struct {
	net.Conn
	got *atomic.Int64
}

func (c countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.got.Add(int64(n))
	return n, err
}

// What came late is bound in bytes on the wire, not only in memory: a read that has more of it than fits
// into its time would be repeated for ever. Each message comes once, and those of a lane in their order.
//
// Promises: L, O, S
func TestLateRowsAreBoundInBytes(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		const lanes, rows = 4, 32
		for name, filter := range map[string]store.Filter{"all": {}, "filtered": {Types: []string{"m*"}}} {
			t.Run(name, func(t *testing.T) {
				d := fresh(t, version, lanes)
				var got atomic.Int64
				cfg := d.pool.Config()
				dial := cfg.ConnConfig.DialFunc
				cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := dial(ctx, network, addr)
					return countingConn{c, &got}, err
				}
				pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(pool.Close)
				d.add(ops.AddPipe{Actor: "ann", Name: name, From: ops.FromBeginning, Filter: filter})
				s := pgstore.New(pool, &pgstore.Options{Schema: d.schema, Pipe: name})
				g := mustLease(t, s, store.LeaseRequest{BootID: "a", TTL: time.Minute})
				var reads []store.LaneRead
				for _, l := range g.Lanes {
					reads = append(reads, store.LaneRead{Lane: l.Lane, Epoch: l.Epoch, After: l.Position, MaxRecords: 100, MaxBytes: 2 << 20, Within: 4 << 20})
				}
				types := map[store.Lane][]string{}
				read := func() (n, moved int) {
					t.Helper()
					before := got.Load()
					batches, err := s.Read(t.Context(), reads)
					if err != nil {
						t.Fatal(err)
					}
					for _, b := range batches {
						r := readOf(reads, b.Lane)
						if !bytes.Equal(r.After, b.Position) {
							moved++
						}
						r.After = b.Position
						for _, m := range b.Messages {
							types[b.Lane] = append(types[b.Lane], m.Type)
						}
					}
					return int(got.Load() - before), moved
				}
				payload := make([]byte, 1<<20)
				_, _ = rand.Read(payload) // never fails
				tx := d.begin()
				d.do(tx, `INSERT INTO box.outbox (topic, key, type, payload) SELECT 't', g::text, 'm' || lpad(g::text, 3, '0'), $1 FROM generate_series(1, $2::int) g`, payload, rows)
				d.do(tx, `INSERT INTO box.outbox (topic, key, type, payload) SELECT 't', g::text, 'other', $1 FROM generate_series(1, $2::int) g WHERE $3`, payload, rows, name == "filtered")
				d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', g::text, 'm ahead' FROM generate_series(1, 64) g`)
				for moved := 1; moved > 0; { // passes the open transaction
					_, moved = read()
				}
				clear(types)
				d.commit(tx)
				for moved := 1; moved > 0; {
					var n int
					if n, moved = read(); n > 6<<20 { // the bound, a row that passes it, and what has no payload
						t.Errorf("a read within 4 MiB has received %d bytes", n)
					}
					reads = append(reads[1:], reads[0]) // the engine begins with a lane that was left out
				}
				n := 0
				for lane, all := range types {
					if n += len(all); !slices.IsSorted(all) {
						t.Errorf("lane %d: %q", lane, all)
					}
				}
				if all := fmt.Sprint(types); n != rows {
					t.Errorf("%d of %d messages: %s", n, rows, all)
				}
			})
		}
	})
}
