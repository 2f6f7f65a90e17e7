package httpbroker

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
)

// AddressError reports that an endpoint's name resolved to an address that requests must
// not be sent to.
type AddressError struct {
	Address netip.AddrPort
	Reason  string
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("%s %s: if the endpoint belongs there, allow it (allow=%s, and ports=%d for a public one)",
		e.Address, e.Reason, e.Address.Addr(), e.Address.Port())
}

// guard decides where connections may go. It checks the address of the
// connection after the name was resolved: a later answer of the name server
// cannot bypass it.
type guard struct {
	allow   []netip.Prefix
	ports   []uint16
	special []netip.Prefix
	global  netip.Prefix
}

func newGuard(allow []netip.Prefix, ports []uint16) *guard {
	return &guard{allow: allow, ports: ports, special: special(), global: netip.MustParsePrefix("2000::/3")}
}

// control implements net.Dialer.Control.
func (g *guard) control(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return &net.AddrError{Err: "not an IP address and a port", Addr: address}
	}
	if why := g.refuses(at); why != "" {
		return &AddressError{Address: at, Reason: why}
	}
	return nil
}

// refuses returns why requests must not be sent to the address, "" if they may.
func (g *guard) refuses(at netip.AddrPort) string {
	ip := at.Addr().Unmap().WithZone("")
	if slices.ContainsFunc(g.allow, func(p netip.Prefix) bool { return p.Contains(ip) }) {
		return ""
	}
	if !g.public(ip) {
		return "is not a public address"
	}
	if !g.opens(at.Port()) {
		return otherPort
	}
	return ""
}

const otherPort = "is neither port 443 nor 80"

// opens reports whether connections to the port of public addresses are allowed.
func (g *guard) opens(port uint16) bool {
	return port == 443 || port == 80 || slices.Contains(g.ports, port)
}

// public reports whether ip is a destination on the Internet. Of IPv6 that is
// 2000::/3: all else (loopback, IPv4-compatible, NAT64 64:ff9b::/96 and
// 64:ff9b:1::/48, ULA, link-local, multicast) lies outside.
func (g *guard) public(ip netip.Addr) bool {
	if !ip.IsValid() || ip.Is6() && !g.global.Contains(ip) {
		return false
	}
	return !slices.ContainsFunc(g.special, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// special returns the ranges that are no destination on the Internet, from the IANA
// special-purpose address registries, and those that contain an IPv4 address,
// through which a gateway (6to4, Teredo) would reach a private one.
func special() []netip.Prefix {
	texts := []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
		"192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
		"168.63.129.16/32", // Azure's platform address
		"2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
	}
	all := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		all[i] = netip.MustParsePrefix(text)
	}
	return all
}
