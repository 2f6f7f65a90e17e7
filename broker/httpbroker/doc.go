// Package httpbroker delivers messages as webhooks, one POST per message to the
// endpoint of its topic, and receives them.
//
// Requests are signed by the specification Standard Webhooks
// (https://github.com/standard-webhooks/standard-webhooks), so a receiver in any
// language verifies them with an existing library. [Sink] keeps order per key,
// and an endpoint that hangs, fails or asks for pauses does not affect the others.
// [Source] is the other side: an http.Handler that answers once the consumer has
// committed.
package httpbroker
