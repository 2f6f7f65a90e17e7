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
			continue // Probe reports it
		}
		rt, err := s.describe(ctx, name)
		if err != nil {
			if ctx.Err() != nil {
				return found, ctx.Err()
			}
			continue
		}
		replicas := len(rt.Partitions[0].Replicas)
		configs, _ := s.configs(ctx, name, "min.insync.replicas", "unclean.leader.election.enable", "cleanup.policy")
		for _, a := range weak(name, replicas, configs) {
			a.Topic = topic
			found = append(found, a)
		}
	}
	return found, nil
}

// configs returns settings of a topic, without those that this user may not read.
func (s *Sink) configs(ctx context.Context, name string, settings ...string) (map[string]string, error) {
	values := make(map[string]string)
	req := kmsg.NewPtrDescribeConfigsRequest()
	res := kmsg.NewDescribeConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, name
	res.ConfigNames = settings
	req.Resources = append(req.Resources, res)
	resp, err := req.RequestWith(ctx, s.client)
	if err != nil {
		return values, err
	}
	for _, r := range resp.Resources {
		for _, c := range r.Configs {
			if c.Value != nil {
				values[c.Name] = *c.Value
			}
		}
	}
	return values, nil
}

// weak returns advice about the settings that put a topic's messages at risk.
func weak(name string, replicas int, configs map[string]string) (found []broker.Advice) {
	note := func(what, why, fix string) {
		found = append(found, broker.Advice{What: "topic " + name + " " + what, Why: why, Fix: fix})
	}
	least, known := strconv.Atoi(configs["min.insync.replicas"])
	switch {
	case replicas == 1:
		note("has one replica", "acknowledged messages are lost with its broker's disk", "use three replicas and min.insync.replicas=2")
	case known == nil && least <= 1:
		note(fmt.Sprintf("has %d replicas and min.insync.replicas=%d", replicas, least), "while the other replicas lag, acks=all waits for the leader alone, and a failed leader takes acknowledged messages with it",
			"kafka-configs.sh --alter --topic "+name+" --add-config min.insync.replicas=2")
	case known == nil && least >= replicas:
		note(fmt.Sprintf("has %d replicas and min.insync.replicas=%d", replicas, least), "a single broker that is down stops the topic", "use one replica more than min.insync.replicas")
	}
	if configs["unclean.leader.election.enable"] == "true" {
		note("elects unclean leaders", "a replica that lacks acknowledged messages may become the leader",
			"kafka-configs.sh --alter --topic "+name+" --add-config unclean.leader.election.enable=false")
	}
	if p := configs["cleanup.policy"]; p == "compact" || p == "compact,delete" || p == "delete,compact" {
		note("is compacted", "only the last message of each key is kept: a consumer that is behind misses earlier ones",
			"set cleanup.policy=delete, unless consumers need the last state only")
	}
	return found
}
