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

// Target is a RabbitMQ URL, read.
type Target struct {
	Server Server        // how the broker is reached
	Sink   SinkOptions   // what the URL sets about publishing
	Source SourceOptions // what the URL sets about receiving
}

// ParseURL reads a URL such as
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
//	unchecked=true          a source does not look at the queue's arguments
//	auth=certificate        log in by the certificate of tls-cert
//	password-file, password-env, tls, tls-ca, tls-cert, tls-key, tls-server-name
//
// Password and certificates are read again at each new connection. ParseURL reads
// their files once and does no other I/O. Errors do not repeat the URL.
func ParseURL(raw string) (t Target, err error) { return t, t.read(raw) }

// read adds what the URL says to the options that t has.
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

// Connect opens a connection of the client's own to the target, for programs that make
// or look at queues and exchanges. It is the caller's to close.
func (t *Target) Connect(ctx context.Context) (*amqp.Connection, error) {
	c, _, err := (&dialer{server: t.Server, name: "postrider"}).open(ctx)
	return c, err
}

// parseServer reads the part of a URL that says where the broker is. A path that
// is empty is the virtual host "/"; /name and /%2Fname are name and /name, as
// https://www.rabbitmq.com/docs/uri-spec says.
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
		return Server{}, nil, errors.New("there is a user without a password: write amqp://USER:PASSWORD@HOST or add password-file or password-env")
	}
	return s, u, nil
}
