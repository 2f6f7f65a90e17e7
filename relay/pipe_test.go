package relay_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/memstore"
)

// TestCallsNameThePipe: a sink learns in each call whose messages it carries, so
// that a broker with deduplication keeps two pipes apart.
func TestCallsNameThePipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{Lanes: 1})
		audit := st.Pipe("audit")
		got := make(chan string, 1)
		sink := broker.Func("pipes", func(ctx context.Context, _ postrider.Message) error {
			got <- broker.PipeOf(ctx)
			return nil
		})
		stop := start(t, relay.New(audit, sink, nil))
		defer stop()
		enqueue(t, st, 1, 1, map[string]int64{})
		if pipe := <-got; pipe != "audit" {
			t.Errorf("the call names the pipe %q, want audit", pipe)
		}
	})
}
