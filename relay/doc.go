// Package relay carries an outbox to a broker: it leases lanes, reads a store,
// delivers to a sink and settles what was acknowledged.
//
//	r := relay.New(st, sink, nil)
//	err := r.Run(ctx) // until ctx ends; then drains and returns nil
//
// Run may be called in the application's own process, in any number of
// replicas: they share the lanes fairly and take over from each other. A
// message is delivered at least once, in order per key; nothing is settled
// before the sink has acknowledged it or it stands in the parked table.
//
// An unreachable database or broker is waited for, at the start and later.
// Only what a person must change ends Run with an error: a schema that does not
// fit, or a database that cannot be used as it is, found at the start.
package relay
