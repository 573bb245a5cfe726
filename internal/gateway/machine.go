package gateway

import (
	"bufio"
	"net"
	"net/netip"
	"os"
	"strings"
)

// MachineSettings returns this machine's settings: its name servers, and the
// names of /etc/hosts.
func MachineSettings() Settings {
	s := Settings{Hosts: map[string][]netip.Addr{}}
	// On an error, names cannot be looked up, but addresses can be dialled.
	_ = eachLine("/etc/resolv.conf", func(fields []string) {
		if len(fields) < 2 || fields[0] != "nameserver" || len(s.Nameservers) >= 3 {
			return
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil {
			s.Nameservers = append(s.Nameservers, net.JoinHostPort(a.String(), "53"))
		}
	})
	if hosts, err := ReadHosts("/etc/hosts"); err == nil {
		s.Hosts = hosts
	}
	return s
}

// ReadHosts reads names and addresses from a file in the format of /etc/hosts.
func ReadHosts(path string) (map[string][]netip.Addr, error) {
	hosts := map[string][]netip.Addr{}
	err := eachLine(path, func(fields []string) {
		a, err := netip.ParseAddr(fields[0])
		if err != nil {
			return
		}
		for _, name := range fields[1:] {
			name = strings.ToLower(strings.TrimSuffix(name, "."))
			hosts[name] = append(hosts[name], a)
		}
	})
	return hosts, err
}

// eachLine calls line with the fields of each line that is not a comment.
func eachLine(path string, line func([]string)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if fields := strings.Fields(text); len(fields) > 0 {
			line(fields)
		}
	}
	return lines.Err()
}
