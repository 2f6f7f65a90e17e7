package brokertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

func operatorCases() []Case {
	return []Case{
		{"sink/fresh", "a topic that nobody has written to takes each key in order from the first call on, also when that call breaks", sinkFresh},
		{"sink/refused", "what only the broker can refuse is rejected alone, also as the first of its call, and nothing of its key is accepted behind it", sinkRefused},
		{"sink/deleted", "a deleted topic is an outage of that destination until it is there again", sinkDeleted},
		{"sink/full", "a topic that takes no more is throttled or down, and the others flow", sinkFull},
		{"sink/revoked", "a permission that is taken away is an outage until it is given again", sinkRevoked},
	}
}

// made returns a topic made by the operator, for cases that read it too.
func made(ctx context.Context, env *Env) (string, error) {
	if env.Operator.Make == nil || env.LogOf == nil {
		return "", notApplicable("no topic can be made")
	}
	topic, err := env.Operator.Make(ctx)
	if err != nil {
		return "", fmt.Errorf("make a topic: %w", err)
	}
	return topic, nil
}

// sinkFresh lets the first call of a topic meet a fault. A broker may accept a
// later batch of a new partition although it has lost the first one, even
// from an idempotent producer.
func sinkFresh(ctx context.Context, env *Env) error {
	breaks := []func(){func() {}}
	if f := env.Faults; f != nil {
		breaks = append(breaks, func() { f.Cut(3000) }, func() { f.CutAnswer(300) }, func() { f.CutAnswer(900) })
		defer f.Restore()
		if l := line(env); l != nil {
			breaks = append(breaks, func() { l.FreezeAfter(6000) })
		}
	}
	for round, brk := range breaks {
		topic, err := made(ctx, env)
		if err != nil {
			return err
		}
		if err := firstCalls(ctx, env, topic, brk); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return nil
}

// firstCalls makes several first calls at once, during a fault that then ends.
func firstCalls(ctx context.Context, env *Env, topic string, brk func()) error {
	const calls, size, keys = 3, 60, 4
	var (
		all   []postrider.Message
		found = make([]error, calls)
		wg    sync.WaitGroup
	)
	for c := range calls {
		msgs := messages(topic, size, keys)
		for i := range msgs {
			msgs[i].ID = id(c*size + i)
			msgs[i].Key += fmt.Sprint("/", c)
			msgs[i].Payload = noise(400, c*size+i)
		}
		all = append(all, msgs...)
	}
	brk()
	for c := range calls {
		wg.Go(func() {
			msgs := all[c*size : (c+1)*size]
			errs, err := run(ctx, env.Sink, msgs, 300*time.Millisecond)
			if err == nil {
				msgs, err = unresolved(msgs, errs)
			}
			if env.Faults != nil {
				env.Faults.Restore()
			}
			if err == nil {
				err = resend(ctx, env.Sink, msgs)
			}
			found[c] = err
		})
	}
	wg.Wait()
	if err := errors.Join(found...); err != nil {
		return err
	}
	log, err := env.LogOf(ctx, topic)
	if err != nil {
		return err
	}
	return held(log, all)
}

// sinkRefused sends a message that the broker refuses while calls of other keys run, so
// that more messages are in flight at the refusal.
func sinkRefused(ctx context.Context, env *Env) error {
	if env.Operator.MakeSmall == nil || env.LogOf == nil {
		return notApplicable("no topic has a limit of its own")
	}
	topic, limit, err := env.Operator.MakeSmall(ctx)
	if err != nil {
		return fmt.Errorf("make a topic: %w", err)
	}
	const calls, size, keys = 4, 80, 4
	var (
		found = make([]error, calls)
		wg    sync.WaitGroup
		mu    sync.Mutex
		top   = make(map[string]int64) // per key: what may be accepted
	)
	for c := range calls {
		wg.Go(func() {
			msgs := messages(topic, size, keys)
			for i := range msgs {
				msgs[i].ID = id(c*size + i)
				msgs[i].Key += fmt.Sprint("/", c)
				msgs[i].Payload = noise(limit/8, i)
			}
			bad := (c % 2) * (5*keys + 1) // the first message of all, or one in the middle
			msgs[bad].Payload = noise(limit, bad)
			mu.Lock()
			top[msgs[bad].Key] = msgs[bad].Version - 1
			mu.Unlock()
			errs, err := deliver(ctx, env.Sink, msgs)
			if err == nil {
				err = onlyBehind(msgs, errs, bad)
			}
			found[c] = err
		})
	}
	wg.Wait()
	if err := errors.Join(found...); err != nil {
		return err
	}
	log, err := env.LogOf(ctx, topic)
	if err != nil {
		return err
	}
	return noSkip(log, top)
}

// onlyBehind checks that message bad is rejected, that nothing of its key is
// accepted behind it, and that all others are accepted.
func onlyBehind(msgs []postrider.Message, errs []error, bad int) error {
	for i, err := range errs {
		switch behind := msgs[i].Key == msgs[bad].Key && i > bad; {
		case i == bad && (err == nil || broker.Classify(err).Class != broker.ClassRejected):
			return fmt.Errorf("the message that the broker refuses is answered %v, not rejected", err)
		case behind && err == nil:
			return fmt.Errorf("message %d is acknowledged behind the rejected one of its key", i)
		case behind && broker.Classify(err).Class == broker.ClassRejected:
			return fmt.Errorf("message %d, behind the rejected one of its key, is rejected itself: %w", i, err)
		case i != bad && !behind && err != nil:
			return fmt.Errorf("message %d is not affected by the rejected one, but is answered: %w", i, err)
		}
	}
	return nil
}

// pair returns a call with messages for the struck topic and for a healthy one.
func pair(env *Env, topic string, from int) []postrider.Message {
	msgs := messages(topic, 24, 4)
	for i := range msgs {
		msgs[i].ID = id(from + i)
		msgs[i].Version += int64(from / 4)
		if i%4 < 2 {
			msgs[i].Topic = env.Topic
		}
	}
	return msgs
}

// struck sends such calls until ok accepts the answer for the struck topic, and
// checks every answer until then.
func struck(ctx context.Context, env *Env, topic string, what string, ok func(*broker.Error) bool) (open []postrider.Message, err error) {
	const rounds = 20
	msgs := pair(env, topic, 24)
	var last error
	for round := range rounds {
		errs, err := run(ctx, env.Sink, msgs, 3*time.Second)
		if err != nil {
			return nil, err
		}
		if open, err = unresolved(msgs, errs); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		right, others := true, 0
		for i, err := range errs {
			if msgs[i].Topic != topic {
				if err != nil {
					others, last = others+1, err
				}
				continue
			}
			e := broker.Classify(err)
			switch {
			case e == nil:
				return nil, fmt.Errorf("%s: message %s is acknowledged", what, msgs[i].ID)
			case errors.Is(err, broker.ErrNotTried):
			case e.Class == broker.ClassFailed:
				return nil, fmt.Errorf("%s: the answer uses an attempt: %w", what, err)
			case !ok(e):
				right, last = false, err
			}
		}
		if right && others == 0 {
			return open, nil
		}
		msgs = open
		if round == rounds-1 {
			break
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: after %d rounds the answer is still %w", what, rounds, last)
}

// pause waits like the relay after an outage.
func pause(ctx context.Context) error {
	select {
	case <-time.After(100 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func sinkDeleted(ctx context.Context, env *Env) error {
	if env.Operator.Delete == nil {
		return notApplicable("no topic can be deleted")
	}
	topic, err := made(ctx, env)
	if err != nil {
		return err
	}
	if err := accept(ctx, env.Sink, pair(env, topic, 0)); err != nil {
		return err
	}
	if err := env.Operator.Delete(ctx, topic); err != nil {
		return fmt.Errorf("delete the topic: %w", err)
	}
	open, err := struck(ctx, env, topic, "a deleted topic", func(e *broker.Error) bool {
		return e.Class == broker.ClassOutage && strings.Contains(e.Destination, topic)
	})
	if err != nil || env.Operator.Again == nil {
		return err
	}
	if err := env.Operator.Again(ctx, topic); err != nil {
		return fmt.Errorf("make the topic again: %w", err)
	}
	if err := resend(ctx, env.Sink, open); err != nil {
		return fmt.Errorf("deliver to the topic after it was created again: %w", err)
	}
	return arrivedLast(ctx, env, topic, open)
}

// arrivedLast checks that the messages sent after an incident are in the topic, in
// order per key.
func arrivedLast(ctx context.Context, env *Env, topic string, msgs []postrider.Message) error {
	log, err := env.LogOf(ctx, topic)
	if err != nil {
		return err
	}
	before := msgs[0].Version - 1 // the topic begins with the first version that was sent since
	msgs = append([]postrider.Message(nil), msgs...)
	for _, list := range [][]postrider.Message{log, msgs} {
		for i := range list {
			list[i].Version -= before
		}
	}
	return held(log, msgs)
}

func sinkFull(ctx context.Context, env *Env) error {
	if env.Operator.Fill == nil {
		return notApplicable("no topic can be full")
	}
	topic, err := made(ctx, env)
	if err != nil {
		return err
	}
	if err := accept(ctx, env.Sink, pair(env, topic, 0)); err != nil {
		return err
	}
	drain, err := env.Operator.Fill(ctx, topic)
	if err != nil {
		return fmt.Errorf("fill the topic: %w", err)
	}
	open, err := struck(ctx, env, topic, "a full topic", func(e *broker.Error) bool {
		return (e.Class == broker.ClassThrottled || e.Class == broker.ClassOutage) && strings.Contains(e.Destination, topic)
	})
	if err != nil {
		return err
	}
	if err := drain(ctx); err != nil {
		return fmt.Errorf("drain the topic: %w", err)
	}
	if err := resend(ctx, env.Sink, open); err != nil {
		return fmt.Errorf("deliver to the topic after it was drained: %w", err)
	}
	return nil
}

func sinkRevoked(ctx context.Context, env *Env) error {
	if env.Operator.Revoke == nil {
		return notApplicable("no permission can be taken away")
	}
	topic, err := made(ctx, env)
	if err != nil {
		return err
	}
	if err := accept(ctx, env.Sink, pair(env, topic, 0)); err != nil {
		return err
	}
	grant, err := env.Operator.Revoke(ctx, topic)
	if err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	open, err := struck(ctx, env, topic, "a permission taken away", func(e *broker.Error) bool {
		return e.Class == broker.ClassOutage
	})
	if err != nil {
		return err
	}
	if err := grant(ctx); err != nil {
		return fmt.Errorf("grant: %w", err)
	}
	return resend(ctx, env.Sink, open)
}
