package fleet

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Prefix is the begin of the names of the providers of nodes.
const Prefix = store.FleetPrefix

// listed is a node as a flag or a file names it.
type listed struct{ name, url string }

// Parse parses "[NAME=]URL". Without a name, it is made of the host and the port.
func Parse(text string) (name, address string, err error) {
	refuse := func(message, hint string) error {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "fleet.open", Subject: fmt.Sprintf("%.80q", text), Message: message, Hint: hint}
	}
	name, address, named := strings.Cut(text, "=")
	if !named || strings.Contains(name, ":") { // an address may have a "=", too
		name, address, named = "", text, false
	}
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || strings.Trim(u.Path, "/")+u.RawQuery+u.Fragment != "":
		return "", "", refuse("is not the address of a node", "write [NAME=]https://HOST:PORT")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return "", "", refuse("the API key would travel in the clear", "give the node a certificate, and use an https address")
	}
	if !named {
		name = strings.Trim(strings.Map(plain, strings.ToLower(u.Host)), "-")
	}
	if err := sandbox.ValidateName(Prefix + name); err != nil || name == "" {
		return "", "", refuse("the name of the node is not 1 to 58 characters of a-z, 0-9 and -", "name it: NAME="+address)
	}
	return name, u.Scheme + "://" + u.Host, nil
}

func plain(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
		return r
	}
	return '-'
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// lines returns the lines of a file without comments and empty ones.
func lines(path string) (all []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "fleet.open", Subject: path, Message: "the file cannot be read", Cause: err}
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all, nil
}

// list reads the nodes of the flags and of the file, and adds those that were
// found. It also returns where to dial for the addresses of these.
func (c *Config) list(found []Found) (all []listed, dial map[string]string, err error) {
	texts := slices.Clone(c.Nodes)
	if c.File != "" {
		more, err := lines(c.File)
		if err != nil {
			return nil, nil, err
		}
		texts = append(texts, more...)
	}
	dial = map[string]string{}
	for _, one := range found {
		texts = append(texts, one.Name+"="+one.URL)
		if u, err := url.Parse(one.URL); err == nil {
			dial[u.Host] = one.Dial
		}
	}
	seen := map[string]bool{}
	for _, text := range texts {
		name, address, err := Parse(text)
		if err != nil {
			return nil, nil, err
		}
		if seen[name] {
			return nil, nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "fleet.open", Subject: name, Message: "two nodes have that name", Hint: "name them: NAME=URL"}
		}
		seen[name] = true
		all = append(all, listed{name, address})
	}
	return all, dial, nil
}

// readKeys reads the keys of nodes: a line "NAME=KEY" for one node, or a line
// with a key alone for all others. Only the owner may be able to read the file.
func readKeys(path string) (map[string]string, error) {
	keys := map[string]string{}
	if path == "" {
		return keys, nil
	}
	info, err := os.Stat(path)
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "fleet.open", Subject: path, Message: "others can read the file, which holds a key", Hint: "chmod 600 " + path,
		}
	}
	all, err := lines(path)
	for _, line := range all {
		name, key, named := strings.Cut(line, "=")
		if !named {
			name, key = "", line
		}
		keys[strings.TrimSpace(name)] = strings.TrimSpace(key)
	}
	return keys, err
}
