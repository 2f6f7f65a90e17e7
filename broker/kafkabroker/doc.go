// Package kafkabroker publishes to Kafka and receives from it, with franz-go.
//
// A [Sink] uses a client's connections, security and discovery, but builds the
// record batches itself. A producer that accepts records while it fails others
// cannot keep the prefix property: it fails the records buffered at that moment and
// accepts later ones. Here every Deliver call adds one segment to the queue of a
// partition; each partition has at most one unacknowledged batch,
// written by an idempotent producer; and when a batch fails, the rest of
// its segments leaves the queue before the next batch is made. Concurrent
// calls share batches: while the broker is slow the queues grow and batches become
// larger, and an idle sink sends at once.
//
// A [Source] is a member of a consumer group. It commits only acknowledged messages,
// without gaps.
package kafkabroker
