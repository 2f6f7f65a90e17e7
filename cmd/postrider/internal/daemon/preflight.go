package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
)

// preflightTimeout bounds the look at the broker when a relay begins: RabbitMQ takes
// 3 s to say no, and is asked twice. A broker or a database that does not answer is
// waited for as at any other time.
const (
	preflightTimeout = 20 * time.Second
	topicsTimeout    = 2 * time.Second
)

// mostSaid bounds the lines about one thing.
const mostSaid = 5

// run is a relay until ctx ends, or until a look at the broker shows that it accepts
// no message. The relay does not wait for that look.
func (u *unit) run(ctx context.Context) error {
	if err := u.unsealed(ctx); err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	var look sync.WaitGroup
	look.Go(func() {
		if err := u.preflight(ctx); err != nil {
			end(err)
		}
	})
	err := u.relay.Run(ctx)
	end(nil)
	look.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, exit.Usage) {
		return cause
	}
	return err
}

// unsealed refuses a route for a schema registry whose newest messages are all sealed: the
// relay would make dead letters of them. Without the database nothing is known, and the
// relay waits.
func (u *unit) unsealed(ctx context.Context) error {
	if u.sealed == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, topicsTimeout)
	defer cancel()
	if bad := (*open.SealedError)(nil); errors.As(u.sealed(ctx), &bad) {
		return exit.With(exit.Usage, bad)
	}
	return nil
}

// preflight asks the broker whether it would accept any message. It returns an error
// when the broker denies access, or has no destination of any message: a relay that
// could only wait should end. Other missing destinations are logged, because messages
// that can be sent must not wait for them.
func (u *unit) preflight(ctx context.Context) error {
	probe := u.sink.Info().Probe
	if probe == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	var topics []string
	if u.destinations != nil {
		limited, cancel := context.WithTimeout(ctx, topicsTimeout)
		topics, _ = u.destinations(limited) // without the database the relay waits
		cancel()
	}
	missing, err := probe(ctx, topics)
	if errors.Is(err, broker.ErrRefused) {
		return exit.Withf(exit.Usage, "broker %s denied access: %w", u.sink.Info().Name, err)
	} else if err != nil || ctx.Err() != nil {
		return nil // the relay logs a silent broker and waits for it
	}
	reasons, bad := gather(topics, missing)
	if bad > 0 && bad == len(topics) && u.onlyWaits(ctx, topics) {
		return exit.Withf(exit.Usage, "broker %s can take no message of the pipe: %w", u.sink.Info().Name, errors.Join(reasons[:min(len(reasons), mostSaid)]...))
	}
	u.found.Store(bad < len(topics))
	for _, err := range reasons[:min(len(reasons), mostSaid)] {
		u.log.ErrorContext(ctx, "destination unusable", "error", err)
	}
	u.advise(ctx, topics)
	return nil
}

// onlyWaits reports whether the relay could send nothing while some destinations are
// missing: no message in the outbox has another one that is there. The newest messages
// do not tell: older ones may be scheduled, or in retry, or behind.
func (u *unit) onlyWaits(ctx context.Context, missing []string) bool {
	names, whole, err := u.waiting(ctx)
	if err != nil || !whole {
		return false
	}
	names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(missing, name) })
	if len(names) == 0 {
		return true
	}
	others, err := u.sink.Info().Probe(ctx, names)
	_, bad := gather(names, others)
	return err == nil && bad == len(names)
}

// gather returns the reasons why topics have no destination, and their number. Reasons
// that differ in the topic's name only are one, which names the other topics.
func gather(topics []string, missing []error) (reasons []error, bad int) {
	at := make(map[string]int) // of the reasons
	var others [][]string
	for i, err := range missing {
		if err == nil {
			continue
		}
		bad++
		text := strings.ReplaceAll(err.Error(), topics[i], "")
		n, known := at[text]
		if known {
			others[n] = append(others[n], strconv.Quote(topics[i]))
			continue
		}
		at[text] = len(reasons)
		reasons, others = append(reasons, err), append(others, nil)
	}
	for n, more := range others {
		if len(more) > 0 {
			list := strings.Join(more[:min(len(more), mostSaid)], ", ")
			if len(more) > mostSaid {
				list += fmt.Sprintf(" and %d more", len(more)-mostSaid)
			}
			reasons[n] = fmt.Errorf("%w; the same holds for %s", reasons[n], list)
		}
	}
	return reasons, bad
}

// advise logs settings of the broker that risk the loss of messages.
func (u *unit) advise(ctx context.Context, topics []string) {
	advise := u.sink.Info().Advise
	if advise == nil || u.quiet {
		return
	}
	advice, _ := advise(ctx, topics) // the doctor reports it too
	for _, a := range advice[:min(len(advice), mostSaid)] {
		u.log.WarnContext(ctx, "broker settings risk loss", "what", a.What, "why", a.Why, "fix", a.Fix)
	}
}
