package inboxsql

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNoID is that of package inbox.
var ErrNoID = errors.New("message has no id")

// Identity is the name of a consumer, and what is wrong with it.
type Identity struct {
	Consumer string
	Err      error // nil: the name can be used
}

// IdentityOf returns the identity of a consumer.
func IdentityOf(consumer string) Identity {
	if consumer == "" || len(consumer) > 255 || Clean(consumer, 255) != consumer {
		return Identity{consumer, fmt.Errorf("inbox: the consumer's name %q must be 1 to 255 bytes of text", Clean(consumer, 64))}
	}
	return Identity{consumer, nil}
}

// Usable returns why the consumer cannot process a message of that id, or nil.
func (i *Identity) Usable(id string) error {
	if i.Err != nil {
		return i.Err
	}
	if id == "" {
		return fmt.Errorf("inbox %q: %w", i.Consumer, ErrNoID)
	}
	return nil
}

// Wrap adds consumer and message to an error.
func (i *Identity) Wrap(what, id string, err error) error {
	return fmt.Errorf("inbox %q: %s message %s: %w", i.Consumer, what, id, err)
}

// Clean makes s fit for a text column: valid UTF-8 without zero bytes, at most
// limit bytes. A message of a broker may come from another writer than Enqueue.
func Clean(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, ""), "\x00", "")
}
