package faultproxy_test

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/faultproxy"
)

// echo starts a server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

func proxy(t *testing.T) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.New(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func dial(t *testing.T, p *faultproxy.Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func roundTrip(c net.Conn, text string) error {
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	_, err := io.ReadFull(c, make([]byte, len(text)))
	return err
}

func TestCutAfterBytes(t *testing.T) {
	for _, cut := range []func(*faultproxy.Proxy, int){(*faultproxy.Proxy).Cut, (*faultproxy.Proxy).CutAnswer} {
		p := proxy(t)
		c := dial(t, p)
		if err := roundTrip(c, "hello"); err != nil {
			t.Fatal(err)
		}
		cut(p, 3)
		if err := roundTrip(c, "hello"); err == nil {
			t.Fatal("five bytes came back through a cut after three")
		}
		if err := roundTrip(dial(t, p), "x"); err == nil {
			t.Fatal("a new connection works during the cut")
		}
		p.Restore()
		if err := roundTrip(dial(t, p), "hello"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMuteAndFreeze(t *testing.T) {
	for _, hold := range []func(*faultproxy.Proxy){(*faultproxy.Proxy).Mute, (*faultproxy.Proxy).Freeze} {
		heldBack(t, hold)
	}
}

func heldBack(t *testing.T, hold func(*faultproxy.Proxy)) {
	t.Helper()
	p := proxy(t)
	c := dial(t, p)
	hold(p)
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := c.Read(make([]byte, 5)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read during hold: %v", err)
	}
	p.Restore()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
}

func TestResetAndLatency(t *testing.T) {
	p := proxy(t)
	c := dial(t, p)
	if err := roundTrip(c, "x"); err != nil {
		t.Fatal(err)
	}
	p.Reset()
	if err := roundTrip(c, "x"); err == nil {
		t.Fatal("the connection survived a reset")
	}
	const d = 30 * time.Millisecond
	p.Slow(d, 0)
	c = dial(t, p)
	began := time.Now()
	if err := roundTrip(c, "x"); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 2*d {
		t.Errorf("a round trip took %v with %v each way", took, d)
	}
}

func TestBandwidth(t *testing.T) {
	p := proxy(t)
	p.Slow(0, 100_000)
	c := dial(t, p)
	began := time.Now()
	if err := roundTrip(c, strings.Repeat("x", 10_000)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Errorf("10,000 bytes took %v at 100,000 a second", took)
	}
	p.Slow(0, 1) // for a day
	go func() { _, _ = io.WriteString(c, strings.Repeat("x", 100_000)) }()
	p.Restore()
	if err := roundTrip(dial(t, p), "hello"); err != nil {
		t.Fatal(err)
	}
}

func TestFreezeAfterBytes(t *testing.T) {
	p := proxy(t)
	c := dial(t, p)
	p.FreezeAfter(3)
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := io.ReadFull(c, make([]byte, 5)); !errors.Is(err, os.ErrDeadlineExceeded) || n > 3 {
		t.Fatalf("%d bytes passed, %v", n, err)
	}
	p.Restore()
	if err := roundTrip(dial(t, p), "hello"); err != nil {
		t.Fatal(err)
	}
}

func TestHangUp(t *testing.T) {
	p := proxy(t)
	p.HangUp([]byte("poison"))
	sound, c := dial(t, p), dial(t, p)
	for _, conn := range []net.Conn{sound, c} {
		if err := roundTrip(conn, "some poi"); err != nil {
			t.Fatal(err)
		}
	}
	if err := roundTrip(c, "son"); err == nil {
		t.Fatal("the connection survived what should end it")
	}
	for _, conn := range []net.Conn{sound, dial(t, p)} {
		if err := roundTrip(conn, "hello"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStrand: the server sees the end, the client sees nothing.
func TestStrand(t *testing.T) {
	ended := make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for first := true; ; first = false {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				c.Close()
				if first {
					close(ended)
				}
			}()
		}
	}()
	p, err := faultproxy.New(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c := dial(t, p)
	if err := roundTrip(c, "x"); err != nil {
		t.Fatal(err)
	}
	p.Strand()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the server does not see the end")
	}
	for range 3 {
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Fatal(err)
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the client sees %v", err)
	}
	if err := roundTrip(dial(t, p), "hello"); err != nil {
		t.Fatal(err)
	}
}
