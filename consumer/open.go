package consumer

import (
	"context"
	"errors"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/claim"
	"github.com/postrider/postrider/seal"
)

// keysError means that a message could not be opened because the keys are
// unreachable.
type keysError struct{ err error }

func (e *keysError) Error() string { return e.err.Error() }
func (e *keysError) Unwrap() error { return e.err }

// wasErased reports whether the payload was erased before the message was sent.
func wasErased(m *postrider.Message) bool {
	return m.Headers[postrider.ErasedHeader] != "" && len(m.Payload) == 0
}

// open decrypts the message for its handler, outside of the transaction, because
// fetching keys may be slow. An erased message is claimed like any other, without its
// handler, so that it counts as a duplicate when it is delivered again.
func (c *Consumer[Tx]) open(ctx context.Context, t *task) (erased bool, err error) {
	const erasedText = "erased: acknowledged without an effect"
	if wasErased(&t.m) {
		t.log().InfoContext(ctx, erasedText)
		return true, nil
	}
	if c.opts.Opener == nil {
		return false, nil
	}
	limited, cancel := context.WithTimeout(ctx, c.opts.HandlerTimeout)
	defer cancel()
	var (
		m        postrider.Message
		panicked *panicError
	)
	err = guarded(ctx, t.log, "the opener", func() (err error) {
		m, err = c.opts.Opener.Open(limited, t.m)
		return err
	})
	switch {
	case err == nil:
		t.readable = m
		if c.keys.worked() {
			c.opts.Logger.InfoContext(ctx, "keys reachable again", "consumer", c.opts.Name)
		}
		return false, nil
	case errors.Is(err, seal.ErrErased):
		t.log().InfoContext(ctx, erasedText)
		return true, nil
	case errors.Is(err, seal.ErrTampered):
		return false, &handlerError{Permanent(err)}
	case errors.As(err, &panicked), errors.Is(err, seal.ErrUnknownKey), errors.Is(err, seal.ErrNotSealed), errors.Is(err, claim.ErrGone):
		return false, &handlerError{err}
	}
	return false, &keysError{err}
}
