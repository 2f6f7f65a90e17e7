package rabbitbroker

import (
	"context"
	"fmt"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/envelope"
)

// Open makes a sink of a URL such as
//
//	amqp://user:password@host1:5672,host2:5672/vhost?exchange=events&routing-key=topic
//	amqps://host/vhost?tls-ca=ca.pem&tls-cert=me.pem&tls-key=me-key.pem&auth=certificate
//
// An empty path is the virtual host "/". The parameters are
//
//	exchange=NAME           the default exchange without it: queues are the topics' names
//	routing-key=topic|key   what the routing key is; topic without it
//	cloudevents-prefix=P    cloudEvents_ (without it), cloudEvents: or ce-, before attributes
//	max-message-bytes=N     the broker's max_message_size, if it is not 16 MiB
//	window=N                unconfirmed messages at once; without it the sink finds the number
//	connections=N           connections that share the calls; 4 without it
//	auth=certificate        log in by the certificate of tls-cert
//	password-file, password-env, tls, tls-ca, tls-cert, tls-key, tls-server-name
//
// Password and certificates are read again at each new connection. Open does no
// I/O but to read their files once: an unreachable broker is no error here, and
// Deliver answers with an outage. route may be nil. Errors do not repeat the URL.
func Open(rawURL string, route envelope.Router) (*Sink, error) {
	server, u, err := parseServer(rawURL, spec(urlParams()...))
	if err != nil {
		return nil, fmt.Errorf("rabbitbroker: open: %w", err)
	}
	opts := SinkOptions{Route: route, Exchange: u.Param("exchange"), RoutingKey: Routing(u.Param("routing-key")), CloudEventsPrefix: u.Param("cloudevents-prefix")}
	for name, field := range map[string]*int{"max-message-bytes": &opts.MaxMessageBytes, "window": &opts.Window, "connections": &opts.Connections} {
		if !u.Has(name) {
			continue
		}
		if *field, err = strconv.Atoi(u.Param(name)); err != nil || *field < 1 || *field > 1<<30 {
			return nil, fmt.Errorf("rabbitbroker: open: %s must be a number from 1 to 1073741824", name)
		}
	}
	return NewSink(server, &opts)
}

// OpenSource makes a source of a queue on the broker of a URL as [Open] takes it.
// What is about publishing is ignored. unchecked=true is SourceOptions.Unchecked.
func OpenSource(rawURL string, opts SourceOptions) (*Source, error) {
	server, u, err := parseServer(rawURL, spec(urlParams()...))
	if err != nil {
		return nil, fmt.Errorf("rabbitbroker: open: %w", err)
	}
	unchecked, err := u.Bool("unchecked")
	if err != nil {
		return nil, fmt.Errorf("rabbitbroker: open: %w", err)
	}
	opts.Unchecked = opts.Unchecked || unchecked
	return NewSource(server, opts)
}

// urlParams are the parameters of all URLs: one URL may serve a sink and a source.
func urlParams() []string {
	return []string{"exchange", "routing-key", "cloudevents-prefix", "max-message-bytes", "window", "connections", "unchecked"}
}

// Connect opens a connection of the client's own to the broker of such a URL, for
// those who make or look at queues and exchanges. It is the caller's to close.
func Connect(ctx context.Context, rawURL string) (*amqp.Connection, error) {
	server, _, err := parseServer(rawURL, spec(urlParams()...))
	if err != nil {
		return nil, fmt.Errorf("rabbitbroker: connect: %w", err)
	}
	c, _, err := (&dialer{server: server, name: "postrider"}).open(ctx)
	return c, err
}
