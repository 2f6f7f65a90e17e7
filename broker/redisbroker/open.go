package redisbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider/broker/internal/brokerurl"
	"github.com/postrider/postrider/internal/peer"
)

// Open makes a sink of a URL such as
//
//	redis://[USER:PASSWORD@]HOST[:PORT][,HOST...][/DB]?stream-prefix=events:&maxlen=~1000000
//	rediss://...            the same with TLS
//
// Of several hosts one is used at a time; when it cannot be reached or says that
// it is a replica, the next one is tried. The parameters are those of SinkOptions:
//
//	stream-prefix=TEXT  partitions=N   create=on|off   dedup=on|off
//	maxlen=N|~N         max-age=DURATION               (trim; ~: faster, keeps a few more)
//	replicas=N          synced=true|false              (WAIT, WAITAOF)
//	durable=any|everysec|always                        (what the server must be)
//	max-message=BYTES   timeout=DURATION
//
// and password-file, password-env, tls, tls-ca, tls-cert, tls-key, tls-server-name.
// Passwords and certificates in files are read again at each new connection.
//
// An unreachable server is no error here: Deliver answers with an outage. Errors
// do not repeat the URL. Close the sink.
//
// What the URL cannot say, which is Route, is taken of opts, which may be nil.
func Open(rawURL string, opts *SinkOptions) (*Sink, error) {
	t, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if opts != nil {
		t.Sink.Route = opts.Route
	}
	s, err := NewSink(t.Client, &t.Sink)
	if err != nil {
		return nil, err
	}
	for _, l := range s.all {
		l.hosts = t.hosts
	}
	return s, nil
}

// OpenSource makes a source of a URL as Open reads it, for a topic: the URL's
// stream-prefix and partitions say which streams that is.
func OpenSource(rawURL, topic string, opts SourceOptions) (*Source, error) {
	t, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	opts.StreamPrefix = t.Sink.StreamPrefix
	opts.Streams = Streams(t.Sink.StreamPrefix+topic, t.Sink.Partitions)
	s, err := NewSource(t.Client, opts)
	if err != nil {
		return nil, err
	}
	s.read.hosts, s.done.hosts = t.hosts, t.hosts
	return s, nil
}

// Target is what a URL says.
type Target struct {
	Client *redis.Options // how a connection is made
	Sink   SinkOptions
	hosts  *hosts
}

// ParseURL reads a URL as Open does, without opening anything.
func ParseURL(rawURL string) (*Target, error) {
	client, u, all, err := parseURL(rawURL)
	if err != nil {
		return nil, fmt.Errorf("redisbroker: open: %w", err)
	}
	t := &Target{Client: client, hosts: all}
	if t.Sink, err = sinkOptions(u); err != nil {
		return nil, fmt.Errorf("redisbroker: open: %w", err)
	}
	return t, nil
}

// Streams are the streams of a topic, behind its prefix.
func Streams(name string, partitions int) []string {
	if partitions <= 1 {
		return []string{name}
	}
	all := make([]string, partitions)
	for n := range all {
		all[n] = partition(name, n)
	}
	return all
}

func parseURL(rawURL string) (*redis.Options, *brokerurl.URL, *hosts, error) {
	u, err := brokerurl.Parse(rawURL, brokerurl.Spec{
		Schemes: map[string]bool{"redis": false, "rediss": true}, Port: "6379", Path: true,
		Params: []string{
			"stream-prefix", "partitions", "create", "dedup", "maxlen", "max-age",
			"replicas", "synced", "durable", "max-message", "timeout",
		},
	})
	if err != nil {
		return nil, nil, nil, err
	}
	client := &redis.Options{Addr: u.Hosts[0]}
	if path := strings.TrimSuffix(u.Path, "/"); path != "" {
		if client.DB, err = strconv.Atoi(path); err != nil || client.DB < 0 {
			return nil, nil, nil, errors.New("behind the hosts may stand the number of a database only")
		}
	}
	if u.User != "" && u.Password == nil {
		return nil, nil, nil, errors.New("there is a user without a password: write redis://USER:PASSWORD@HOST or add password-file or password-env")
	}
	if u.Password != nil {
		client.CredentialsProviderContext = func(ctx context.Context) (string, string, error) {
			password, err := u.Password(ctx)
			return u.User, password, err
		}
	}
	all := new(hosts)
	client.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
		now := all.now()
		conn, err := dial(ctx, u, network, u.Hosts[now%uint32(len(u.Hosts))])
		if err != nil {
			all.leave(now)
		}
		return conn, err
	}
	return client, u, all, nil
}

// hosts are those of a URL, of which one is used at a time.
type hosts struct{ turns atomic.Uint32 }

func (h *hosts) now() uint32 {
	if h == nil {
		return 0
	}
	return h.turns.Load()
}

// leave goes on to the next one, unless that was done since was: many connections
// to one host find out together that it is not the primary.
func (h *hosts) leave(was uint32) {
	if h != nil {
		h.turns.CompareAndSwap(was, was+1)
	}
}

func dial(ctx context.Context, u *brokerurl.URL, network, addr string) (net.Conn, error) {
	do := (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext
	if u.TLS != nil {
		do = u.TLS.DialContext
	}
	conn, err := do(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return peer.Watch(conn, addr, peer.Redis()), nil
}

func sinkOptions(u *brokerurl.URL) (o SinkOptions, err error) {
	o.StreamPrefix = u.Param("stream-prefix")
	for name, to := range map[string]*int{"partitions": &o.Partitions, "replicas": &o.Replicas, "max-message": &o.MaxMessageBytes} {
		if u.Has(name) {
			if *to, err = strconv.Atoi(u.Param(name)); err != nil || *to < 1 {
				return o, fmt.Errorf("%s must be a number above 0", name)
			}
		}
	}
	for name, to := range map[string]*time.Duration{"max-age": &o.Trim.MaxAge, "timeout": &o.Timeout} {
		if u.Has(name) {
			if *to, err = time.ParseDuration(u.Param(name)); err != nil || *to <= 0 {
				return o, fmt.Errorf("%s must be a duration such as 24h", name)
			}
		}
	}
	for name, to := range map[string]*bool{"create": &o.NoCreate, "dedup": &o.NoDedup} {
		if v := u.Param(name); u.Has(name) {
			if v != "on" && v != "off" {
				return o, fmt.Errorf("%s must be on or off", name)
			}
			*to = v == "off"
		}
	}
	if u.Has("maxlen") {
		n, about := strings.CutPrefix(u.Param("maxlen"), "~")
		if o.Trim.MaxLen, err = strconv.ParseInt(n, 10, 64); err != nil || o.Trim.MaxLen < 1 {
			return o, errors.New("maxlen must be a number above 0, or ~ and a number")
		}
		o.Trim.Exact = !about
	}
	switch u.Param("durable") {
	case "", "any":
	case "everysec":
		o.Durable = DurableEverySecond
	case "always":
		o.Durable = DurableAlways
	default:
		return o, errors.New("durable must be any, everysec or always")
	}
	o.Synced, err = u.Bool("synced")
	return o, err
}
