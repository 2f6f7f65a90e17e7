package demo

import (
	"context"
	"fmt"
	"time"
)

// killer kills the relay at every milestone, each time while messages are
// unsettled, and waits until the next one publishes.
func (d *run) killer(ctx context.Context) error {
	for k := int64(1); k <= int64(d.opts.Kills); k++ {
		for d.load.begun.Load() < d.load.milestone(k) {
			if !sleep(ctx, 5*time.Millisecond) {
				return nil
			}
		}
		if err := d.kill(ctx); err != nil {
			return err
		}
		d.load.kills.Store(k)
	}
	return nil
}

// kill freezes the relay, looks whether messages are unsettled, and kills it
// only then: frozen, it cannot settle between the look and the kill.
func (d *run) kill(ctx context.Context) error {
	victim := d.relay.current()
	var inFlight bool
	for deadline := time.Now().Add(patience); ; {
		freeze(victim.cmd.Process)
		status, err := d.st.Admin.Status(ctx)
		if ctx.Err() != nil {
			thaw(victim.cmd.Process)
			return nil //nolint:nilerr // interrupted: the error is the interruption's
		}
		inFlight = err == nil && status.Pending > 0
		if inFlight || time.Now().After(deadline) {
			break
		}
		thaw(victim.cmd.Process)
		if !sleep(ctx, 3*time.Millisecond) {
			return nil
		}
	}
	killed := time.Now()
	if err := victim.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("demo: kill the relay: %w", err)
	}
	<-victim.done
	d.view.killed(inFlight)
	if err := d.relay.restart(); err != nil {
		return err
	}
	before, err := d.lastWords(ctx)
	if err != nil {
		return err
	}
	return d.awaitPublish(ctx, before, killed)
}

// lastWords counts what is at the broker when what the dead relay had sent has
// arrived. Its successor cannot have published yet: the lease still runs.
func (d *run) lastWords(ctx context.Context) (int, error) {
	for last := -1; ; {
		now, err := d.broker.published(ctx)
		if err != nil {
			return 0, fmt.Errorf("demo: count at the broker: %w", err)
		}
		if now == last || !sleep(ctx, 50*time.Millisecond) {
			return now, nil
		}
		last = now
	}
}

func (d *run) awaitPublish(ctx context.Context, before int, killed time.Time) error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if now, err := d.broker.published(ctx); err == nil && now > before {
			d.view.takenOver(time.Since(killed))
			return nil
		}
		select {
		case <-d.relay.current().done:
			return fmt.Errorf("demo: the relay ended: %s", d.lastLog("relay"))
		default:
		}
		if !sleep(ctx, 10*time.Millisecond) {
			return nil
		}
	}
	return fmt.Errorf("demo: the relay publishes nothing %s after a kill: %s", patience, d.lastLog("relay"))
}
