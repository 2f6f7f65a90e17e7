package brokertest_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
)

// brokenLines breaks the rules about what a line and an operator may do.
func brokenLines() map[string]func(*brokertest.Env) {
	return map[string]func(*brokertest.Env){
		"sink/reset":    successForUnknown,
		"sink/stranded": successForUnknown,
		"sink/slow": func(e *brokertest.Env) { // waits for each answer before the next request
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				return broker.PerKey(ctx, msgs, 1, func(ctx context.Context, m postrider.Message) error {
					call, cancel := context.WithCancel(ctx)
					defer cancel()
					return errors.Join(inner.Deliver(call, []postrider.Message{m})...)
				})
			})
		},
		"sink/late-answer": func(e *brokertest.Env) { // counts answers, whosoever's they are
			inner, late := e.Sink, 0
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				errs := inner.Deliver(ctx, msgs)
				for i, err := range errs {
					if err == nil {
						continue
					}
					if broker.Classify(err).Class == broker.ClassUnknown {
						late++
					} else if late > 0 {
						late--
						errs[i] = nil
					}
				}
				return errs
			})
		},
		"sink/middle":  lastArrives,
		"sink/fresh":   lastArrives,
		"sink/refused": oneByOne,
		"sink/hang-up": func(e *brokertest.Env) { // takes a broken connection for a refusal
			answer(e, func(err error) error { return broker.Rejected(err, "", "") })
		},
		"sink/window": func(e *brokertest.Env) { // forgets to give back what unknown messages used
			inner, left := e.Sink, 8192
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				if left < len(msgs) {
					<-ctx.Done()
					return broker.PerKey(ctx, msgs, 1, func(context.Context, postrider.Message) error {
						return broker.Unknown(ctx.Err(), "", "")
					})
				}
				errs := inner.Deliver(ctx, msgs)
				for _, err := range errs {
					if err != nil {
						left--
					}
				}
				return errs
			})
		},
		"sink/stop-acks": successForUnknown,
		"sink/deleted":   burns,
		"sink/full": func(e *brokertest.Env) { // takes a full topic for a bad message
			answer(e, func(err error) error { return broker.Rejected(err, "", "") })
		},
		"sink/revoked": burns,
		"sink/key-bytes": func(e *brokertest.Env) {
			change(e, func(m *postrider.Message) { m.Key = strings.TrimSpace(m.Key) })
		},
		"sink/injection": func(e *brokertest.Env) { // takes what looks like a pattern for one
			change(e, func(m *postrider.Message) { m.Topic = strings.Trim(m.Topic, " .>*") })
		},
	}
}

// burns answers every error as the message's own failure.
func burns(e *brokertest.Env) {
	answer(e, func(err error) error { return broker.Failed(err, "", "") })
}

// lastArrives has a request for each message on the way when the call ends; the
// last one arrives.
func lastArrives(e *brokertest.Env) {
	inner := e.Sink
	e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
		errs := inner.Deliver(ctx, msgs)
		if errs != nil {
			e.Second.Deliver(context.WithoutCancel(ctx), msgs[len(msgs)-1:])
		}
		return errs
	})
}

// brokenGivebacks breaks the rules of a source about what comes again.
func brokenGivebacks() map[string]func(*brokertest.Env) {
	return map[string]func(*brokertest.Env){
		"source/exact": func(e *brokertest.Env) { // thinks that header names have no case
			breakSource(e, source{receive: func(ds []broker.Delivery) []broker.Delivery {
				for i := range ds {
					m := &ds[i].Message
					m.Headers = maps.Clone(m.Headers)
					for name, v := range m.Headers {
						delete(m.Headers, name)
						m.Headers[strings.ToLower(name)] = v
					}
				}
				return ds
			}})
		},
		"source/foreign": func(e *brokertest.Env) { // makes a new id for each delivery
			n := 0
			breakSource(e, source{receive: func(ds []broker.Delivery) []broker.Delivery {
				for i := range ds {
					n++
					ds[i].Message.ID = "01890a5d-ac96-774b-8cce-00000000000" + string(rune('0'+n))
				}
				return ds
			}})
		},
		"source/waits": func(e *brokertest.Env) { // returns empty-handed
			wrapSource(e, func(s broker.Source) broker.Source { return hasty{s} })
		},
		"source/extend": func(e *brokertest.Env) { // a limit, and no way to extend it
			wrapSource(e, func(s broker.Source) broker.Source { return &forgetful{Source: s} })
		},
		"source/killed": func(e *brokertest.Env) { // acknowledges at leisure
			breakSource(e, source{settle: func([]broker.Verdict) []broker.Verdict { return nil }})
		},
		"source/back-keys": func(e *brokertest.Env) { // gives back the last one only
			breakSource(e, source{settle: func(vs []broker.Verdict) []broker.Verdict {
				for i := 1; i < len(vs); i++ {
					vs[i].Ack = true
				}
				return vs
			}})
		},
		"source/flaky": func(e *brokertest.Env) { // loses what it held when the line broke
			inner := e.Flaky
			e.Flaky = func(ctx context.Context) (broker.Source, brokertest.Faults, func(), error) {
				s, f, closing, err := inner(ctx)
				return &losing{Source: s}, f, closing, err
			}
		},
	}
}

func wrapSource(e *brokertest.Env, wrap func(broker.Source) broker.Source) {
	inner := e.Source
	e.Source = func(ctx context.Context) (broker.Source, func(), error) {
		s, closing, err := inner(ctx)
		return wrap(s), closing, err
	}
}

type hasty struct{ broker.Source }

func (s hasty) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	call, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	ds, _ := s.Source.Receive(call, limit)
	return ds, nil
}

// forgetful delivers again what was not settled within its limit.
type forgetful struct {
	broker.Source
	mu   sync.Mutex
	held []broker.Delivery
	at   time.Time
}

const forgetAfter = 100 * time.Millisecond

func (s *forgetful) Info() broker.SourceInfo { return broker.SourceInfo{AckWait: forgetAfter} }

func (s *forgetful) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held) > 0 && time.Since(s.at) > forgetAfter {
		return s.held, nil
	}
	ds, err := s.Source.Receive(ctx, limit)
	if len(ds) > 0 {
		s.held, s.at = ds, time.Now()
	}
	return ds, err
}

// losing has received something and hands it to nobody when the line breaks.
type losing struct {
	broker.Source
	lost bool
}

func (s *losing) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	ds, err := s.Source.Receive(ctx, limit)
	if err != nil && !s.lost && ctx.Err() == nil {
		s.lost = true
	} else if s.lost && err == nil {
		s.lost = false
		return s.Source.Receive(ctx, limit)
	}
	return ds, err
}
