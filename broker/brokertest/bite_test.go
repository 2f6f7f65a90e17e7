package brokertest_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
)

const topic = "orders"

// Promises: O
func TestMembroker(t *testing.T) {
	brokertest.RunVirtual(t, func(*testing.T) *brokertest.Env { return memory() })
}

type sink func(ctx context.Context, msgs []postrider.Message) []error

func (s sink) Deliver(ctx context.Context, b broker.Batch) []error { return s(ctx, b.Messages) }
func (s sink) Info() broker.Info                                   { return broker.Info{} }

// batchSink is a sink that sees the pipe too.
type batchSink func(ctx context.Context, b broker.Batch) []error

func (s batchSink) Deliver(ctx context.Context, b broker.Batch) []error { return s(ctx, b) }
func (s batchSink) Info() broker.Info                                   { return broker.Info{} }

type source struct {
	broker.Source
	receive func([]broker.Delivery) []broker.Delivery
	settle  func([]broker.Verdict) []broker.Verdict
	fail    func(error) error // what Receive answers instead of an error
}

func (s source) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	ds, err := s.Source.Receive(ctx, limit)
	if s.receive != nil {
		ds = s.receive(ds)
	}
	if err != nil && s.fail != nil {
		err = s.fail(err)
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
	e.Mortal = e.Source
}

// breakers are the broken implementations by the case that finds them.
func breakers() map[string]func(*brokertest.Env) {
	all := make(map[string]func(*brokertest.Env))
	for _, group := range []map[string]func(*brokertest.Env){
		brokenSinks(), brokenData(), brokenFaults(), brokenLines(), brokenOperators(), brokenSources(), brokenMembers(), brokenGivebacks(),
	} {
		maps.Copy(all, group)
	}
	return all
}

// TestBites breaks one rule at a time and expects its case to report it.
func TestBites(t *testing.T) {
	breakers := breakers()
	for _, c := range brokertest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			brk := breakers[c.Name]
			if brk == nil {
				t.Fatal("no broken implementation proves that this case bites")
			}
			synctest.Test(t, func(t *testing.T) {
				err := caught(t, c, brk)
				if err == nil {
					t.Fatal("the broken implementation passes")
				}
				t.Log(err)
			})
		})
	}
}

// caught returns the error of a case on a broken implementation.
func caught(t *testing.T, c brokertest.Case, brk func(*brokertest.Env)) error {
	t.Helper()
	env := memory()
	brk(env)
	err := brokertest.Check(t.Context(), c, env)
	if errors.Is(err, brokertest.ErrNotApplicable) {
		return nil
	}
	return err
}

// TestShapeBites: the shape of an answer is a rule in every case.
func TestShapeBites(t *testing.T) {
	for name, brk := range map[string]func(*brokertest.Env){
		"nothing was tried": func(e *brokertest.Env) {
			answer(e, "", func(err error) error { return broker.NotTried(err) })
		},
		"too short": func(e *brokertest.Env) {
			inner := e.Sink
			e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
				errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
				return errs[:max(len(errs)-1, 0)]
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range brokertest.Cases() {
				if c.Name != "sink/scope" {
					continue
				}
				env := memory()
				brk(env)
				if err := brokertest.Check(t.Context(), c, env); err == nil {
					t.Error("the broken implementation passes")
				} else {
					t.Log(err)
				}
			}
		})
	}
}

// change changes every message on its way.
func change(e *brokertest.Env, fn func(*postrider.Message)) {
	inner := e.Sink
	e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
		out := slices.Clone(msgs)
		for i := range out {
			fn(&out[i])
		}
		return inner.Deliver(ctx, broker.Batch{Messages: out})
	})
}

// answer changes the errors that hold a text.
func answer(e *brokertest.Env, text string, fn func(error) error) {
	inner := e.Sink
	e.Sink = sink(func(ctx context.Context, msgs []postrider.Message) []error {
		errs := inner.Deliver(ctx, broker.Batch{Messages: msgs})
		for i, err := range errs {
			if err != nil && strings.Contains(err.Error(), text) {
				errs[i] = fn(err)
			}
		}
		return errs
	})
}

// ackAllBefore acknowledges all messages received up to the verdict, like
// a cumulative acknowledgement.
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
