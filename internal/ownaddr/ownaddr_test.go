package ownaddr

import (
	"net"
	"net/netip"
	"testing"
)

func TestOwn(t *testing.T) {
	table, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	for _, s := range []string{"127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1"} {
		if !table.Own(netip.MustParseAddr(s)) {
			t.Errorf("%s is not the machine's", s)
		}
	}
	for _, s := range []string{"8.8.8.8", "192.0.2.7", "2001:4860:4860::8888", "2001:db8::7"} {
		if table.Own(netip.MustParseAddr(s)) {
			t.Errorf("%s is the machine's", s)
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, _ := netip.AddrFromSlice(n.IP); !table.Own(ip) {
				t.Errorf("%s of an interface is not the machine's", ip)
			}
		}
	}
}

func TestAnswerOfNonsense(t *testing.T) {
	for _, b := range [][]byte{nil, make([]byte, 19), make([]byte, 64), append([]byte{20, 0, 0, 0, 24, 0}, make([]byte, 15)...)} {
		if own, err := answer(b); own || err == nil {
			t.Errorf("%v: %v, %v", b, own, err)
		}
	}
}
