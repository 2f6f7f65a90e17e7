// Package httpbroker delivers messages as webhooks, one POST per message to the
// endpoint of its topic, and receives them.
//
// Requests are signed as Standard Webhooks says
// (https://github.com/standard-webhooks/standard-webhooks), so a receiver in any
// language verifies them with a library that exists. [Sink] keeps order per key,
// and what one endpoint does (hang, fail, ask for peace) stays its own affair.
// [Source] is the other side: an http.Handler that answers once the consumer has
// committed.
package httpbroker
