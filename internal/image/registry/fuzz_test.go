package registry

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// liar is a registry that answers its ping with a challenge, and everything else
// with one text. It fails a test that is led to another machine.
type liar struct {
	t         *testing.T
	challenge string
	status    int
	kind      string
	body      string
	asked     int
}

func (l *liar) RoundTrip(r *http.Request) (*http.Response, error) {
	if l.asked++; l.asked > 100 {
		l.t.Error("it was asked more than a hundred times")
	}
	if r.URL.Scheme != "https" {
		l.t.Errorf("a request was sent by %s", r.URL.Scheme)
	}
	if auth := r.Header.Get("Authorization"); strings.Contains(auth, "b3duZXI6") && r.URL.Hostname() != "registry.example" && !strings.Contains(l.challenge, r.URL.Hostname()) {
		l.t.Errorf("the password was sent to %s", r.URL.Host)
	}
	resp := &http.Response{StatusCode: l.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {l.kind}, "Location": {l.kind}}, Request: r}
	if r.URL.Path == "/v2/" && l.challenge != "" {
		resp.StatusCode = http.StatusUnauthorized
		resp.Header.Set("Www-Authenticate", l.challenge)
	}
	resp.Body = io.NopCloser(strings.NewReader(l.body))
	return resp, nil
}

// FuzzAnswers: for any answers of a registry and its token server, requests use
// TLS, their number is limited, and so is the length of a manifest.
func FuzzAnswers(f *testing.F) {
	f.Add("", 200, "application/vnd.oci.image.manifest.v1+json", "{}")
	f.Add(`Bearer realm="https://auth.example/token",service="x",scope="y"`, 200, "application/json", `{"token":"t","expires_in":-1}`)
	f.Add(`Bearer realm="http://127.0.0.1/",error="x`, 307, "http://10.0.0.1/", `{"errors":[{"code":"DENIED","message":"x"}]}`)
	f.Add(`Basic realm="x"`, 401, "", "")
	f.Fuzz(func(t *testing.T, challenge string, status int, kind, body string) {
		if status < 200 || status > 599 {
			return
		}
		repo, err := name.NewRepository("registry.example/x/y")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		l := &liar{t: t, challenge: challenge, status: status, kind: kind, body: body}
		c, err := New(ctx, repo, Options{Transport: l, Keychain: one{}, RetryDelay: time.Microsecond})
		if err != nil {
			return
		}
		data, _, err := c.Manifest(ctx, "latest", 100)
		if err == nil && len(data) > 100 {
			t.Errorf("a manifest of %d bytes", len(data))
		}
	})
}

// one is a keychain with the owner's password.
type one struct{}

func (one) Resolve(authn.Resource) (authn.Authenticator, error) {
	return &authn.Basic{Username: "owner", Password: "canary"}, nil
}
