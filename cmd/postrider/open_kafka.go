package main

import (
	"crypto/tls"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// kafkaURL is kafka://[user:password@]host:port[,host:port...] with the parameters
// tls=true, sasl=plain|scram-sha-256|scram-sha-512, compression=lz4 and the like,
// topic-prefix=TEXT and max-message-bytes=N, which is the topics' own limit where
// it is not Kafka's default.
type kafkaURL struct {
	seeds  []string
	prefix string
	opts   []kgo.Opt
}

func parseKafka(raw string) (*kafkaURL, error) {
	bad := func(why string) error {
		return usagef("broker %s cannot be used: %s; write kafka://HOST:PORT,HOST:PORT", redact.URL(raw), why)
	}
	// Several hosts are no valid URL: the host part is cut out by hand.
	rest := strings.TrimPrefix(strings.TrimPrefix(raw, "kafka:"), "//")
	rest, query, _ := strings.Cut(rest, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, bad("its parameters cannot be read")
	}
	var user *url.Userinfo
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		u, err := url.Parse("kafka://" + rest[:at] + "@host")
		if err != nil {
			return nil, bad("user and password must be percent-encoded")
		}
		user, rest = u.User, rest[at+1:]
	}
	k := &kafkaURL{prefix: values.Get("topic-prefix")}
	for _, host := range strings.Split(strings.TrimSuffix(rest, "/"), ",") {
		if host == "" || strings.ContainsAny(host, "/ ") {
			return nil, bad("a host is missing")
		}
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), "9092")
		}
		k.seeds = append(k.seeds, host)
	}
	k.opts = append(kafkabroker.ClientOptions(), kgo.SeedBrokers(k.seeds...))
	if why := k.params(values, user); why != "" {
		return nil, bad(why)
	}
	return k, nil
}

// params adds the options of the parameters, or says what is wrong with them. A
// value that is not understood must not pass for its absence: a password would
// go over the wire in clear because of tls=yes.
func (k *kafkaURL) params(values url.Values, user *url.Userinfo) (wrong string) {
	for name := range values {
		switch value := values.Get(name); name {
		case "topic-prefix":
		case "sasl":
			if user == nil {
				return "sasl needs a user and a password: kafka://USER:PASSWORD@HOST:PORT"
			}
		case "tls":
			switch value {
			case "true":
				k.opts = append(k.opts, kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}))
			case "false":
			default:
				return "tls is " + visible(value, "") + ": use true or false"
			}
		case "compression":
			codec, ok := codecs()[value]
			if !ok {
				return "compression is none of none, gzip, snappy, lz4 and zstd"
			}
			k.opts = append(k.opts, kgo.ProducerBatchCompression(codec))
		case "max-message-bytes":
			limit, err := strconv.ParseInt(value, 10, 32)
			if err != nil || limit < 1<<10 || limit > 64<<20 {
				return "max-message-bytes is " + visible(value, "") + ": use 1024 to 67108864"
			}
			k.opts = append(k.opts, kgo.ProducerBatchMaxBytes(int32(limit)))
		default:
			return "parameter " + visible(name, "") + " is unknown: use tls, sasl, compression, topic-prefix and max-message-bytes"
		}
	}
	if user == nil {
		return ""
	}
	mechanism := saslOf(values.Get("sasl"), user)
	if mechanism == nil {
		return "sasl is none of plain, scram-sha-256 and scram-sha-512"
	}
	k.opts = append(k.opts, kgo.SASL(mechanism))
	return ""
}

func codecs() map[string]kgo.CompressionCodec {
	return map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
}

func saslOf(name string, user *url.Userinfo) sasl.Mechanism {
	password, _ := user.Password()
	switch strings.ToLower(name) {
	case "", "plain":
		return plain.Auth{User: user.Username(), Pass: password}.AsMechanism()
	case "scram-sha-256":
		return scram.Auth{User: user.Username(), Pass: password}.AsSha256Mechanism()
	case "scram-sha-512":
		return scram.Auth{User: user.Username(), Pass: password}.AsSha512Mechanism()
	}
	return nil
}

func openKafka(set *settings) (*openedSink, error) {
	k, err := parseKafka(set.broker)
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(k.opts...)
	if err != nil {
		return nil, usagef("broker %s cannot be used: %w", redact.URL(set.broker), err)
	}
	sink, err := kafkabroker.NewSink(client, &kafkabroker.SinkOptions{TopicPrefix: k.prefix})
	if err != nil {
		client.Close()
		return nil, usagef("broker %s cannot be used: %w", redact.URL(set.broker), err)
	}
	return &openedSink{Sink: sink, close: client.Close}, nil
}
