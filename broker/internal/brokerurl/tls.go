package brokerurl

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/postrider/postrider/internal/secret"
)

// TLS is what a broker's certificate is verified with, and what is shown to the
// broker. The zero value verifies by the system's authorities and shows nothing.
// It is not changed after Parse, and safe for concurrent use.
type TLS struct {
	CA         string // file, PEM
	Cert, Key  string // files, PEM; both or none
	ServerName string // "": the host that is dialled
}

func (u *URL) tls(implied bool) error {
	on, err := u.Bool("tls")
	if err != nil {
		return err
	}
	t := &TLS{CA: u.Param("tls-ca"), Cert: u.Param("tls-cert"), Key: u.Param("tls-key"), ServerName: u.Param("tls-server-name")}
	wanted := implied || *t != TLS{}
	switch {
	case (t.Cert == "") != (t.Key == ""):
		return errors.New("tls-cert and tls-key belong together")
	case wanted && u.Has("tls") && !on:
		return errors.New("tls=false contradicts the rest of the URL, which asks for TLS")
	case !wanted && !on:
		return nil
	}
	if _, err := t.Config(); err != nil {
		return err
	}
	u.TLS = t
	return nil
}

// Config returns a configuration with the files as they are now.
func (t *TLS) Config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	var err error
	if c.RootCAs, err = t.Roots(); err != nil {
		return nil, err
	}
	if t.Cert != "" {
		pair, err := t.Pair()
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Roots reads the authorities; nil means the system's.
func (t *TLS) Roots() (*x509.CertPool, error) {
	if t.CA == "" {
		return nil, nil //nolint:nilnil // crypto/tls means the system's by nil
	}
	text, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, fmt.Errorf("tls-ca: %w: %w", secret.ErrUnreadable, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("tls-ca: %w: %s has no certificate in PEM", secret.ErrUnreadable, t.CA)
	}
	return roots, nil
}

// Pair reads the client's certificate and key.
func (t *TLS) Pair() (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return pair, fmt.Errorf("tls-cert and tls-key: %w: %w", secret.ErrUnreadable, err)
	}
	return pair, nil
}

// DialContext connects with the files as they are now. An error is a
// *net.OpError of the operation "dial", also when the handshake failed: nothing
// was said to the broker.
func (t *TLS) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	config, err := t.Config()
	if err == nil {
		var conn net.Conn
		if conn, err = (&tls.Dialer{Config: config}).DialContext(ctx, network, addr); err == nil {
			return conn, nil
		}
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return nil, err
	}
	var plain tls.RecordHeaderError
	if errors.Is(err, io.EOF) {
		err = errors.New("the server closed the connection in the handshake: it is not ready, or does not speak TLS at this port")
	} else if errors.As(err, &plain) {
		err = fmt.Errorf("the server does not speak TLS at this port; check tls, the scheme and the port of the broker's URL: %w", err)
	}
	return nil, &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("TLS with %s: %w", addr, err)}
}
