package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/postrider/postrider/broker/internal/brokerurl"
	"github.com/postrider/postrider/internal/peer"
	"github.com/postrider/postrider/internal/secret"
)

// Target is a parsed Kafka URL. Add options of your own to Client before you pass it to
// kgo.NewClient for [NewSink], or to [NewSource].
type Target struct {
	Client []kgo.Opt     // options of a client for a sink, a source or an administrator
	Sink   SinkOptions   // the URL's options for publishing
	Source SourceOptions // the URL's options for receiving
}

// ParseURL reads a URL such as
//
//	kafka://user:password@host1:9092,host2/?tls=true&sasl=scram-sha-512&prefix=prod.
//
// The port is 9092 where none is given. Parameters:
//
//	prefix=TEXT           put before every topic
//	compression=NAME      none (the default), gzip, snappy, lz4 or zstd
//	max-message-bytes=N   1024 to 67108864: reject larger messages before they are sent; without it
//	                      the topic's own max.message.bytes decides
//	transactional-id=ID   one transaction per call; unique to the process and the same after a restart
//	sasl=MECHANISM        plain (the default where the URL has a user), scram-sha-256 or scram-sha-512
//	password-file=FILE    the user's password; or password-env=NAME
//	tls=true              TLS, verified; with tls-ca=FILE, tls-cert=FILE and tls-key=FILE,
//	                      tls-server-name=NAME where the system's authorities do not suffice
//
// Password and certificates are read again from their files for each new
// connection: a rotation needs no restart. ParseURL reads them once and does no
// other I/O. Errors do not repeat the URL.
func ParseURL(raw string) (t Target, err error) { return t, t.read(raw) }

// read adds the URL's options to those of t.
func (t *Target) read(raw string) error {
	if err := t.parse(raw); err != nil {
		return fmt.Errorf("kafkabroker: parse URL: %w", err)
	}
	return nil
}

func (t *Target) parse(raw string) error {
	u, err := brokerurl.Parse(raw, brokerurl.Spec{
		Schemes: map[string]bool{"kafka": false}, Port: "9092",
		Params: []string{"prefix", "compression", "max-message-bytes", "sasl", "transactional-id"},
	})
	if err != nil {
		return err
	}
	t.Client = append(ClientOptions(), kgo.SeedBrokers(u.Hosts...))
	if u.Has("prefix") {
		t.Sink.Prefix, t.Source.Prefix = u.Param("prefix"), u.Param("prefix")
	}
	if u.Has("transactional-id") {
		if t.Sink.TransactionalID = u.Param("transactional-id"); t.Sink.TransactionalID == "" {
			return errors.New("transactional-id is empty")
		}
	}
	if t.Sink.TransactionalID != "" {
		t.Client = append(t.Client, TransactionOptions()...)
	}
	for _, option := range []func(*brokerurl.URL) (kgo.Opt, error){compression, maxMessage, mechanism} {
		opt, err := option(u)
		if err != nil {
			return err
		}
		if opt != nil {
			t.Client = append(t.Client, opt)
		}
	}
	t.Client = append(t.Client, kgo.Dialer(dialer(u.TLS)))
	return nil
}

// dialer detects a server that does not speak Kafka's protocol. It leaves a connection
// that ends at once to the client, whose error is better.
func dialer(t *brokerurl.TLS) func(ctx context.Context, network, addr string) (net.Conn, error) {
	do := (&net.Dialer{Timeout: dialTimeout}).DialContext
	if t != nil {
		do = t.DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := do(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return peer.Watch(conn, addr, peer.Kafka()), nil
	}
}

// dialTimeout is the client's default.
const dialTimeout = 10 * time.Second

func compression(u *brokerurl.URL) (kgo.Opt, error) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	if !u.Has("compression") {
		return nil, nil
	}
	codec, ok := codecs[u.Param("compression")]
	if !ok {
		return nil, errors.New("unknown compression: use none, gzip, snappy, lz4 or zstd")
	}
	return kgo.ProducerBatchCompression(codec), nil
}

func maxMessage(u *brokerurl.URL) (kgo.Opt, error) {
	if !u.Has("max-message-bytes") {
		return nil, nil
	}
	n, err := strconv.ParseInt(u.Param("max-message-bytes"), 10, 32)
	if err != nil || n < 1<<10 || n > 64<<20 {
		return nil, errors.New("max-message-bytes must be a number from 1024 to 67108864")
	}
	return kgo.ProducerBatchMaxBytes(int32(n)), nil
}

// mechanism returns a SASL mechanism that reads the password again at each authentication.
func mechanism(u *brokerurl.URL) (kgo.Opt, error) {
	name := strings.ToLower(u.Param("sasl"))
	if u.User == "" || u.Password == nil {
		if u.Has("sasl") || u.User != "" || u.Password != nil {
			return nil, errors.New("sasl needs a user and a password: kafka://USER:PASSWORD@HOST, or USER@ with password-file or password-env")
		}
		return nil, nil
	}
	var m sasl.Mechanism
	switch name {
	case "", "plain":
		m = plain.Plain(func(ctx context.Context) (plain.Auth, error) {
			password, err := ask(ctx, u.Password)
			return plain.Auth{User: u.User, Pass: password}, err
		})
	case "scram-sha-256", "scram-sha-512":
		auth := func(ctx context.Context) (scram.Auth, error) {
			password, err := ask(ctx, u.Password)
			return scram.Auth{User: u.User, Pass: password}, err
		}
		if m = scram.Sha256(auth); name == "scram-sha-512" {
			m = scram.Sha512(auth)
		}
	default:
		return nil, errors.New("unknown sasl mechanism: use plain, scram-sha-256 or scram-sha-512")
	}
	return kgo.SASL(m), nil
}

func ask(ctx context.Context, password secret.Source) (string, error) {
	text, err := password(ctx)
	if err != nil {
		return "", fmt.Errorf("read the password of the broker's user: %w", err)
	}
	return text, nil
}
