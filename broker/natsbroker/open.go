package natsbroker

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// ClientOptions returns what a [Sink] and a [Source] need of a connection:
// nothing is kept while it is down, it reconnects for ever, and a server that
// takes no more bytes for 2 s counts as gone. The client waits for such a server
// without regard to any context.
func ClientOptions() []nats.Option {
	return []nats.Option{
		nats.Name("postrider"),
		nats.ReconnectBufSize(-1),
		nats.MaxReconnects(-1),
		nats.FlusherTimeout(2 * time.Second),
		nats.RetryOnFailedConnect(true),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(2),
	}
}

// Open connects and makes a sink of a URL such as
//
//	nats://host1:4222,host2:4222/?subject-prefix=events.&dedup=off
//
// tls=true refuses a server that does not speak TLS. Without it TLS is used
// where the server asks for it.
//
// An unreachable server is no error here: the connection goes on trying, and
// Deliver answers with an outage. The connection is the caller's to close.
// Errors do not repeat the URL.
func Open(rawURL string, more ...nats.Option) (*nats.Conn, *Sink, error) {
	servers, opts, err := parseURL(rawURL)
	if err != nil {
		return nil, nil, err
	}
	nc, err := nats.Connect(servers, append(ClientOptions(), more...)...)
	if err != nil {
		return nil, nil, errors.New("natsbroker: open: the servers or options are not valid")
	}
	s, err := NewSink(nc, &opts)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return nc, s, nil
}

func parseURL(rawURL string) (servers string, opts SinkOptions, err error) {
	rest, ok := strings.CutPrefix(rawURL, "nats://")
	if !ok {
		return "", opts, errors.New("natsbroker: open: the URL must begin with nats://")
	}
	hosts, query, _ := strings.Cut(rest, "?")
	hosts = strings.TrimSuffix(hosts, "/")
	if hosts == "" {
		return "", opts, errors.New("natsbroker: open: the URL names no host")
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", opts, errors.New("natsbroker: open: the URL's parameters cannot be read")
	}
	scheme := "nats://"
	for name := range values {
		switch value := values.Get(name); name {
		case "subject-prefix":
			opts.SubjectPrefix = value
		case "dedup":
			if value != "on" && value != "off" {
				return "", opts, errors.New("natsbroker: open: dedup must be on or off")
			}
			opts.NoDedup = value == "off"
		case "tls":
			if value != "true" && value != "false" {
				return "", opts, errors.New("natsbroker: open: tls must be true or false")
			}
			if value == "true" {
				scheme = "tls://"
			}
		default:
			return "", opts, fmt.Errorf("natsbroker: open: unknown parameter %q; there are subject-prefix, dedup and tls", name)
		}
	}
	return scheme + strings.ReplaceAll(hosts, ",", ","+scheme), opts, nil
}
