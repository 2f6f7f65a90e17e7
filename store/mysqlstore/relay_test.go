package mysqlstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/relay"
)

// A relay carries an outbox in MySQL to a broker, each key in its order.
//
// Promises: L, O, D
func TestRelayCarriesTheOutbox(t *testing.T) {
	const keys, each = 20, 30
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		db := newOutbox(t, server, 8)
		bus := membroker.New(nil)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.New(New(db, nil), bus.Sink(), nil).Run(ctx) }()
		ob := outbox.New(dialect.MySQL, nil)
		for n := range each {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			for k := range keys {
				m := postrider.Message{Topic: "t", Key: fmt.Sprint("key", k), Version: int64(n + 1), Payload: []byte("x")}
				if err := ob.Enqueue(t.Context(), tx, m); err != nil {
					t.Fatal(err)
				}
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		bound, poll := time.After(5*time.Minute), time.NewTicker(5*time.Millisecond)
		defer poll.Stop()
		for bus.Len("t") < keys*each {
			select {
			case <-bound:
				t.Fatalf("%d of %d messages came", bus.Len("t"), keys*each)
			case <-poll.C:
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		next := map[string]int64{}
		for _, e := range bus.Log("t") {
			if next[e.Message.Key]++; e.Message.Version != next[e.Message.Key] {
				t.Errorf("%s: version %d came where %d was due", e.Message.Key, e.Message.Version, next[e.Message.Key])
			}
		}
		if st, err := New(db, nil).Office().Admin.Status(t.Context()); err != nil || st.Pending != 0 || st.Delivered != keys*each {
			t.Errorf("pending %d, delivered %d, error %v", st.Pending, st.Delivered, err)
		}
	})
}
