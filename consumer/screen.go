package consumer

import (
	"context"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/inbox"
)

// Filter guesses which messages are duplicates, for instance by a set of ids in Redis
// that expire: redisbroker.Filter is one. It may be wrong in both directions. A
// message that it considers new is processed as usual, and ids that it remembers
// are only looked up in the inbox, many in one read.
type Filter interface {
	// Seen remembers ids, and reports for each whether it was remembered before.
	// It is called from one goroutine.
	Seen(ctx context.Context, ids []string) ([]bool, error)
}

// While a filter does not answer it is skipped, for filterRest first and twice
// as long each time up to filterRestMax.
const (
	filterRest    = time.Second
	filterRestMax = 30 * time.Second
)

// screen finds deliveries that the filter remembers and the inbox has: they may
// be acknowledged. Only the receiving goroutine uses it.
type screen[Tx any] struct {
	c     *Consumer[Tx]
	until time.Time     // the filter is skipped until then
	rest  time.Duration // length of the last skip; 0: the filter works
}

// known reports for each delivery whether its message is certainly processed; nil:
// none is. In doubt it returns false, and the delivery is claimed like any other.
func (s *screen[Tx]) known(ctx context.Context, ds []broker.Delivery) []bool {
	if time.Now().Before(s.until) {
		return nil
	}
	var ids []string
	var at []int
	for i := range ds {
		if id := ds[i].Message.ID; ds[i].Err == nil && fit(id) {
			ids, at = append(ids, s.c.opts.Name+"/"+id), append(at, i)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	seen, ok := s.ask(ctx, ids)
	if !ok {
		return nil
	}
	var suspects []postrider.Message
	var where []int
	for i, yes := range seen {
		if yes {
			suspects, where = append(suspects, ds[at[i]].Message), append(where, at[i])
		}
	}
	if len(suspects) == 0 {
		return nil
	}
	var there []bool
	err := s.c.book(ctx, func(ctx context.Context, conn inbox.Conn) (err error) {
		there, err = s.c.inbox.Processed(ctx, conn, suspects)
		return err
	})
	if err != nil {
		s.c.opts.Logger.DebugContext(ctx, "inbox look-up failed", "consumer", s.c.opts.Name, "error", err)
		return nil
	}
	known := make([]bool, len(ds))
	for i, yes := range there {
		if known[where[i]] = yes; yes {
			s.c.counts.duplicates.Add(1)
		}
	}
	return known
}

// ask queries the filter, within FilterTimeout.
func (s *screen[Tx]) ask(ctx context.Context, ids []string) (seen []bool, ok bool) {
	limited, cancel := context.WithTimeout(ctx, s.c.opts.FilterTimeout)
	defer cancel()
	seen, err := s.c.opts.Filter.Seen(limited, ids)
	log := s.c.opts.Logger.With("consumer", s.c.opts.Name)
	switch {
	case err == nil && len(seen) == len(ids):
		if s.rest > 0 {
			s.rest = 0
			log.InfoContext(ctx, "filter reachable again")
		}
		return seen, true
	case ctx.Err() != nil:
		return nil, false
	}
	level := slog.LevelDebug
	if s.rest == 0 {
		level = slog.LevelWarn
	}
	s.rest = min(max(2*s.rest, filterRest), filterRestMax)
	s.until = time.Now().Add(s.rest)
	log.Log(ctx, level, "filter unreachable", "pause", s.rest, "error", err)
	return nil, false
}

// fit reports whether the inbox can store an id.
func fit(id string) bool {
	return id != "" && len(id) <= 255 && utf8.ValidString(id) && !strings.Contains(id, "\x00")
}
