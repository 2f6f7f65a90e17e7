package broker

import "context"

// Adviser is a Sink that knows what in the broker's settings weakens what a
// relay promises. Not every sink does: a program asks for it by a type assertion.
type Adviser interface {
	// Advise reads the settings of the topics, without changing anything. Topics
	// that are not there, and settings that may not be read, have no advice.
	Advise(ctx context.Context, topics []string) ([]Advice, error)
}

// Advice is one thing that works and may lose messages one day.
type Advice struct {
	Topic string // "": the broker itself
	What  string // "stream EVENTS deletes its oldest messages when it is full"
	Why   string // what happens then
	Fix   string // what to type or to change
}
