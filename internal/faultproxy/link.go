package faultproxy

import (
	"bytes"
	"net"
	"sync"
	"time"
)

// link is one client's connection and its counterpart.
type link struct {
	client, server net.Conn
	stranded       bool // guarded by the proxy's mu
}

// reset breaks both sides, not in the orderly way.
func (l *link) reset() {
	for _, c := range []net.Conn{l.client, l.server} {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // best effort
		}
		c.Close()
	}
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
	defer client.Close()
	if p.refuses() {
		return
	}
	server, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil {
		return
	}
	defer server.Close()
	l := &link{client: client, server: server}
	if !p.admit(l) {
		return
	}
	var pair sync.WaitGroup
	pair.Go(func() { p.pump(l, up); server.Close() })
	pair.Go(func() {
		p.pump(l, down)
		if !p.isStranded(l) {
			client.Close()
		}
	})
	pair.Wait()
	p.set(func() { delete(p.links, l) })
}

func (p *Proxy) refuses() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.down || p.closed
}

func (p *Proxy) admit(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down || p.closed {
		return false
	}
	p.links[l] = struct{}{}
	return true
}

func (p *Proxy) isStranded(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return l.stranded
}

// pump moves bytes in one direction until a side is closed.
func (p *Proxy) pump(l *link, d direction) {
	from, to := l.client, l.server
	if d == down {
		from, to = to, from
	}
	buf := make([]byte, 32<<10)
	var tail []byte // the end of what was sent, as poison may come in two pieces
	for {
		n, err := from.Read(buf)
		if n > 0 && d == up {
			if tail = append(tail, buf[:n]...); p.poisoned(tail) {
				l.reset()
				return
			}
			tail = append(tail[:0], tail[max(0, len(tail)-512):]...)
		}
		if p.isStranded(l) {
			if err != nil || d == down {
				return
			}
			continue
		}
		for rest := buf[:n]; len(rest) > 0; {
			pass := p.gate(d, len(rest))
			if _, werr := to.Write(rest[:pass]); werr != nil && !p.isStranded(l) {
				return
			}
			p.passed(d, pass)
			rest = rest[pass:]
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) poisoned(data []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.poison) > 0 && bytes.Contains(data, p.poison)
}

// gate waits as long as d is held or slow and says how many of n bytes may pass.
func (p *Proxy) gate(d direction, n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delay := p.delay(d, n); delay > 0 {
		stirred := p.stirred
		p.mu.Unlock()
		select {
		case <-time.After(delay):
		case <-stirred:
		}
		p.mu.Lock()
	}
	for p.hold[d] {
		p.cond.Wait()
	}
	if p.budget[d] >= 0 {
		return min(n, p.budget[d])
	}
	return n
}

// delay is how long n bytes take; mu is held.
func (p *Proxy) delay(d direction, n int) time.Duration {
	wait := p.latency
	if p.perSecond > 0 {
		now := time.Now()
		if p.free[d].Before(now) {
			p.free[d] = now
		}
		p.free[d] = p.free[d].Add(time.Duration(n) * time.Second / time.Duration(p.perSecond))
		wait += p.free[d].Sub(now)
	}
	return wait
}

// passed counts n bytes against the budget and does what comes when it is spent.
func (p *Proxy) passed(d direction, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.budget[d] < 0 {
		return
	}
	if p.budget[d] -= n; p.budget[d] <= 0 {
		p.budget[d] = -1
		p.spent()
	}
}
