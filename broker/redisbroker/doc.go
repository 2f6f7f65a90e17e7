// Package redisbroker publishes to Redis Streams and receives from them, on
// Redis 7 and 8 and on Valkey.
//
// A [Sink] sends the messages of a call as pipelines with one message per key, or
// as transactions (MULTI, XADD ..., EXEC) where the keys are few. A plain pipeline
// would continue behind a command that failed, and a key's second message would be
// accepted after its first was refused: a server that is out of memory, loading
// or not yet promoted may answer the next command otherwise.
//
// A [Source] reads for one consumer group. A group spreads the entries of a
// stream over its members, and with them the messages of a key; therefore a
// stream is read by one source at a time, which holds a lease in Redis.
//
// # The entry
//
// An entry of a stream is a flat list of fields. Those of a message are the
// header table of package envelope, binary safe, and one more:
//
//	postrider-id      the message's id
//	postrider-key     its key, if it has one
//	postrider-type, postrider-time, content-type, ...   as in package envelope
//	payload           its body, as it is; always there, empty for an empty one
//
// A header of the user that is called "payload" travels as postrider-h-payload.
// The stream's name is the message's topic behind the sink's prefix; where the
// two differ the entry has postrider-topic too.
package redisbroker
