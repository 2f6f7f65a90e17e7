package broker

import "time"

// Keeping is what a broker keeps of a topic. See [Info].Keeps.
type Keeping struct {
	// For is how long the broker keeps a message. 0: without end, unless Removes.
	For time.Duration
	// Removes reports that a message goes when it has been acknowledged.
	Removes bool
	// Setting names what decides: "retention.ms of topic orders".
	Setting string
}
