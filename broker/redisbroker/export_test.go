package redisbroker

// FetchScript is what a source reads with.
const FetchScript = fetchScript

// ID is the source's name in leases.
func (s *Source) ID() string { return s.id }
