// Package rabbitbroker publishes to RabbitMQ by AMQP 0-9-1 and receives from it.
//
// A [Sink] publishes persistent, mandatory messages with publisher confirms,
// thousands of keys at once, but has one unconfirmed message per key in a call:
// RabbitMQ answers every message by itself (a full queue refuses one and takes
// the next) and would accept a key's second message after it has refused the
// first.
//
// A [Source] consumes one queue that has a single active consumer, and
// acknowledges one by one.
//
// The protocol is that of https://www.rabbitmq.com/amqp-0-9-1-reference; what is
// particular to RabbitMQ is in https://www.rabbitmq.com/docs/confirms.
package rabbitbroker
