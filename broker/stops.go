package broker

// Stops is the ability of a sink with several destinations to leave single ones
// alone. See [Info].Stops.
type Stops struct {
	// Set names all destinations that nothing is sent to from now on: their messages
	// are an outage of theirs. A destination that an earlier call named, and this one
	// does not, continues. Names that the sink does not know are remembered.
	Set func(destinations []string)
	// Gone returns the destinations that want no more messages by their own word, and
	// that Set has not named since. The sink sends them nothing already.
	Gone func() []Gone
}

// Gone is a destination that wants no more messages by its own word.
type Gone struct {
	Destination string
	Reason      string // "answer 410 Gone", without anything of the answer's text
}
