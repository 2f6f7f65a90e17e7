package kafkabroker

import (
	"context"
	"slices"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// routed asks the router for every message's route, in the memory of routes. It returns the errors of
// messages without a route, or nil if all have one.
func (c *call) routed(router envelope.Router, routes *[]envelope.Route) (bad []error) {
	*routes = slices.Grow((*routes)[:0], len(c.msgs))[:len(c.msgs)]
	c.routes = *routes
	for i := range c.msgs {
		var err error
		if c.routes[i], err = router(&c.msgs[i]); err != nil { // in its place: a route is a large struct
			if bad == nil {
				bad = make([]error, len(c.msgs))
			}
			bad[i] = broker.Unsendable(err, "")
		}
	}
	return bad
}

// stepsOf numbers the steps in which a call's messages must be sent. A message belongs
// to the next step when the message before it in its key has another topic, or by its
// route another partition: these are two logs, and the second message may be
// accepted only after the first was acknowledged. nil: one step for all.
func stepsOf(c *call) []int32 {
	msgs := c.msgs
	one, _ := c.place(0)
	first := 0
	for ; first < len(msgs); first++ {
		if topic, key := c.place(first); topic != one || key != msgs[first].Key {
			break
		}
	}
	if first == len(msgs) {
		return nil
	}
	type state struct {
		topic, key string
		step       int32
	}
	keys := make(map[string]state)
	steps := make([]int32, len(msgs))
	several := false
	for i := range msgs {
		m := &msgs[i]
		if m.Key == "" {
			continue
		}
		topic, key := c.place(i)
		at, known := keys[m.Key]
		if known && (at.topic != topic || at.key != key) {
			at.step++
			several = true
		}
		at.topic, at.key = topic, key
		keys[m.Key] = at
		steps[i] = at.step
	}
	if !several {
		return nil
	}
	return steps
}

// inSteps delivers one step after the other and bars the keys that failed. steps is nil
// for a single step; bad is nil if every message can be sent.
func (s *Sink) inSteps(ctx context.Context, c *call, steps []int32, bad []error) []error {
	var (
		errs   = make([]error, len(c.msgs))
		barred = make(map[string]error) // the reason, by key
		failed bool
		at     []int
	)
	fail := func(i int, err error) { errs[i], barred[c.msgs[i].Key], failed = err, err, true }
	for step, done := int32(0), 0; done < len(c.msgs); step++ {
		msgs, routes := make([]postrider.Message, 0, len(c.msgs)-done), []envelope.Route(nil)
		at = at[:0]
		for i := range c.msgs {
			if steps != nil && steps[i] != step {
				continue
			}
			done++
			if cause := barred[c.msgs[i].Key]; cause != nil && c.msgs[i].Key != "" {
				errs[i] = broker.NotTried(cause)
				continue
			}
			if bad != nil && bad[i] != nil {
				fail(i, bad[i])
				continue
			}
			msgs, at = append(msgs, c.msgs[i]), append(at, i)
			if c.routes != nil {
				routes = append(routes, c.routes[i])
			}
		}
		if len(msgs) == 0 {
			continue
		}
		for k, err := range s.deliver(ctx, newCall(msgs, routes)) {
			if err != nil {
				fail(at[k], err)
			}
		}
	}
	if !failed {
		return nil
	}
	return errs
}
