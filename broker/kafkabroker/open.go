package kafkabroker

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ClientOptions returns the options that a [Sink] needs of a client, apart from
// addresses and credentials. Append your own to them.
func ClientOptions() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ClientID("postrider"),
		kgo.RetryTimeoutFn(retryTimeout),
	}
}

// askAgain bounds the client's own retries of requests that come before any record
// (metadata, producer id), when no broker answers. It is short so that Deliver soon
// reports the outage; its caller waits and tries again.
const askAgain = 2 * time.Second

// retryTimeout returns askAgain for these requests and franz-go's own timeout for others.
func retryTimeout(key int16) time.Duration {
	switch key {
	case kmsg.InitProducerID.Int16(), kmsg.Metadata.Int16(), kmsg.DescribeConfigs.Int16(),
		kmsg.FindCoordinator.Int16(), kmsg.AddPartitionsToTxn.Int16():
		return askAgain
	case kmsg.JoinGroup.Int16(), kmsg.SyncGroup.Int16(), kmsg.Heartbeat.Int16(), kmsg.ConsumerGroupHeartbeat.Int16():
		return sessionTimeout
	}
	return 30 * time.Second
}

// Open returns a sink on a client of its own for a URL: see [ParseURL]. Where URL and
// opts, which may be nil, both set an option, the URL decides. Open does no network
// I/O: brokers that cannot be reached are an outage of Deliver. Close ends the sink
// and its client.
func Open(rawURL string, opts *SinkOptions) (*Sink, error) {
	var t Target
	if opts != nil {
		t.Sink = *opts
	}
	if err := t.read(rawURL); err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(t.Client...)
	if err != nil {
		return nil, fmt.Errorf("kafkabroker: open: %w", err)
	}
	s, err := NewSink(client, &t.Sink)
	if err != nil {
		client.Close()
		return nil, err
	}
	s.close = client.Close
	return s, nil
}

// OpenSource returns a source on a client of its own for a URL as [Open] takes it.
// opts must name a group and topics. Parameters for publishing are ignored. Close
// leaves the group and closes the client.
func OpenSource(rawURL string, opts *SourceOptions) (*Source, error) {
	var t Target
	if opts != nil {
		t.Source = *opts
	}
	if err := t.read(rawURL); err != nil {
		return nil, err
	}
	return NewSource(t.Client, &t.Source)
}
