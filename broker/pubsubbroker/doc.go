// Package pubsubbroker publishes to Google Cloud Pub/Sub and receives from it.
//
// A [Sink] publishes the messages of a key in requests of their own, one after the
// other, with the key as the ordering key. It uses the service's API and not the
// client's publisher: that one bundles, retries and pauses keys by itself, so that
// nobody knows what a call has sent.
//
// A [Source] pulls from one subscription and hands out one message of a key at a time.
//
// The service is described in https://cloud.google.com/pubsub/docs.
package pubsubbroker
