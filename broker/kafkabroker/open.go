package kafkabroker

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ClientOptions returns what a [Sink] needs of a client beside the brokers'
// addresses and the credentials. Add your own behind them.
func ClientOptions() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ClientID("postrider"),
		kgo.RetryTimeoutFn(retryTimeout),
	}
}

// askAgain is how long the client goes on asking for what must be known before
// anything is sent, when no broker answers: short, because Deliver says it then
// and whoever called it waits and comes again.
const askAgain = 2 * time.Second

// retryTimeout is franz-go's own but for those questions.
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

// Open makes a client and a sink of a URL: see [ParseURL]. It does no network
// I/O. The client is the caller's to close.
func Open(rawURL string, more ...kgo.Opt) (*kgo.Client, *Sink, error) {
	target, err := ParseURL(rawURL)
	if err != nil {
		return nil, nil, fmt.Errorf("kafkabroker: open: %w", err)
	}
	client, err := kgo.NewClient(append(target.Client, more...)...)
	if err != nil {
		return nil, nil, fmt.Errorf("kafkabroker: open: %w", err)
	}
	sink, err := NewSink(client, &target.Sink)
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return client, sink, nil
}
