package ops

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Eraser removes the content of messages that were delivered and are kept: the
// payload and the headers. The row stays with its number, id, topic, key, type
// and version, marked as erased; it is not replayed any more.
type Eraser interface {
	// Erasable counts the messages of a key at one moment.
	Erasable(ctx context.Context, q EraseQuery) (Erasable, error)
	// Erase removes the content of at most limit messages that every pipe has
	// settled, oldest first, in one transaction with its journal entry, and
	// returns how many; fewer than limit: none is left. What is not settled is
	// passed over.
	Erase(ctx context.Context, req EraseRequest, limit int) (int64, error)
}

// EraseQuery names messages.
type EraseQuery struct {
	Key   string // required
	Topic string // "": all topics
}

// EraseRequest asks for the messages' content to be removed.
type EraseRequest struct {
	EraseQuery
	Actor  string // who
	Reason string // why
}

// Erasable says what of a key is where.
type Erasable struct {
	Rows    int64            // delivered, with content, or with its headers at least
	Erased  int64            // without content already
	Pending map[string]int64 // by pipe: to be delivered yet, or to be tried again
	Dead    map[string]int64 // by pipe: dead letters
}

// UnsettledError says that messages are to be delivered yet: their content is
// still wanted.
type UnsettledError struct {
	Pending map[string]int64 // by pipe
}

func (e *UnsettledError) Error() string {
	var pipes []string
	for _, pipe := range slices.Sorted(maps.Keys(e.Pending)) {
		pipes = append(pipes, fmt.Sprintf("%d in pipe %q", e.Pending[pipe], pipe))
	}
	return "messages of the key are not delivered yet (" + strings.Join(pipes, ", ") +
		"): wait until they are, or discard those that are parked; nothing has been erased"
}
