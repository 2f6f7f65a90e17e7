package natsbroker

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// ClientOptions returns what a [Sink] and a [Source] need of a connection:
// nothing is kept while it is down, it reconnects for ever, also to a server that
// does not know its user (credentials come back), and a server that takes no more
// bytes for 2 s counts as gone. The client waits for such a server without regard
// to any context.
func ClientOptions() []nats.Option {
	return []nats.Option{
		nats.Name("postrider"),
		nats.ReconnectBufSize(-1),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // else the client prints to stderr; calls answer with the same
		nats.FlusherTimeout(2 * time.Second),
		nats.RetryOnFailedConnect(true),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(2),
	}
}

// Open connects and makes a sink of a URL: see [ParseURL].
//
// An unreachable server is no error here, nor is one that does not know the
// user: the connection goes on trying, and Deliver answers with an outage. The
// connection is the caller's to close. Errors do not repeat the URL.
func Open(rawURL string, more ...nats.Option) (*nats.Conn, *Sink, error) {
	target, err := ParseURL(rawURL)
	if err != nil {
		return nil, nil, fmt.Errorf("natsbroker: open: %w", err)
	}
	nc, err := target.Connect(more...)
	if err != nil {
		return nil, nil, err
	}
	s, err := NewSink(nc, &target.Sink)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return nc, s, nil
}

// Connect makes a connection of the target, with more options behind its own.
func (t *Target) Connect(more ...nats.Option) (*nats.Conn, error) {
	nc, err := nats.Connect(t.Servers, append(slices.Clone(t.Client), more...)...)
	if err != nil { // it may quote the URL
		return nil, errors.New("natsbroker: open: the servers or options are not valid")
	}
	return nc, nil
}
