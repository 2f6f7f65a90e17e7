// Package natsbroker publishes to NATS JetStream and receives from it.
//
// A [Sink] publishes asynchronously, thousands of keys at once, but has one
// unacknowledged message per key in a call: JetStream answers every message
// individually and would accept a key's second message after refusing the first.
//
// A [Source] is a durable pull consumer with explicit acknowledgements.
package natsbroker
