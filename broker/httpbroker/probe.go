package httpbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"sync"
	"time"
)

const (
	pingWait     = 5 * time.Second
	pingListen   = 100 * time.Millisecond
	pingParallel = 8
)

// Ping is [broker.Info].Ping: it connects to endpoints, or to their proxies, until
// one accepts, and sends no request. It skips stopped endpoints.
func (s *Sink) Ping(ctx context.Context) error {
	var asked []*target
	for _, t := range s.table.Load().targets {
		t.mu.Lock()
		held := t.held || t.p.Stopped
		t.mu.Unlock()
		if !held {
			asked = append(asked, t)
		}
	}
	var first error
	for len(asked) > 0 {
		n := min(pingParallel, len(asked))
		err := pingAny(ctx, asked[:n])
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			return first
		}
		asked = asked[n:]
	}
	return first
}

// pingAny connects to all targets at once and returns nil when one accepts, otherwise
// the error of the first target.
func pingAny(ctx context.Context, targets []*target) error {
	errs := make([]error, len(targets))
	var all sync.WaitGroup
	for i, t := range targets {
		all.Go(func() { errs[i] = t.p.ping(ctx) })
	}
	all.Wait()
	for _, err := range errs {
		if err == nil {
			return nil
		}
	}
	return errs[0]
}

func (p *prepared) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingWait)
	defer cancel()
	to := p.url
	if p.proxy != nil {
		to = p.proxy
	}
	conn, err := p.dialer().DialContext(ctx, "tcp", net.JoinHostPort(to.Hostname(), portOf(to)))
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && op.Err != nil { // without the address: the name identifies the endpoint
			err = op.Err
		}
		return fmt.Errorf("reach endpoint %s: %w", p.Name, err)
	}
	defer conn.Close()
	// A server waits for our request. A closed connection comes from a proxy without a server behind it.
	if err := conn.SetReadDeadline(time.Now().Add(pingListen)); err != nil {
		return fmt.Errorf("reach endpoint %s: %w", p.Name, err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("reach endpoint %s: the connection was closed at once", p.Name)
	}
	return nil
}

// portOf returns the port of a URL, by default its scheme's.
func portOf(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
}
