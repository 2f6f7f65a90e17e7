package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker/internal/brokerurl"
)

// Target is a parsed RabbitMQ URL.
type Target struct {
	Server Server        // address and credentials
	Sink   SinkOptions   // the URL's options for publishing
	Source SourceOptions // the URL's options for receiving
}

// ParseURL reads a URL such as
//
//	amqp://user:password@host1:5672,host2:5672/vhost?exchange=events&routing-key=topic
//	amqps://host/vhost?tls-ca=ca.pem&tls-cert=me.pem&tls-key=me-key.pem&auth=certificate
//
// An empty path is the virtual host "/". The parameters are
//
//	exchange=NAME           without it the default exchange, where queues are named like topics
//	routing-key=topic|key   source of the routing key (default topic)
//	cloudevents-prefix=P    prefix of attributes: cloudEvents_ (the default), cloudEvents: or ce-
//	max-message-bytes=N     the broker's max_message_size, if it is not 16 MiB
//	window=N                unconfirmed messages at once; without it the sink finds the number
//	connections=N           connections that share the calls (default 4)
//	unchecked=true          a source does not check the queue's arguments
//	auth=certificate        log in by the certificate of tls-cert
//	password-file, password-env, tls, tls-ca, tls-cert, tls-key, tls-server-name
//
// Password and certificates are read again at each new connection. ParseURL reads
// their files once and does no other I/O. Errors do not repeat the URL.
func ParseURL(raw string) (t Target, err error) { return t, t.read(raw) }

// read adds the URL's options to those of t.
func (t *Target) read(raw string) error {
	server, u, err := parseServer(raw)
	if err == nil {
		t.Server = server
		err = t.options(u)
	}
	if err != nil {
		return fmt.Errorf("rabbitbroker: parse URL: %w", err)
	}
	return nil
}

func (t *Target) options(u *brokerurl.URL) (err error) {
	to := &t.Sink
	if u.Has("exchange") {
		to.Exchange = u.Param("exchange")
	}
	if u.Has("routing-key") {
		to.RoutingKey = Routing(u.Param("routing-key"))
	}
	if u.Has("cloudevents-prefix") {
		to.CloudEventsPrefix = u.Param("cloudevents-prefix")
	}
	for name, field := range map[string]*int{"max-message-bytes": &to.MaxMessageBytes, "window": &to.Window, "connections": &to.Connections} {
		if !u.Has(name) {
			continue
		}
		if *field, err = strconv.Atoi(u.Param(name)); err != nil || *field < 1 || *field > 1<<30 {
			return fmt.Errorf("%s must be a number from 1 to 1073741824", name)
		}
	}
	if u.Has("unchecked") {
		t.Source.Unchecked, err = u.Bool("unchecked")
	}
	return err
}

// Connect opens a client connection to the target, for programs that declare
// or inspect queues and exchanges. The caller closes it.
func (t *Target) Connect(ctx context.Context) (*amqp.Connection, error) {
	c, _, err := (&dialer{server: t.Server, name: "postrider"}).open(ctx)
	return c, err
}

// parseServer reads address, credentials and virtual host of a URL. An empty path
// is the virtual host "/"; /name and /%2Fname are name and /name, see
// https://www.rabbitmq.com/docs/uri-spec.
func parseServer(rawURL string) (Server, *brokerurl.URL, error) {
	u, err := brokerurl.Parse(rawURL, brokerurl.Spec{
		Schemes: map[string]bool{"amqp": false, "amqps": true}, Path: true,
		Params: []string{"exchange", "routing-key", "cloudevents-prefix", "max-message-bytes", "window", "connections", "unchecked", "auth"},
	})
	if err != nil {
		return Server{}, nil, err
	}
	s := Server{Hosts: u.Hosts, User: u.User, Password: u.Password}
	port := "5672"
	if u.TLS != nil {
		port = "5671"
		s.Dial = u.TLS.DialContext
	}
	for i, host := range s.Hosts {
		if _, _, err := net.SplitHostPort(host); err != nil {
			s.Hosts[i] = net.JoinHostPort(host, port)
		}
	}
	if s.Vhost, err = url.PathUnescape(u.Path); err != nil {
		return Server{}, nil, errors.New("the virtual host must be percent-encoded: write %2F for /")
	}
	switch auth := u.Param("auth"); {
	case auth != "" && auth != "password" && auth != "certificate":
		return Server{}, nil, errors.New("auth must be password or certificate")
	case auth == "certificate" && (u.TLS == nil || u.TLS.Cert == ""):
		return Server{}, nil, errors.New("auth=certificate needs amqps:// with tls-cert and tls-key")
	case auth == "certificate":
		s.Certificate = true
	case s.User != "" && s.Password == nil:
		return Server{}, nil, errors.New("the user has no password: write amqp://USER:PASSWORD@HOST or add password-file or password-env")
	}
	return s, u, nil
}
