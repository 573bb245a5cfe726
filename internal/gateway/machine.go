package gateway

import (
	"bufio"
	"net"
	"net/netip"
	"os"
	"strings"
)

// MachineSettings reach the world as this machine does: its name servers, and
// the names of /etc/hosts that have addresses of their own.
func MachineSettings() Settings {
	s := Settings{Hosts: map[string][]netip.Addr{}}
	eachLine("/etc/resolv.conf", func(fields []string) {
		if len(fields) < 2 || fields[0] != "nameserver" || len(s.Nameservers) >= 3 {
			return
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil {
			s.Nameservers = append(s.Nameservers, net.JoinHostPort(a.String(), "53"))
		}
	})
	eachLine("/etc/hosts", func(fields []string) {
		a, err := netip.ParseAddr(fields[0])
		if err != nil {
			return
		}
		for _, name := range fields[1:] {
			name = strings.ToLower(strings.TrimSuffix(name, "."))
			s.Hosts[name] = append(s.Hosts[name], a)
		}
	})
	return s
}

// eachLine reads the fields of the lines of a file that are not comments. A
// file that cannot be read has none.
func eachLine(path string, line func([]string)) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if fields := strings.Fields(text); len(fields) > 0 {
			line(fields)
		}
	}
}
