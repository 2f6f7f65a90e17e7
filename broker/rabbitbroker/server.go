package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/peer"
)

// Server has the address and the credentials of a broker. [NewSink] and [NewSource] take
// it instead of an amqp.Connection, which does not reconnect, and which an alarm
// of the broker blocks as a whole: a sink and a source need connections of their own.
type Server struct {
	// Hosts are HOST:PORT of a cluster's nodes, tried in turn; required.
	Hosts []string
	// Vhost is the virtual host; "/" if empty.
	Vhost string
	// User is "guest" if empty.
	User string
	// Password is called at each new connection; nil: "guest".
	Password func(ctx context.Context) (string, error)
	// Dial makes a connection to one host; nil: TCP without TLS.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Certificate logs in with the certificate that Dial presents (SASL EXTERNAL),
	// without User and Password.
	Certificate bool
}

const (
	openWait  = 10 * time.Second // for TCP, TLS, the login and a channel together
	heartbeat = 10 * time.Second // a peer that is silent for 15 s counts as gone
	frameSize = 128 << 10        // the largest frame; RabbitMQ's default
)

func (s *Server) vhost() string {
	if s.Vhost == "" {
		return "/"
	}
	return s.Vhost
}

// dialer opens connections to a Server's hosts in turn.
type dialer struct {
	server Server
	name   string // connection name for the broker's operator
	next   atomic.Uint32
}

// open connects to the next host and logs in. Its error is a *broker.Error.
func (d *dialer) open(ctx context.Context) (*amqp.Connection, *conn, error) {
	ctx, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	host := d.server.Hosts[int(d.next.Add(1)-1)%len(d.server.Hosts)]
	sasl, err := d.server.login(ctx)
	if err != nil {
		return nil, nil, notOpened(fmt.Errorf("password of user %s: %w", d.server.user(), err), &d.server)
	}
	dial := d.server.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	raw, err := dial(ctx, "tcp", host)
	if err != nil {
		return nil, nil, notOpened(err, &d.server)
	}
	first := &heard{Conn: peer.Watch(raw, host, peer.RabbitMQ())}
	wire := newConn(first)
	// The client's handshake takes no context.
	stop := context.AfterFunc(ctx, func() { _ = wire.Close() })
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(d.name)
	c, err := amqp.Open(wire, amqp.Config{
		SASL: []amqp.Authentication{sasl}, Vhost: d.server.vhost(), Heartbeat: heartbeat,
		FrameSize: frameSize, ChannelMax: 16, Locale: "en_US", Properties: properties,
	})
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = wire.Close()
		if wrong := first.wrong.Load(); wrong != nil {
			err = wrong
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer from %s: %w", host, ctx.Err())
		}
		return nil, nil, notOpened(err, &d.server)
	}
	return c, wire, nil
}

// heard keeps the error about the server's first bytes, which the client's error does
// not wrap.
type heard struct {
	net.Conn
	wrong atomic.Pointer[peer.Error]
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	var wrong *peer.Error
	if err != nil && errors.As(err, &wrong) {
		h.wrong.Store(wrong)
	}
	return n, err
}

func (s *Server) user() string {
	if s.User == "" {
		return "guest"
	}
	return s.User
}

func (s *Server) login(ctx context.Context) (amqp.Authentication, error) {
	if s.Certificate {
		return &amqp.ExternalAuth{}, nil
	}
	password := "guest"
	if s.Password != nil {
		var err error
		if password, err = s.Password(ctx); err != nil {
			return nil, err
		}
	}
	return &amqp.PlainAuth{Username: s.user(), Password: password}, nil
}

func (s *Server) check() error {
	if len(s.Hosts) == 0 {
		return errors.New("no host")
	}
	return nil
}
