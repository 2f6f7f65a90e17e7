package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

func givebackCases() []Case {
	return []Case{
		{"source/exact", "what is received is what was sent, byte for byte", sourceExact},
		{"source/foreign", "a record that somebody else wrote is received, with the same id every time", sourceForeign},
		{"source/waits", "a message that comes while Receive waits is returned soon", sourceWaits},
		{"source/extend", "a message whose time is extended is not delivered again meanwhile", sourceExtend},
		{"source/killed", "after a kill exactly the unacknowledged messages are received again, in order", sourceKilled},
		{"source/back-keys", "a key that is given back holds up no other one, and is received again from its first message on", sourceBackKeys},
		{"source/flaky", "a source whose connection breaks recovers by itself: nothing is lost or steps ahead, and only unsettled messages are received twice", sourceFlaky},
	}
}

func sourceExact(ctx context.Context, env *Env) error {
	if env.Source == nil {
		return notApplicable("the broker has no source")
	}
	msgs, _ := fitting(env.Sink, append(headed(env.Topic), odd(env.Topic)...))
	if err := accept(ctx, env.Sink, msgs); err != nil {
		return err
	}
	src, closing, err := env.Source(ctx)
	if err != nil {
		return err
	}
	defer closing()
	ds, err := drain(ctx, src, len(msgs))
	if err != nil {
		return err
	}
	got := make(map[string]postrider.Message, len(ds))
	for _, d := range ds {
		got[d.Message.ID] = d.Message
	}
	for _, want := range msgs {
		m, ok := got[want.ID]
		if !ok {
			return fmt.Errorf("message %s was not received", want.ID)
		}
		if d := difference(m, want); d != "" {
			return fmt.Errorf("message %s: %s differs", want.ID, d)
		}
	}
	return nil
}

func sourceForeign(ctx context.Context, env *Env) error {
	if env.Source == nil || env.Foreign == nil {
		return notApplicable("no other program can write")
	}
	payload := []byte("{\"written by\": \"somebody else\"}\x00\xff")
	if err := env.Foreign(ctx, payload); err != nil {
		return fmt.Errorf("write a foreign record: %w", err)
	}
	var first broker.Delivery
	for round := range 2 {
		src, closing, err := env.Source(ctx)
		if err != nil {
			return err
		}
		ds, err := receive(ctx, src, 1)
		if err == nil && round == 1 {
			err = src.Settle(ctx, verdicts(ds))
		}
		closing()
		if err != nil {
			return err
		}
		m := ds[0].Message
		if string(m.Payload) != string(payload) {
			return fmt.Errorf("the payload %q is received as %q", payload, m.Payload)
		}
		if !ds[0].Foreign {
			return errors.New("the delivery of another writer's record is not marked as foreign")
		}
		if m.ID == "" || round == 1 && m.ID != first.Message.ID {
			return fmt.Errorf("the record has the id %q, and %q when it is received again", first.Message.ID, m.ID)
		}
		first = ds[0]
	}
	return nil
}

func sourceWaits(ctx context.Context, env *Env) error {
	src, closing, err := start(ctx, env, 2, 1)
	if err != nil {
		return err
	}
	defer closing()
	if _, err := drain(ctx, src, 2); err != nil {
		return err
	}
	type result struct {
		ds  []broker.Delivery
		err error
	}
	waiting, msgs := make(chan result, 1), messages(env.Topic, 4, 1)
	for _, m := range msgs[2:] {
		go func() {
			ds, err := receive(ctx, src, 1)
			waiting <- result{ds, err}
		}()
		select { // it waits, rather than return nothing
		case r := <-waiting:
			return fmt.Errorf("Receive returned %d deliveries when there was none, %w", len(r.ds), r.err)
		case <-time.After(200 * time.Millisecond):
		}
		began := time.Now()
		if err := accept(ctx, env.Sink, []postrider.Message{m}); err != nil {
			return err
		}
		r := <-waiting
		if r.err != nil {
			return r.err
		}
		if took := time.Since(began); took > 20*time.Second {
			return fmt.Errorf("a message was returned %v after it was sent", took)
		}
		if err := src.Settle(ctx, verdicts(r.ds)); err != nil {
			return err
		}
	}
	return nil
}

// longestWait is the longest time limit that a case waits for.
const longestWait = 6 * time.Second

func sourceExtend(ctx context.Context, env *Env) error {
	src, closing, err := start(ctx, env, 4, 4)
	if err != nil {
		return err
	}
	defer closing()
	limit := src.Info().AckWait
	if limit == 0 || limit > longestWait {
		return notApplicable("a delivery has no time limit, or a long one")
	}
	ds, err := receive(ctx, src, 4)
	if err != nil {
		return err
	}
	extended := time.Now()
	for end := extended.Add(limit * 3 / 2); time.Now().Before(end); {
		before := time.Now()
		if err := src.Extend(ctx, ds); err != nil {
			return fmt.Errorf("extend: %w", err)
		}
		extended = before
		wait, cancel := context.WithTimeout(ctx, limit/4)
		again, _ := src.Receive(wait, 4)
		cancel()
		switch {
		case len(again) == 0:
		case time.Since(extended) < limit:
			return fmt.Errorf("%s is delivered again although its time was extended", again[0].Origin)
		default: // the machine was suspended for that long: try again with what is delivered now
			rest, err := receive(ctx, src, len(ds)-len(again))
			if err != nil {
				return err
			}
			ds, end = slices.Concat(again, rest), time.Now().Add(limit*3/2)
		}
	}
	if err := src.Settle(ctx, verdicts(ds)); err != nil {
		return fmt.Errorf("settle after the extension: %w", err)
	}
	late := time.Since(extended) >= limit // then they may be delivered again
	wait, cancel := context.WithTimeout(ctx, limit*5/4)
	defer cancel()
	if again, _ := src.Receive(wait, 4); len(again) > 0 && !late {
		return fmt.Errorf("%s is delivered again although it was acknowledged within the extension", again[0].Origin)
	}
	return nil
}

func sourceKilled(ctx context.Context, env *Env) error {
	if env.Mortal == nil {
		return notApplicable("no receiver can be killed")
	}
	const n, keys = 30, 3
	took := env.atOnce(18, keys)
	acked := took / 2
	if err := accept(ctx, env.Sink, messages(env.Topic, n, keys)); err != nil {
		return err
	}
	mortal, kill, err := env.Mortal(ctx)
	if err != nil {
		return err
	}
	ds, err := receive(ctx, mortal, took)
	if err == nil {
		err = mortal.Settle(ctx, verdicts(ds[:acked]))
	}
	kill()
	if err != nil {
		return err
	}
	settled := make(map[string]bool)
	high := make(map[string]int64)
	for _, d := range ds[:acked] {
		settled[d.Message.ID] = true
		high[d.Message.Key] = max(high[d.Message.Key], d.Message.Version)
	}
	next, closing, err := env.Source(ctx)
	if err != nil {
		return err
	}
	defer closing()
	again, err := drain(ctx, next, n-acked)
	if err != nil {
		return err
	}
	for _, d := range again {
		m := d.Message
		if settled[m.ID] {
			return fmt.Errorf("%s was acknowledged before the kill and is received again", d.Origin)
		}
		if m.Version != high[m.Key]+1 {
			return fmt.Errorf("key %s: version %d is received after %d", m.Key, m.Version, high[m.Key])
		}
		high[m.Key] = m.Version
	}
	return nil
}

// sourceBackKeys gives the messages of one key back, from the last to the first,
// and continues with the others.
func sourceBackKeys(ctx context.Context, env *Env) error {
	const n, keys = 60, 3
	const delay = 3 * time.Second // long, so that a busy machine does not spend it between two calls
	src, closing, err := start(ctx, env, n, keys)
	if err != nil {
		return err
	}
	defer closing()
	took := env.atOnce(12, keys)
	ds, err := receive(ctx, src, took)
	if err != nil {
		return err
	}
	if err := inOrder(ds); err != nil {
		return err
	}
	held := ds[0].Message.Key
	next := make(map[string]int64)
	var vs []broker.Verdict
	for i := len(ds) - 1; i >= 0; i-- {
		m := ds[i].Message
		mine := m.Key == held
		vs = append(vs, broker.Verdict{Delivery: ds[i], Ack: !mine, Delay: delay})
		if !mine {
			next[m.Key] = max(next[m.Key], m.Version)
		}
	}
	began := time.Now()
	if err := src.Settle(ctx, vs); err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	others := 0
	for left := n - (took - len(backed(vs))); left > 0; {
		ds, err := receive(ctx, src, 1)
		if err != nil {
			return err
		}
		m := ds[0].Message
		switch waited := time.Since(began); {
		case m.Version != next[m.Key]+1:
			return fmt.Errorf("key %s: version %d is received after %d", m.Key, m.Version, next[m.Key])
		case m.Key == held && waited < delay-10*time.Millisecond:
			return fmt.Errorf("the key that was given back comes after %v, the delay is %v", waited, delay)
		case m.Key == held && others == 0:
			return errors.New("no other key is received while one is given back")
		case m.Key != held:
			others++
		}
		next[m.Key] = m.Version
		if err := src.Settle(ctx, verdicts(ds)); err != nil {
			return fmt.Errorf("settle: %w", err)
		}
		left--
	}
	return nil
}

// backed returns the verdicts that give a message back.
func backed(vs []broker.Verdict) (out []broker.Verdict) {
	for _, v := range vs {
		if !v.Ack {
			out = append(out, v)
		}
	}
	return out
}

// sourceFlaky breaks a source's connection at many places while it works.
func sourceFlaky(ctx context.Context, env *Env) error {
	if env.Flaky == nil {
		return notApplicable("no source can have faults")
	}
	src, faults, closing, err := env.Flaky(ctx)
	if err != nil {
		return err
	}
	defer closing()
	defer faults.Restore()
	all := messages(env.Topic, membersWave, membersKeys)
	j := newJournal()
	m := j.work(ctx, src)
	defer m.stop()
	breaks := []func(){
		func() { faults.Cut(0) }, func() { faults.CutAnswer(200) }, func() { faults.Cut(150) },
		func() { faults.CutAnswer(1500) }, func() { faults.Mute() },
	}
	rest := all
	for _, brk := range breaks {
		brk()
		if rest, err = feed(ctx, env, rest, after(3)); err != nil {
			return err
		}
		faults.Restore()
		if err := j.until(ctx, len(all)-len(rest)-membersStep); err != nil {
			return err
		}
	}
	if _, err = feed(ctx, env, rest, func() bool { return false }); err != nil {
		return err
	}
	if err := j.until(ctx, len(all)); err != nil {
		return err
	}
	return j.verdict(all, len(breaks)*2*membersBatch)
}
