// Package postrider holds what travels: the [Message], its limits and its
// typed errors. Every other package imports it; it imports nothing of ours.
//
// An outbox is a log inside your own database. A relay carries it to a broker,
// lane by lane. An inbox makes every message count once:
//
//	outbox.Enqueue -> your transaction -> relay.Run -> broker -> consumer -> inbox.Once
package postrider
