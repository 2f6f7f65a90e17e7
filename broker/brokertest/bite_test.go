package brokertest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/broker/membroker"
)

const topic = "orders"

func memory() *brokertest.Env {
	b := membroker.New(&membroker.Options{Topics: []string{topic}, MaxMessageBytes: 1 << 20})
	left := -1
	cut := func(context.Context, postrider.Message) membroker.Outcome {
		if left--; left == 0 {
			return membroker.Outcome{Err: broker.Unknown(errors.New("cut"), "", ""), Accept: true}
		} else if left < 0 {
			return membroker.Outcome{Err: broker.Outage(errors.New("down"), "", "")}
		}
		return membroker.Outcome{}
	}
	return &brokertest.Env{
		Sink: b.Sink(), Topic: topic, Missing: "nowhere", TooLarge: 2 << 20,
		Log: func(context.Context) (out []postrider.Message, _ error) {
			for _, e := range b.Log(topic) {
				out = append(out, e.Message)
			}
			return out, nil
		},
		Cut:     func(n int) { left = n / 100; b.SetFault(cut) },
		Restore: func() { b.SetFault(nil) },
		Source: func(context.Context) (broker.Source, func(), error) {
			s := b.Source("c", topic)
			return s, s.Close, nil
		},
	}
}

func TestMembroker(t *testing.T) {
	brokertest.Run(t, func(*testing.T) *brokertest.Env { return memory() })
}

type sink func(ctx context.Context, msgs []postrider.Message) []error

func (s sink) Deliver(ctx context.Context, msgs []postrider.Message) []error { return s(ctx, msgs) }
func (s sink) Info() broker.Info                                             { return broker.Info{} }

type source struct {
	broker.Source
	receive func([]broker.Delivery) []broker.Delivery
	settle  func([]broker.Verdict) []broker.Verdict
}

func (s source) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	ds, err := s.Source.Receive(ctx, limit)
	if s.receive != nil {
		ds = s.receive(ds)
	}
	return ds, err
}

func (s source) Settle(ctx context.Context, vs []broker.Verdict) error {
	if s.settle != nil {
		vs = s.settle(vs)
	}
	return s.Source.Settle(ctx, vs)
}

// breakSource wraps the sources of an environment.
func breakSource(e *brokertest.Env, w source) {
	inner := e.Source
	e.Source = func(ctx context.Context) (broker.Source, func(), error) {
		s, closing, err := inner(ctx)
		w.Source = s
		return w, closing, err
	}
}

// TestBites breaks one rule at a time and expects its case to say so.
func TestBites(t *testing.T) {
	for name, brk := range map[string]func(*brokertest.Env){
		"sink/exact": func(e *brokertest.Env) {
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				out := append([]postrider.Message(nil), msgs...)
				for i := range out {
					out[i].Headers = nil
				}
				return inner.Deliver(ctx, out)
			})
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
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				errs := inner.Deliver(ctx, msgs)
				for i, err := range errs {
					if err != nil {
						errs[i] = broker.Rejected(err, "", "")
					}
				}
				return errs
			})
		},
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
		"sink/cut": func(e *brokertest.Env) {
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				inner.Deliver(ctx, msgs) // takes unknown for success
				return nil
			})
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
		"source/gap": ackAllBefore,
		"source/back": func(e *brokertest.Env) { // forgets the delay
			breakSource(e, source{settle: func(vs []broker.Verdict) []broker.Verdict {
				for i := range vs {
					vs[i].Delay = 0
				}
				return vs
			}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := memory()
			brk(env)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			for _, c := range brokertest.Cases() {
				if c.Name != name {
					continue
				}
				err := brokertest.Check(ctx, c, env)
				if err == nil || errors.Is(err, brokertest.ErrNotApplicable) {
					t.Fatalf("the broken implementation passes: %v", err)
				}
				t.Log(err)
				return
			}
			t.Fatal("there is no such case")
		})
	}
}

// oneByOne goes on with a key after it has failed.
func oneByOne(e *brokertest.Env) {
	inner := e.Sink
	e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
		errs := make([]error, len(msgs))
		for i := range msgs {
			if one := inner.Deliver(ctx, msgs[i:i+1]); one != nil {
				errs[i] = one[0]
			}
		}
		return errs
	})
}

// ackAllBefore acknowledges everything that was received up to the verdict, as
// a cumulative acknowledgement does.
func ackAllBefore(e *brokertest.Env) {
	var got []broker.Delivery
	breakSource(e, source{
		receive: func(ds []broker.Delivery) []broker.Delivery { got = append(got, ds...); return ds },
		settle: func([]broker.Verdict) []broker.Verdict {
			var vs []broker.Verdict
			for _, d := range got {
				vs = append(vs, broker.Verdict{Delivery: d, Ack: true})
			}
			return vs
		},
	})
}
