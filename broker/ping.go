package broker

import "context"

// Pinger is a Sink that can tell cheaply whether its broker answers. Not every sink
// can: a relay asks for it by a type assertion.
type Pinger interface {
	// Ping asks the broker for a sign of life with at most a few small requests, and
	// connects first where there is no connection. It sends no message and changes
	// nothing. nil: the broker answers, and accepts us. The error is [ErrRefused]
	// where a person must act. A sink with several brokers or endpoints answers nil
	// when one of them answers.
	Ping(ctx context.Context) error
}
