package brokertest_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
)

// brokenFaults breaks the rules about faults.
func brokenFaults() map[string]func(*brokertest.Env) {
	return map[string]func(*brokertest.Env){
		"sink/cut": func(e *brokertest.Env) { // forgets the requests behind a failed one
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
				if lineFails(errs) && len(errs) > 300 {
					clear(errs[300:])
				}
				return errs
			})
		},
		"sink/cuts": func(e *brokertest.Env) { // takes a connection that ended before the answer for a refusal
			answer(e, "cut", func(err error) error {
				if strings.Contains(err.Error(), "accepted") {
					return broker.Rejected(err, "", "")
				}
				return err
			})
		},
		"sink/frozen": func(e *brokertest.Env) { // a write that blocks knows no context
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
				size := 0
				for i := range msgs {
					size += len(msgs[i].Payload)
				}
				if size > 8<<20 && lineFails(errs) {
					time.Sleep(time.Minute)
				}
				return errs
			})
		},
		"sink/mute": func(e *brokertest.Env) { // what is written is sent
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
				held := inLog(e)
				for i, err := range errs {
					if err != nil && held[msgs[i].ID] {
						errs[i] = nil
					}
				}
				return orNil(errs)
			})
		},
		"sink/cancel": func(e *brokertest.Env) { // sends what was cancelled with the next call
			inner := e.Sink
			var kept atomic.Pointer[[]postrider.Message]
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				if late := kept.Swap(nil); late != nil {
					inner.Deliver(context.WithoutCancel(ctx), broker.Batch{Messages: *late})
				}
				errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
				if ctx.Err() != nil && !lineFails(errs) {
					kept.Store(&msgs)
				}
				return errs
			})
		},
		"sink/late": func(e *brokertest.Env) { // what the network kept arrives when somebody else has sent some
			inner, second := e.Sink, e.Second
			var kept atomic.Pointer[postrider.Message]
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
				if lineFails(errs) {
					last := msgs[len(msgs)-1]
					kept.Store(&last)
				}
				return errs
			})
			calls := 0
			e.Second = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				if late := kept.Load(); late != nil && calls == 1 {
					second.Deliver(ctx, broker.Batch{Messages: []postrider.Message{*late}})
				}
				calls++
				return second.Deliver(ctx, broker.Batch{Messages: msgs})
			})
		},
		"sink/ping": func(e *brokertest.Env) { // does not ask
			e.Sink = unasked{e.Sink}
		},
		"sink/stop": func(e *brokertest.Env) { // a call does not hear of the end
			e.Stop = func() {}
		},
		"sink/stop-acks": func(e *brokertest.Env) { // takes what is outstanding at the end for granted
			inner, stop := e.Sink, e.Stop
			ended := make(chan struct{})
			e.Stop = func() { close(ended); stop() }
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
				if !lineFails(errs) || !inLog(e)[msgs[0].ID] {
					return errs
				}
				select { // an answer may still come
				case <-ended:
					return nil
				case <-ctx.Done():
					return errs
				}
			})
		},
	}
}

// orNil is an answer in its proper shape.
func orNil(errs []error) []error {
	for _, err := range errs {
		if err != nil {
			return errs
		}
	}
	return nil
}

// brokenLines breaks the rules about what a line may do.
func brokenLines() map[string]func(*brokertest.Env) {
	return map[string]func(*brokertest.Env){
		"sink/reset": func(e *brokertest.Env) { // a new connection takes the rest first, and then what was on the wire
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
				for i, err := range errs {
					if err == nil || !strings.Contains(err.Error(), "reset") {
						continue
					}
					if rest := inner.Deliver(ctx, broker.Batch{Messages: msgs[i+1:]}); rest != nil {
						return errs
					}
					return orNil(append(make([]error, len(msgs)-1), errors.Join(inner.Deliver(ctx, broker.Batch{Messages: msgs[i : i+1]})...)))
				}
				return errs
			})
		},
		"sink/stranded": func(e *brokertest.Env) { // keeps a connection until it breaks
			inner := e.Sink
			var dead atomic.Bool
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				var errs []error
				if !dead.Load() {
					errs = inner.Deliver(ctx, broker.Batch{Messages: msgs})
				} else {
					<-ctx.Done()
					errs = all(msgs, broker.Unknown(ctx.Err(), "", ""))
				}
				for _, err := range errs {
					if err != nil && strings.Contains(err.Error(), "stranded") {
						dead.Store(true)
					}
				}
				return errs
			})
		},
		"sink/slow": func(e *brokertest.Env) { // waits for each answer before the next request
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				return broker.PerKey(ctx, msgs, 1, func(ctx context.Context, m postrider.Message) error {
					call, cancel := context.WithCancel(ctx)
					defer cancel()
					return errors.Join(inner.Deliver(call, broker.Batch{Messages: []postrider.Message{m}})...)
				})
			})
		},
		"sink/late-answer": func(e *brokertest.Env) { // counts answers, whosoever's they are
			inner := e.Sink
			var late atomic.Int64
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
				for i, err := range errs {
					if err == nil {
						continue
					}
					if broker.Classify(err).Class == broker.ClassUnknown {
						late.Add(1)
					} else if strings.Contains(err.Error(), "the topic does not exist") && late.Add(-1) >= 0 {
						errs[i] = nil
					}
				}
				return orNil(errs)
			})
		},
		"sink/middle": func(e *brokertest.Env) { // the last request is on its way when the call ends, others are not
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
				if errs != nil && errs[0] == nil && ctx.Err() != nil && lineFails(errs) {
					e.Second.Deliver(context.WithoutCancel(ctx), broker.Batch{Messages: msgs[len(msgs)-1:]})
				}
				return errs
			})
		},
		"sink/hang-up": func(e *brokertest.Env) { // takes it for a refusal
			answer(e, "hung up", func(err error) error { return broker.Rejected(err, "", "") })
		},
		"sink/window": func(e *brokertest.Env) { // forgets to give back what unknown messages used
			inner := e.Sink
			var left atomic.Int64
			left.Store(8192)
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				if left.Load() < int64(len(msgs)) {
					<-ctx.Done()
					return all(msgs, broker.Unknown(ctx.Err(), "", ""))
				}
				errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
				for _, err := range errs {
					if err != nil && strings.Contains(err.Error(), "no answer") {
						left.Add(-1)
					}
				}
				return errs
			})
		},
	}
}

// all is the same answer for each message.
func all(msgs []postrider.Message, err error) []error {
	errs := make([]error, len(msgs))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// unasked answers pings by itself.
type unasked struct{ broker.Sink }

func (s unasked) Info() broker.Info {
	info := s.Sink.Info()
	info.Ping = func(context.Context) error { return nil }
	return info
}
