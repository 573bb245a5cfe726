package term

import (
	"context"
	"io"
	"strings"
	"testing"
)

func TestDetachKeys(t *testing.T) {
	for typed, want := range map[string]string{
		"ls\r":                  "ls\r",
		"ls\r\x10\x11never":     "ls\r",
		"a\x10b":                "a\x10b",
		"\x10\x10\x11":          "\x10",
		"\x10\x10\x10b\x10\x11": "\x10\x10\x10b",
		"\x11":                  "\x11",
	} {
		keys, err := parseKeys(defaultDetachKeys)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		got, err := io.ReadAll(&KeyReader{From: strings.NewReader(typed), Keys: keys, Leave: func() error { return nil }, Cancel: cancel})
		if string(got) != want {
			t.Errorf("of %q the command gets %q, want %q", typed, got, want)
		}
		if detached := strings.Contains(typed, "\x10\x11"); detached != (err == ErrDetached) || detached != (ctx.Err() != nil) {
			t.Errorf("after %q: %v, %v", typed, err, ctx.Err())
		}
	}
	for _, bad := range []string{"", "ctrl-", "ctrl-1", "ab", "ctrl-p,,q"} {
		if keys, err := parseKeys(bad); err == nil {
			t.Errorf("%q is %q", bad, keys)
		}
	}
}
