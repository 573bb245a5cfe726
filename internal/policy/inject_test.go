package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func parts(of ...sandbox.InjectPart) sandbox.Injection {
	return sandbox.Injection{Mode: sandbox.InjectParts, Name: "X-Key", Parts: of}
}

func text(s string) sandbox.InjectPart   { return sandbox.InjectPart{Text: s} }
func secret(s string) sandbox.InjectPart { return sandbox.InjectPart{Secret: s} }

// A header consists of parts. Any number of them are secrets.
func TestInjectionOfParts(t *testing.T) {
	also := func(i sandbox.Injection, change func(*sandbox.Injection)) sandbox.Injection {
		change(&i)
		return i
	}
	good := parts(text("a {}"), secret("one"), secret("two"))
	for _, tt := range []struct {
		name string
		in   sandbox.Injection
		err  string // what it says; empty: it is good
	}{
		{"secrets and texts", good, ""},
		{"no secret", parts(text("plain")), ""},
		{"no part", parts(), "each of at most"},
		{"too many parts", parts(slices.Repeat([]sandbox.InjectPart{text("x")}, maxParts+1)...), "each of at most"},
		{"an empty part", parts(text("x"), text("")), "each of at most"},
		{"a part that is both", parts(sandbox.InjectPart{Text: "x", Secret: "one"}), "each of at most"},
		{"a long text", parts(text(strings.Repeat("x", maxPartText+1))), "each of at most"},
		{"another header", parts(text("x\r\nHost: evil.example")), "each of at most"},
		{"no name of a secret", parts(secret("../one")), "characters"},
		{"a header that says where the request goes", also(good, func(i *sandbox.Injection) { i.Name = "Host" }), "header"},
		{"a secret beside the parts", also(good, func(i *sandbox.Injection) { i.Secret = "one" }), "only the mode parts"},
		{"a format beside the parts", also(good, func(i *sandbox.Injection) { i.Format = "{}" }), "only the mode parts"},
		{"parts of another mode", also(good, func(i *sandbox.Injection) { i.Mode, i.Secret = sandbox.InjectHeader, "one" }), "only the mode parts"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := allow("api.example.com")
			r.Inject = []sandbox.Injection{tt.in}
			_, err := Compile(sandbox.Profile{Rules: []sandbox.Rule{r}}, Options{Secrets: map[string][]string{"one": {}, "two": {}}})
			if (tt.err == "") != (err == nil) || err != nil && (sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("%v", err)
			}
		})
	}
}

// No part is sent to a host that its secret does not allow. Headers with parts
// are only sent over TLS.
func TestInjectionOfPartsKeepsToItsHosts(t *testing.T) {
	r := allow("api.example.com")
	r.Inject = []sandbox.Injection{parts(secret("anywhere"), text(":"), secret("bound"))}
	profile := sandbox.Profile{Rules: []sandbox.Rule{r}}
	if _, err := Compile(profile, Options{Secrets: map[string][]string{"anywhere": {}, "bound": {"other.example.com"}}}); err == nil || !strings.Contains(err.Error(), "bound") {
		t.Errorf("a secret leaves its hosts: %v", err)
	}
	p := compile(t, profile, Options{Secrets: map[string][]string{"anywhere": {}, "bound": {"*.example.com"}}})
	if d := p.Request(flow("api.example.com", somewhere, 443), Request{Method: "GET", TLS: true, Host: "api.example.com", Path: "/"}); !d.Allow || len(d.Inject) != 1 {
		t.Errorf("%+v", d)
	}
	if d := p.Request(flow("api.example.com", somewhere, 80), Request{Method: "GET", Host: "api.example.com", Path: "/"}); d.Allow {
		t.Errorf("secrets go to port 80: %+v", d)
	}
	if got := r.Inject[0].Secrets(); !slices.Equal(got, []string{"anywhere", "bound"}) {
		t.Errorf("the secrets are %v", got)
	}
}
