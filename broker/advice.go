package broker

// Advice is one setting of a broker that works and may lose messages one day. See
// [Info].Advise.
type Advice struct {
	Topic string // "": the broker itself
	What  string // "stream EVENTS deletes its oldest messages when it is full"
	Why   string // what happens then
	Fix   string // what to type or to change
}
