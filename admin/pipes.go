package admin

import (
	"errors"
	"fmt"

	"github.com/postrider/postrider/store"
)

// ErrCannot is matched by the error of an act that a store does not know.
var ErrCannot = errors.New("this store cannot do that")

// Stops returns what keeps the stopped destinations of the pipe that ad is the
// operators' side of, or an error that matches ErrCannot. Relays learn of a change
// with their next heartbeat.
func Stops(ad store.Admin) (store.Stops, error) {
	if s, ok := ad.(store.Stops); ok {
		return s, nil
	}
	return nil, fmt.Errorf("%w: it keeps no stopped endpoints; PostgreSQL does. Elsewhere set `stopped: true` in the endpoint's entry, or start the relay anew", ErrCannot)
}

// Pipes returns the pipes of the outbox that ad is the operators' side of. Their
// acts need no lane's owner: relays learn of them with their next heartbeat. A
// store with one pipe only answers with an error that matches ErrCannot.
func Pipes(ad store.Admin) (store.Pipes, error) {
	if p, ok := ad.(store.Pipes); ok {
		return p, nil
	}
	return nil, fmt.Errorf("%w: it has no pipes to list, add, pause or remove; PostgreSQL has", ErrCannot)
}
