package kafkabroker

import (
	"context"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/broker"
)

// Advise is [broker.Info].Advise.
func (s *Sink) Advise(ctx context.Context, topics []string) ([]broker.Advice, error) {
	var found []broker.Advice
	for _, topic := range topics {
		name := s.prefix + topic
		if !validTopic(name) {
			continue // Probe has said it
		}
		rt, err := s.describe(ctx, name)
		if err != nil {
			if ctx.Err() != nil {
				return found, ctx.Err()
			}
			continue
		}
		replicas := len(rt.Partitions[0].Replicas)
		for _, a := range weak(name, replicas, s.configs(ctx, name, "min.insync.replicas", "unclean.leader.election.enable", "cleanup.policy")) {
			a.Topic = topic
			found = append(found, a)
		}
	}
	return found, nil
}

// configs are settings of a topic; what may not be read is not in it.
func (s *Sink) configs(ctx context.Context, name string, settings ...string) map[string]string {
	values := make(map[string]string)
	req := kmsg.NewPtrDescribeConfigsRequest()
	res := kmsg.NewDescribeConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, name
	res.ConfigNames = settings
	req.Resources = append(req.Resources, res)
	resp, err := req.RequestWith(ctx, s.client)
	if err != nil {
		return values
	}
	for _, r := range resp.Resources {
		for _, c := range r.Configs {
			if c.Value != nil {
				values[c.Name] = *c.Value
			}
		}
	}
	return values
}

// weak is what a topic's settings do not keep.
func weak(name string, replicas int, configs map[string]string) (found []broker.Advice) {
	note := func(what, why, fix string) {
		found = append(found, broker.Advice{What: "topic " + name + " " + what, Why: why, Fix: fix})
	}
	least, known := strconv.Atoi(configs["min.insync.replicas"])
	switch {
	case replicas == 1:
		note("has one replica", "what was acknowledged is gone with its broker's disk", "three replicas, with min.insync.replicas=2")
	case known == nil && least <= 1:
		note(fmt.Sprintf("has %d replicas and min.insync.replicas=%d", replicas, least), "acks=all then means the leader alone while the others lag, and what it acknowledged is gone with it",
			"kafka-configs.sh --alter --topic "+name+" --add-config min.insync.replicas=2")
	case known == nil && least >= replicas:
		note(fmt.Sprintf("has %d replicas and min.insync.replicas=%d", replicas, least), "one broker that is down stops the topic", "one replica more than min.insync.replicas")
	}
	if configs["unclean.leader.election.enable"] == "true" {
		note("elects unclean leaders", "a replica that lacks what was acknowledged may become the leader",
			"kafka-configs.sh --alter --topic "+name+" --add-config unclean.leader.election.enable=false")
	}
	if p := configs["cleanup.policy"]; p == "compact" || p == "compact,delete" || p == "delete,compact" {
		note("is compacted", "of each key only the last message is kept for sure: a consumer that is behind misses the others",
			"cleanup.policy=delete, unless only the last state counts")
	}
	return found
}
