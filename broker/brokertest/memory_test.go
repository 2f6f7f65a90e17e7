package brokertest_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/envelope"
)

// brokerOf is the broker of an environment.
func brokerOf(e *brokertest.Env) *membroker.Broker { return e.Faults.(*faults).b }

// faults breaks what is in front of a broker in memory.
type faults struct {
	b    *membroker.Broker
	end  chan struct{} // closed by Stop
	stop func()

	mu      sync.Mutex
	line    membroker.Fault                             // until Restore
	refused map[string]func(m *postrider.Message) error // by topic: what an operator did
}

func newFaults(b *membroker.Broker) *faults {
	end := make(chan struct{})
	f := &faults{b: b, end: end, stop: sync.OnceFunc(func() { close(end) }), refused: make(map[string]func(*postrider.Message) error)}
	b.SetFault(f.decide)
	return f
}

func (f *faults) decide(ctx context.Context, m postrider.Message) membroker.Outcome {
	f.mu.Lock()
	line, refuse := f.line, f.refused[m.Topic]
	f.mu.Unlock()
	if refuse != nil {
		if err := refuse(&m); err != nil {
			return membroker.Outcome{Err: err}
		}
	}
	if line == nil || ctx.Value(direct{}) != nil {
		return membroker.Outcome{}
	}
	return line(ctx, m)
}

// set installs a fault of the line, for all but the direct ones.
func (f *faults) set(fault membroker.Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.line = fault
}

// refuse makes a topic answer; nil: it takes everything.
func (f *faults) refuse(topic string, answer func(*postrider.Message) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused[topic] = answer
}

var errDown = errors.New("down")

// after lets some messages pass, then one meets what, and the rest nothing.
func (f *faults) after(n int, what membroker.Fault) {
	var left atomic.Int64
	left.Store(int64(n / 100))
	f.set(func(ctx context.Context, m postrider.Message) membroker.Outcome {
		switch at := left.Add(-1); {
		case at == 0:
			return what(ctx, m)
		case at < 0:
			return membroker.Outcome{Err: broker.Outage(errDown, "", "")}
		}
		return membroker.Outcome{}
	})
}

func cut(lost bool) membroker.Fault {
	return func(context.Context, postrider.Message) membroker.Outcome {
		text := "cut"
		if lost {
			text = "cut after it was accepted"
		}
		return membroker.Outcome{Err: broker.Unknown(errors.New(text), "", ""), Accept: lost}
	}
}

func (f *faults) Cut(n int)       { f.after(n, cut(false)) }
func (f *faults) CutAnswer(n int) { f.after(n, cut(true)) }

func (f *faults) silence(accept bool) membroker.Fault {
	return func(ctx context.Context, _ postrider.Message) membroker.Outcome {
		if !accept {
			select {
			case <-ctx.Done():
			case <-f.end:
			}
		}
		return membroker.Outcome{Err: broker.Unknown(errors.New("no answer"), "", ""), Accept: accept}
	}
}

func (f *faults) Mute()             { f.set(f.silence(true)) }
func (f *faults) Freeze()           { f.set(f.silence(false)) }
func (f *faults) FreezeAfter(n int) { f.after(n, f.silence(false)) }
func (f *faults) Restore()          { f.set(nil) }

// Reset and Strand hit the next message.
func (f *faults) Reset() {
	f.once(func(context.Context, postrider.Message) membroker.Outcome {
		return membroker.Outcome{Err: broker.Unknown(errors.New("reset"), "", "")}
	})
}

func (f *faults) Strand() {
	f.once(func(ctx context.Context, _ postrider.Message) membroker.Outcome {
		<-ctx.Done()
		return membroker.Outcome{Err: broker.Unknown(errors.New("stranded"), "", "")}
	})
}

func (f *faults) once(what membroker.Fault) {
	var hit atomic.Bool
	f.set(func(ctx context.Context, m postrider.Message) membroker.Outcome {
		if hit.Swap(true) {
			return membroker.Outcome{}
		}
		return what(ctx, m)
	})
}

// Slow lets the call wait once, as all its messages do together.
func (f *faults) Slow(latency time.Duration, _ int) {
	var calls sync.Map
	f.set(func(ctx context.Context, _ postrider.Message) membroker.Outcome {
		if _, waited := calls.LoadOrStore(ctx, true); waited || latency == 0 {
			return membroker.Outcome{}
		}
		select {
		case <-ctx.Done():
			return membroker.Outcome{Err: broker.Unknown(ctx.Err(), "", ""), Accept: true}
		case <-time.After(2 * latency):
			return membroker.Outcome{}
		}
	})
}

func (f *faults) HangUp(poison []byte) {
	f.set(func(_ context.Context, m postrider.Message) membroker.Outcome {
		if bytes.Contains(m.Payload, poison) {
			return membroker.Outcome{Err: broker.Unknown(errors.New("hung up"), "", "")}
		}
		return membroker.Outcome{}
	})
}

func memory() *brokertest.Env {
	var routed atomic.Pointer[envelope.Router]
	b := membroker.New(&membroker.Options{Topics: []string{topic}, MaxMessageBytes: 1 << 20, Route: func(m *postrider.Message) (envelope.Route, error) {
		if r := routed.Load(); r != nil {
			return (*r)(m)
		}
		return envelope.Router(nil).Of(m)
	}})
	f := newFaults(b)
	source := func(context.Context) (broker.Source, func(), error) {
		s := b.Source("c", topic)
		return s, s.Close, nil
	}
	logOf := func(_ context.Context, topic string) (out []postrider.Message, _ error) {
		for _, e := range b.Log(topic) {
			out = append(out, e.Message)
		}
		return out, nil
	}
	return &brokertest.Env{
		Server: "memory",
		Sink:   b.Sink(), Topic: topic, Missing: "nowhere", TooLarge: 2 << 20, Largest: 1<<20 - 200,
		Log:   func(ctx context.Context) ([]postrider.Message, error) { return logOf(ctx, topic) },
		LogOf: logOf, Operator: operator(b, f),
		Faults: f, Second: beside(b), Stop: f.stop, Source: source, Mortal: source, Flaky: flaky(source),
		Foreign: func(ctx context.Context, payload []byte) error {
			m := postrider.Message{ID: "01890a5d-ac96-774b-8cce-00000000f0f0", Topic: topic, Payload: payload}
			raw := envelope.Router(func(m *postrider.Message) (envelope.Route, error) {
				return envelope.Route{Topic: m.Topic, Format: envelope.Raw}, nil
			})
			routed.Store(&raw)
			defer routed.Store(nil)
			return errors.Join(b.Sink().Deliver(ctx, broker.Batch{Messages: []postrider.Message{m}})...)
		},
		Routed: func(_ context.Context, route envelope.Router) (broker.Sink, error) {
			routed.Store(&route)
			return b.Sink(), nil
		},
		Without: map[string]string{
			"sink/ping":     "it is in this process",
			"sink/dedup":    "it keeps what is sent again",
			"source/extend": "a delivery has no time limit",
		},
	}
}

func operator(b *membroker.Broker, f *faults) brokertest.Operator {
	made := func() string {
		topic := "made" + rand.Text()
		b.CreateTopic(topic)
		return topic
	}
	strike := func(answer func(topic string) error) func(context.Context, string) (func(context.Context) error, error) {
		return func(_ context.Context, topic string) (func(context.Context) error, error) {
			f.refuse(topic, func(*postrider.Message) error { return answer(topic) })
			return func(context.Context) error { f.refuse(topic, nil); return nil }, nil
		}
	}
	return brokertest.Operator{
		Make: func(context.Context) (string, error) { return made(), nil },
		MakeSmall: func(context.Context) (string, int, error) {
			topic, limit := made(), 4096
			f.refuse(topic, func(m *postrider.Message) error {
				if len(m.Payload) >= limit {
					return broker.Rejected(errors.New("larger than the topic takes"), "", topic)
				}
				return nil
			})
			return topic, limit, nil
		},
		Delete: func(_ context.Context, topic string) error { b.DeleteTopic(topic); return nil },
		Again:  func(_ context.Context, topic string) error { b.CreateTopic(topic); return nil },
		Fill:   strike(func(topic string) error { return broker.Throttled(errors.New("full"), "", topic, 0) }),
		Revoke: strike(func(topic string) error { return broker.Outage(errors.New("not allowed"), "", topic) }),
	}
}

// flaky breaks sources between the broker and their caller.
func flaky(open func(context.Context) (broker.Source, func(), error)) func(context.Context) (broker.Source, brokertest.Faults, func(), error) {
	return func(ctx context.Context) (broker.Source, brokertest.Faults, func(), error) {
		s, closing, err := open(ctx)
		w := &flakySource{Source: s}
		return w, w, closing, err
	}
}

type flakySource struct {
	broker.Source
	down atomic.Bool
}

func (s *flakySource) Cut(int)       { s.down.Store(true) }
func (s *flakySource) CutAnswer(int) { s.down.Store(true) }
func (s *flakySource) Mute()         { s.down.Store(true) }
func (s *flakySource) Freeze()       { s.down.Store(true) }
func (s *flakySource) Restore()      { s.down.Store(false) }

func (s *flakySource) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	if s.down.Load() {
		return nil, errDown
	}
	return s.Source.Receive(ctx, limit)
}

func (s *flakySource) Settle(ctx context.Context, vs []broker.Verdict) error {
	if s.down.Load() {
		return errDown
	}
	return s.Source.Settle(ctx, vs)
}

type direct struct{} // a context that holds it passes the faults

// beside is a sink that faults do not touch.
func beside(b *membroker.Broker) broker.Sink {
	return sink(func(ctx context.Context, msgs []postrider.Message) []error {
		return b.Sink().Deliver(context.WithValue(ctx, direct{}, true), broker.Batch{Messages: msgs})
	})
}
