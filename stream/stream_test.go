package stream_test

import (
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/stream"
)

var secret = []byte("0123456789abcdef0123456789abcdef")

func token(t *testing.T, kind stream.Kind, change func(*stream.Claims)) string {
	t.Helper()
	c := stream.Claims{Stream: "s", Tenant: "t", Mode: stream.View, Expires: 1000}
	if change != nil {
		change(&c)
	}
	text, err := stream.Seal(secret, kind, c)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// RB-60.
func TestATokenOfOneKindIsNoOther(t *testing.T) {
	for _, made := range []stream.Kind{stream.Viewer, stream.Producer, stream.Enrolled, stream.Enroll, stream.Delegated} {
		text := token(t, made, nil)
		for _, asked := range []stream.Kind{stream.Viewer, stream.Producer, stream.Enrolled, stream.Enroll, stream.Delegated} {
			if got := stream.Open(secret, asked, text, new(stream.Claims)); got != (made == asked) {
				t.Errorf("%s opens as %s: %v", made, asked, got)
			}
			// The prefix is signed, so changing it does not help.
			renamed := string(asked) + strings.TrimPrefix(text, string(made))
			if got := stream.Open(secret, asked, renamed, new(stream.Claims)); got != (made == asked) {
				t.Errorf("%s renamed to %s: %v", made, asked, got)
			}
		}
	}
}

// RB-62.
func TestInvalidTokens(t *testing.T) {
	now := time.Unix(1000, 999)
	good := token(t, stream.Viewer, nil)
	if stream.OpenViewer(secret, good, now) == nil {
		t.Error("a token is not valid in the second of its end")
	}
	if stream.OpenViewer(secret, good, now.Add(time.Second)) != nil {
		t.Error("a token is valid after its end")
	}
	bad := map[string]string{
		"empty": "", "prefix only": string(stream.Viewer), "no dot": strings.ReplaceAll(good, ".", ""), "cut": good[:len(good)-2],
		"longer": good + "AA", "other prefix": "x" + good,
		"mode":   token(t, stream.Viewer, func(c *stream.Claims) { c.Mode = "admin" }),
		"epoch":  token(t, stream.Viewer, func(c *stream.Claims) { c.LeaseEpoch = -1 }),
		"tenant": token(t, stream.Viewer, func(c *stream.Claims) { c.Tenant = "" }),
	}
	for name, text := range bad {
		if stream.OpenViewer(secret, text, now) != nil {
			t.Errorf("%s is valid", name)
		}
	}
	if stream.OpenViewer([]byte("another"), good, now) != nil {
		t.Error("another secret opens it")
	}
}
