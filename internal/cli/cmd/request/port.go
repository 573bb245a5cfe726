package request

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// ParsePort reads the number of a port.
func ParsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, &term.UsageError{Message: fmt.Sprintf("%q is not a port: it is a number from 1 to 65535", text), Hint: "write 8000, or LOCAL:REMOTE as in 8080:80"}
	}
	return uint16(n), nil
}

// parsePublish reads [ADDRESS:][HOST:]GUEST, as Docker writes it. Without an
// address it is the loopback.
func parsePublish(text string) (p sandbox.PublishedPort, err error) {
	wrong := func(why string) (sandbox.PublishedPort, error) {
		return p, &term.UsageError{Message: fmt.Sprintf("%q is not a port to publish: %s", text, why), Hint: "write HOST:GUEST as in 8080:80, ADDRESS:HOST:GUEST, or GUEST alone for any host port that is free"}
	}
	rest, protocol, _ := strings.Cut(text, "/")
	if protocol != "" && protocol != "tcp" {
		return wrong("only TCP can be published")
	}
	if strings.Contains(rest, "-") {
		return wrong("give each port separately")
	}
	if i := strings.LastIndex(rest, ":"); i >= 0 {
		host := rest[:i]
		rest = rest[i+1:]
		if j := strings.LastIndex(host, ":"); j >= 0 {
			p.Address, host = strings.Trim(host[:j], "[]"), host[j+1:]
			if _, err := netip.ParseAddr(p.Address); err != nil {
				return wrong("the address is not an IP address")
			}
		}
		if host != "" && host != "0" {
			if p.HostPort, err = ParsePort(host); err != nil {
				return p, err
			}
		}
	}
	p.Port, err = ParsePort(rest)
	return p, err
}
