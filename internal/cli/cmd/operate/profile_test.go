package operate

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

func parse(t *testing.T, text string) (p sandbox.Profile, err error) {
	t.Helper()
	err = parseProfile([]byte(text), &p, func(message string) error {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Message: message}
	})
	return p, err
}

// The profile in the documentation is valid and works as described.
func TestDocumentedProfile(t *testing.T) {
	doc, err := os.ReadFile("../../../../docs/guide/network.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(doc), "```yaml\n")
	text, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatal("no profile in the documentation")
	}
	var p sandbox.Profile
	if err := parseProfile([]byte(text), &p, func(message string) error { return errors.New(message) }); err != nil {
		t.Fatal(err)
	}
	compiled, err := policy.Compile(p, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]bool{
		"https://api.example.com/v1/pages": true, "https://api.example.com/v1/secrets/x": false, "https://api.example.com/v2": false, "https://example.com/v1/pages": false,
	} {
		if e, err := compiled.Explain("GET", target); err != nil || e.Allow != want {
			t.Errorf("%s: %+v %v", target, e, err)
		}
	}
}

func TestParseProfile(t *testing.T) {
	for text, want := range map[string]string{
		"rules: [{action: allow, hosts: [a.example]}]": "",
		`{"default": "deny"}`:                          "",
		"":                                             "not YAML",
		"rules: [{action: allow, host: a.example}]": `unknown field "host"`,
		"internet: off\n":                                           "bool",
		"- a\n- b\n":                                                "not YAML",
		"default: deny\n---\ndefault: allow\n":                      "more than one",
		"default: deny\ndefault: allow\n":                           "already defined",
		"a: &a [x, x]\nb: &b [*a, *a]\n":                            "unknown field",
		"rules: [{action: allow, hosts: ['a b']}]":                  "a b",
		"rules: [{action: maybe, hosts: [a.example]}]":              "neither allow nor deny",
		"rules: [{action: allow, hosts: [a.example], paths: [v1]}]": "slash",
		"rules: [{action: allow, hosts: [a.example], tls: passthrough, methods: [GET]}]": "cannot be inspected",
	} {
		_, err := parse(t, text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}
