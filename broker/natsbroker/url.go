package natsbroker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/postrider/postrider/broker/internal/brokerurl"
	"github.com/postrider/postrider/internal/peer"
	"github.com/postrider/postrider/internal/secret"
)

// Target is a parsed NATS URL.
type Target struct {
	// Servers and Client are for nats.Connect.
	Servers string
	Client  []nats.Option
	Sink    SinkOptions   // the URL's options for publishing
	Source  SourceOptions // the URL's options for receiving
}

// ParseURL reads a URL such as
//
//	nats://user:password@host1:4222,host2/?tls=true&prefix=events.
//
// The port is 4222 where none is given. Parameters:
//
//	prefix=TEXT           put before every subject
//	dedup=on|off          off omits Nats-Msg-Id, so that a stream keeps duplicates
//	password-file=FILE    the user's password; or password-env=NAME
//	token-file=FILE       in place of a user; or token-env=NAME; or nats://TOKEN@host
//	creds=FILE            the user's JWT and seed, as nsc makes it
//	nkey=FILE             the user's seed
//	tls=true              TLS, verified; refuse servers without it; with tls-ca=FILE, tls-cert=FILE and
//	                      tls-key=FILE, tls-server-name=NAME where the system's authorities do not suffice.
//	                      Without tls=true, TLS is used if the server asks for it
//
// Password, token, creds, and certificates are read again from their files for
// each new connection: a rotation needs no restart. An nkey's seed is read again
// too, but its public key is the user's identity and must stay the same. ParseURL reads
// the files once and does no other I/O. Errors do not repeat the URL.
func ParseURL(raw string) (t Target, err error) { return t, t.read(raw) }

// read adds the URL's options to those of t.
func (t *Target) read(raw string) error {
	if err := t.parse(raw); err != nil {
		return fmt.Errorf("natsbroker: parse URL: %w", err)
	}
	return nil
}

func (t *Target) parse(raw string) error {
	u, err := brokerurl.Parse(raw, brokerurl.Spec{
		Schemes: map[string]bool{"nats": false}, Port: "4222",
		Params: []string{"prefix", "dedup", "creds", "nkey"}, Secrets: []string{"token"},
	})
	if err != nil {
		return err
	}
	t.Client = ClientOptions()
	if u.Has("prefix") {
		t.Sink.Prefix, t.Source.Prefix = u.Param("prefix"), u.Param("prefix")
	}
	switch u.Param("dedup") {
	case "off":
		t.Sink.NoDedup = true
	case "on":
		t.Sink.NoDedup = false
	default:
		if u.Has("dedup") {
			return errors.New("dedup must be on or off")
		}
	}
	scheme := "nats://"
	if u.TLS != nil {
		scheme = "tls://"
		t.Client = append(t.Client, tlsOptions(u.TLS)...)
	}
	t.Client = append(t.Client, nats.SetCustomDialer(dialer{}))
	t.Servers = scheme + strings.Join(u.Hosts, ","+scheme)
	who, err := identity(u)
	if err != nil {
		return err
	}
	if who != nil {
		t.Client = append(t.Client, who)
	}
	return nil
}

// dialer detects a server that does not speak the protocol of NATS.
type dialer struct{}

// Dial implements nats.CustomDialer.
func (dialer) Dial(network, addr string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, addr, nats.DefaultTimeout)
	if err != nil {
		return nil, err
	}
	return peer.Watch(conn, addr, peer.NATS()), nil
}

// tlsOptions make the client read the files at each handshake.
func tlsOptions(t *brokerurl.TLS) []nats.Option {
	opts := []nats.Option{nats.Secure(&tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName})}
	var (
		pair  nats.TLSCertHandler
		roots nats.RootCAsHandler
	)
	if t.Cert != "" {
		pair = t.Pair
	}
	if t.CA != "" {
		roots = t.Roots
	}
	if pair != nil || roots != nil {
		opts = append(opts, nats.ClientTLSConfig(pair, roots)) // one call sets both
	}
	return opts
}

var errTwoIdentities = errors.New("conflicting credentials in the URL: use one of user and password, token, creds or nkey")

// identity returns the option with the URL's credentials, nil without any.
func identity(u *brokerurl.URL) (nats.Option, error) {
	var opts []nats.Option
	if u.User != "" && u.Password == nil { // NATS reads a single word before the @ as a token
		opts = append(opts, nats.TokenHandler(func() string { return u.User }))
	} else if u.Password != nil {
		if u.User == "" {
			return nil, errors.New("a password needs a user: nats://USER@HOST")
		}
		opts = append(opts, nats.UserInfoHandler(func() (string, string) { return u.User, now(u.Password) }))
	}
	if token := u.Secret("token"); token != nil {
		opts = append(opts, nats.TokenHandler(func() string { return now(token) }))
	}
	if file := u.Param("creds"); file != "" {
		opt := nats.UserCredentials(file)
		if err := signs(opt); err != nil {
			return nil, fmt.Errorf("creds: %w", err)
		}
		opts = append(opts, opt)
	}
	if file := u.Param("nkey"); file != "" {
		opt, err := nats.NkeyOptionFromSeed(file)
		if err != nil {
			return nil, fmt.Errorf("nkey: %w", notQuoting(err))
		}
		opts = append(opts, opt)
	}
	switch len(opts) {
	case 0:
		return nil, nil
	case 1:
		return opts[0], nil
	}
	return nil, errTwoIdentities
}

// now returns the present secret, "" if it cannot be read: the
// server rejects that, and the connection tries again.
func now(source secret.Source) string {
	text, err := source(context.Background()) //nolint:forbidigo // reads a file; the client gives no context
	if err != nil {
		return ""
	}
	return text
}

// signs reports an error if a creds file cannot be read.
func signs(opt nats.Option) error {
	var o nats.Options
	if err := opt(&o); err != nil {
		return notQuoting(err)
	}
	if _, err := o.UserJWT(); err != nil {
		return notQuoting(err)
	}
	if _, err := o.SignatureCB([]byte("nonce")); err != nil {
		return notQuoting(err)
	}
	return nil
}

// notQuoting returns errors of the operating system unchanged, and replaces a library's
// error, which may quote the seed.
func notQuoting(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path
	}
	return errors.New("the file has no valid credentials or seed; make it with nsc generate creds, or nk -gen user")
}
