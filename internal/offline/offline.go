// Package offline recognises in the output of a command that a host name could
// not be resolved or a host not be reached, to hint at the network rules of its
// sandbox. Programs say so in their own words, and a sandbox without a network
// has no gateway that could tell.
package offline

import (
	"bytes"
	"sync/atomic"
)

// phrases are what programs say, in lower case.
var phrases = [][]byte{
	[]byte("temporary failure in name resolution"), // glibc: wget, pip, git, python
	[]byte("temporary failure resolving"),          // apt
	[]byte("name or service not known"),            // glibc
	[]byte("no address associated with hostname"),
	[]byte("could not resolve host"), // curl, git, ssh
	[]byte("unable to resolve host address"),
	[]byte("couldn't resolve host"),
	[]byte("bad address '"), // busybox
	[]byte("network is unreachable"),
	[]byte("network unreachable"),
	[]byte("enetunreach"),
	[]byte("getaddrinfo enotfound"), // Node
	[]byte("getaddrinfo eai_again"),
	[]byte("failed to lookup address information"), // Rust
	[]byte("dial tcp: lookup "),                    // Go
	[]byte("unknownhostexception"),                 // Java
	[]byte("dns error: failed"),
	[]byte("err_name_not_resolved"), // browsers
	[]byte("err_internet_disconnected"),
}

// longest is the length of the longest phrase.
var longest = func() (n int) {
	for _, p := range phrases {
		n = max(n, len(p))
	}
	return n
}()

// Scanner looks for the phrases in what is written to it. One goroutine may
// write while others call Found. The zero value is ready for use.
type Scanner struct {
	found atomic.Bool
	tail  []byte // what may be the beginning of a phrase, in lower case
}

// Write never fails.
func (s *Scanner) Write(p []byte) (int, error) {
	if len(p) == 0 || s.found.Load() {
		return len(p), nil
	}
	text := append(s.tail, bytes.ToLower(p)...)
	for _, phrase := range phrases {
		if bytes.Contains(text, phrase) {
			s.found.Store(true)
			s.tail = nil
			return len(p), nil
		}
	}
	s.tail = append(s.tail[:0:0], text[max(0, len(text)-longest):]...)
	return len(p), nil
}

// Found reports whether one of the phrases was written.
func (s *Scanner) Found() bool { return s.found.Load() }

// Hint says what to do. network says whether the sandbox has one; how names the
// setting that allows hosts.
func Hint(network bool, how string) string {
	if network {
		return "a host could not be reached; if the network rules of this sandbox refused it, allow it with " + how
	}
	return "this sandbox has no network; allow hosts with " + how
}
