package redisbroker

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider/broker"
)

// Advise is [broker.Info].Advise.
func (s *Sink) Advise(ctx context.Context, topics []string) (all []broker.Advice, err error) {
	err = s.borrow(ctx, func(l *link) error {
		info := redis.NewStringCmd(ctx, "info")
		fsync := redis.NewMapStringStringCmd(ctx, "config", "get", "appendfsync")
		if _, err := l.exec(ctx, info, fsync); err != nil {
			return lost(ctx, false, err)
		}
		if info.Err() == nil {
			all = adviseServer(facts(info.Val()), fsync.Val()["appendfsync"])
		}
		if s.opts.Trim != (Trim{}) && !l.has(hasXAckDel) {
			all = append(all, broker.Advice{
				What: "the sink trims its streams (maxlen, max-age), and the server cannot spare unread entries",
				Why:  "messages that a group has not read yet are deleted when it falls behind",
				Fix:  "use Redis 8.2 or newer, or let consumers delete acknowledged entries instead of trimming",
			})
		}
		for _, topic := range topics {
			all = append(all, s.adviseTopic(ctx, l, topic)...)
		}
		return ctx.Err()
	})
	return all, err
}

func adviseServer(is map[string]string, fsync string) (all []broker.Advice) {
	switch aof := is["aof_enabled"] == "1"; {
	case !aof:
		all = append(all, broker.Advice{
			What: "redis: appendonly is no", Why: "a crash loses messages acknowledged since the last snapshot", Fix: "CONFIG SET appendonly yes",
		})
	case fsync != "" && fsync != "always":
		all = append(all, broker.Advice{
			What: "redis: appendfsync is " + fsync, Why: "a power cut loses messages acknowledged in about the last second", Fix: "CONFIG SET appendfsync always, or replicas=N in the broker's URL",
		})
	}
	if evicts(is) {
		all = append(all, broker.Advice{
			What: "redis: maxmemory-policy is " + is["maxmemory_policy"], Why: "once maxmemory is reached, streams are deleted with their unread messages", Fix: "CONFIG SET maxmemory-policy noeviction",
		})
	}
	return all
}

func (s *Sink) adviseTopic(ctx context.Context, l *link, topic string) (all []broker.Advice) {
	if s.opts.NoDedup || !l.has(hasIDMP) {
		return nil
	}
	for _, stream := range Streams(s.opts.Prefix+topic, s.opts.Partitions) {
		info := redis.NewXInfoStreamCmd(ctx, stream)
		if _, err := l.exec(ctx, info); err != nil {
			return all
		}
		if v := info.Val(); info.Err() == nil && v != nil && v.IDMPMaxSize < leastMemory {
			all = append(all, broker.Advice{
				Topic: topic, What: fmt.Sprintf("stream %s remembers %d ids per producer", stream, v.IDMPMaxSize),
				Why: "too few to recognise a repeated run as a whole, so deduplication is off for this stream",
				Fix: fmt.Sprintf("XCFGSET %s IDMP-MAXSIZE 10000", stream),
			})
		}
	}
	return all
}
