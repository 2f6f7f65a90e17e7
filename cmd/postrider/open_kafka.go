package main

import (
	"crypto/tls"
	"net"
	"net/url"
	"slices"
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
// tls=true, sasl=plain|scram-sha-256|scram-sha-512, topic-prefix=TEXT and
// max-message-bytes=N, which is the topics' own limit where it is not Kafka's default.
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
	for name := range values {
		if !slices.Contains([]string{"tls", "sasl", "topic-prefix", "max-message-bytes"}, name) {
			return nil, bad("parameter " + visible(name, "") + " is unknown: use tls, sasl, topic-prefix and max-message-bytes")
		}
	}
	k.opts = append(kafkabroker.ClientOptions(), kgo.SeedBrokers(k.seeds...), kgo.ClientID("postrider"))
	if text := values.Get("max-message-bytes"); text != "" {
		limit, err := strconv.ParseInt(text, 10, 32)
		if err != nil || limit < 1<<10 || limit > 64<<20 {
			return nil, bad("max-message-bytes is " + visible(text, "") + ": use 1024 to 67108864")
		}
		k.opts = append(k.opts, kgo.ProducerBatchMaxBytes(int32(limit)))
	}
	if values.Get("tls") == "true" {
		k.opts = append(k.opts, kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	if user == nil {
		return k, nil
	}
	mechanism := saslOf(values.Get("sasl"), user)
	if mechanism == nil {
		return nil, bad("sasl is none of plain, scram-sha-256 and scram-sha-512")
	}
	k.opts = append(k.opts, kgo.SASL(mechanism))
	return k, nil
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
