package httpbroker

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/broker/internal/brokerurl"
	"github.com/postrider/postrider/internal/secret"
)

// Target is a URL with its settings, read.
type Target struct {
	Endpoint Endpoint      // where a sink posts to
	Source   SourceOptions // what the settings say to a source: whose requests it accepts
}

// ParseURL reads a URL whose fragment holds settings. A fragment is never sent, so path
// and parameters are the endpoint's own:
//
//	https://hooks.example.com/in?tenant=7#secret-file=/run/secrets/hook&rate=100
//
// The settings are those of [ParseEndpoint]. Errors do not repeat the URL.
func ParseURL(raw string) (Target, error) {
	base, fragment, _ := strings.Cut(raw, "#")
	settings, err := url.ParseQuery(fragment)
	if err != nil {
		return Target{}, fmt.Errorf("%w: the settings after # cannot be read: write NAME=VALUE&NAME=VALUE, percent-encoded", ErrEndpoint)
	}
	e, err := ParseEndpoint(base, settings)
	if err != nil && strings.Contains(fragment, "@") { // a # in a password makes the rest of it a setting
		err = fmt.Errorf("%w: a setting is invalid, and hidden because an @ follows the #: percent-encode user and password", ErrEndpoint)
	}
	if err != nil {
		return Target{}, err
	}
	return Target{Endpoint: e, Source: SourceOptions{Secrets: e.Secrets, Unsigned: e.Unsigned, MaxMessageBytes: e.MaxMessageBytes}}, nil
}

// ParseEndpoint makes an endpoint of a URL and settings:
//
//	name=TEXT                 for logs and status; the URL's host
//	topics=TOPIC,BEGIN*,...   what it receives; everything
//	secret-file=FILE          secrets that sign, separated by space or lines
//	secret-env=NAME           or of a variable
//	unsigned=true             or none at all
//	authorization-file=FILE   the value of the header Authorization
//	authorization-env=NAME    or of a variable
//	concurrency=N             requests at once; 128
//	rate=N                    requests per second; no limit
//	timeout=DURATION          until the answer's status; 15s
//	dial-timeout=DURATION     5s, as tls-timeout
//	max-message-bytes=N       of a payload; no limit
//	allow=PREFIX,ADDRESS,...  addresses that may be connected to although they are not public
//	ports=N,N                 ports besides 443 and 80
//	insecure=true             http:// is right
//	tls-ca, tls-cert, tls-key, tls-server-name
//	                          another authority, a client certificate (PEM files), another name
//	proxy=URL                 an http or https proxy
//	stopped=true              nothing is sent
//
// A setting that is unknown, is there twice or not understood is an error.
func ParseEndpoint(rawURL string, settings url.Values) (Endpoint, error) {
	settings = brokerurl.Dashed(settings)
	e := Endpoint{URL: rawURL}
	var files brokerurl.TLS
	for _, name := range sorted(settings) {
		value := settings.Get(name)
		err := errTwice
		if len(settings[name]) == 1 {
			err = e.set(name, value, &files)
		}
		if err != nil {
			return Endpoint{}, fmt.Errorf("%w: setting %s: %w", ErrEndpoint, name, err)
		}
	}
	for _, pair := range [][2]string{{"secret-file", "secret-env"}, {"authorization-file", "authorization-env"}} {
		if settings.Has(pair[0]) && settings.Has(pair[1]) {
			return Endpoint{}, fmt.Errorf("%w: settings %s and %s exclude each other", ErrEndpoint, pair[0], pair[1])
		}
	}
	if files != (brokerurl.TLS{}) {
		if (files.Cert == "") != (files.Key == "") {
			return Endpoint{}, fmt.Errorf("%w: settings tls-cert and tls-key belong together", ErrEndpoint)
		}
		e.TLS = files.Config
	}
	return e, nil
}

// Reasons why a setting is refused; values are not repeated.
var (
	errTwice   = errors.New("is given more than once")
	errBool    = errors.New("must be true or false")
	errNumber  = errors.New("must be a number above 0")
	errTime    = errors.New("must be a time such as 10s")
	errPrefix  = errors.New("must be addresses or prefixes such as 10.1.0.0/16, separated by commas")
	errPort    = errors.New("must be port numbers, separated by commas")
	errTopic   = errors.New("must be topics, or beginnings that end with *, separated by commas")
	errNothing = errors.New("is empty")
)

func sorted(settings url.Values) []string {
	names := make([]string, 0, len(settings))
	for name := range settings {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (e *Endpoint) set(name, value string, files *brokerurl.TLS) (err error) {
	if value == "" {
		return errNothing
	}
	switch name {
	case "name":
		e.Name = value
	case "topics":
		for topic := range strings.SplitSeq(value, ",") {
			if topic = strings.TrimSpace(topic); topic == "" {
				return errTopic
			}
			e.Topics = append(e.Topics, topic)
		}
	case "secret-file":
		e.Secrets = File(value)
	case "secret-env":
		e.Secrets = Credential(secret.Env(value))
	case "authorization-file":
		e.Authorization = File(value)
	case "authorization-env":
		e.Authorization = Credential(secret.Env(value))
	case "proxy":
		e.Proxy = value
	case "tls-ca":
		files.CA = value
	case "tls-cert":
		files.Cert = value
	case "tls-key":
		files.Key = value
	case "tls-server-name":
		files.ServerName = value
	case "unsigned":
		e.Unsigned, err = boolean(value)
	case "insecure":
		e.Insecure, err = boolean(value)
	case "stopped":
		e.Stopped, err = boolean(value)
	default:
		return e.setLimit(name, value)
	}
	return err
}

func (e *Endpoint) setLimit(name, value string) (err error) {
	switch name {
	case "concurrency":
		e.Concurrency, err = number(value)
	case "max-message-bytes":
		e.MaxMessageBytes, err = number(value)
	case "rate":
		e.Rate, err = strconv.ParseFloat(value, 64)
		if err != nil || !(e.Rate > 0 && e.Rate <= 1e6) {
			return errNumber
		}
	case "timeout":
		e.Timeout, err = duration(value)
	case "dial-timeout":
		e.DialTimeout, err = duration(value)
	case "tls-timeout":
		e.TLSTimeout, err = duration(value)
	case "allow":
		for text := range strings.SplitSeq(value, ",") {
			p, err := prefix(text)
			if err != nil {
				return errPrefix
			}
			e.Allow = append(e.Allow, p)
		}
	case "ports":
		for text := range strings.SplitSeq(value, ",") {
			n, err := strconv.ParseUint(text, 10, 16)
			if err != nil {
				return errPort
			}
			e.Ports = append(e.Ports, uint16(n))
		}
	default:
		return errors.New("is unknown: the package's ParseEndpoint and README list them")
	}
	return err
}

func boolean(text string) (bool, error) {
	if text != "true" && text != "false" {
		return false, errBool
	}
	return text == "true", nil
}

func number(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, errNumber
	}
	return n, nil
}

func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, errTime
	}
	return d, nil
}

func prefix(text string) (netip.Prefix, error) {
	if ip, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen()), nil
	}
	return netip.ParsePrefix(text)
}
