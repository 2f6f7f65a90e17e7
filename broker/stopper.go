package broker

// Stopper is a Sink that has several destinations and leaves those alone that are
// stopped, while the others go on. Not every sink is one: a relay asks for it by a
// type assertion. Its methods are safe for concurrent use.
type Stopper interface {
	// Stop names all destinations that nothing is sent to from now on: their
	// messages are an outage of theirs. One that an earlier call had named, and this
	// one does not, goes on. Names that the sink does not know are remembered.
	Stop(destinations []string)
	// Gone returns the destinations that have said themselves that they want nothing
	// more, and that Stop has not named since. The sink sends them nothing already.
	Gone() []Gone
}

// Gone is a destination that has said that it wants no more messages.
type Gone struct {
	Destination string
	Reason      string // "answer 410 Gone", without anything of the answer's text
}
