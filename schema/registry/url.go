package registry

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/postrider/postrider/internal/secret"
)

// target is a registry's URL taken apart.
type target struct {
	place    string // without user, password and parameters
	user     string
	password secret.Source // nil: none
	token    secret.Source // nil: none
	tls      *tls.Config
	cache    string
}

// params are the parameters of the URL.
func params() []string {
	return []string{"password-file", "password-env", "token-file", "token-env", "tls-ca", "tls-cert", "tls-key", "cache"}
}

// parseURL takes a URL apart. No error repeats it.
func parseURL(raw string) (*target, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, errors.New("the URL cannot be read: write http[s]://[USER@]HOST[:PORT][/PATH], percent-encoded")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("the scheme must be http or https")
	case u.Hostname() == "" || u.Opaque != "":
		return nil, errors.New("the URL has no host: write http[s]://[USER@]HOST[:PORT][/PATH]")
	case u.Fragment != "":
		return nil, errors.New("the URL has a fragment: remove it, or write # as %23")
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("the URL's parameters cannot be read: each must be percent-encoded")
	}
	of := map[string]string{}
	for name, list := range values {
		key := strings.ReplaceAll(name, "_", "-")
		if !slices.Contains(params(), key) {
			return nil, fmt.Errorf("unknown parameter %.40q: use %s", name, strings.Join(params(), ", "))
		}
		if _, twice := of[key]; twice || len(list) != 1 || list[0] == "" {
			return nil, fmt.Errorf("the parameter %s must be there once, with a value", key)
		}
		of[key] = list[0]
	}
	t := &target{place: u.Scheme + "://" + u.Host + strings.TrimRight(u.EscapedPath(), "/"), cache: of["cache"]}
	if err := t.credentials(u.User, of); err != nil {
		return nil, err
	}
	return t, t.secure(u.Scheme == "https", of)
}

func (t *target) credentials(user *url.Userinfo, of map[string]string) error {
	sources := 0
	if user != nil {
		t.user = user.Username()
		if p, ok := user.Password(); ok {
			t.password = secret.Value(p)
			sources++
		}
	}
	for _, s := range []struct {
		name string
		to   *secret.Source
		make func(string) secret.Source
	}{
		{"password-file", &t.password, secret.File},
		{"password-env", &t.password, secret.Env},
		{"token-file", &t.token, secret.File},
		{"token-env", &t.token, secret.Env},
	} {
		if of[s.name] != "" {
			*s.to = s.make(of[s.name])
			sources++
		}
	}
	switch {
	case sources > 1:
		return errors.New("the URL has several passwords or tokens: keep one")
	case t.token != nil && t.user != "":
		return errors.New("the URL has a user and a token: keep one")
	case t.password != nil && t.user == "":
		return errors.New("the URL has a password without a user: write http[s]://USER@HOST")
	case t.user != "" && t.password == nil:
		return errors.New("the URL has a user without a password: add password-file or password-env")
	}
	return nil
}

func (t *target) secure(on bool, of map[string]string) error {
	ca, cert, key := of["tls-ca"], of["tls-cert"], of["tls-key"]
	switch {
	case !on && ca+cert+key != "":
		return errors.New("tls-ca, tls-cert and tls-key need a URL of https")
	case (cert == "") != (key == ""):
		return errors.New("tls-cert and tls-key belong together")
	case !on:
		return nil
	}
	t.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return fmt.Errorf("tls-ca: %w", err)
		}
		t.tls.RootCAs = x509.NewCertPool()
		if !t.tls.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("tls-ca: %s has no certificate in PEM", ca)
		}
	}
	if cert != "" {
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			return fmt.Errorf("tls-cert and tls-key: %w", err)
		}
		t.tls.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key) // read again, for certificates that are renewed
			return &pair, err
		}
	}
	return nil
}
