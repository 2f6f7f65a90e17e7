package redisbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider/broker"
)

var _ broker.Prober = (*Sink)(nil)

// Durability is how the server must be configured to keep what it acknowledges.
type Durability int

// The durabilities, from the weakest.
const (
	// DurableAny takes the server as it is.
	DurableAny Durability = iota
	// DurableEverySecond demands appendonly yes: a power cut costs about a second.
	DurableEverySecond
	// DurableAlways demands appendonly yes and appendfsync always as well.
	DurableAlways
)

var (
	errNotDurable = errors.New("the server does not keep what durable= demands")
	errEvicts     = errors.New("the server evicts keys, and a stream is a key: it would delete messages that nobody has read")
)

// Probe implements broker.Prober. It refuses a server that evicts streams
// (maxmemory-policy allkeys-...), one that is a replica, and one that keeps less
// than Durable demands. Streams that are missing are errors only with NoCreate.
func (s *Sink) Probe(ctx context.Context, topics []string) ([]error, error) {
	var l *link
	select {
	case l = <-s.links:
		defer func() { s.links <- l }()
	case <-ctx.Done():
		return nil, fmt.Errorf("reach redis: %w", ctx.Err())
	}
	info := redis.NewStringCmd(ctx, "info")
	fsync := redis.NewMapStringStringCmd(ctx, "config", "get", "append*")
	if _, err := l.exec(ctx, info, fsync); err != nil {
		return nil, fmt.Errorf("reach redis: %w", lost(ctx, false, err))
	}
	if err := info.Err(); err != nil {
		if c := code(err.Error()); c != "NOPERM" {
			return nil, fmt.Errorf("reach redis: %w", refused(err, ""))
		}
		s.opts.Log.WarnContext(ctx, "redis: the server does not let its configuration be read: whether it keeps messages is not known")
	} else if err := s.judge(ctx, facts(info.Val()), fsync.Val()["appendfsync"]); err != nil {
		return nil, err
	}
	missing := make([]error, len(topics))
	for i, topic := range topics {
		missing[i] = s.look(ctx, l, topic)
	}
	return missing, nil
}

// facts are the lines of INFO.
func facts(info string) map[string]string {
	all := make(map[string]string)
	for line := range strings.SplitSeq(info, "\r\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			all[name] = value
		}
	}
	return all
}

func (s *Sink) judge(ctx context.Context, is map[string]string, fsync string) error {
	if is["cluster_enabled"] == "1" {
		return refused(errors.New("MOVED cluster-enabled yes"), "")
	}
	if is["role"] == "slave" {
		return refused(errors.New("READONLY the server is a replica"), "")
	}
	if policy := is["maxmemory_policy"]; is["maxmemory"] != "0" && strings.HasPrefix(policy, "allkeys-") {
		return fmt.Errorf("%w: set maxmemory-policy noeviction (it is %s)", errEvicts, policy)
	}
	if s.opts.Synced && (is["aof_enabled"] != "1" || fsync == "no") {
		return fmt.Errorf("%w: synced=true needs appendonly yes and appendfsync always or everysec", errNotDurable)
	}
	var lack string
	switch aof := is["aof_enabled"] == "1"; {
	case !aof:
		lack = "appendonly is no: a crash loses what came since the last snapshot"
	case fsync != "always":
		lack = "appendfsync is not always: a power cut loses about a second"
	default:
		return nil
	}
	need := s.opts.Durable
	if need == DurableAlways || need == DurableEverySecond && is["aof_enabled"] != "1" {
		return fmt.Errorf("%w: %s", errNotDurable, lack)
	}
	s.opts.Log.WarnContext(ctx, "redis: the server may lose what it has acknowledged", slog.String("why", lack))
	return nil
}

// look finds what is in the way of a topic.
func (s *Sink) look(ctx context.Context, l *link, topic string) error {
	for n := range max(s.opts.Partitions, 1) {
		stream := s.opts.StreamPrefix + topic
		if s.opts.Partitions > 1 {
			stream = partition(stream, n)
		}
		kind := redis.NewStatusCmd(ctx, "type", stream)
		if _, err := l.exec(ctx, kind); err != nil {
			return fmt.Errorf("%q: %w", stream, lost(ctx, false, err))
		}
		switch {
		case kind.Err() != nil:
			return fmt.Errorf("%q: %w", stream, refused(kind.Err(), stream))
		case kind.Val() == "none" && s.opts.NoCreate:
			return fmt.Errorf("%q: %w", stream, errNoStream)
		case kind.Val() != "none" && kind.Val() != "stream":
			return fmt.Errorf("%q: the key is a %s, not a stream", stream, kind.Val())
		}
	}
	return nil
}
