package kafkabroker

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/broker"
)

// Keeps is [broker.Info].Keeps. A compacted topic keeps without end.
func (s *Sink) Keeps(ctx context.Context, topic string) (broker.Keeping, error) {
	name := s.prefix + topic
	values, err := s.configs(ctx, name, "retention.ms", "cleanup.policy")
	if err != nil {
		return broker.Keeping{}, fmt.Errorf("kafkabroker: read retention.ms of topic %s: %w", name, remedy(err, name))
	}
	text, there := values["retention.ms"]
	if !there {
		return broker.Keeping{}, fmt.Errorf("kafkabroker: read retention.ms of topic %s: the topic does not exist, or this user lacks DESCRIBE_CONFIGS; create the topic, or grant it", name)
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return broker.Keeping{}, fmt.Errorf("kafkabroker: read retention.ms of topic %s: %w", name, err)
	}
	if policy := values["cleanup.policy"]; !strings.Contains(policy, "delete") {
		return broker.Keeping{Setting: "cleanup.policy=" + policy + " of topic " + name}, nil
	}
	k := broker.Keeping{Setting: "retention.ms of topic " + name}
	if ms > 0 { // -1 means without end; longer times are cut to maxKept
		k.For = time.Duration(min(ms, int64(maxKept/time.Millisecond))) * time.Millisecond
	}
	return k, nil
}

// maxKept is the longest time that Keeps reports, about a century.
const maxKept = 36500 * 24 * time.Hour
