package relay_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/memstore"
)

// pipes is a sink that returns the pipe of each call.
type pipes chan string

func (p pipes) Info() broker.Info { return broker.Info{Name: "pipes"} }

func (p pipes) Deliver(_ context.Context, batch broker.Batch) []error {
	p <- batch.Pipe
	return nil
}

// TestCallsNameThePipe: a sink learns in each call whose messages it carries, so
// that a broker with deduplication keeps two pipes apart.
//
// Promises: L
func TestCallsNameThePipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(&memstore.Options{Lanes: 1})
		audit := st.Pipe("audit")
		got := make(chan string, 1)
		stop := start(t, relay.New(audit, pipes(got), nil))
		defer stop()
		enqueue(t, st, 1, 1, map[string]int64{})
		if pipe := <-got; pipe != "audit" {
			t.Errorf("the call names the pipe %q, want audit", pipe)
		}
	})
}
