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
	budget  [2]int // bytes in each direction until the cut; < 0: none set
	closed  bool
}

// direction of a flow of bytes.
type direction int

const (
	up   direction = iota // from the client to the target
	down                  // from the target to the client
)

// New listens on a free local port and forwards to target.
func New(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	p := &Proxy{target: target, listener: l, conns: make(map[net.Conn]struct{}), budget: noBudget()}
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

// Mute keeps back what flows to the client, until Restore: the connections are
// half-open.
func (p *Proxy) Mute() { p.setHold([2]bool{down: true}) }

// Freeze keeps back what flows in both directions, until Restore. Connections
// are let in.
func (p *Proxy) Freeze() { p.setHold([2]bool{up: true, down: true}) }

func (p *Proxy) setHold(hold [2]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = hold
	p.cond.Broadcast()
}

// Cut lets n more bytes pass to the target, over all connections, then resets
// every connection and refuses new ones until Restore. n = 0 cuts at once.
func (p *Proxy) Cut(n int) { p.cutAfter(up, n) }

// CutAnswer is Cut for bytes that flow to the client.
func (p *Proxy) CutAnswer(n int) { p.cutAfter(down, n) }

func (p *Proxy) cutAfter(d direction, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n <= 0 {
		p.cut()
		return
	}
	p.budget[d] = n
}

func noBudget() [2]int { return [2]int{-1, -1} }

// Restore ends a cut, Mute and Freeze: connections are let in again, and what
// was kept back flows on.
func (p *Proxy) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down, p.budget, p.hold = false, noBudget(), [2]bool{}
	p.cond.Broadcast()
}

// Reset breaks the connections that exist with a TCP reset.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resetAll()
}

func (p *Proxy) cut() {
	p.down, p.budget = true, noBudget()
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
	pair.Go(func() { p.pump(client, server, up); server.Close() })
	pair.Go(func() { p.pump(server, client, down); client.Close() })
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

func (p *Proxy) pump(from, to net.Conn, d direction) {
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
				p.cutAfter(d, 0)
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
func (p *Proxy) gate(d direction, n int) (pass int, last bool) {
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
	if p.budget[d] < 0 {
		return n, false
	}
	if n >= p.budget[d] {
		return p.budget[d], true
	}
	p.budget[d] -= n
	return n, false
}
