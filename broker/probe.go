package broker

import (
	"context"
	"errors"
)

// ErrRefused is in the chain of a Prober's error when the broker has answered,
// and does not let us in as who we say we are: a person must act.
var ErrRefused = errors.New("the broker refuses us")

// Prober is a Sink that can tell, before anything is sent, whether it would get
// through. Not every sink can: a program asks for it by a type assertion.
type Prober interface {
	// Probe reaches the broker and looks whether the topics are there, without
	// making or changing anything. It returns one error per topic, nil where the
	// topic is there, or an error when the broker did not answer before ctx ended,
	// or refused us ([ErrRefused]).
	Probe(ctx context.Context, topics []string) (missing []error, err error)
}
