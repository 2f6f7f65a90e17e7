package keychain

import (
	"context"
	"errors"
	"time"

	"github.com/postrider/postrider/broker"
)

// Beginning returns a context that ends at half of ctx's time. A sink whose requests wait
// for each other begins none after it. A request that begins just before the end of its
// call is given up at once, the service works on it nevertheless, and the next one waits
// behind it: a service that is slow for a while gets more and more of them.
func Beginning(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	now := time.Now()
	return context.WithDeadline(ctx, now.Add(end.Sub(now)/2))
}

var errLate = errors.New("no request became free in the first half of the call's time")

// Late is the answer for a message whose request was not begun when a [Beginning] was over.
func Late() error { return broker.NotTried(broker.Unknown(errLate, "", "")) }
