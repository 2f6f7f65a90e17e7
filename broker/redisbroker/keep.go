package redisbroker

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider/broker"
)

// Keeps is [broker.Info].Keeps. A stream has no retention of its own, only the trimming
// of this sink, so the sink must have the relay's URL. Trimming by age runs
// when an entry is added and, unless exact, removes whole nodes only: so an older entry
// that still exists counts. Trimming by length has no time.
func (s *Sink) Keeps(ctx context.Context, topic string) (broker.Keeping, error) {
	name := s.opts.Prefix + topic
	if s.opts.Trim.MaxAge == 0 {
		return broker.Keeping{Setting: "no max-age in the relay's URL, for stream " + name}, nil
	}
	oldest := time.Duration(0)
	err := s.borrow(ctx, func(l *link) error {
		for _, stream := range Streams(name, s.opts.Partitions) {
			age, err := age(ctx, l, stream)
			if err != nil {
				return fmt.Errorf("redisbroker: read the retention of topic %s: %w", topic, err)
			}
			oldest = max(oldest, age)
		}
		return nil
	})
	if err != nil {
		return broker.Keeping{}, err
	}
	if oldest > s.opts.Trim.MaxAge {
		return broker.Keeping{For: oldest, Setting: "the oldest entry of stream " + name + ", above max-age in the relay's URL"}, nil
	}
	return broker.Keeping{For: s.opts.Trim.MaxAge, Setting: "max-age in the relay's URL, for stream " + name}, nil
}

// age returns the age of a stream's oldest entry, by the server's clock; 0 for an empty stream.
func age(ctx context.Context, l *link, stream string) (time.Duration, error) {
	first := redis.NewXMessageSliceCmd(ctx, "xrange", stream, "-", "+", "count", 1)
	now := redis.NewTimeCmd(ctx, "time")
	if _, err := l.exec(ctx, first, now); err != nil {
		return 0, lost(ctx, false, err)
	}
	if err := failure(nil, first, now); err != nil {
		return 0, refused(err, stream)
	}
	if len(first.Val()) == 0 {
		return 0, nil
	}
	return max(now.Val().Sub(timeOf(first.Val()[0].ID)), 0), nil
}
