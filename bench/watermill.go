package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
)

// watermill runs a Watermill router over channels in memory, with a hand-written check:
// Watermill has none that shares the handler's transaction. A second delivery goes to
// another subscriber, as after a rebalance.
func (w *consuming) watermill(ctx context.Context) (time.Duration, error) {
	bus := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: int64(w.deliveries())}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	var done atomic.Int64
	failed := make(chan error, 1)
	for i := range consumeWorkers {
		router.AddConsumerHandler(subscriber(i), subscriber(i), bus, func(m *message.Message) error {
			if err := w.handler.CheckThenAct(m.Context(), m.UUID, m.Payload); err != nil {
				select {
				case failed <- err:
				default:
				}
				return err
			}
			done.Add(1)
			return nil
		})
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()
	began := time.Now()
	for i := range w.deliveries() {
		m := w.message(w.arrival(i))
		if err := bus.Publish(subscriber(i%consumeWorkers), message.NewMessage(m.ID, m.Payload)); err != nil {
			return 0, err
		}
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for done.Load() < int64(w.deliveries()) {
		select {
		case err := <-failed:
			return 0, err
		case err := <-ended:
			return 0, errors.Join(errors.New("the router ended"), err)
		case <-tick.C:
		}
	}
	took := time.Since(began)
	stop()
	return took, errors.Join(<-ended, bus.Close())
}

func subscriber(i int) string { return fmt.Sprint("subscriber-", i) }
