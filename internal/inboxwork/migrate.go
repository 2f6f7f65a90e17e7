package inboxwork

import (
	"context"
	"errors"
	"time"

	"github.com/postrider/postrider/inbox"
)

// migrateTries is how often Migrate asks for tables that running consumers hold,
// for 3 s each time, so that new ones never wait for longer.
const migrateTries = 20

// Migrate calls once, which migrates in a transaction of its own, until no running
// consumer holds a table that is to be changed.
func Migrate(ctx context.Context, once func() error) error {
	for try := 1; ; try++ {
		err := once()
		var again *inbox.RetryableError
		if !errors.As(err, &again) || try == migrateTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Duration(try) * 50 * time.Millisecond): // what waited behind it goes first
		}
	}
}
