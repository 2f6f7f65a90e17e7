package relay_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
)

// endless is a store whose lanes always have the same page ready, so that the
// benchmark measures the relay alone.
type endless struct {
	page []postrider.Message
	meta []store.Meta
}

func (s *endless) Info() store.Info { return store.Info{Name: "endless"} }

func (s *endless) Wait(ctx context.Context, d time.Duration) error { return nil }

func (s *endless) Lease(_ context.Context, req store.LeaseRequest) (store.Grant, error) {
	g := store.Grant{Identity: "e", Total: 64, Instances: 1}
	for i := range 64 {
		g.Lanes = append(g.Lanes, store.LaneGrant{Lane: store.Lane(i), Position: store.Position("0")})
	}
	return g, nil
}

func (s *endless) Read(_ context.Context, reads []store.LaneRead) ([]store.Batch, error) {
	out := make([]store.Batch, 0, len(reads))
	for _, r := range reads {
		n := min(r.MaxRecords, len(s.page))
		out = append(out, store.Batch{Lane: r.Lane, Messages: s.page[:n], Meta: s.meta[:n], Position: store.Position("1"), More: true})
	}
	return out, nil
}

func (s *endless) Settle(context.Context, []store.Settlement) ([]store.Lane, error) { return nil, nil }

type countSink struct {
	got chan int
}

func (s *countSink) Info() broker.Info { return broker.Info{Name: "null"} }

func (s *countSink) Deliver(_ context.Context, batch broker.Batch) []error {
	s.got <- len(batch.Messages)
	return nil
}

// BenchmarkRelay reports what the relay itself costs per message.
func BenchmarkRelay(b *testing.B) {
	st := &endless{}
	for i := range 256 {
		st.page = append(st.page, postrider.Message{
			ID: fmt.Sprintf("%036d", i), Topic: "orders", Key: fmt.Sprint("k", i), Type: "placed", Payload: make([]byte, 200),
		})
		st.meta = append(st.meta, store.Meta{Seq: int64(i)})
	}
	sink := &countSink{got: make(chan int, 64)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	b.ReportAllocs()
	go func() { done <- relay.New(st, sink, nil).Run(ctx) }()
	for n := 0; n < b.N; {
		n += <-sink.got
	}
	b.StopTimer()
	cancel()
	for {
		select {
		case <-sink.got:
		case err := <-done:
			if err != nil {
				b.Error(err)
			}
			return
		}
	}
}
