package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/seal"
)

// HandleChain registers fn for messages of typ, and of the aliases, which are earlier
// names of the type. The payload is decoded by its schema version: chain converts every
// version that it has to an E. The rest is as for [Handle].
//
// A message of a version newer than chain is never decoded. It fails its attempts
// ([schema.Retry]) or is dead at once ([schema.Dead]). A payload that does not match its
// version, a version older than chain and an upcaster's error make the message dead
// at once; the text of the dead letter begins with a code such as
// [schema.CodeUpcast]. A message with [schema.ErrDrop] counts as applied.
func HandleChain[Tx, E any](c *Consumer[Tx], typ string, chain schema.Chain[E], fn func(ctx context.Context, tx Tx, e E) error, aliases ...string) {
	if err := chain.Err(); err != nil && c.err == nil {
		c.err = fmt.Errorf("consumer %q: chain of the type %q: %w", c.opts.Name, typ, err)
	}
	h := func(ctx context.Context, tx Tx, m postrider.Message) error {
		if m.Headers[seal.HeaderAlgorithm] != "" {
			return errSealed
		}
		e, err := chain.Decode(m.SchemaVersion, m.Payload)
		var version *schema.VersionError
		switch {
		case err == nil:
			return fn(ctx, tx, e)
		case errors.Is(err, schema.ErrDrop):
			return nil
		case errors.As(err, &version) && version.Newer() && chain.Newer() == schema.Retry:
			return err
		}
		return Permanent(err)
	}
	c.HandleMessage(typ, h)
	for _, name := range aliases {
		c.HandleMessage(name, h)
	}
}
