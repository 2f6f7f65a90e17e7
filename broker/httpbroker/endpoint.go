package httpbroker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Endpoint is one receiver of webhooks. Only URL and one of Secrets and Unsigned
// are required.
type Endpoint struct {
	// Name identifies the endpoint in logs, errors and status. "": the URL's host.
	Name string
	// URL is the address for requests. Its user and password are sent as
	// basic authorization and appear nowhere else.
	URL string
	// Topics that this endpoint receives: names, or beginnings that end with *.
	// nil: every topic. A message goes to the first endpoint that names its topic.
	Topics []string
	// Secrets returns the text of one or more secrets, see [ParseSecrets]; requests
	// carry a signature by each. To rotate, add the new secret, change the
	// receiver, and remove the old secret.
	Secrets Credential
	// Unsigned confirms that requests are sent without a signature.
	Unsigned bool
	// Authorization returns the value of the header Authorization. nil: no header.
	Authorization Credential

	// Concurrency is the most requests in flight. 0: 128.
	Concurrency int
	// Rate is the most requests per second, in bursts of up to a second's. 0: no limit.
	Rate float64
	// Timeout is how long a request may take until the answer's status. 0: 15 s.
	Timeout time.Duration
	// DialTimeout and TLSTimeout bound the phases of a new connection. 0: 5 s.
	DialTimeout, TLSTimeout time.Duration
	// MaxMessageBytes is the largest payload in bytes; larger ones are rejected. 0: no limit.
	MaxMessageBytes int

	// Allow lists addresses that are allowed although they are not public.
	Allow []netip.Prefix
	// Ports lists allowed ports besides 443 and 80.
	Ports []uint16
	// Insecure allows http:// for addresses that are not loopback.
	Insecure bool
	// TLS returns the configuration for a private authority or a client certificate. It is
	// called for each new set of connections, every few minutes. nil: the system's roots.
	TLS func() (*tls.Config, error)
	// Proxy is the URL of an http or https proxy for requests. Then the proxy, not
	// this program, decides which addresses are reachable. "": none; proxies of the
	// environment are ignored.
	Proxy string
	// Stopped stops the endpoint until a person changes the setting.
	Stopped bool
}

// ErrEndpoint is wrapped by all errors about an endpoint's settings.
var ErrEndpoint = errors.New("httpbroker: endpoint")

func (e *Endpoint) wrong(why string) error {
	return fmt.Errorf("%w %s: %s", ErrEndpoint, e.Name, why)
}

// prepared is an endpoint with validated settings.
type prepared struct {
	Endpoint
	url   *url.URL // without user and password
	basic string   // the header made from user and password
	proxy *url.URL
	keys  *cached[[]Secret] // nil: unsigned
	auth  *cached[string]   // nil: none
}

func prepare(e Endpoint) (*prepared, error) {
	p := &prepared{Endpoint: e}
	u, err := url.Parse(e.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, p.wrong("invalid URL: write https://HOST/PATH") // without the error, which repeats the URL
	}
	if p.Name == "" {
		p.Name = u.Host
	}
	if len(p.Name) > 100 {
		return nil, p.wrong("the name is longer than 100 bytes")
	}
	if u.User != nil {
		p.basic = basic(u.User)
		u.User = nil
	}
	u.Fragment, u.RawFragment = "", ""
	p.url = u
	if u.Scheme == "http" && !e.Insecure && !loopback(u.Hostname()) {
		return nil, p.wrong("http:// sends payloads in clear text: use https://, or confirm with insecure=true")
	}
	if e.Proxy != "" {
		if p.proxy, err = url.Parse(e.Proxy); err != nil || p.proxy.Host == "" || p.proxy.Scheme != "http" && p.proxy.Scheme != "https" {
			return nil, p.wrong("invalid proxy URL: write http://HOST:PORT or https://HOST:PORT")
		}
	}
	switch {
	case e.Concurrency < 0, e.Rate < 0, e.Timeout < 0, e.DialTimeout < 0, e.TLSTimeout < 0, e.MaxMessageBytes < 0:
		return nil, p.wrong("limits must not be negative")
	case e.Secrets == nil && !e.Unsigned:
		return nil, p.wrong("has no secret, so the receiver cannot detect forged requests: give one (secret-file=FILE), or confirm with unsigned=true")
	case e.Secrets != nil && e.Unsigned:
		return nil, p.wrong("secret and unsigned exclude each other: choose one")
	case p.basic != "" && e.Authorization != nil:
		return nil, p.wrong("a password in the URL and an authorization exclude each other: choose one")
	}
	if err := p.credentials(); err != nil {
		return nil, err
	}
	if err := p.reachable(); err != nil {
		return nil, err
	}
	p.defaults()
	if _, err := p.transport(); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrEndpoint, p.Name, err)
	}
	return p, nil
}

// reachable returns an error if the guard would refuse the endpoint, as far as that is
// known before a name is resolved.
func (p *prepared) reachable() error {
	to := p.url
	if p.proxy != nil {
		to = p.proxy
	}
	number, err := strconv.ParseUint(portOf(to), 10, 16)
	if err != nil {
		return p.wrong("the port is invalid: write https://HOST:PORT/PATH")
	}
	port, g := uint16(number), newGuard(p.Allow, p.Ports)
	ip, err := netip.ParseAddr(to.Hostname())
	if err != nil { // a name
		if len(p.Allow) == 0 && !g.opens(port) {
			return p.wrong(fmt.Sprintf("port %d %s: if the endpoint listens there, add ports=%[1]d, or allow its address", port, otherPort))
		}
		return nil
	}
	at := netip.AddrPortFrom(ip, port)
	if why := g.refuses(at); why != "" {
		return fmt.Errorf("%w %s: %w", ErrEndpoint, p.Name, &AddressError{Address: at, Reason: why})
	}
	return nil
}

// credentials reads the credentials once, so that errors are reported at the start.
func (p *prepared) credentials() error {
	ctx := context.Background() //nolint:forbidigo // a file or a variable
	if p.Authorization != nil {
		p.auth = &cached[string]{from: p.Authorization, read: oneLine}
		if _, err := p.auth.get(ctx); err != nil {
			return fmt.Errorf("%w %s: %w", ErrEndpoint, p.Name, err)
		}
	}
	if p.Secrets == nil {
		return nil
	}
	p.keys = &cached[[]Secret]{from: p.Secrets, read: signers}
	if _, err := p.keys.get(ctx); err != nil {
		return fmt.Errorf("%w %s: %w", ErrEndpoint, p.Name, err)
	}
	return nil
}

// signers parses secrets that can sign.
func signers(text string) ([]Secret, error) {
	secrets, err := ParseSecrets(text)
	if err == nil {
		_, err = Sign(secrets, "", time.Time{}, nil)
	}
	return secrets, err
}

func (p *prepared) defaults() {
	if p.Concurrency == 0 {
		p.Concurrency = 128
	}
	for _, d := range []struct {
		at  *time.Duration
		def time.Duration
	}{{&p.Timeout, 15 * time.Second}, {&p.DialTimeout, 5 * time.Second}, {&p.TLSTimeout, 5 * time.Second}} {
		if *d.at == 0 {
			*d.at = d.def
		}
	}
}

func basic(user *url.Userinfo) string {
	password, _ := user.Password()
	return "Basic " + base64Text(user.Username()+":"+password)
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// takes reports whether messages of the topic go to the endpoint.
func (p *prepared) takes(topic string) bool {
	if p.Topics == nil {
		return true
	}
	for _, pattern := range p.Topics {
		if begin, ok := strings.CutSuffix(pattern, "*"); ok && strings.HasPrefix(topic, begin) || pattern == topic {
			return true
		}
	}
	return false
}

// dialer returns a dialer that connects only to addresses that the guard allows.
func (p *prepared) dialer() *net.Dialer {
	g := newGuard(p.Allow, p.Ports)
	return &net.Dialer{Timeout: p.DialTimeout, Control: g.control, KeepAlive: 15 * time.Second}
}
