package brokertest_test

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/envelope"
)

// Every rule has an implementation here that breaks it.

// brokenSinks breaks the rules of a sink on a healthy broker.
func brokenSinks() map[string]func(*brokertest.Env) {
	return map[string]func(*brokertest.Env){
		"sink/exact": func(e *brokertest.Env) {
			change(e, func(m *postrider.Message) { m.Headers = nil })
		},
		"sink/order": func(e *brokertest.Env) {
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				out := append([]postrider.Message(nil), msgs...)
				out[0], out[len(out)-1] = out[len(out)-1], out[0]
				return inner.Deliver(ctx, out)
			})
		},
		"sink/concurrent": func(e *brokertest.Env) {
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				return inner.Deliver(ctx, msgs[:len(msgs)-1]) // forgets the last one
			})
		},
		"sink/rejected": oneByOne,
		"sink/missing": func(e *brokertest.Env) {
			answer(e, func(err error) error { return broker.Rejected(err, "", "") })
		},
	}
}

// brokenData breaks the rules about what messages may be.
func brokenData() map[string]func(*brokertest.Env) {
	return map[string]func(*brokertest.Env){
		"sink/headers": func(e *brokertest.Env) { // takes a header without value for none
			change(e, func(m *postrider.Message) {
				m.Headers = maps.Clone(m.Headers)
				maps.DeleteFunc(m.Headers, func(_, v string) bool { return v == "" })
			})
		},
		"sink/empty": func(e *brokertest.Env) { // has nothing to send
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				return inner.Deliver(ctx, slices.DeleteFunc(slices.Clone(msgs), func(m postrider.Message) bool { return m.Payload == nil }))
			})
		},
		"sink/limit": func(e *brokertest.Env) { // tries a large message for ever
			answer(e, func(err error) error { return broker.Failed(err, "", "") })
		},
		"sink/formats": func(e *brokertest.Env) { // knows one format
			routed := e.Routed
			e.Routed = func(ctx context.Context, route envelope.Router) (broker.Sink, error) {
				return routed(ctx, func(m *postrider.Message) (envelope.Route, error) {
					r, err := route(m)
					r.Format = envelope.Plain
					return r, err
				})
			}
		},
		"sink/keys": func(e *brokertest.Env) { // forgets what does not fit
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				return inner.Deliver(ctx, msgs[:min(len(msgs), 5000)])
			})
		},
		"sink/dedup": func(e *brokertest.Env) { // promises what the broker does not do
			e.Sink = deduplicating{e.Sink}
		},
		"sink/scope": func(e *brokertest.Env) { // one missing topic holds up all
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				if i := slices.IndexFunc(msgs, func(m postrider.Message) bool { return m.Topic == e.Missing }); i >= 0 {
					errs := make([]error, len(msgs))
					for k := range errs {
						errs[k] = broker.Outage(errors.New("down"), "", e.Missing)
					}
					return errs
				}
				return inner.Deliver(ctx, msgs)
			})
		},
	}
}

// brokenFaults breaks the rules about faults.
func brokenFaults() map[string]func(*brokertest.Env) {
	return map[string]func(*brokertest.Env){
		"sink/context": func(e *brokertest.Env) {
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				inner.Deliver(context.WithoutCancel(ctx), msgs) // goes on after the end
				if ctx.Err() != nil {
					return inner.Deliver(ctx, msgs)
				}
				return nil
			})
		},
		"sink/again": func(e *brokertest.Env) {
			inner, seen := e.Sink, map[string]bool{}
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				if seen[msgs[0].ID] {
					return make([]error, len(msgs)-1)
				}
				seen[msgs[0].ID] = true
				return inner.Deliver(ctx, msgs)
			})
		},
		"sink/cut":    successForUnknown,
		"sink/cuts":   successForUnknown,
		"sink/frozen": successForUnknown,
		"sink/mute":   successForUnknown,
		"sink/stop":   successForUnknown,
		"sink/cancel": func(e *brokertest.Env) { // sends what was cancelled with the next call
			inner := e.Sink
			var kept []postrider.Message
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				if kept != nil {
					inner.Deliver(context.WithoutCancel(ctx), kept)
					kept = nil
				}
				errs := inner.Deliver(ctx, msgs)
				if ctx.Err() != nil {
					kept = msgs
				}
				return errs
			})
		},
		"sink/late": lastArrives,
	}
}

// brokenSources breaks the rules of a source.
func brokenSources() map[string]func(*brokertest.Env) {
	return map[string]func(*brokertest.Env){
		"source/members": func(e *brokertest.Env) { // never acknowledges
			breakSource(e, source{settle: func([]broker.Verdict) []broker.Verdict { return nil }})
		},
		"source/closed": func(e *brokertest.Env) { // takes the end for an empty batch
			breakSource(e, source{fail: func(error) error { return nil }})
		},
		"source/cancel": func(e *brokertest.Env) { // loses what comes at the last moment
			n := 0
			breakSource(e, source{receive: func(ds []broker.Delivery) []broker.Delivery {
				if n++; n == 3 {
					return nil
				}
				return ds
			}})
		},
		"source/order": func(e *brokertest.Env) {
			breakSource(e, source{receive: func(ds []broker.Delivery) []broker.Delivery {
				if len(ds) > 1 {
					ds[0], ds[len(ds)-1] = ds[len(ds)-1], ds[0]
				}
				return ds
			}})
		},
		"source/unsettled": func(e *brokertest.Env) { // acknowledges on receipt
			inner := e.Source
			e.Source = func(ctx context.Context) (broker.Source, func(), error) {
				s, closing, err := inner(ctx)
				return source{Source: s, receive: func(ds []broker.Delivery) []broker.Delivery {
					for _, d := range ds {
						_ = s.Settle(ctx, []broker.Verdict{{Delivery: d, Ack: true}})
					}
					return ds
				}}, closing, err
			}
		},
		"source/settled": func(e *brokertest.Env) {
			breakSource(e, source{settle: func([]broker.Verdict) []broker.Verdict { return nil }})
		},
		"source/settled-again": func(e *brokertest.Env) { // forgets what it was told, taken or not
			told := map[string]bool{}
			breakSource(e, source{settle: func(vs []broker.Verdict) []broker.Verdict {
				return slices.DeleteFunc(slices.Clone(vs), func(v broker.Verdict) bool {
					id := v.Delivery.Message.ID
					defer func() { told[id] = true }()
					return told[id]
				})
			}})
		},
		"source/gap": ackAllBefore,
		"source/back": func(e *brokertest.Env) { // forgets the delay
			breakSource(e, source{settle: func(vs []broker.Verdict) []broker.Verdict {
				for i := range vs {
					vs[i].Delay = 0
				}
				return vs
			}})
		},
	}
}
