package httpbroker

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"
)

// Promises: C
func TestGuard(t *testing.T) {
	g := newGuard([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/32")}, []uint16{8443})
	for _, at := range []string{
		"93.184.216.34:443", "93.184.216.34:80", "93.184.216.34:8443", "[2606:2800:220:1::1]:443", "[::ffff:93.184.216.34]:443",
		"10.1.2.3:25", "[::ffff:10.1.2.3]:9", "[fd00:1::7]:1",
	} {
		if why := g.refuses(netip.MustParseAddrPort(at)); why != "" {
			t.Errorf("%s is refused: %s", at, why)
		}
	}
	for _, at := range []string{
		"127.0.0.1:443", "127.9.9.9:443", "0.0.0.0:443", "0.1.2.3:80", "10.0.0.1:443", "10.2.0.1:443", "172.16.0.1:443", "172.31.255.255:443",
		"192.168.1.1:443", "169.254.169.254:80", "100.64.0.1:443", "100.127.255.255:443", "198.18.0.1:443", "192.0.0.192:80",
		"224.0.0.1:443", "239.1.2.3:443", "240.0.0.1:443", "255.255.255.255:443", "168.63.129.16:80", "192.0.2.1:443",
		"[::]:443", "[::1]:443", "[::ffff:127.0.0.1]:443", "[::ffff:169.254.169.254]:80", "[::127.0.0.1]:443", "[fe80::1%eth0]:443",
		"[fc00::1]:443", "[fd00:ec2::254]:80", "[fd12::1]:443", "[ff02::1]:443", "[64:ff9b::7f00:1]:443", "[64:ff9b:1::a00:1]:443",
		"[2002:7f00:1::]:443", "[2002:a00:1::]:443", "[2001:0:1::1]:443", "[2001:db8::1]:443", "[100::1]:443", "[5f00::1]:443", "[fec0::1]:443",
		"93.184.216.34:22", "93.184.216.34:6379", "[2606:2800:220:1::1]:25",
	} {
		if g.refuses(netip.MustParseAddrPort(at)) == "" {
			t.Errorf("%s is let through", at)
		}
	}
}

// FuzzGuard: addresses that the standard library considers private are refused, and an
// IPv4 address is treated alike inside every IPv6 address that leads to it.
func FuzzGuard(f *testing.F) {
	for _, v4 := range []uint32{0x7f000001, 0x0a000001, 0xa9fea9fe, 0x5db8d822, 0xc0a80101, 0} {
		f.Add(v4, uint64(0x20010db800000000), uint64(v4))
	}
	g := newGuard(nil, nil)
	refused := func(ip netip.Addr) bool { return g.refuses(netip.AddrPortFrom(ip, 443)) != "" }
	f.Fuzz(func(t *testing.T, v4 uint32, high, low uint64) {
		var b [16]byte
		binary.BigEndian.PutUint32(b[12:], v4)
		four := netip.AddrFrom4([4]byte(b[12:]))
		binary.BigEndian.PutUint64(b[:], high)
		binary.BigEndian.PutUint64(b[8:], low)
		six := netip.AddrFrom16(b)
		for _, ip := range []netip.Addr{four, six} {
			if (!ip.IsGlobalUnicast() || ip.Unmap().IsPrivate()) && !refused(ip) {
				t.Errorf("%s is let through", ip)
			}
		}
		if mapped := netip.AddrFrom16(four.As16()); refused(mapped) != refused(four) {
			t.Errorf("%s is not what %s is", mapped, four)
		}
		for _, prefix := range []string{"::%s", "64:ff9b::%s", "64:ff9b:1::%s"} {
			if ip := netip.MustParseAddr(fmt.Sprintf(prefix, four)); !refused(ip) {
				t.Errorf("%s is let through", ip)
			}
		}
		copy(b[:], []byte{0x20, 0x02}) // 6to4
		copy(b[2:], four.AsSlice())
		if ip := netip.AddrFrom16(b); !refused(ip) {
			t.Errorf("%s is let through", ip)
		}
	})
}

// TestTransportIsTheEndpoints: each phase has its own limit, and the environment is ignored.
func TestTransportIsTheEndpoints(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	p, err := prepare(Endpoint{URL: "https://h", Unsigned: true, Timeout: time.Second, DialTimeout: 2 * time.Second, TLSTimeout: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	transport, err := p.transport()
	if err != nil {
		t.Fatal(err)
	}
	if transport.Proxy != nil || !transport.DisableCompression {
		t.Error("a proxy that no setting names, or a compression is undone")
	}
	if p.dialer().Timeout != 2*time.Second || transport.TLSHandshakeTimeout != 3*time.Second || p.dialer().Control == nil {
		t.Errorf("dialer %+v, TLS %v", p.dialer(), transport.TLSHandshakeTimeout)
	}
}

// TestConnectionsAreMadeAnew: connections are replaced after a while, with the
// certificates of that time. If those cannot be read, the old ones stay in use.
func TestConnectionsAreMadeAnew(t *testing.T) {
	var broken error
	p, err := prepare(Endpoint{URL: "https://h", Unsigned: true, TLS: func() (*tls.Config, error) { return &tls.Config{}, broken }}) //nolint:gosec // the transport sets the version
	if err != nil {
		t.Fatal(err)
	}
	c := &client{p: p}
	current := func(age time.Duration) *http.Transport {
		t.Helper()
		c.since = c.since.Add(-age)
		transport, err := c.current()
		if err != nil {
			t.Fatal(err)
		}
		return transport
	}
	first := current(0)
	if first.TLSClientConfig.MinVersion != tls.VersionTLS12 {
		t.Errorf("TLS from version %#x on", first.TLSClientConfig.MinVersion)
	}
	if current(connAge/2) != first {
		t.Error("they are made anew too early")
	}
	second := current(connAge)
	if second == first {
		t.Error("they are never made anew")
	}
	broken = errors.New("no certificate")
	if current(2*connAge) != second {
		t.Error("an unreadable certificate ends what worked")
	}
}
