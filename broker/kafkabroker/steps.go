package kafkabroker

import (
	"context"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

// stepsOf numbers the steps in which msgs must be sent: a key's message for
// another topic than the one before it is a step further, because two topics
// are two logs and only the acknowledgement of the first message says that the
// second may be accepted. nil: one step for all.
func stepsOf(msgs []postrider.Message) []int32 {
	first := 0
	for first < len(msgs) && msgs[first].Topic == msgs[0].Topic {
		first++
	}
	if first == len(msgs) {
		return nil
	}
	type state struct {
		topic string
		step  int32
	}
	keys := make(map[string]state)
	steps := make([]int32, len(msgs))
	several := false
	for i := range msgs {
		m := &msgs[i]
		if m.Key == "" {
			continue
		}
		at, known := keys[m.Key]
		if known && at.topic != m.Topic {
			at.step++
			several = true
		}
		at.topic = m.Topic
		keys[m.Key] = at
		steps[i] = at.step
	}
	if !several {
		return nil
	}
	return steps
}

// inSteps delivers one step after the other and bars the keys that failed.
func (s *Sink) inSteps(ctx context.Context, msgs []postrider.Message, steps []int32) []error {
	var (
		errs   = make([]error, len(msgs))
		barred = make(map[string]error) // by key: why
		failed bool
		part   []postrider.Message
		at     []int
	)
	for step, done := int32(0), 0; done < len(msgs); step++ {
		part, at = part[:0], at[:0]
		for i := range msgs {
			if steps[i] != step {
				continue
			}
			done++
			if cause := barred[msgs[i].Key]; cause != nil && msgs[i].Key != "" {
				errs[i] = broker.NotTried(cause)
				continue
			}
			part, at = append(part, msgs[i]), append(at, i)
		}
		if len(part) == 0 {
			continue
		}
		for k, err := range s.deliver(ctx, part) {
			if err != nil {
				errs[at[k]], barred[part[k].Key], failed = err, err, true
			}
		}
	}
	if !failed {
		return nil
	}
	return errs
}
