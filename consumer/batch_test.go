package consumer

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/inbox"
)

// TestABatchThatFailsGivesBackOneKey: the messages of a failed batch run one by one. A
// message that is given back takes only the later ones of its key along, from the batch
// and from behind it.
//
// Promises: E
func TestABatchThatFailsGivesBackOneKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &script{batches: make(chan []broker.Delivery)}
		opts := &Options{Concurrency: 1, Batch: 4}
		var ran []string
		r := newRun(src, opts.defaults(), func(_ context.Context, d broker.Delivery, _ turn) (broker.Verdict, bool) {
			ran = append(ran, d.Message.ID)
			return broker.Verdict{Delivery: d, Ack: d.Message.ID != "2", Delay: time.Second}, false
		})
		r.batch = func(_ context.Context, ds []broker.Delivery) bool {
			ids := ""
			for _, d := range ds {
				ids += d.Message.ID
			}
			ran = append(ran, "batch "+ids)
			pause(t.Context(), time.Second) // the rest comes meanwhile
			return ds[0].Message.ID != "1"
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.run(ctx) }()
		src.batches <- []broker.Delivery{delivery("0", "j")}
		synctest.Wait()
		src.batches <- []broker.Delivery{
			delivery("1", "j"), delivery("2", "k"), delivery("3", ""), delivery("4", "k"),
			delivery("5", "k"), delivery("6", ""), delivery("7", "j"),
		}
		time.Sleep(time.Minute) // in the bubble
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if want := []string{"0", "batch 1234", "1", "2", "3", "batch 67"}; !slices.Equal(ran, want) {
			t.Errorf("ran %q, want %q", ran, want)
		}
		slices.Sort(src.verdicts)
		want := []string{"ack 0", "ack 1", "ack 3", "ack 6", "ack 7", "back 2", "back 4", "back 5"}
		if got := fmt.Sprint(src.verdicts); got != fmt.Sprint(want) {
			t.Errorf("verdicts %s, want %s", got, want)
		}
	})
}

// counted counts transactions.
type counted struct {
	allFresh
	transactions *int
}

func (c counted) Transact(ctx context.Context, fn func(tx *sql.Tx, conn inbox.Conn) error) error {
	*c.transactions++
	return c.allFresh.Transact(ctx, fn)
}

// TestUnknownTypesStayInTheirBatch: under Skip a type without a handler does not split
// its batch, and leaves no claim.
func TestUnknownTypesStayInTheirBatch(t *testing.T) {
	for _, types := range []string{"xxxxxxx", "xxxuxxx", "uuuuuuu"} {
		var noted []string
		transactions, handled := 0, 0
		src := &script{batches: make(chan []broker.Delivery, 1)}
		c := New[*sql.Tx](src, counted{allFresh{ledger{noted: &noted}}, &transactions}, &Options{Name: "c", Batch: len(types), Concurrency: 1, UnknownType: Skip})
		c.HandleMessage("x", func(context.Context, *sql.Tx, postrider.Message) error { handled++; return nil })
		c.wrapped = c.handlers
		var ds []broker.Delivery
		for i, typ := range types {
			d := delivery(fmt.Sprint(i), "k")
			d.Attempt, d.Message.Type = 1, string(typ)
			ds = append(ds, d)
		}
		known := strings.Count(types, "x")
		if !c.processBatch(t.Context(), ds) || handled != known || transactions != min(known, 1) || c.Stats().Skipped != int64(len(types)-known) {
			t.Errorf("%s: %d handled, %d transactions, stats %+v", types, handled, transactions, c.Stats())
		}
	}
}
