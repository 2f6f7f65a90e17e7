// Package redisbroker publishes to Redis Streams and receives from them, on
// Redis 7 and 8 and on Valkey.
//
// A [Sink] sends the messages of a call as pipelines with one message per key, or
// as transactions (MULTI, XADD ..., EXEC) for few keys. A plain pipeline
// would continue after a failed command, and a key's second message could be
// accepted after its first was refused: a server that is out of memory, loading
// or not yet promoted may accept the next command.
//
// A [Source] reads for one consumer group. Redis spreads the entries of a
// stream, and so the messages of a key, over the members of a group. Therefore only one
// source at a time reads a stream: the one with its lease in Redis.
//
// # The entry
//
// An entry of a stream is a flat list of binary-safe fields. A message has the fields of
// the header table of package envelope, and its payload:
//
//	postrider-id      the message's id
//	postrider-key     its key, if it has one
//	postrider-type, postrider-time, content-type, ...   as in package envelope
//	payload           its body, unchanged; always present, possibly empty
//
// A user header named "payload" travels as postrider-h-payload.
// The stream's name is the sink's prefix and the message's topic; if the stream's name
// differs from the topic, the entry has postrider-topic too.
package redisbroker
