// Package brokerurl reads what the URLs of all brokers have in common:
//
//	SCHEME://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...][/PATH][?PARAM=VALUE&...]
//
// with these parameters beside the adapter's own:
//
//	password-file=FILE     the password is the one line of FILE,
//	password-env=NAME      or of a variable; both are read at each new connection
//	tls=true|false         TLS, verified, with the system's authorities
//	tls-ca=FILE            other authorities (PEM)
//	tls-cert=FILE          the client's certificate and its key (PEM), read again
//	tls-key=FILE           at each new connection like tls-ca
//	tls-server-name=NAME   what the certificate must be for, if not the host
//
// An adapter may have other secrets than the password: NAME-file and NAME-env.
// Names may have underscores in place of dashes. A parameter that is unknown, is there twice or does not go with another one is
// an error, and so is a value that is not understood: it must not pass for its
// absence. No error repeats the URL, a value of it or a secret.
package brokerurl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/postrider/postrider/internal/secret"
)

// Spec says what an adapter's URLs look like.
type Spec struct {
	// Schemes are the schemes that are understood, and whether each of them means TLS.
	Schemes map[string]bool
	// Port is put behind a host that has none, unless empty.
	Port string
	// Path allows something between the hosts and the parameters.
	Path bool
	// Params are the adapter's own parameters.
	Params []string
	// Secrets are the names of its secrets beside the password.
	Secrets []string
}

// URL is a broker's URL taken apart.
type URL struct {
	Scheme string
	Hosts  []string
	// Path is what stands behind the first slash after the hosts, not decoded.
	Path string
	User string
	// Password is nil where the URL gives none.
	Password secret.Source
	// TLS is nil where none is asked for.
	TLS *TLS

	values  url.Values
	secrets map[string]secret.Source
}

// Parse takes raw apart. It reads the files that raw names once, to say what is
// wrong with them, and does no other I/O.
func Parse(raw string, spec Spec) (*URL, error) {
	u := &URL{secrets: make(map[string]secret.Source)}
	rest, err := u.scheme(raw, spec)
	if err != nil {
		return nil, err
	}
	rest, query, _ := strings.Cut(rest, "?")
	if u.values, err = url.ParseQuery(query); err != nil {
		return nil, errors.New("the URL's parameters cannot be read: each must be percent-encoded")
	}
	u.values = Dashed(u.values)
	if rest, err = u.user(rest); err != nil {
		return nil, err
	}
	if err := u.hosts(rest, spec); err != nil {
		return nil, err
	}
	if err := u.known(spec, query); err != nil {
		return nil, err
	}
	for _, name := range append([]string{"password"}, spec.Secrets...) {
		if err := u.secret(name); err != nil {
			return nil, err
		}
	}
	if p := u.secrets["password"]; p != nil {
		if u.Password != nil {
			return nil, errors.New("the URL has a password and a password-file or password-env: give one of them")
		}
		u.Password = p
	}
	return u, u.tls(spec.Schemes[u.Scheme])
}

// Dashed returns values under their names with dashes: tls_ca is tls-ca.
func Dashed(values url.Values) url.Values {
	all := make(url.Values, len(values))
	for name, v := range values {
		name = strings.ReplaceAll(name, "_", "-")
		all[name] = append(all[name], v...)
	}
	return all
}

// Param is the value of one of the adapter's own parameters, "" without it.
func (u *URL) Param(name string) string { return u.values.Get(name) }

// Has reports whether the URL has the parameter.
func (u *URL) Has(name string) bool { return u.values.Has(name) }

// Secret is where one of the adapter's own secrets comes from; nil where the URL
// does not say.
func (u *URL) Secret(name string) secret.Source { return u.secrets[name] }

// Bool is the value of a parameter that is true or false.
func (u *URL) Bool(name string) (bool, error) {
	switch u.values.Get(name) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	if !u.values.Has(name) {
		return false, nil
	}
	return false, fmt.Errorf("%s must be true or false", name)
}

func (u *URL) scheme(raw string, spec Spec) (rest string, err error) {
	for scheme := range spec.Schemes {
		if after, ok := strings.CutPrefix(raw, scheme+"://"); ok {
			u.Scheme = scheme
			return after, nil
		}
	}
	var all []string
	for scheme := range spec.Schemes {
		all = append(all, scheme+"://")
	}
	slices.Sort(all)
	return "", fmt.Errorf("the URL must begin with %s", strings.Join(all, " or "))
}

// user cuts the user and the password off. A password may hold an @ that nobody
// escaped: the last one ends it.
func (u *URL) user(rest string) (string, error) {
	at := strings.LastIndexByte(rest, '@')
	if at < 0 {
		return rest, nil
	}
	name, password, has := strings.Cut(rest[:at], ":")
	var err, err2 error
	u.User, err = url.PathUnescape(name)
	password, err2 = url.PathUnescape(password)
	if err != nil || err2 != nil || strings.ContainsAny(name, "/#") {
		return "", errors.New("user and password must be percent-encoded")
	}
	if has {
		u.Password = secret.Value(password)
	}
	return rest[at+1:], nil
}

// hosts cuts the list of hosts by hand: several are no valid URL.
func (u *URL) hosts(rest string, spec Spec) error {
	list, path, _ := strings.Cut(rest, "/")
	if u.Path = path; path != "" && !spec.Path {
		return errors.New("unexpected path in the URL: only parameters may follow the hosts")
	}
	for host := range strings.SplitSeq(list, ",") {
		host = strings.TrimSpace(host)
		if host == "" || strings.ContainsAny(host, " #") {
			return errors.New("a host is missing")
		}
		if _, _, err := net.SplitHostPort(host); err != nil && spec.Port != "" {
			host = net.JoinHostPort(strings.Trim(host, "[]"), spec.Port)
		}
		u.Hosts = append(u.Hosts, host)
	}
	return nil
}

// known refuses parameters that are nobody's, or there twice.
func (u *URL) known(spec Spec, query string) error {
	names := append(slices.Clone(spec.Params), "tls", "tls-ca", "tls-cert", "tls-key", "tls-server-name")
	for _, s := range append([]string{"password"}, spec.Secrets...) {
		names = append(names, s+"-file", s+"-env")
	}
	slices.Sort(names)
	for name, values := range u.values {
		if !slices.Contains(names, name) {
			if strings.Contains(query, "@") { // a ? in a password makes the rest of it a parameter
				return fmt.Errorf("a parameter is unknown, and hidden because an @ follows the ?: percent-encode user and password, and use %s", strings.Join(names, ", "))
			}
			return fmt.Errorf("parameter %q is unknown: use %s", visible(name), strings.Join(names, ", "))
		}
		if len(values) > 1 {
			return fmt.Errorf("parameter %s is given %d times", name, len(values))
		}
	}
	return nil
}

// visible shortens a name that is not one of ours: it may be anything.
func visible(name string) string {
	const most = 40
	if len(name) > most {
		return name[:most] + "..."
	}
	return name
}

func (u *URL) secret(name string) error {
	file, env := u.values.Get(name+"-file"), u.values.Get(name+"-env")
	for _, p := range []string{name + "-file", name + "-env"} {
		if u.values.Has(p) && u.values.Get(p) == "" {
			return fmt.Errorf("%s is empty", p)
		}
	}
	var source secret.Source
	switch {
	case file != "" && env != "":
		return fmt.Errorf("%s-file and %s-env exclude each other", name, name)
	case file != "":
		source = secret.File(file)
	case env != "":
		source = secret.Env(env)
	default:
		return nil
	}
	if _, err := source(context.Background()); err != nil { //nolint:forbidigo // reads a file
		return err
	}
	u.secrets[name] = source
	return nil
}
