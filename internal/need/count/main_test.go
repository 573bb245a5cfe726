package main

import (
	"strings"
	"testing"
)

func TestCount(t *testing.T) {
	for _, tt := range []struct{ name, events, want string }{
		{"none", `{"Action":"run","Package":"p","Test":"A"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"skip","Package":"empty"}`, "0 skipped"},
		{"some", `{"Action":"run","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Test":"A","Output":"    a_test.go:1: needs root: it mounts\n"}
{"Action":"skip","Package":"p","Test":"A"}
{"Action":"run","Package":"p","Test":"B"}
{"Action":"run","Package":"p","Test":"B/one"}
{"Action":"run","Package":"p","Test":"B/two"}
{"Action":"output","Package":"p","Test":"B/one","Output":"    b_test.go:1: needs postgresql\n"}
{"Action":"skip","Package":"p","Test":"B/one"}
{"Action":"output","Package":"p","Test":"B/two","Output":"    b_test.go:2: needs "}
{"Action":"output","Package":"p","Test":"B/two","Output":"postgresql\n"}
{"Action":"skip","Package":"p","Test":"B/two"}
{"Action":"pass","Package":"p","Test":"B"}
{"Action":"run","Package":"q","Test":"A"}
{"Action":"skip","Package":"q","Test":"A"}`, "4 skipped: postgresql (2), no reason given (1), root (1)"},
		{"again", `{"Action":"run","Package":"p","Test":"A"}
{"Action":"skip","Package":"p","Test":"A"}
{"Action":"run","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Test":"A","Output":"    a_test.go:1: needs make full: x\n"}
{"Action":"skip","Package":"p","Test":"A"}`, "1 skipped: make full (1)"},
	} {
		got, err := count(strings.NewReader(tt.events))
		if err != nil || got != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
	if _, err := count(strings.NewReader("no events")); err == nil {
		t.Error("what is no output of go test is counted")
	}
}
