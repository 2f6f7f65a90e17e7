// Package faultproxy is a TCP proxy that breaks connections on demand, for
// tests of what clients do when a network fails.
package faultproxy

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Proxy forwards connections to one target. Its methods are safe for
// concurrent use and act on the connections that exist and on later ones.
type Proxy struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	cond    *sync.Cond
	conns   map[net.Conn]struct{}
	latency time.Duration
	down    bool // new connections are refused
	hold    [2]bool
	budget  int64 // bytes towards the target until the cut; < 0: none set
	closed  bool
}

// Direction of a flow of bytes.
type Direction int

// The directions.
const (
	Up   Direction = iota // from the client to the target
	Down                  // from the target to the client
)

// New listens on a free local port and forwards to target.
func New(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	p := &Proxy{target: target, listener: l, conns: make(map[net.Conn]struct{}), budget: -1}
	p.cond = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Latency delays every piece of data by d from now on.
func (p *Proxy) Latency(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = d
}

// Hold keeps back what flows in direction d; the connections stay open. With
// one direction held they are half-open.
func (p *Proxy) Hold(d Direction) { p.setHold(d, true) }

// Release lets flow what Hold kept back.
func (p *Proxy) Release(d Direction) { p.setHold(d, false) }

func (p *Proxy) setHold(d Direction, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold[d] = on
	p.cond.Broadcast()
}

// CutAfter lets n more bytes pass up, over all connections, then resets every
// connection and refuses new ones until Restore. n = 0 cuts at once.
func (p *Proxy) CutAfter(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n <= 0 {
		p.cut()
		return
	}
	p.budget = n
}

// Restore ends a cut: connections are let in again.
func (p *Proxy) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down, p.budget = false, -1
}

// Reset breaks the connections that exist with a TCP reset.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resetAll()
}

func (p *Proxy) cut() {
	p.down, p.budget = true, -1
	p.resetAll()
}

func (p *Proxy) resetAll() {
	for c := range p.conns {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // a reset, not an orderly end; best effort
		}
		c.Close()
		delete(p.conns, c)
	}
}

// Close ends the proxy and its connections and waits for them.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.hold = [2]bool{}
	p.cond.Broadcast()
	p.resetAll()
	p.mu.Unlock()
	err := p.listener.Close()
	p.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	if !p.admit(client) {
		return
	}
	defer p.leave(client)
	server, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil || !p.admit(server) {
		return
	}
	defer p.leave(server)
	var pair sync.WaitGroup
	pair.Go(func() { p.pump(client, server, Up); server.Close() })
	pair.Go(func() { p.pump(server, client, Down); client.Close() })
	pair.Wait()
}

func (p *Proxy) admit(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down || p.closed {
		c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) leave(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	c.Close()
}

func (p *Proxy) pump(from, to net.Conn, d Direction) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			pass, last := p.gate(d, n)
			if pass > 0 {
				if _, werr := to.Write(buf[:pass]); werr != nil {
					return
				}
			}
			if last {
				p.CutAfter(0)
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// gate waits as long as d is held and says how many of n bytes may pass, and
// whether the cut comes after them.
func (p *Proxy) gate(d Direction, n int) (pass int, last bool) {
	p.mu.Lock()
	delay := p.latency
	p.mu.Unlock()
	if delay > 0 {
		<-time.After(delay)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.hold[d] {
		p.cond.Wait()
	}
	if d != Up || p.budget < 0 {
		return n, false
	}
	if int64(n) >= p.budget {
		return int(p.budget), true
	}
	p.budget -= int64(n)
	return n, false
}
