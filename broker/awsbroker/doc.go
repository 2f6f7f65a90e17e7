// Package awsbroker publishes to Amazon SQS and SNS, and receives from SQS, by the AWS SDK.
//
// A [Sink] sends batches of up to ten messages, many at once, and has one
// unanswered message per key: the services answer every entry of a batch by itself and
// would accept a key's second message after they have refused the first. In a FIFO
// queue or topic the message's key is its MessageGroupId.
//
// A [Source] polls one queue and hands out one message of a key at a time.
//
// The services are described in
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide and
// https://docs.aws.amazon.com/sns/latest/dg.
package awsbroker
