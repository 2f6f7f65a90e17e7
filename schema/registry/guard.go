package registry

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
)

// AddressError reports that the registry's name resolved to an address that no registry has.
type AddressError struct{ Address netip.AddrPort }

// Error names the address and the fix.
func (e *AddressError) Error() string {
	return fmt.Sprintf("%s is a link-local, multicast or cloud metadata address: correct the host of the registry's URL, or its record in DNS", e.Address)
}

// guard implements net.Dialer.Control: it refuses addresses at which clouds give credentials to
// their machines, after the name was resolved. Private addresses are allowed, since registries
// have them.
func guard(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return &net.AddrError{Err: "not an IP address and a port", Addr: address}
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() || slices.Contains(metadata(), ip) {
		return &AddressError{at}
	}
	return nil
}

// metadata are the services of clouds that are not link-local: of AWS, Azure and Alibaba.
func metadata() []netip.Addr {
	return []netip.Addr{
		netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd00:ec2::23"),
		netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("100.100.100.200"),
	}
}
