package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/relay"
)

// strictWriter writes into keys that all writers share, in transactions that
// overlap, undo savepoints or themselves, and deadlock.
func (d *db) strictWriter(ctx context.Context, w int, until time.Time) error {
	rnd := rand.New(rand.NewPCG(uint64(w), 7))
	for time.Now().Before(until) {
		err := d.strictTx(ctx, rnd)
		var pg *pgconn.PgError
		if err != nil && !errors.Is(err, errUndo) && (!errors.As(err, &pg) || pg.Code != "40P01" && pg.Code != "40001") {
			return fmt.Errorf("writer %d: %w", w, err)
		}
	}
	return nil
}

var errUndo = errors.New("rolled back by its writer")

func (d *db) strictTx(ctx context.Context, rnd *rand.Rand) error {
	opts := pgx.TxOptions{}
	if rnd.IntN(8) == 0 {
		opts.IsoLevel = pgx.RepeatableRead
	}
	return pgx.BeginTxFunc(ctx, d.pool, opts, func(tx pgx.Tx) error {
		insert := func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, d.sql(`INSERT INTO box.outbox (topic, key) SELECT 't', $1 FROM generate_series(1, $2)`),
				fmt.Sprint("k", rnd.IntN(6)), 1+rnd.IntN(3))
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT set_config('deadlock_timeout', '5ms', true)`); err != nil {
			return err
		}
		if rnd.IntN(3) == 0 { // the id is there long before the first number
			if _, err := tx.Exec(ctx, `SELECT pg_current_xact_id(), pg_sleep($1)`, rnd.Float64()*0.01); err != nil {
				return err
			}
		}
		for range 1 + rnd.IntN(2) {
			if err := insert(tx); err != nil {
				return err
			}
			err := pgx.BeginFunc(ctx, tx, func(sub pgx.Tx) error {
				if err := insert(sub); err != nil {
					return err
				}
				if rnd.IntN(2) == 0 {
					return errUndo
				}
				return nil
			})
			if err != nil && !errors.Is(err, errUndo) {
				return err
			}
			if _, err := tx.Exec(ctx, `SELECT pg_sleep($1)`, rnd.Float64()*0.003); err != nil {
				return err
			}
		}
		if rnd.IntN(5) == 0 {
			return errUndo
		}
		return nil
	})
}

// O, with versions: a sink sees each strict key's versions 1, 2, 3 ... without a
// hole and in order, whatever its writers do at the same time.
//
// Promises: O
func TestStrictKeysArriveDenseAndInOrder(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		d.strict("t")
		broker := membroker.New(nil)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		// It keeps its lease on a starved machine too, and sends nothing twice.
		go func() {
			ended <- relay.New(d.store("main"), broker.Sink(), &relay.Options{LeaseTTL: time.Minute}).Run(ctx)
		}()
		committed := int64(0)
		for committed < 100 && !t.Failed() { // once, but on a machine that is starved
			var writers sync.WaitGroup
			until := time.Now().Add(2 * time.Second)
			for w := range 12 {
				writers.Go(func() {
					if err := d.strictWriter(ctx, w, until); err != nil {
						t.Error(err)
					}
				})
			}
			writers.Wait()
			committed = d.count(`SELECT count(*) FROM box.outbox`)
		}
		d.waitUntil(`SELECT count(*) = 0 FROM box.messages WHERE state <> 'Sent'`)
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		last := map[string]int64{}
		log := broker.Log("t")
		for _, e := range log {
			if e.Message.Version != last[e.Message.Key]+1 {
				t.Fatalf("key %s: version %d comes behind %d", e.Message.Key, e.Message.Version, last[e.Message.Key])
			}
			last[e.Message.Key]++
		}
		redrawn := d.count(`SELECT last_value FROM box.outbox_seq`) - committed
		if int64(len(log)) != committed || len(last) != 6 {
			t.Errorf("%d of %d messages of %d keys arrived", len(log), committed, len(last))
		}
		t.Logf("%d messages, %d numbers rolled back or drawn again", committed, redrawn)
	})
}
