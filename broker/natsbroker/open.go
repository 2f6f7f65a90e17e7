package natsbroker

import (
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// ClientOptions returns the options that a [Sink] and a [Source] need of a connection.
// It buffers nothing while it is down. It reconnects for ever, even to a server that
// rejects its user, because credentials may be corrected. A server that accepts no
// bytes for 2 s counts as gone: the client's writes to such a server ignore every
// context.
func ClientOptions() []nats.Option {
	return []nats.Option{
		nats.Name("postrider"),
		nats.ReconnectBufSize(-1),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // without a handler the client prints to stderr; calls return the same errors
		nats.FlusherTimeout(2 * time.Second),
		nats.RetryOnFailedConnect(true),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(2),
	}
}

// Open returns a sink on a connection of its own for a URL: see [ParseURL]. Where URL
// and opts, which may be nil, both set an option, the URL decides.
//
// A server that cannot be reached, or rejects the user, is an outage of Deliver: the
// connection continues trying. Close ends the sink and its connection.
func Open(rawURL string, opts *SinkOptions) (*Sink, error) {
	var t Target
	if opts != nil {
		t.Sink = *opts
	}
	if err := t.read(rawURL); err != nil {
		return nil, err
	}
	nc, err := t.Connect()
	if err != nil {
		return nil, err
	}
	s, err := NewSink(nc, &t.Sink)
	if err != nil {
		nc.Close()
		return nil, err
	}
	s.close = nc.Close
	return s, nil
}

// OpenSource returns a source on a connection of its own for a URL as [Open] takes it.
// opts must name a stream and a group. Parameters for publishing are ignored. Close
// ends the source and its connection.
func OpenSource(rawURL string, opts *SourceOptions) (*Source, error) {
	var t Target
	if opts != nil {
		t.Source = *opts
	}
	if err := t.read(rawURL); err != nil {
		return nil, err
	}
	nc, err := t.Connect()
	if err != nil {
		return nil, err
	}
	s, err := NewSource(nc, &t.Source)
	if err != nil {
		nc.Close()
		return nil, err
	}
	s.close = nc.Close
	return s, nil
}

// Connect returns a connection to the target, with more options after its own, for
// [NewSink] and [NewSource]. The caller closes it.
func (t *Target) Connect(more ...nats.Option) (*nats.Conn, error) {
	nc, err := nats.Connect(t.Servers, append(slices.Clone(t.Client), more...)...)
	if err != nil { // it may quote the URL
		return nil, errors.New("natsbroker: open: the servers or options are not valid")
	}
	return nc, nil
}
