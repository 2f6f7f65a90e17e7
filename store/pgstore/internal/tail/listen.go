package tail

import (
	"context"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// hear rings for every notification until Wait is not called any more. It takes its
// connection out of the pool, so that closing the pool does not wait for it.
func (b *Bell) hear(ctx context.Context) error {
	pooled, err := b.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	conn := pooled.Hijack()
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `LISTEN `+db.Quote(db.Channel(b.Schema))); err != nil {
		return err
	}
	s := b.State()
	b.turn(store.Wake{Using: Listen, Why: s.Why, Fix: s.Fix})
	b.sound() // for messages written before
	for {
		limited, cancel := context.WithTimeout(ctx, deafAfter/4)
		_, err := conn.WaitForNotification(limited)
		silent := limited.Err() != nil
		cancel()
		switch {
		case err == nil:
			b.sound()
		case ctx.Err() != nil || !silent: // the connection is lost
			return err
		}
		if b.deaf() {
			return nil
		}
	}
}
