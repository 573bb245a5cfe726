package need

import (
	"slices"
	"testing"
)

func TestPrograms(t *testing.T) {
	for script, want := range map[string][]string{
		"echo hello; exec sh":                         nil,
		"curl -sS http://x | python3 -c 'print(1)'":   {"curl", "python3"},
		"exec atoll run -- python3 -m http.server":    {"python3"},
		"atoll ps -a; exec atoll ps box":              nil,
		"ps -ef":                                      {"ps"},
		"atoll exec box -- ps -eo args":               {"ps"},
		"atoll cp --zstd box:/tmp - | zstd -dc":       {"zstd"},
		"true && ps -ef | grep x; pgrep x; pkill y":   {"ps", "pgrep", "pkill"},
		"the node of a tree; node -e 'x'; nodes -e":   {"node"},
		"sh -c 'ps ax'\nps aux":                       {"ps", "ps"},
		"cat python3.txt.bak libcurl; openssl s_time": {"python3", "openssl"},
	} {
		if got := programs(script); !slices.Equal(got, want) {
			t.Errorf("%q runs %q, want %q", script, got, want)
		}
	}
	for _, name := range []string{"curl", "node", "npm", "openssl", "pgrep", "pip3", "pkill", "ps", "python3"} {
		if Packages[name] == "" {
			t.Errorf("no package is known for %s", name)
		}
	}
}

func TestForm(t *testing.T) {
	for said, want := range map[string]string{
		"a_test.go:1: needs postgresql\n":                     "postgresql",
		"a_test.go:1: needs root: it mounts: a lot\n":         "root",
		"a_test.go:1: needs make full: it takes long":         "make full",
		"a_test.go:1: needs erofs-utils: the rest passed\n\n": "erofs-utils",
	} {
		if m := Form.FindStringSubmatch(said); m == nil || m[1] != want {
			t.Errorf("%q: %q, want %q", said, m, want)
		}
	}
}
