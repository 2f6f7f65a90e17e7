package brokertest

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

func faultCases() []Case {
	return []Case{
		{"sink/cut", "when the connection breaks in the middle of a long call, what is accepted of a key is a prefix, and nil means accepted", sinkCut},
		{"sink/cuts", "wherever a request or an answer breaks off, what is accepted of a key is a prefix, and nil means accepted", sinkCuts},
		{"sink/frozen", "a broker that accepts connections and does nothing is no acknowledgement, and the call ends with its context", sinkFrozen},
		{"sink/mute", "a broker that takes everything and never answers is no acknowledgement, and the call ends with its context", sinkMute},
		{"sink/cancel", "a call that is cancelled in the middle ends soon, leaves a prefix, and keeps nothing of its messages", sinkCancel},
		{"sink/late", "what is accepted long after its call has ended does not step ahead of what another process has sent since", sinkLate},
		{"sink/ping", "a broker that cannot be reached is found without a message, and found again when it is back", sinkPing},
		{"sink/stop", "a call whose client is closed before an answer has come ends, with an error", sinkStop},
	}
}

// grace is how long after its context's end a call may return: less than the
// clients' own limits, and more than a busy machine takes to
// wake all goroutines.
const grace = 10 * time.Second

// run delivers with a deadline and checks that the call keeps it.
func run(ctx context.Context, s broker.Sink, msgs []postrider.Message, limit time.Duration) ([]error, error) {
	call, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	errs, err := deliver(call, s, msgs)
	if took := time.Since(began); err == nil && took > limit+grace {
		err = fmt.Errorf("the call took %v, its context %v", took, limit)
	}
	return errs, err
}

// unresolved returns the messages that were not acknowledged.
func unresolved(msgs []postrider.Message, errs []error) ([]postrider.Message, error) {
	var left []postrider.Message
	for i, err := range errs {
		if err == nil {
			continue
		}
		if c := broker.Classify(err).Class; c == broker.ClassRejected {
			return nil, fmt.Errorf("a message is rejected because of a broken connection: %w", err)
		}
		left = append(left, msgs[i])
	}
	return left, nil
}

// resend sends until all messages are acknowledged, like the relay.
func resend(ctx context.Context, s broker.Sink, open []postrider.Message) error {
	return resendIn(ctx, s, open, 10*time.Second)
}

// resendIn is resend with calls of at most limit.
func resendIn(ctx context.Context, s broker.Sink, open []postrider.Message, limit time.Duration) error {
	for round := 0; len(open) > 0; round++ {
		errs, err := run(ctx, s, open, limit)
		if err != nil {
			return err
		}
		if open, err = unresolved(open, errs); err != nil {
			return err
		}
		if len(open) == 0 {
			return nil
		}
		if round > 200 {
			return fmt.Errorf("%d messages are not accepted after the connection is back: %w", len(open), errs[0])
		}
		select { // the relay's pause after an outage
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// warm makes the sink connect and learn about the topic.
func warm(ctx context.Context, env *Env) error {
	m := messages(env.Topic, 1, 1)
	m[0].ID, m[0].Key = id(1<<20), "warm"
	return accept(ctx, env.Sink, m)
}

// whole checks that the log has every message unchanged, and
// that no key ever steps ahead.
func whole(ctx context.Context, env *Env, msgs []postrider.Message) error {
	log, err := env.Log(ctx)
	if err != nil {
		return err
	}
	return held(log, msgs)
}

// held checks a log for whole. Every copy of a message must be unchanged.
func held(log, msgs []postrider.Message) error {
	copies := make(map[string][]int, len(log))
	for i := range log {
		copies[log[i].ID] = append(copies[log[i].ID], i)
	}
	for i := range msgs {
		if len(copies[msgs[i].ID]) == 0 {
			return fmt.Errorf("message %s was acknowledged and is not in the log", msgs[i].ID)
		}
		for _, at := range copies[msgs[i].ID] {
			if d := difference(log[at], msgs[i]); d != "" {
				return fmt.Errorf("message %s: %s differs", msgs[i].ID, d)
			}
		}
	}
	return noSkip(log, nil)
}

func noFaults() error { return notApplicable("no faults can be made") }

// sinkPing pings before, during and after a fault.
func sinkPing(ctx context.Context, env *Env) error {
	ask := env.Sink.Info().Ping
	if ask == nil {
		return notApplicable("the sink cannot ping")
	}
	if env.Faults == nil {
		return noFaults()
	}
	ping := func() error {
		limited, cancel := context.WithTimeout(ctx, 2*grace)
		defer cancel()
		began := time.Now()
		err := ask(limited)
		if took := time.Since(began); took > 3*grace {
			return fmt.Errorf("a ping took %v, its context %v", took, 2*grace)
		}
		return err
	}
	defer env.Faults.Restore()
	for round := range 2 {
		if err := ping(); err != nil {
			return fmt.Errorf("round %d: ping of a reachable broker: %w", round, err)
		}
		env.Faults.Cut(0)
		var err error
		for tries := 0; err == nil; tries++ { // a client may notice a moment later
			if err = ping(); err == nil && tries == 50 {
				return fmt.Errorf("round %d: pings succeed although no broker is reachable", round)
			} else if err == nil {
				if err := pause(ctx); err != nil {
					return err
				}
			}
		}
		env.Faults.Restore()
		for tries := 0; ; tries++ {
			err := ping()
			if err == nil {
				break
			}
			if tries == 100 {
				return fmt.Errorf("round %d: ping after the broker is back: %w", round, err)
			}
			if err := pause(ctx); err != nil {
				return err
			}
		}
	}
	log, err := env.Log(ctx)
	if err != nil {
		return err
	}
	if len(log) > 0 {
		return fmt.Errorf("pings left %d messages in the log", len(log))
	}
	return accept(ctx, env.Sink, messages(env.Topic, 20, 4))
}

// sinkCut breaks the connection in the middle of long calls, then sends unacknowledged
// messages again.
func sinkCut(ctx context.Context, env *Env) error {
	if env.Faults == nil {
		return noFaults()
	}
	if err := warm(ctx, env); err != nil {
		return err
	}
	open := messages(env.Topic, 400, 20)
	for round := range 3 {
		env.Faults.Cut(700 * (round*round*5 + 1))
		errs, err := run(ctx, env.Sink, open, 700*time.Millisecond)
		env.Faults.Restore()
		if err != nil {
			return err
		}
		if open, err = unresolved(open, errs); err != nil {
			return err
		}
	}
	if err := resend(ctx, env.Sink, open); err != nil {
		return err
	}
	return whole(ctx, env, messages(env.Topic, 400, 20))
}

// sinkCuts breaks short calls at many places, each with messages of its own.
func sinkCuts(ctx context.Context, env *Env) error {
	if env.Faults == nil {
		return noFaults()
	}
	if err := warm(ctx, env); err != nil {
		return err
	}
	const size, keys = 40, 4
	points := []int{1, 13, 64, 150, 400, 900, 1800, 3500, 7000, 12000}
	all := messages(env.Topic, size*2*len(points), keys)
	for round := range 2 * len(points) {
		n, msgs := points[round/2], all[round*size:(round+1)*size]
		if round%2 == 0 {
			env.Faults.Cut(n)
		} else {
			env.Faults.CutAnswer(n)
		}
		errs, err := run(ctx, env.Sink, msgs, 400*time.Millisecond)
		env.Faults.Restore()
		if err != nil {
			return fmt.Errorf("round %d, cut after %d bytes: %w", round, n, err)
		}
		left, err := unresolved(msgs, errs)
		if err != nil {
			return err
		}
		if err := resend(ctx, env.Sink, left); err != nil {
			return err
		}
	}
	return whole(ctx, env, all)
}

func sinkFrozen(ctx context.Context, env *Env) error {
	if env.Faults == nil {
		return noFaults()
	}
	if err := silent(ctx, env, env.Faults.Freeze); err != nil {
		return err
	}
	// More than the network holds: writing blocks too.
	large := messages(env.Topic, 24, 24)
	for i := range large {
		large[i].ID, large[i].Key, large[i].Payload = id(1000+i), fmt.Sprint("large ", i), make([]byte, min(640<<10, env.Largest))
	}
	env.Faults.Freeze()
	defer env.Faults.Restore()
	if _, err := run(ctx, env.Sink, large, 500*time.Millisecond); err != nil {
		return fmt.Errorf("%d large messages: %w", len(large), err)
	}
	env.Faults.Restore()
	if err := resend(ctx, env.Sink, large); err != nil {
		return err
	}
	return whole(ctx, env, large)
}

func sinkMute(ctx context.Context, env *Env) error {
	if env.Faults == nil {
		return noFaults()
	}
	return silent(ctx, env, env.Faults.Mute)
}

// silent makes calls that get no answer: on an open connection, and
// again while the state of the first call's connection is unknown.
func silent(ctx context.Context, env *Env, begin func()) error {
	if err := warm(ctx, env); err != nil {
		return err
	}
	begin()
	defer env.Faults.Restore()
	msgs := messages(env.Topic, 80, 4)
	for range 2 {
		errs, err := run(ctx, env.Sink, msgs, 500*time.Millisecond)
		if err != nil {
			return err
		}
		left, err := unresolved(msgs, errs)
		if err != nil {
			return err
		}
		if len(left) != len(msgs) {
			return fmt.Errorf("%d messages are acknowledged although no answer came", len(msgs)-len(left))
		}
	}
	env.Faults.Restore()
	if err := resend(ctx, env.Sink, msgs); err != nil {
		return err
	}
	return whole(ctx, env, msgs)
}

// sinkCancel cancels calls at several moments and overwrites their messages as soon
// as they have returned.
func sinkCancel(ctx context.Context, env *Env) error {
	if err := warm(ctx, env); err != nil {
		return err
	}
	const size, keys, rounds = 300, 6, 8
	all := messages(env.Topic, size*rounds, keys)
	for round := range rounds {
		mine := make([]postrider.Message, size)
		for i := range mine {
			mine[i] = all[round*size+i]
			mine[i].Payload = append([]byte(nil), mine[i].Payload...)
			mine[i].Headers = map[string]string{}
		}
		errs, err := run(ctx, env.Sink, mine, time.Duration(round*round)*500*time.Microsecond)
		if err != nil {
			return err
		}
		for i := range mine {
			clear(mine[i].Payload)
			mine[i].Headers["spoiled"] = "yes"
			mine[i].Key = "spoiled"
		}
		left, err := unresolved(all[round*size:(round+1)*size], errs)
		if err != nil {
			return err
		}
		if err := resend(ctx, env.Sink, left); err != nil {
			return err
		}
	}
	log, err := env.Log(ctx)
	if err != nil {
		return err
	}
	right := make(map[string]postrider.Message, len(all))
	for _, m := range all {
		right[m.ID] = m
	}
	for _, m := range log {
		if want, ok := right[m.ID]; ok {
			if d := difference(m, want); d != "" {
				return fmt.Errorf("message %s was changed after its call had ended: %s differs", m.ID, d)
			}
		}
	}
	return whole(ctx, env, all)
}

// sinkLate lets the network delay a call's requests until another process has
// sent some of its messages.
func sinkLate(ctx context.Context, env *Env) error {
	if env.Faults == nil || env.Second == nil {
		return noFaults()
	}
	if err := warm(ctx, env); err != nil {
		return err
	}
	msgs := messages(env.Topic, 24, 2)
	env.Faults.Freeze()
	defer env.Faults.Restore()
	if _, err := run(ctx, env.Sink, msgs, 500*time.Millisecond); err != nil {
		return err
	}
	if err := accept(ctx, env.Second, msgs[:6]); err != nil {
		return fmt.Errorf("the other process: %w", err)
	}
	env.Faults.Restore()
	// The kept requests arrive while the new owner continues.
	for at := 6; at < len(msgs); at += 2 {
		if err := resend(ctx, env.Second, msgs[at:at+2]); err != nil {
			return fmt.Errorf("the other process: %w", err)
		}
	}
	// The old process's next call comes behind whatever it has sent before.
	if err := warm(ctx, env); err != nil {
		return err
	}
	return whole(ctx, env, msgs)
}

func sinkStop(ctx context.Context, env *Env) error {
	if env.Faults == nil {
		return noFaults()
	}
	return stopDuring(ctx, env, env.Faults.Freeze)
}

// stopDuring closes the client of a call that waits because of a fault.
func stopDuring(ctx context.Context, env *Env, begin func()) error {
	if env.Second == nil || env.Stop == nil {
		return noFaults()
	}
	if err := warm(ctx, env); err != nil {
		return err
	}
	msgs := messages(env.Topic, 40, 4)
	begin()
	defer env.Faults.Restore()
	var (
		errs    []error
		found   error
		done    = make(chan struct{})
		sending = time.NewTimer(200 * time.Millisecond)
	)
	defer sending.Stop()
	go func() {
		defer close(done)
		errs, found = deliver(ctx, env.Sink, msgs)
	}()
	select {
	case <-done: // it gave up by itself
	case <-sending.C:
		env.Stop()
	}
	select {
	case <-done:
	case <-time.After(time.Minute):
		return fmt.Errorf("the call has not ended a minute after its client was closed")
	}
	if found != nil {
		return found
	}
	left, err := unresolved(msgs, errs)
	if err != nil {
		return err
	}
	if len(left) != len(msgs) {
		return fmt.Errorf("%d messages are acknowledged although no answer came", len(msgs)-len(left))
	}
	env.Faults.Restore()
	if err := resend(ctx, env.Second, msgs); err != nil {
		return err
	}
	return whole(ctx, env, msgs)
}
