package offline

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestScanner(t *testing.T) {
	for text, want := range map[string]bool{
		"curl: (6) Could not resolve host: example.com":                                  true,
		"fatal: unable to access 'https://example.com/': Could not resolve host: x":      true,
		"wget: bad address 'example.com'":                                                true,
		"E: Failed to fetch http://x/  Temporary failure resolving 'deb.example.com'":    true,
		"Error: getaddrinfo EAI_AGAIN registry.example.com":                              true,
		"OSError: [Errno 101] Network is unreachable":                                    true,
		"socket.gaierror: [Errno -3] Temporary failure in name resolution":               true,
		"Get \"https://x/\": dial tcp: lookup x: no such host":                           true,
		"ls: cannot access 'x': No such file or directory":                               false,
		"bind: Address already in use":                                                   false,
		"":                                                                               false,
		strings.Repeat("x", 1000) + "network is" + strings.Repeat("y", 10) + "reachable": false,
	} {
		for name, from := range map[string]io.Reader{"at once": strings.NewReader(text), "byte by byte": iotest.OneByteReader(strings.NewReader(text))} {
			var s Scanner
			if _, err := io.Copy(&s, from); err != nil || s.Found() != want {
				t.Errorf("%q, %s: %v %v, want %v", text, name, s.Found(), err, want)
			}
		}
	}
}
