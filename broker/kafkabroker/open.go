package kafkabroker

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
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
	case kmsg.InitProducerID.Int16(), kmsg.Metadata.Int16(), kmsg.DescribeConfigs.Int16():
		return askAgain
	case kmsg.JoinGroup.Int16(), kmsg.SyncGroup.Int16(), kmsg.Heartbeat.Int16(), kmsg.ConsumerGroupHeartbeat.Int16():
		return sessionTimeout
	}
	return 30 * time.Second
}

// Open makes a client and a sink of a URL such as
//
//	kafka://host1:9092,host2:9092/?topic-prefix=prod.&compression=lz4
//
// compression is none (the default), gzip, snappy, lz4 or zstd. Open does no
// I/O. The client is the caller's to close. Errors do not repeat the URL.
func Open(rawURL string, more ...kgo.Opt) (*kgo.Client, *Sink, error) {
	target, err := parseURL(rawURL)
	if err != nil {
		return nil, nil, err
	}
	opts := append(ClientOptions(), kgo.SeedBrokers(target.brokers...), kgo.ProducerBatchCompression(target.compression))
	client, err := kgo.NewClient(append(opts, more...)...)
	if err != nil {
		return nil, nil, fmt.Errorf("kafkabroker: open: %w", err)
	}
	sink, err := NewSink(client, &SinkOptions{TopicPrefix: target.prefix})
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return client, sink, nil
}

type urlTarget struct {
	brokers     []string
	prefix      string
	compression kgo.CompressionCodec
}

func parseURL(rawURL string) (urlTarget, error) {
	rest, ok := strings.CutPrefix(rawURL, "kafka://")
	if !ok {
		return urlTarget{}, errors.New("kafkabroker: open: the URL must begin with kafka://")
	}
	hosts, query, _ := strings.Cut(rest, "?")
	hosts = strings.TrimSuffix(hosts, "/")
	if strings.ContainsAny(hosts, "@/") {
		return urlTarget{}, errors.New("kafkabroker: open: the URL takes hosts only: kafka://host:port,host:port; give credentials as client options")
	}
	t := urlTarget{compression: kgo.NoCompression()}
	for host := range strings.SplitSeq(hosts, ",") {
		if host = strings.TrimSpace(host); host != "" {
			t.brokers = append(t.brokers, host)
		}
	}
	if len(t.brokers) == 0 {
		return urlTarget{}, errors.New("kafkabroker: open: the URL names no host")
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return urlTarget{}, errors.New("kafkabroker: open: the URL's parameters cannot be read")
	}
	for name := range values {
		switch value := values.Get(name); name {
		case "topic-prefix":
			t.prefix = value
		case "compression":
			codecs := map[string]kgo.CompressionCodec{
				"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
				"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
			}
			if t.compression, ok = codecs[value]; !ok {
				return urlTarget{}, errors.New("kafkabroker: open: compression must be none, gzip, snappy, lz4 or zstd")
			}
		default:
			return urlTarget{}, fmt.Errorf("kafkabroker: open: unknown parameter %q; there are topic-prefix and compression", name)
		}
	}
	return t, nil
}
