package brokertest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/envelope"
)

// Every rule has an implementation here that breaks it.

// brokenSinks breaks the rules of a sink on a healthy broker.
func brokenSinks() map[string]func(*brokertest.Env) {
	return map[string]func(*brokertest.Env){
		"sink/exact": func(e *brokertest.Env) { // forgets a header that it thinks is its own
			change(e, func(m *postrider.Message) {
				m.Headers = maps.Clone(m.Headers)
				delete(m.Headers, "traceparent")
			})
		},
		"sink/order": func(e *brokertest.Env) { // sends large calls in parallel
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				if len(msgs) < 100 {
					return inner.Deliver(ctx, broker.Batch{Messages: msgs})
				}
				half := len(msgs) / 2
				return inner.Deliver(ctx, broker.Batch{Messages: slices.Concat(msgs[half:], msgs[:half])})
			})
		},
		"sink/concurrent": func(e *brokertest.Env) { // takes a call beside another one for a part of it
			inner := e.Sink
			var calls atomic.Int32
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				defer calls.Add(-1)
				if calls.Add(1) > 1 {
					return nil
				}
				time.Sleep(time.Millisecond)
				return inner.Deliver(ctx, broker.Batch{Messages: msgs})
			})
		},
		"sink/rejected": func(e *brokertest.Env) { goesOn(e, "larger than the broker") },
		"sink/missing": func(e *brokertest.Env) { // makes a bad message of it
			answer(e, "the topic does not exist", func(err error) error { return broker.Rejected(err, "", "") })
		},
		"sink/one-id": func(e *brokertest.Env) { // knows the answers of a call by their ids
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
				for i := range errs {
					errs[i] = errs[slices.IndexFunc(msgs, func(m postrider.Message) bool { return m.ID == msgs[i].ID })]
				}
				return errs
			})
		},
		"sink/context": func(e *brokertest.Env) { // continues after its context has ended
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				if ctx.Err() == nil {
					return inner.Deliver(ctx, broker.Batch{Messages: msgs})
				}
				inner.Deliver(context.WithoutCancel(ctx), broker.Batch{Messages: msgs})
				return inner.Deliver(ctx, broker.Batch{Messages: msgs})
			})
		},
		"sink/again": func(e *brokertest.Env) { // gives it another id
			var seen sync.Map
			change(e, func(m *postrider.Message) {
				if _, again := seen.LoadOrStore(m.ID, true); again {
					m.ID = "ffffffff" + m.ID[8:]
				}
			})
		},
	}
}

// goesOn sends what stands behind a message that was refused with this text.
func goesOn(e *brokertest.Env, text string) {
	inner := e.Sink
	e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
		errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
		at := slices.IndexFunc(errs, func(err error) bool { return err != nil && strings.Contains(err.Error(), text) })
		if at < 0 {
			return errs
		}
		for i := at + 1; i < len(msgs); i++ {
			if errs[i] != nil {
				errs[i] = errors.Join(inner.Deliver(ctx, broker.Batch{Messages: msgs[i : i+1]})...)
			}
		}
		return errs
	})
}

// brokenData breaks the rules about what messages may be.
func brokenData() map[string]func(*brokertest.Env) {
	return map[string]func(*brokertest.Env){
		"sink/headers": func(e *brokertest.Env) { // trims values
			change(e, func(m *postrider.Message) {
				m.Headers = maps.Clone(m.Headers)
				for name, v := range m.Headers {
					m.Headers[name] = strings.TrimSpace(v)
				}
			})
		},
		"sink/key-bytes": func(e *brokertest.Env) { // takes capitals for small letters
			change(e, func(m *postrider.Message) { m.Key = strings.ToLower(m.Key) })
		},
		"sink/time": func(e *brokertest.Env) { // makes it the record's, and the broker judges it
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				return broker.PerKey(ctx, msgs, 1, func(ctx context.Context, m postrider.Message) error {
					if m.Time.Year() > 2100 {
						return broker.Rejected(errors.New("INVALID_TIMESTAMP"), "", m.Topic)
					}
					return errors.Join(inner.Deliver(ctx, broker.Batch{Messages: []postrider.Message{m}})...)
				})
			})
		},
		"sink/declared": func(e *brokertest.Env) { // declares what it does not keep
			e.Sink = declaring{e.Sink, broker.Info{MaxKeyBytes: 300}}
		},
		"sink/injection": func(e *brokertest.Env) { // takes what looks like a pattern for one
			change(e, func(m *postrider.Message) { m.Topic = strings.Trim(m.Topic, " .>*") })
		},
		"sink/empty": func(e *brokertest.Env) { // has nothing to send
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				return inner.Deliver(ctx, broker.Batch{Messages: slices.DeleteFunc(slices.Clone(msgs), func(m postrider.Message) bool {
					return m.Payload != nil && len(m.Payload) == 0
				})})
			})
		},
		"sink/limit": func(e *brokertest.Env) { // cuts to what fits
			change(e, func(m *postrider.Message) {
				if n := len(m.Payload); n > 1<<20-400 && n < 2<<20 {
					m.Payload = m.Payload[:1<<20-400]
				}
			})
		},
		"sink/keys": func(e *brokertest.Env) { // forgets what does not fit
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				return inner.Deliver(ctx, broker.Batch{Messages: msgs[:min(len(msgs), 5000)]})
			})
		},
		"sink/dedup": func(e *brokertest.Env) { // promises what the broker does not do
			e.Sink = declaring{e.Sink, broker.Info{DedupWindow: time.Minute}}
		},
		"sink/pipes": func(e *brokertest.Env) { // knows a message by its id alone, once a call is over
			var seen sync.Map
			inner := e.Sink
			e.Sink = batchSink(func(ctx context.Context, b broker.Batch) []error {
				if pipe, again := seen.LoadOrStore(b.Messages[0].ID, b.Pipe); again && pipe != b.Pipe {
					return nil
				}
				return inner.Deliver(ctx, b)
			})
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
		"sink/scope": func(e *brokertest.Env) { // knows one order for all that has no key
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
				var first error
				for i := range errs {
					if msgs[i].Key == "" && first != nil {
						errs[i] = broker.NotTried(first)
					} else if msgs[i].Key == "" {
						first = errs[i]
					}
				}
				return errs
			})
		},
	}
}

// declaring says something of itself.
type declaring struct {
	broker.Sink
	info broker.Info
}

func (s declaring) Info() broker.Info { return s.info }

// brokenOperators breaks the rules about what a person does to the broker.
func brokenOperators() map[string]func(*brokertest.Env) {
	return map[string]func(*brokertest.Env){
		"sink/refused": func(e *brokertest.Env) { goesOn(e, "larger than the topic") },
		"sink/fresh": func(e *brokertest.Env) { // the last request of a topic's first call arrives without those before
			inner := e.Sink
			var known sync.Map
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
				last := msgs[len(msgs)-1]
				if _, known := known.LoadOrStore(last.Topic, true); !known && lineFails(errs) {
					e.Second.Deliver(context.WithoutCancel(ctx), broker.Batch{Messages: []postrider.Message{last}})
				}
				return errs
			})
		},
		"sink/deleted": func(e *brokertest.Env) { // burns attempts once it knew the topic
			inner := e.Sink
			var known sync.Map
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
				for i, m := range msgs {
					if errs == nil || errs[i] == nil {
						known.Store(m.Topic, true)
					} else if _, ok := known.Load(m.Topic); ok && strings.Contains(errs[i].Error(), "the topic does not exist") {
						errs[i] = broker.Failed(errs[i], "", "")
					}
				}
				return errs
			})
		},
		"sink/full": func(e *brokertest.Env) { // takes a full topic for a bad message
			answer(e, "full", func(err error) error { return broker.Rejected(err, "", "") })
		},
		"sink/revoked": func(e *brokertest.Env) { // burns attempts until a person comes
			answer(e, "not allowed", func(err error) error { return broker.Failed(err, "", "") })
		},
	}
}

// lineFails reports whether an answer was lost, or a message, because of the line.
func lineFails(errs []error) bool {
	return slices.ContainsFunc(errs, func(err error) bool {
		return err != nil && (strings.Contains(err.Error(), "cut") || strings.Contains(err.Error(), "no answer"))
	})
}

// inLog reports which messages the topic of the environment holds.
func inLog(e *brokertest.Env) map[string]bool {
	log, err := e.Log(context.Background())
	if err != nil {
		panic(fmt.Sprint("a log in memory: ", err))
	}
	held := make(map[string]bool)
	for i := range log {
		held[log[i].ID] = true
	}
	return held
}
