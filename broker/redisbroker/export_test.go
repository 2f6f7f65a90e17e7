package redisbroker

// FetchScript is the script with which a source reads.
const FetchScript = fetchScript

// ID is the source's name in leases.
func (s *Source) ID() string { return s.id }
