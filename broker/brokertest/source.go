package brokertest

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/broker"
)

func sourceCases() []Case {
	return []Case{
		{"source/order", "messages of a key are received in the order of the log", sourceOrder},
		{"source/unsettled", "unsettled messages are received again by the next process", sourceUnsettled},
		{"source/settled", "acknowledged messages are not received again", sourceSettled},
		{"source/settled-again", "an acknowledgement that failed succeeds when it is repeated", sourceSettledAgain},
		{"source/gap", "acknowledging a message does not acknowledge an earlier one", sourceGap},
		{"source/back", "a message given back comes after its delay and before its key's later ones", sourceBack},
	}
}

// start fills the topic and opens a receiver.
func start(ctx context.Context, env *Env, n, keys int) (broker.Source, func(), error) {
	if env.Source == nil {
		return nil, nil, notApplicable("the broker has no source")
	}
	if err := accept(ctx, env.Sink, messages(env.Topic, n, keys)); err != nil {
		return nil, nil, err
	}
	return env.Source(ctx)
}

// receive collects n deliveries, none of which is settled meanwhile.
func receive(ctx context.Context, src broker.Source, n int) ([]broker.Delivery, error) {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	var all []broker.Delivery
	for len(all) < n {
		ds, err := src.Receive(ctx, n-len(all))
		if err != nil {
			return nil, fmt.Errorf("%d of %d messages were received: %w", len(all), n, err)
		}
		if err := proper(ds, n-len(all)); err != nil {
			return nil, err
		}
		all = append(all, ds...)
	}
	return all, nil
}

// drain receives n deliveries and acknowledges each at once, for sources that
// hold a key back until its earlier message is settled.
func drain(ctx context.Context, src broker.Source, n int) ([]broker.Delivery, error) {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	var all []broker.Delivery
	for len(all) < n {
		ds, err := src.Receive(ctx, n-len(all))
		if err != nil {
			return nil, fmt.Errorf("%d of %d messages were received: %w", len(all), n, err)
		}
		if err := proper(ds, n-len(all)); err != nil {
			return nil, err
		}
		if err := src.Settle(ctx, verdicts(ds)); err != nil {
			return nil, fmt.Errorf("settle: %w", err)
		}
		all = append(all, ds...)
	}
	return all, nil
}

// proper checks the result of Receive.
func proper(ds []broker.Delivery, limit int) error {
	if len(ds) == 0 || len(ds) > limit {
		return fmt.Errorf("Receive returns %d deliveries, the limit is %d", len(ds), limit)
	}
	for _, d := range ds {
		if d.Err != nil {
			return fmt.Errorf("%s cannot be decoded: %w", d.Origin, d.Err)
		}
	}
	return nil
}

// atOnce returns how many of n messages over this number of keys the source hands out
// before some must be settled.
func (e *Env) atOnce(n, keys int) int {
	if e.PerKey == 0 {
		return n
	}
	return min(n, e.PerKey*keys)
}

func verdicts(ds []broker.Delivery) []broker.Verdict {
	vs := make([]broker.Verdict, len(ds))
	for i, d := range ds {
		vs[i] = broker.Verdict{Delivery: d, Ack: true}
	}
	return vs
}

func inOrder(ds []broker.Delivery) error {
	high := make(map[string]int64)
	for _, d := range ds {
		m := d.Message
		if m.Version != high[m.Key]+1 {
			return fmt.Errorf("key %s: version %d is received after %d", m.Key, m.Version, high[m.Key])
		}
		high[m.Key] = m.Version
	}
	return nil
}

func sourceOrder(ctx context.Context, env *Env) error {
	src, closing, err := start(ctx, env, 300, 7)
	if err != nil {
		return err
	}
	defer closing()
	var all []broker.Delivery
	for len(all) < 300 {
		ds, err := receive(ctx, src, env.atOnce(min(100, 300-len(all)), 7))
		if err != nil {
			return err
		}
		if err := src.Extend(ctx, ds); err != nil {
			return fmt.Errorf("extend: %w", err)
		}
		if err := src.Settle(ctx, verdicts(ds)); err != nil {
			return fmt.Errorf("settle: %w", err)
		}
		all = append(all, ds...)
	}
	return inOrder(all)
}

// reopened fills the topic, lets one process act, and returns what the next one
// receives.
func reopened(ctx context.Context, env *Env, n, keys int, act func(broker.Source) error, want int) ([]broker.Delivery, error) {
	src, closing, err := start(ctx, env, n, keys)
	if err != nil {
		return nil, err
	}
	err = act(src)
	closing()
	if err != nil {
		return nil, err
	}
	if src, closing, err = env.Source(ctx); err != nil {
		return nil, err
	}
	defer closing()
	return drain(ctx, src, want)
}

func sourceUnsettled(ctx context.Context, env *Env) error {
	ds, err := reopened(ctx, env, 30, 3, func(src broker.Source) error {
		_, err := receive(ctx, src, env.atOnce(10, 3)) // and 20 that nobody has received
		return err
	}, 30)
	if err != nil {
		return err
	}
	return inOrder(ds)
}

func sourceSettled(ctx context.Context, env *Env) error {
	ds, err := reopened(ctx, env, 30, 1, func(src broker.Source) error {
		_, err := drain(ctx, src, 20)
		return err
	}, 10)
	if err != nil {
		return err
	}
	for i, d := range ds {
		if want := int64(21 + i); d.Message.Version != want {
			return fmt.Errorf("version %d is received where %d is the next that was not acknowledged", d.Message.Version, want)
		}
	}
	return nil
}

func sourceSettledAgain(ctx context.Context, env *Env) error {
	settled := make(map[string]bool)
	ds, err := reopened(ctx, env, 10, 5, func(src broker.Source) error {
		ds, err := receive(ctx, src, 5)
		if err != nil {
			return err
		}
		for _, d := range ds {
			settled[d.Message.ID] = true
		}
		ended, end := context.WithCancel(ctx)
		end()
		_ = src.Settle(ended, verdicts(ds)) // may fail, may not
		return src.Settle(ctx, verdicts(ds))
	}, 5)
	if err != nil {
		return err
	}
	for _, d := range ds {
		if settled[d.Message.ID] {
			return fmt.Errorf("%s is received again: it was acknowledged by the second of two calls", d.Origin)
		}
	}
	return nil
}

func sourceGap(ctx context.Context, env *Env) error {
	n := env.atOnce(10, 1)
	if n < 2 && env.Source != nil {
		return notApplicable("a key's next message is handed out only when the last one is settled")
	}
	ds, err := reopened(ctx, env, n, 1, func(src broker.Source) error {
		ds, err := receive(ctx, src, n)
		if err != nil {
			return err
		}
		return src.Settle(ctx, verdicts(ds[n/2:]))
	}, n/2)
	if err != nil {
		return err
	}
	return inOrder(ds)
}

func sourceBack(ctx context.Context, env *Env) error {
	src, closing, err := start(ctx, env, 4, 1)
	if err != nil {
		return err
	}
	defer closing()
	ds, err := receive(ctx, src, 1)
	if err != nil {
		return err
	}
	const delay = 300 * time.Millisecond
	began := time.Now()
	if err := src.Settle(ctx, []broker.Verdict{{Delivery: ds[0], Delay: delay}}); err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	again, err := receive(ctx, src, 1)
	if err != nil {
		return err
	}
	if waited := time.Since(began); waited < delay-10*time.Millisecond {
		return fmt.Errorf("the message came back after %v, the delay is %v", waited, delay)
	}
	if first, second := ds[0].Attempt, again[0].Attempt; first > 0 && second <= first {
		return fmt.Errorf("the attempt is %d, and %d when it is received again", first, second)
	}
	if err := src.Settle(ctx, verdicts(again)); err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	rest, err := drain(ctx, src, 3)
	if err != nil {
		return err
	}
	return inOrder(append(again, rest...))
}
