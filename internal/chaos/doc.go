// Package chaos breaks things around an embedded relay and counts afterwards:
// real PostgreSQL, real Kafka and NATS, servers and relays that are killed,
// frozen, made read-only or never there. One test per sentence of what must
// hold; the truth is always the committed rows of the outbox table.
package chaos
