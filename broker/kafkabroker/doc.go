// Package kafkabroker publishes to Kafka and receives from it, with franz-go.
//
// A [Sink] uses a client's connections, security and discovery, but builds the
// record batches itself. A producer that accepts records while it fails others
// cannot keep the prefix property: it fails what is buffered at that moment and
// takes what comes after. Here every Deliver call stands in the queue of a
// partition as one segment; each partition has at most one unacknowledged batch,
// written by an idempotent producer; and when a batch fails, what is left of
// its segments leaves the queue before the next batch is made. Calls that run
// at once share batches, so the queues fill up by themselves when the broker is
// slow, and an idle sink sends at once.
//
// A [Source] is a member of a consumer group that commits only what was
// acknowledged, without gaps.
package kafkabroker
