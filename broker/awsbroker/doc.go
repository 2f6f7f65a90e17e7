// Package awsbroker publishes to Amazon SQS and receives from it, by the AWS SDK.
//
// A [Sink] sends batches of up to ten messages, many at once, and has one
// unanswered message per key: SQS answers every entry of a batch by itself and
// would accept a key's second message after it has refused the first. In a FIFO
// queue the message's key is its MessageGroupId.
//
// A [Source] polls one queue and hands out one message of a key at a time.
//
// The service is described in
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide.
package awsbroker
