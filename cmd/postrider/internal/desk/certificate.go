package desk

import (
	"crypto/tls"
	"log/slog"
	"sync"
)

// certificate is that of two files, which are read again for each connection: a renewal needs
// no restart.
type certificate struct {
	cert, key string
	logger    *slog.Logger

	mu   sync.Mutex
	last *tls.Certificate // that could be read
	why  string           // the files cannot be read now; "": they can
}

// show returns the certificate for a connection: the last one where the files cannot be used,
// which are half written for a moment.
func (c *certificate) show(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.last, c.why = &pair, ""
		return c.last, nil
	}
	if c.last == nil {
		return nil, err
	}
	if why := err.Error(); why != c.why {
		c.why = why
		c.logger.Warn("certificate not renewed", "error", err, "effect", "the last one stays in use")
	}
	return c.last, nil
}
