package admin

import (
	"errors"
	"fmt"

	"github.com/postrider/postrider/store"
)

// ErrCannot is matched by the error of an act that a store does not know.
var ErrCannot = errors.New("this store cannot do that")

// Pipes returns the pipes of the outbox that ad is the operators' side of. Their
// acts need no lane's owner: relays learn of them with their next heartbeat. A
// store with one pipe only answers with an error that matches ErrCannot.
func Pipes(ad store.Admin) (store.Pipes, error) {
	if p, ok := ad.(store.Pipes); ok {
		return p, nil
	}
	return nil, fmt.Errorf("%w: it has no pipes to list, add, pause or remove; PostgreSQL has", ErrCannot)
}
