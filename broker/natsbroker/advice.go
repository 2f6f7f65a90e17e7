package natsbroker

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/broker"
)

// Advise is [broker.Info].Advise.
func (s *Sink) Advise(ctx context.Context, topics []string) ([]broker.Advice, error) {
	var all []broker.Advice
	seen := make(map[string]bool)
	for _, topic := range topics {
		c, err := s.stream(ctx, Subject(s.prefix, topic))
		if err != nil {
			if ctx.Err() != nil {
				return all, ctx.Err()
			}
			continue // Probe reports it
		}
		if seen[c.Name] {
			continue
		}
		seen[c.Name] = true
		for _, a := range s.weak(c) {
			a.Topic = topic
			all = append(all, a)
		}
	}
	return all, nil
}

// weak returns advice about the settings that put a stream's messages at risk.
func (s *Sink) weak(c *jetstream.StreamConfig) (found []broker.Advice) {
	note := func(what, why, fix string) {
		found = append(found, broker.Advice{What: "stream " + c.Name + " " + what, Why: why, Fix: fix})
	}
	limited := c.MaxMsgs > 0 || c.MaxBytes > 0 || c.MaxMsgsPerSubject > 0
	if c.Discard == jetstream.DiscardOld && limited && c.Retention == jetstream.LimitsPolicy {
		note("deletes its oldest messages when it is full", "they may be unread",
			"nats stream edit "+c.Name+" --discard=new: the relay then waits until there is room")
	}
	if c.Storage == jetstream.MemoryStorage {
		note("is kept in memory", "acknowledged messages are lost when its servers restart", "create it again with --storage=file")
	}
	if c.Replicas <= 1 {
		note("has one replica", "JetStream acknowledges before it syncs to disk: a crash of the machine loses acknowledged messages",
			"use three replicas, or sync_interval: always in the server's configuration")
	}
	if c.Duplicates > 0 && c.Duplicates < time.Minute && !s.noDedup {
		note(fmt.Sprintf("drops repeated messages for %v only", c.Duplicates), "a relay that takes over sends the messages in flight again",
			"nats stream edit "+c.Name+" --dupe-window=2m")
	}
	if limit := int64(c.MaxMsgSize); limit > 0 && limit < s.nc.MaxPayload() {
		note(fmt.Sprintf("takes messages of at most %d bytes, headers included", limit), "larger messages are rejected",
			"to allow larger ones: nats stream edit "+c.Name+" --max-msg-size")
	}
	return found
}
