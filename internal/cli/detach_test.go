package cli

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
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
		got, err := io.ReadAll(&keyReader{from: strings.NewReader(typed), keys: keys, leave: func() error { return nil }, cancel: cancel})
		if string(got) != want {
			t.Errorf("of %q the command gets %q, want %q", typed, got, want)
		}
		if detached := strings.Contains(typed, "\x10\x11"); detached != (err == errDetached) || detached != (ctx.Err() != nil) {
			t.Errorf("after %q: %v, %v", typed, err, ctx.Err())
		}
	}
	for _, bad := range []string{"", "ctrl-", "ctrl-1", "ab", "ctrl-p,,q"} {
		if keys, err := parseKeys(bad); err == nil {
			t.Errorf("%q is %q", bad, keys)
		}
	}
}

func TestRestartFlag(t *testing.T) {
	for text, want := range map[string]restartFlag{
		"no": {policy: sandbox.RestartNo}, "always": {policy: sandbox.RestartAlways},
		"on-failure": {policy: sandbox.RestartOnFailure}, "on-failure:5": {sandbox.RestartOnFailure, 5},
	} {
		var got restartFlag
		if err := got.Set(text); err != nil || got != want || got.String() != text {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "on-failure:", "on-failure:0", "on-failure:-1", "always:3", "unless-stopped"} {
		if err := new(restartFlag).Set(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
