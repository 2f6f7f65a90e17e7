// Package relay carries an outbox to a broker: it leases lanes, reads a store,
// delivers to a sink and settles what was acknowledged.
//
//	r := relay.New(st, sink, nil)
//	err := r.Run(ctx) // until ctx ends; then drains and returns nil
//
// Run may be called in the application's own process, in any number of
// replicas: they share the lanes fairly and take over from each other. A
// message is delivered at least once, in order per key. It is settled only
// after the sink has acknowledged it or together with its record in the parked table.
//
// Run waits for an unreachable database or broker, at the start and later.
// It returns an error only if a person must act: for a schema of another
// version, or an unusable database, found at the start.
package relay
