// Package rabbitbroker publishes to RabbitMQ by AMQP 0-9-1 and receives from it.
//
// A [Sink] publishes persistent, mandatory messages with publisher confirms,
// thousands of keys at once, but has one unconfirmed message per key in a call:
// RabbitMQ answers every message individually (a full queue refuses one and accepts
// the next) and would accept a key's second message after refusing the
// first.
//
// A [Source] consumes one queue that has a single active consumer, and
// acknowledges one by one.
//
// The protocol is specified at https://www.rabbitmq.com/amqp-0-9-1-reference, and
// RabbitMQ's extensions at https://www.rabbitmq.com/docs/confirms.
package rabbitbroker
