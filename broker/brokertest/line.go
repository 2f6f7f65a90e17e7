package brokertest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

func lineCases() []Case {
	return []Case{
		{"sink/reset", "connections that break again and again and are back at once leave a prefix of each key, and nil means accepted", sinkReset},
		{"sink/stranded", "a connection whose other end died silently is replaced, and none of its messages is taken for accepted", sinkStranded},
		{"sink/slow", "slow answers are awaited together, and a thin line is not a broken one", sinkSlow},
		{"sink/late-answer", "an answer that comes after its call has ended is not taken for the answer to another", sinkLateAnswer},
		{"sink/middle", "what is kept back in the middle of a key and arrives after the call has ended does not step ahead", sinkMiddle},
		{"sink/hang-up", "a message at whose sight the broker hangs up is never acknowledged or rejected, and by itself it holds up nobody", sinkHangUp},
		{"sink/window", "calls without an answer do not use up what later calls need", sinkWindow},
		{"sink/stop-acks", "a call whose client is closed while acknowledgements are outstanding takes none of them for granted", sinkStopAcks},
	}
}

// line returns the faults of a line; nil: they cannot be made.
func line(env *Env) LineFaults {
	l, _ := env.Faults.(LineFaults)
	return l
}

// noise is a payload of n bytes that no compression makes smaller.
func noise(n, seed int) []byte {
	out := make([]byte, 0, n+sha256.Size)
	sum := sha256.Sum256([]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	for len(out) < n {
		out = append(out, sum[:]...)
		sum = sha256.Sum256(sum[:])
	}
	return out[:n]
}

func sinkReset(ctx context.Context, env *Env) error {
	l := line(env)
	if l == nil {
		return noFaults()
	}
	if err := warm(ctx, env); err != nil {
		return err
	}
	defer env.Faults.Restore()
	l.Slow(2*time.Millisecond, 0) // so that the calls take a while
	ended := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		pace := time.NewTicker(23 * time.Millisecond)
		defer pace.Stop()
		for range 40 {
			select {
			case <-pace.C:
				l.Reset()
			case <-ended:
				return
			}
		}
	}()
	const size, keys, calls = 250, 10, 6
	all := messages(env.Topic, size*calls, keys)
	var found error
	for at := 0; at < len(all) && found == nil; at += size {
		found = resend(ctx, env.Sink, all[at:at+size])
	}
	close(ended)
	<-stopped
	if found != nil {
		return found
	}
	return whole(ctx, env, all)
}

func sinkStranded(ctx context.Context, env *Env) error {
	l := line(env)
	if l == nil {
		return noFaults()
	}
	if err := warm(ctx, env); err != nil {
		return err
	}
	l.Strand()
	msgs := messages(env.Topic, 60, 6)
	began := time.Now()
	if err := resendIn(ctx, env.Sink, msgs, 2*time.Second); err != nil {
		return err
	}
	if took := time.Since(began); took > time.Minute {
		return fmt.Errorf("%v until the sink had another connection", took)
	}
	return whole(ctx, env, msgs)
}

func sinkSlow(ctx context.Context, env *Env) error {
	l := line(env)
	if l == nil {
		return noFaults()
	}
	if err := warm(ctx, env); err != nil {
		return err
	}
	defer env.Faults.Restore()
	const n, latency = 60, 100 * time.Millisecond // one after the other they take 12 s, on any machine
	l.Slow(latency, 0)
	msgs := messages(env.Topic, n, n)
	began := time.Now()
	if err := accept(ctx, env.Sink, msgs); err != nil {
		return fmt.Errorf("with answers after %v: %w", 2*latency, err)
	}
	if took := time.Since(began); took > n*latency {
		return fmt.Errorf("%d keys took %v with answers after %v: keys wait for each other", n, took, 2*latency)
	}
	const thin, size = 20, 10_000
	large := messages(env.Topic, thin, thin)
	for i := range large {
		large[i].ID, large[i].Key, large[i].Payload = id(1000+i), fmt.Sprint("large ", i), noise(size, i)
	}
	l.Slow(0, 2*thin*size) // half a second
	if err := accept(ctx, env.Sink, large); err != nil {
		return fmt.Errorf("over a thin line: %w", err)
	}
	if err := whole(ctx, env, msgs); err != nil {
		return err
	}
	return whole(ctx, env, large)
}

func sinkLateAnswer(ctx context.Context, env *Env) error {
	l := line(env)
	switch {
	case l == nil:
		return noFaults()
	case env.Missing == "":
		return notApplicable("every topic exists")
	}
	if err := warm(ctx, env); err != nil {
		return err
	}
	defer env.Faults.Restore()
	const latency = 200 * time.Millisecond
	l.Slow(latency, 0)
	for round := range 3 {
		msgs := messages(env.Topic, 20, 20)
		for i := range msgs {
			msgs[i].ID, msgs[i].Key = id(100*round+i), fmt.Sprint(round, "/", i)
		}
		if _, err := run(ctx, env.Sink, msgs, latency*3/2); err != nil {
			return err
		}
		for i := range msgs { // these the broker does not take
			msgs[i].ID, msgs[i].Key, msgs[i].Topic = id(1000+100*round+i), fmt.Sprint(round, "/missing/", i), env.Missing
		}
		errs, err := run(ctx, env.Sink, msgs, 3*time.Second)
		if err != nil {
			return err
		}
		for i, err := range errs {
			if err == nil {
				return fmt.Errorf("message %d, for a missing topic, is acknowledged by an answer to an earlier call", i)
			}
		}
	}
	return nil
}

func sinkMiddle(ctx context.Context, env *Env) error {
	l := line(env)
	if l == nil {
		return noFaults()
	}
	if err := warm(ctx, env); err != nil {
		return err
	}
	defer env.Faults.Restore()
	const size, keys = 60, 3
	points := []int{90, 700, 2500, 5000, 9000}
	all := messages(env.Topic, size*len(points), keys)
	for round, n := range points {
		msgs := all[round*size : (round+1)*size]
		l.FreezeAfter(n)
		errs, err := run(ctx, env.Sink, msgs, 300*time.Millisecond)
		env.Faults.Restore() // what was kept back arrives beside what is sent again
		if err != nil {
			return fmt.Errorf("frozen after %d bytes: %w", n, err)
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

func sinkHangUp(ctx context.Context, env *Env) error {
	l := line(env)
	if l == nil {
		return noFaults()
	}
	if err := warm(ctx, env); err != nil {
		return err
	}
	defer env.Faults.Restore()
	const size, keys, bad = 40, 8, 17
	msgs := messages(env.Topic, size, keys)
	msgs[bad].Payload = noise(96, 1)
	l.HangUp(msgs[bad].Payload[18:81]) // whole groups of base64, for brokers whose protocol has it
	errs, err := run(ctx, env.Sink, msgs, time.Second)
	if err != nil {
		return err
	}
	left, err := unresolved(msgs, errs)
	if err != nil {
		return err
	}
	// One by one, as the relay sends what stays unknown.
	for _, m := range left {
		if m.Key == msgs[bad].Key && m.Version >= msgs[bad].Version {
			continue
		}
		if err := resend(ctx, env.Sink, []postrider.Message{m}); err != nil {
			return fmt.Errorf("a message of another key than the one at which the broker hangs up: %w", err)
		}
	}
	for range 2 {
		errs, err := run(ctx, env.Sink, msgs[bad:bad+1], time.Second)
		if err != nil {
			return err
		}
		if errs[0] == nil {
			return fmt.Errorf("the message at which the broker hangs up is acknowledged")
		}
		if c := broker.Classify(errs[0]).Class; c == broker.ClassRejected || c == broker.ClassThrottled {
			return fmt.Errorf("the message at which the broker hangs up is answered: %w", errs[0])
		}
	}
	env.Faults.Restore()
	if err := resend(ctx, env.Sink, msgs); err != nil {
		return err
	}
	return whole(ctx, env, msgs)
}

func sinkWindow(ctx context.Context, env *Env) error {
	if env.Faults == nil {
		return noFaults()
	}
	if err := warm(ctx, env); err != nil {
		return err
	}
	const size, calls = 1000, 12
	msgs := messages(env.Topic, size, size)
	env.Faults.Mute()
	defer env.Faults.Restore()
	for range calls {
		errs, err := run(ctx, env.Sink, msgs, 150*time.Millisecond)
		if err != nil {
			return err
		}
		if left, err := unresolved(msgs, errs); err != nil || len(left) != len(msgs) {
			return fmt.Errorf("%d of %d messages are open although no answer came, %w", len(left), len(msgs), err)
		}
	}
	env.Faults.Restore()
	if err := resend(ctx, env.Sink, msgs); err != nil {
		return fmt.Errorf("after %d calls without an answer: %w", calls, err)
	}
	return whole(ctx, env, msgs)
}

func sinkStopAcks(ctx context.Context, env *Env) error {
	if env.Faults == nil {
		return noFaults()
	}
	return stopDuring(ctx, env, env.Faults.Mute)
}
