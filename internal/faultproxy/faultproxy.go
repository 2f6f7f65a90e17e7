// Package faultproxy is a TCP proxy that breaks connections on demand, for
// tests of what clients do when a network fails.
package faultproxy

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Proxy forwards connections to one target. Its methods are safe for
// concurrent use and act on the connections that exist and, except for Reset
// and Strand, on later ones. Restore ends every fault.
type Proxy struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	cond    *sync.Cond
	stirred chan struct{} // closed and replaced when no delay counts any more
	links   map[*link]struct{}
	closed  bool
	faults
}

// faults is what Restore ends.
type faults struct {
	down      bool // new connections are refused
	hold      [2]bool
	budget    [2]int // bytes in each direction until spent; < 0: none set
	spent     func() // what happens then; mu is held
	latency   time.Duration
	perSecond int          // bytes in each direction; 0: no limit
	free      [2]time.Time // when the direction has carried what it was given
	poison    []byte
}

func none() faults { return faults{budget: [2]int{-1, -1}} }

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
	p := &Proxy{target: target, listener: l, links: make(map[*link]struct{}), stirred: make(chan struct{}), faults: none()}
	p.cond = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Slow delays every piece of data by latency, and lets at most so many bytes
// pass in each direction per second, over all connections; 0 is no limit.
func (p *Proxy) Slow(latency time.Duration, bytesPerSecond int) {
	p.set(func() { p.latency, p.perSecond, p.free = latency, bytesPerSecond, [2]time.Time{} })
}

// Mute keeps back what flows to the client, until Restore.
func (p *Proxy) Mute() { p.set(func() { p.hold = [2]bool{down: true} }) }

// Freeze keeps back what flows in both directions, until Restore. Connections
// are let in.
func (p *Proxy) Freeze() { p.set(p.freeze) }

func (p *Proxy) freeze() { p.hold = [2]bool{up: true, down: true} }

// FreezeAfter is Freeze after n more bytes to the target, over all connections.
func (p *Proxy) FreezeAfter(n int) { p.after(up, n, p.freeze) }

// Cut lets n more bytes pass to the target, over all connections, then resets
// every connection and refuses new ones until Restore. n = 0 cuts at once.
func (p *Proxy) Cut(n int) { p.after(up, n, p.cut) }

// CutAnswer is Cut for bytes that flow to the client.
func (p *Proxy) CutAnswer(n int) { p.after(down, n, p.cut) }

// HangUp resets, until Restore, each connection on which the client sends these
// bytes, before they reach the target. Other connections live on, new ones are
// let in. nil ends it.
func (p *Proxy) HangUp(poison []byte) { p.set(func() { p.poison = bytes.Clone(poison) }) }

// Reset breaks the connections that exist with a TCP reset.
func (p *Proxy) Reset() { p.set(p.resetAll) }

// Strand makes the connections that exist half-open: the target sees their end,
// the client's side stays open, takes everything and never answers. New
// connections are as they should be. Restore does not repair them.
func (p *Proxy) Strand() {
	p.set(func() {
		for l := range p.links {
			l.stranded = true
			l.server.Close()
		}
	})
}

// Restore ends every fault: connections are let in, and what was kept back
// flows on.
func (p *Proxy) Restore() {
	p.set(func() {
		p.faults = none()
		close(p.stirred)
		p.stirred = make(chan struct{})
	})
}

func (p *Proxy) set(fault func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fault()
	p.cond.Broadcast()
}

func (p *Proxy) after(d direction, n int, fault func()) {
	p.set(func() {
		p.budget, p.spent = [2]int{-1, -1}, nil
		if n <= 0 {
			fault()
			return
		}
		p.budget[d], p.spent = n, fault
	})
}

func (p *Proxy) cut() {
	p.down = true
	p.resetAll()
}

func (p *Proxy) resetAll() {
	for l := range p.links {
		l.reset()
	}
}

// Close ends the proxy and its connections and waits for them.
func (p *Proxy) Close() error {
	p.Restore()
	p.set(func() {
		p.closed = true
		p.resetAll()
	})
	err := p.listener.Close()
	p.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
