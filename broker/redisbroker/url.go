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

// Target is a parsed Redis URL.
type Target struct {
	Client *redis.Options // of one connection; with several hosts, to the one in use
	Sink   SinkOptions    // the URL's options for publishing
	Source SourceOptions  // the URL's options for receiving
	hosts  *hosts
}

// ParseURL reads a URL such as
//
//	redis://[USER:PASSWORD@]HOST[:PORT][,HOST...][/DB]?prefix=events:&maxlen=~1000000
//	rediss://...            the same with TLS
//
// One of several hosts is used at a time; if it is unreachable or
// a replica, the next one is tried. The parameters are those of SinkOptions:
//
//	prefix=TEXT         partitions=N   create=on|off   dedup=on|off
//	maxlen=N|~N         max-age=DURATION               (trim; ~: faster, keeps a few more)
//	replicas=N          synced=true|false              (WAIT, WAITAOF)
//	durable=any|everysec|always                        (least durability of the server)
//	max-message-bytes=N timeout=DURATION
//
// and password-file, password-env, tls, tls-ca, tls-cert, tls-key, tls-server-name.
// A source uses prefix and partitions. Passwords and certificates in files are read
// again at each new connection; ParseURL reads them once and does no other I/O. Errors
// do not repeat the URL.
func ParseURL(raw string) (t Target, err error) { return t, t.read(raw) }

// read adds the URL's options to those of t.
func (t *Target) read(raw string) error {
	client, u, all, err := parseURL(raw)
	if err == nil {
		t.Client, t.hosts = client, all
		err = t.Sink.read(u)
		t.Source.read(u, &t.Sink)
	}
	if err != nil {
		return fmt.Errorf("redisbroker: parse URL: %w", err)
	}
	return nil
}

func parseURL(rawURL string) (*redis.Options, *brokerurl.URL, *hosts, error) {
	u, err := brokerurl.Parse(rawURL, brokerurl.Spec{
		Schemes: map[string]bool{"redis": false, "rediss": true}, Port: "6379", Path: true,
		Params: []string{
			"prefix", "partitions", "create", "dedup", "maxlen", "max-age",
			"replicas", "synced", "durable", "max-message-bytes", "timeout",
		},
	})
	if err != nil {
		return nil, nil, nil, err
	}
	client := &redis.Options{Addr: u.Hosts[0]}
	if path := strings.TrimSuffix(u.Path, "/"); path != "" {
		if client.DB, err = strconv.Atoi(path); err != nil || client.DB < 0 {
			return nil, nil, nil, errors.New("URL path must be a database number")
		}
	}
	if u.User != "" && u.Password == nil {
		return nil, nil, nil, errors.New("the user has no password: write redis://USER:PASSWORD@HOST or add password-file or password-env")
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

// hosts selects one of a URL's hosts at a time.
type hosts struct{ turns atomic.Uint32 }

func (h *hosts) now() uint32 {
	if h == nil {
		return 0
	}
	return h.turns.Load()
}

// leave selects the next host, unless another connection did so since was: many
// connections find out together that their host is not the primary.
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

// read adds the URL's options to o; sink already has them.
func (o *SourceOptions) read(u *brokerurl.URL, sink *SinkOptions) {
	if u.Has("prefix") {
		o.Prefix = sink.Prefix
	}
	if u.Has("partitions") {
		o.Partitions = sink.Partitions
	}
}

// read adds the URL's options to o.
func (o *SinkOptions) read(u *brokerurl.URL) (err error) {
	if u.Has("prefix") {
		o.Prefix = u.Param("prefix")
	}
	if u.Has("maxlen") || u.Has("max-age") {
		o.Trim = Trim{} // maxlen and max-age exclude each other
	}
	for name, to := range map[string]*int{"partitions": &o.Partitions, "replicas": &o.Replicas, "max-message-bytes": &o.MaxMessageBytes} {
		if u.Has(name) {
			if *to, err = strconv.Atoi(u.Param(name)); err != nil || *to < 1 {
				return fmt.Errorf("%s must be a number above 0", name)
			}
		}
	}
	for name, to := range map[string]*time.Duration{"max-age": &o.Trim.MaxAge, "timeout": &o.Timeout} {
		if u.Has(name) {
			if *to, err = time.ParseDuration(u.Param(name)); err != nil || *to <= 0 {
				return fmt.Errorf("%s must be a duration such as 24h", name)
			}
		}
	}
	for name, to := range map[string]*bool{"create": &o.NoCreate, "dedup": &o.NoDedup} {
		if v := u.Param(name); u.Has(name) {
			if v != "on" && v != "off" {
				return fmt.Errorf("%s must be on or off", name)
			}
			*to = v == "off"
		}
	}
	if u.Has("maxlen") {
		n, about := strings.CutPrefix(u.Param("maxlen"), "~")
		if o.Trim.MaxLen, err = strconv.ParseInt(n, 10, 64); err != nil || o.Trim.MaxLen < 1 {
			return errors.New("maxlen must be a number above 0, or ~ and a number")
		}
		o.Trim.Exact = !about
	}
	switch u.Param("durable") {
	case "":
	case "any":
		o.Durable = DurableAny
	case "everysec":
		o.Durable = DurableEverySecond
	case "always":
		o.Durable = DurableAlways
	default:
		return errors.New("durable must be any, everysec or always")
	}
	if u.Has("synced") {
		o.Synced, err = u.Bool("synced")
	}
	return err
}
