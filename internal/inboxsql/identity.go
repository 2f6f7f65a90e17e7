package inboxsql

import (
	"errors"
	"fmt"
	"strings"

	"github.com/postrider/postrider/dialect"
)

// ErrNoID is that of package inbox.
var ErrNoID = errors.New("message has no id")

// Identity is the name of a consumer, and why it cannot have an inbox.
type Identity struct {
	Consumer string
	Err      error // nil: it can

	longest int // of an id, in bytes; 0: the database does not bound it
}

// IdentityOf returns the identity of a consumer in a database of the dialect d.
func IdentityOf(d dialect.Dialect, consumer string) Identity {
	i := Identity{Consumer: consumer}
	if d == dialect.MySQL {
		i.longest = 255 // of the column; a server that is not strict would cut two ids to one
	}
	if consumer == "" || len(consumer) > 255 || Clean(consumer, 255) != consumer {
		i.Err = fmt.Errorf("inbox: the consumer's name %q must be 1 to 255 bytes of text", Clean(consumer, 64))
	}
	return i
}

// Usable returns why the consumer cannot process a message of that id, or nil.
func (i *Identity) Usable(id string) error {
	if i.Err != nil {
		return i.Err
	}
	if id == "" {
		return fmt.Errorf("inbox %q: %w", i.Consumer, ErrNoID)
	}
	if i.longest > 0 && len(id) > i.longest {
		return fmt.Errorf("inbox %q: message %s...: the id has %d bytes; an inbox in MySQL takes at most %d", i.Consumer, Clean(id, 32), len(id), i.longest)
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
