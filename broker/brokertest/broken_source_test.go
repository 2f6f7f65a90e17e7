package brokertest_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
)

// brokenSources breaks the rules of a source.
func brokenSources() map[string]func(*brokertest.Env) {
	return map[string]func(*brokertest.Env){
		"source/order": func(e *brokertest.Env) { // hands out a batch in the order of its answers
			breakSource(e, source{receive: func(ds []broker.Delivery) []broker.Delivery {
				if len(ds) > 20 {
					ds[0], ds[len(ds)-1] = ds[len(ds)-1], ds[0]
				}
				return ds
			}})
		},
		"source/unsettled": func(e *brokertest.Env) { // acknowledges at its end what it has in hand
			inner := e.Source
			e.Source = func(ctx context.Context) (broker.Source, func(), error) {
				s, closing, err := inner(ctx)
				var hand []broker.Delivery
				w := source{Source: s, receive: func(ds []broker.Delivery) []broker.Delivery {
					hand = append(hand, ds...)
					return ds
				}}
				return w, func() { _ = s.Settle(ctx, acks(hand)); closing() }, err
			}
		},
		"source/settled": func(e *brokertest.Env) { // acknowledges with its next call, which may not come
			wrapSource(e, func(s broker.Source) broker.Source { return &lazy{Source: s} })
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

// brokenMembers breaks the rules about several receivers.
func brokenMembers() map[string]func(*brokertest.Env) {
	return map[string]func(*brokertest.Env){
		"source/members": func(e *brokertest.Env) { // a joining source starts without state
			var open atomic.Int32
			e.Source, e.Mortal = joining(e, e.Source, &open), joining(e, e.Mortal, &open)
		},
		"source/closed": func(e *brokertest.Env) { // takes the end for an empty batch
			breakSource(e, source{fail: func(error) error { return nil }})
		},
		"source/cancel": func(e *brokertest.Env) { // loses what comes at the last moment
			n := 0
			breakSource(e, source{receive: func(ds []broker.Delivery) []broker.Delivery {
				if n++; n == 13 {
					return nil
				}
				return ds
			}})
		},
	}
}

// joining opens sources that have no memory of their name while another one is open.
func joining(e *brokertest.Env, inner func(context.Context) (broker.Source, func(), error), open *atomic.Int32) func(context.Context) (broker.Source, func(), error) {
	return func(ctx context.Context) (broker.Source, func(), error) {
		if open.Add(1) == 1 {
			s, closing, err := inner(ctx)
			return s, func() { open.Add(-1); closing() }, err
		}
		s := brokerOf(e).Source("another", topic)
		return s, func() { open.Add(-1); s.Close() }, nil
	}
}

// brokenGivebacks breaks the rules of a source about messages given back.
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
		"source/killed": func(e *brokertest.Env) { // acknowledges at its orderly end
			inner := e.Mortal
			e.Mortal = func(ctx context.Context) (broker.Source, func(), error) {
				s, kill, err := inner(ctx)
				return source{Source: s, settle: func([]broker.Verdict) []broker.Verdict { return nil }}, kill, err
			}
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

func acks(ds []broker.Delivery) (vs []broker.Verdict) {
	for _, d := range ds {
		vs = append(vs, broker.Verdict{Delivery: d, Ack: true})
	}
	return vs
}

// lazy passes a batch's verdicts to the broker with the next batch.
type lazy struct {
	broker.Source
	mu   sync.Mutex
	last []broker.Verdict
}

func (s *lazy) Settle(ctx context.Context, vs []broker.Verdict) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.last
	s.last = slices.Clone(vs)
	return s.Source.Settle(ctx, now)
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

// forgetful delivers messages again that were not settled within its limit.
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

// losing drops received messages when the line breaks.
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
