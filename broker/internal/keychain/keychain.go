// Package keychain links the messages of a batch that have the same key, for
// sinks that send each key's messages one after the other.
package keychain

import (
	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

// Chain has, for each message of a batch, the index of the next message of its key; 0 for the last.
type Chain []int32

// Of returns the chain of msgs and the first message of each key, in the order of
// the batch. A message without a key is a chain of its own.
func Of(msgs []postrider.Message) (c Chain, first []int) {
	c, first = make(Chain, len(msgs)), make([]int, 0, len(msgs))
	last := make(map[string]int, len(msgs))
	for i := range msgs {
		key := msgs[i].Key
		if before, ok := last[key]; ok && key != "" {
			c[before] = int32(i) //nolint:gosec // a batch is small
		} else {
			first = append(first, i)
		}
		last[key] = i
	}
	return c, first
}

// Next returns the index of the message behind i in its key; 0 when i is the last.
func (c Chain) Next(i int) int { return int(c[i]) }

// Bar notes in errs that nothing behind i in its key was tried, because of err.
func (c Chain) Bar(i int, errs []error, err error) {
	for n := c[i]; n > 0; n = c[n] {
		errs[n] = broker.NotTried(err)
	}
}
