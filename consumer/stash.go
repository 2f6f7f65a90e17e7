package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// stashEvery is the pause between two looks at the stash, and gapEvery between two
// searches for messages that have waited there too long.
const (
	stashEvery = 2 * time.Second
	gapEvery   = 15 * time.Second
	gapWarning = time.Minute
)

// tendStash applies stashed messages that no other process applies: those of
// an ended process, those whose handler failed, and dead letters
// that a person has requested to retry.
func (c *Consumer[Tx]) tendStash(ctx context.Context, r *run) {
	tick := time.NewTicker(stashEvery)
	defer tick.Stop()
	told := map[gapID]time.Duration{}
	var looked time.Time
	for ctx.Err() == nil {
		if err := c.sweep(ctx, r); err != nil && ctx.Err() == nil {
			c.opts.Logger.DebugContext(ctx, "stash look-up failed", "consumer", c.opts.Name, "error", err)
		}
		if c.opts.Order != nil && time.Since(looked) >= gapEvery {
			looked = time.Now()
			if err := c.lookForGaps(ctx, r, told); err != nil && ctx.Err() == nil {
				c.opts.Logger.DebugContext(ctx, "gap look-up failed", "consumer", c.opts.Name, "error", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-c.nudge:
		}
	}
}

// sweep handles one due message of each key, and starts over
// as long as any key makes progress.
func (c *Consumer[Tx]) sweep(ctx context.Context, r *run) error {
	var behind *inboxwork.Key // nil: from the first key on
	for moved := false; ctx.Err() == nil; {
		var s *inboxwork.Stashed
		err := c.book(ctx, func(ctx context.Context, conn inbox.Conn) (err error) {
			s, err = c.inbox.DueStashed(ctx, conn, c.owner, 2*c.opts.HandlerTimeout, behind)
			return err
		})
		switch {
		case err != nil:
			return err
		case s != nil:
			behind = &inboxwork.Key{Topic: s.Message.Topic, Key: s.Message.Key}
			d := broker.Delivery{Message: s.Message, Origin: s.Origin, Token: *s}
			if s.Undecodable != "" {
				d.Err = errors.New(s.Undecodable)
			}
			v := r.handle(&item{d: d})
			moved = moved || v.Ack
		case !moved: // whatever is left waits
			c.singles.clear()
			return nil
		default: // once more from the first key
			moved, behind = false, nil
		}
	}
	return nil
}

type gapID struct {
	topic, key string
	mark       int64
}

// lookForGaps reports lasting gaps, and gives up gaps that have lasted for SkipGap.
func (c *Consumer[Tx]) lookForGaps(ctx context.Context, r *run, told map[gapID]time.Duration) error {
	var behind *inboxwork.Key
	var oldest time.Duration
	seen := make(map[gapID]bool, len(told))
	for ctx.Err() == nil {
		var (
			g       *inbox.Gap
			skipped bool
		)
		err := c.book(ctx, func(ctx context.Context, conn inbox.Conn) (err error) {
			g, err = c.inbox.NextGap(ctx, conn, behind)
			if err == nil && g != nil && c.isMissing(r, g) {
				skipped, err = c.inbox.SkipGap(ctx, conn, *g)
			}
			return err
		})
		if err != nil {
			return err
		}
		if g == nil {
			break
		}
		behind = &inboxwork.Key{Topic: g.Topic, Key: g.Key}
		id := gapID{g.Topic, g.Key, g.Mark}
		seen[id] = true
		oldest = max(oldest, g.Age)
		c.tellGap(ctx, *g, id, told, skipped)
		if skipped {
			c.wakeStash()
		}
	}
	c.counts.gaps.Store(int64(len(seen)))
	c.counts.gapAge.Store(int64(oldest))
	for id := range told {
		if !seen[id] {
			delete(told, id)
		}
	}
	return nil
}

// isMissing reports whether the versions in g have been missing for SkipGap, and not only
// unread: this process had all that the source has for as long, and has none of them in hand.
func (c *Consumer[Tx]) isMissing(r *run, g *inbox.Gap) bool {
	return c.opts.SkipGap > 0 && min(g.Age, r.level.lasts(time.Now())) >= c.opts.SkipGap && !r.holds(key{g.Topic, g.Key}, g.Mark, g.Needs)
}

func (c *Consumer[Tx]) tellGap(ctx context.Context, g inbox.Gap, id gapID, told map[gapID]time.Duration, skipped bool) {
	if !skipped && g.Age < max(gapWarning, told[id]) {
		return
	}
	told[id] = 2 * g.Age
	log := c.opts.Logger.With("consumer", c.opts.Name, "topic", g.Topic, "key", g.Key,
		"from", g.Mark+1, "to", g.Needs, "waiting", g.Stashed, "age", g.Age.Round(time.Second))
	if skipped {
		log.WarnContext(ctx, "missing versions given up")
		return
	}
	log.WarnContext(ctx, "missing versions found")
	if c.opts.OnGap != nil {
		said := func() *slog.Logger { return log }
		_ = guarded(ctx, said, "Options.OnGap", func() error { c.opts.OnGap(ctx, g); return nil }) // guarded logs the panic
	}
}
