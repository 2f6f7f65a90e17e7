package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore"
)

// cutter ends a context at one of the requests that are sent with it.
type cutter struct {
	at, sent int // the request that is cut, from 0; how many were sent
	cut      func(error)
}

func (c *cutter) next(ctx context.Context) context.Context {
	if c.cut != nil {
		if c.sent == c.at {
			c.cut(context.DeadlineExceeded)
		}
		c.sent++
	}
	return ctx
}

func (c *cutter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return c.next(ctx)
}
func (c *cutter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *cutter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return c.next(ctx)
}
func (c *cutter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (c *cutter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// A lease whose time ends at any of its requests grants no lane without its view: a relay that
// knows no captured key sends what waits behind one.
//
// Promises: O
func TestNoLaneIsGrantedWithoutItsView(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 8)
		before := d.owner("before")
		captured := map[store.Lane]string{}
		for i := range 40 {
			key := fmt.Sprint("k", i)
			p := before.park(key, "m", store.Retry)
			captured[before.laneOf(p.Seq)] = key
		}
		if _, err := before.store.Lease(t.Context(), store.LeaseRequest{BootID: "before", TTL: time.Minute, Leave: true}); err != nil {
			t.Fatal(err)
		}
		cut := &cutter{}
		cfg := d.pool.Config()
		cfg.ConnConfig.Tracer = cut
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		granted := 0
		for at := 0; ; at++ {
			// It holds a lane, whose epoch moves by a settlement of its own, and takes the others.
			boot := fmt.Sprint("b", at)
			s := pgstore.New(pool, &pgstore.Options{Schema: d.schema})
			g := mustLease(t, s, store.LeaseRequest{BootID: boot, TTL: time.Minute, MaxLanes: 1})
			if len(g.Lanes) != 1 {
				t.Fatalf("%d lanes, want 1", len(g.Lanes))
			}
			one := g.Lanes[0]
			if lost, err := s.Settle(t.Context(), []store.Settlement{{BootID: boot, Lane: one.Lane, Epoch: one.Epoch, Position: one.Position}}); err != nil || len(lost) > 0 {
				t.Fatal(lost, err)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			*cut = cutter{at: at, cut: cancel}
			g, err := s.Lease(ctx, store.LeaseRequest{BootID: boot, TTL: time.Minute, Known: map[store.Lane]int64{one.Lane: one.Epoch}})
			all := cut.sent <= at
			*cut = cutter{}
			cancel(nil)
			if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("cut at request %d: %v", at, err)
			}
			for _, l := range g.Lanes {
				if granted++; !l.Known && captured[l.Lane] != "" && len(l.Parked.Captured) == 0 {
					t.Errorf("cut at request %d: lane %d is granted without its captured keys, error %v", at, l.Lane, err)
				}
			}
			mustLease(t, s, store.LeaseRequest{BootID: boot, TTL: time.Minute, Leave: true})
			if all {
				break
			}
		}
		if granted == 0 || len(captured) < 2 {
			t.Fatalf("%d lanes granted, %d have captured keys", granted, len(captured))
		}
	})
}

// A lease whose later requests meet another history ends with an error: the views there are not
// those of the lanes it was granted.
//
// Promises: O
func TestALeaseIsOfOneHistory(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		cut := &cutter{}
		cfg := d.pool.Config()
		cfg.ConnConfig.Tracer = cut
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		s := pgstore.New(pool, &pgstore.Options{Schema: d.schema})
		req := store.LeaseRequest{BootID: o.boot, TTL: time.Minute}
		for name, known := range map[string]bool{"views": false, "own settlements": true} {
			g := mustLease(t, s, req)
			req.Known = map[store.Lane]int64{}
			for _, l := range g.Lanes {
				if !known {
					break
				}
				req.Known[l.Lane] = l.Epoch
				lost, err := s.Settle(t.Context(), []store.Settlement{{BootID: o.boot, Lane: l.Lane, Epoch: l.Epoch, Position: l.Position}})
				if err != nil || len(lost) > 0 {
					t.Fatal(lost, err)
				}
			}
			*cut = cutter{at: 1, cut: func(error) { d.exec(`UPDATE box.outbox_info SET restore_epoch = restore_epoch + 1`) }}
			_, err := s.Lease(t.Context(), req)
			sent := cut.sent
			*cut = cutter{}
			if wantIs(t, err, store.ErrIdentity); sent < 2 {
				t.Errorf("%s: %d requests, want a second one", name, sent)
			}
			req.Known = nil
		}
	})
}

func (o *owner) laneOf(seq int64) (lane store.Lane) {
	o.Helper()
	if err := o.pool.QueryRow(o.Context(), o.sql(`SELECT lane FROM box.outbox WHERE seq = $1`), seq).Scan(&lane); err != nil {
		o.Fatal(err)
	}
	return lane
}
