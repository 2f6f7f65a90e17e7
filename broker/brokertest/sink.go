package brokertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

func sinkCases() []Case {
	return []Case{
		{"sink/exact", "a message arrives as it was given, byte for byte", sinkExact},
		{"sink/order", "messages of a key are in the log in the order given", sinkOrder},
		{"sink/concurrent", "calls that run at once do not disturb each other", sinkConcurrent},
		{"sink/rejected", "what is too large is rejected alone; later messages of its key are not accepted", sinkRejected},
		{"sink/missing", "a missing topic is an outage that names its destination", sinkMissing},
		{"sink/one-id", "each message has its own answer, also when several share an id", sinkOneID},
		{"sink/context", "after the context has ended nothing is accepted any more", sinkContext},
		{"sink/again", "a message may be sent again with the same id", sinkAgain},
	}
}

// deliver passes msgs to the sink in calls of the size that its Info allows. Like the
// relay, it does not send messages behind a failed one of
// their key.
func deliver(ctx context.Context, s broker.Sink, msgs []postrider.Message) ([]error, error) {
	info := s.Info()
	all := make([]error, len(msgs))
	failed := make(map[string]error)
	for at := 0; at < len(msgs); {
		from := at
		for size := 0; at < len(msgs) && fits(&info, at-from, size+msgs[at].Size()) && failed[msgs[at].Key] == nil; at++ {
			size += msgs[at].Size()
		}
		if at == from {
			all[at] = broker.NotTried(failed[msgs[at].Key])
			at++
			continue
		}
		errs, err := call(ctx, s, msgs[from:at])
		if err != nil {
			return nil, err
		}
		for i, err := range errs {
			if all[from+i] = err; err != nil && msgs[from+i].Key != "" {
				failed[msgs[from+i].Key] = err
			}
		}
	}
	return all, nil
}

// fits reports whether a call that has n messages may have one more, with which
// they are size bytes. The first one is always sent.
func fits(info *broker.Info, n, size int) bool {
	return n == 0 || (info.MaxBatch == 0 || n < info.MaxBatch) && (info.MaxBatchBytes == 0 || size <= info.MaxBatchBytes)
}

// call checks the form of one answer, which is a rule in every case.
func call(ctx context.Context, s broker.Sink, msgs []postrider.Message) ([]error, error) {
	errs := s.Deliver(ctx, broker.Batch{Messages: msgs})
	if errs == nil {
		return make([]error, len(msgs)), nil
	}
	if len(errs) != len(msgs) {
		return nil, fmt.Errorf("the answer has %d entries for %d messages", len(errs), len(msgs))
	}
	failed, met, heard := false, false, false
	barred := make(map[string]bool)
	for i, err := range errs {
		failed = failed || err != nil
		met = met || err != nil && !errors.Is(err, broker.ErrNotTried)
		heard = heard || hearsay(err)
		key := msgs[i].Key
		if err == nil && key != "" && barred[key] {
			return nil, fmt.Errorf("message %d is acknowledged behind a failed one of its key", i)
		}
		barred[key] = barred[key] || err != nil
	}
	if !failed {
		return nil, fmt.Errorf("the answer is not nil although every message was acknowledged")
	}
	if heard && !met {
		return nil, fmt.Errorf("the outage is not reported: every failed message was merely not tried (%w)", firstOf(errs))
	}
	return errs, nil
}

// hearsay reports whether err is an outage because of which a message was merely not
// tried: some other message must have met it.
func hearsay(err error) bool {
	if !errors.Is(err, broker.ErrNotTried) {
		return false
	}
	c := broker.Classify(err).Class
	return c == broker.ClassOutage || c == broker.ClassThrottled
}

func firstOf(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func allAccepted(errs []error) error {
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("message %d was not accepted: %w", i, err)
		}
	}
	return nil
}

// accept delivers messages that must all be accepted.
func accept(ctx context.Context, s broker.Sink, msgs []postrider.Message) error {
	errs, err := deliver(ctx, s, msgs)
	if err != nil {
		return err
	}
	return allAccepted(errs)
}

// holds checks that the log holds n messages and that no key steps ahead.
func holds(ctx context.Context, env *Env, n int) error {
	log, err := env.Log(ctx)
	if err != nil {
		return err
	}
	if len(log) != n {
		return fmt.Errorf("%d messages in the log, %d were accepted", len(log), n)
	}
	return noSkip(log, nil)
}

func sinkExact(ctx context.Context, env *Env) error {
	msgs := messages(env.Topic, 6, 6)
	msgs[0].Payload = nil
	msgs[1].Payload = []byte{0, 0xff, '\r', '\n', 0x80}
	msgs[2].Headers = map[string]string{"traceparent": "00-ab-cd-01", "x-empty": "", "Odd-Case": "ünïcode; a=b, c"}
	msgs[3].Key, msgs[3].Type = " key with\nbreak ", strings.Repeat("t", postrider.MaxTypeLen)
	msgs[4].Key = strings.Repeat("k", postrider.MaxKeyLen)
	msgs[5].Payload, msgs[5].SchemaVersion = bytes.Repeat([]byte{7}, min(500<<10, env.Largest)), 9
	return arrive(ctx, env, msgs)
}

func difference(a, b postrider.Message) string {
	switch {
	case a.Topic != b.Topic:
		return "topic"
	case a.Key != b.Key:
		return "key"
	case a.Type != b.Type:
		return "type"
	case !bytes.Equal(a.Payload, b.Payload):
		return "payload"
	case a.ContentType != b.ContentType:
		return "content type"
	case len(a.Headers)+len(b.Headers) > 0 && !maps.Equal(a.Headers, b.Headers):
		return "headers"
	case a.Version != b.Version || a.SchemaVersion != b.SchemaVersion:
		return "version"
	case !a.Time.Equal(b.Time):
		return "time"
	}
	return ""
}

func sinkOrder(ctx context.Context, env *Env) error {
	msgs := messages(env.Topic, 600, 37)
	for at := 0; at < len(msgs); at += 200 {
		if err := accept(ctx, env.Sink, msgs[at:at+200]); err != nil {
			return err
		}
	}
	return holds(ctx, env, len(msgs))
}

// noSkip checks that no key of the log ever steps ahead, nor above its version in
// limit.
func noSkip(log []postrider.Message, limit map[string]int64) error {
	high := make(map[string]int64)
	for _, m := range log {
		if m.Version > high[m.Key]+1 {
			return fmt.Errorf("key %s: version %d is accepted after %d", m.Key, m.Version, high[m.Key])
		}
		high[m.Key] = max(high[m.Key], m.Version)
		if top, ok := limit[m.Key]; ok && m.Version > top {
			return fmt.Errorf("key %s: version %d is accepted although version %d failed", m.Key, m.Version, top+1)
		}
	}
	return nil
}

func sinkConcurrent(ctx context.Context, env *Env) error {
	const calls, size = 8, 100
	found := make([]error, calls)
	var wg sync.WaitGroup
	for c := range calls {
		wg.Go(func() {
			msgs := messages(env.Topic, size, 5)
			for i := range msgs {
				msgs[i].ID = id(c*size + i)
				msgs[i].Key += fmt.Sprint("/", c)
			}
			found[c] = accept(ctx, env.Sink, msgs)
		})
	}
	wg.Wait()
	for _, err := range found {
		if err != nil {
			return err
		}
	}
	return holds(ctx, env, calls*size)
}

func sinkRejected(ctx context.Context, env *Env) error {
	if env.TooLarge == 0 {
		return notApplicable("the broker takes any size")
	}
	msgs := messages(env.Topic, 40, 4)
	const bad = 13 // the fourth message of key 1
	msgs[bad].Payload = make([]byte, env.TooLarge)
	errs, err := deliver(ctx, env.Sink, msgs)
	if err != nil {
		return err
	}
	for i, err := range errs {
		switch behind := i%4 == bad%4 && i > bad; {
		case i == bad:
			if err == nil || broker.Classify(err).Class != broker.ClassRejected {
				return fmt.Errorf("the message that is too large is answered %v, not rejected", err)
			}
		case behind && err == nil:
			return fmt.Errorf("message %d is acknowledged behind the rejected one of its key", i)
		case !behind && err != nil:
			return fmt.Errorf("message %d is not affected by the rejected one, but is answered: %w", i, err)
		}
	}
	log, err := env.Log(ctx)
	if err != nil {
		return err
	}
	return noSkip(log, map[string]int64{msgs[bad].Key: msgs[bad].Version - 1})
}

func sinkMissing(ctx context.Context, env *Env) error {
	if env.Missing == "" {
		return notApplicable("every topic exists")
	}
	msgs := messages(env.Topic, 4, 2)
	msgs[1].Topic, msgs[3].Topic = env.Missing, env.Missing
	errs, err := deliver(ctx, env.Sink, msgs)
	if err != nil {
		return err
	}
	if errs[0] != nil || errs[2] != nil {
		return fmt.Errorf("messages of the topic that exists: %v, %v", errs[0], errs[2])
	}
	e := broker.Classify(errs[1])
	if e == nil || e.Class != broker.ClassOutage {
		return fmt.Errorf("the answer is %v, not an outage", errs[1])
	}
	if !strings.Contains(e.Destination, env.Missing) {
		return fmt.Errorf("the outage's destination is %q", e.Destination)
	}
	return nil
}

// sinkOneID sends messages of one id to the topic and to a missing one. An id is unique among
// the messages of one consumer, and nothing forbids others to use it.
func sinkOneID(ctx context.Context, env *Env) error {
	if env.Missing == "" {
		return notApplicable("every topic exists")
	}
	msgs := messages(env.Topic, 6, 6)
	down := func(i int) bool { return i >= 1 && i <= 3 }
	for i := range msgs {
		msgs[i].ID = id(i / 3) // of messages 0 to 2, and of 3 to 5
		if down(i) {
			msgs[i].Topic = env.Missing
		}
	}
	msgs[5].ID = id(5) // the other two messages of the topic have different ids
	errs, err := deliver(ctx, env.Sink, msgs)
	if err != nil {
		return err
	}
	for i, err := range errs {
		switch e := broker.Classify(err); {
		case down(i) && (e == nil || e.Class != broker.ClassOutage || !strings.Contains(e.Destination, env.Missing)):
			return fmt.Errorf("message %d, for the missing topic, is answered %v, not an outage of that destination", i, err)
		case !down(i) && err != nil:
			return fmt.Errorf("message %d, for the topic that exists, is answered: %w", i, err)
		}
	}
	return holds(ctx, env, 3)
}

func sinkContext(ctx context.Context, env *Env) error {
	msgs := messages(env.Topic, 50, 5)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	start := time.Now()
	errs, err := deliver(ended, env.Sink, msgs)
	if err != nil {
		return err
	}
	if took := time.Since(start); took > grace {
		return fmt.Errorf("the call took %v after its context had ended", took)
	}
	if errs[0] == nil {
		return fmt.Errorf("a call whose context has ended acknowledges")
	}
	marker := messages(env.Topic, 1, 1)
	marker[0].ID, marker[0].Key = id(1<<20), "marker"
	if err := accept(ctx, env.Sink, marker); err != nil {
		return err
	}
	log, err := env.Log(ctx)
	if err != nil {
		return err
	}
	if len(log) != 1 {
		return fmt.Errorf("%d messages in the log beside the marker: they were accepted after the call had ended", len(log)-1)
	}
	return nil
}

func sinkAgain(ctx context.Context, env *Env) error {
	msgs := messages(env.Topic, 3, 1)
	for range 2 {
		if err := accept(ctx, env.Sink, msgs); err != nil {
			return err
		}
	}
	if err := whole(ctx, env, msgs); err != nil {
		return err
	}
	log, err := env.Log(ctx)
	if err != nil {
		return err
	}
	for _, m := range log {
		if !slices.ContainsFunc(msgs, func(sent postrider.Message) bool { return sent.ID == m.ID }) {
			return fmt.Errorf("message %s is in the log, although its id was never sent", m.ID)
		}
	}
	return nil
}
