// Package inject adds credentials to HTTP requests that have left a sandbox, as
// the rule that allowed them says. First it removes what the client sent in the
// same place. It is called for every request, so a redirect only carries
// credentials that the rule for its target adds.
package inject

import (
	"cmp"
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/sandbox"
)

// Values returns the current value of a secret.
type Values func(name string) (secret.Value, error)

// Options of Apply. The zero value is usable except for SigV4 with a signed
// body.
type Options struct {
	// Now is the signing time. Zero: time.Now.
	Now time.Time
	// PayloadHash is the SHA-256 of the body in hexadecimal, for SigV4. Empty: the
	// body is not signed, which S3 accepts and other services may not.
	PayloadHash string
}

// Apply adds credentials to a request, in the order of in. On an error the
// request must not be sent. Errors contain no secret values.
func Apply(req *http.Request, in []sandbox.Injection, values Values, opts Options) error {
	for _, i := range in {
		strip(req, i)
	}
	for _, i := range in {
		if i.Mode == sandbox.InjectParts {
			if err := applyParts(req, i, values); err != nil {
				return err
			}
			continue
		}
		v, err := values(i.Secret)
		if err != nil {
			return err
		}
		if err := apply(req, i, v, values, opts); err != nil {
			return err
		}
	}
	return nil
}

// strip removes what the client sent in place of a credential.
func strip(req *http.Request, i sandbox.Injection) {
	switch i.Mode {
	case sandbox.InjectHeader, sandbox.InjectParts:
		del(req.Header, i.Name)
	case sandbox.InjectQuery:
		delQuery(req.URL, i.Name)
	case sandbox.InjectSigV4:
		stripSigV4(req)
	default:
		del(req.Header, "Authorization")
	}
}

// del removes a header regardless of case: a map that was not filled through
// http.Header may have non-canonical keys.
func del(h http.Header, name string) {
	for k := range h {
		if strings.EqualFold(k, name) {
			delete(h, k)
		}
	}
}

// delQuery removes a parameter from a query and leaves the rest unchanged, byte
// for byte.
func delQuery(u *url.URL, name string) {
	var kept []string
	for part := range strings.SplitSeq(u.RawQuery, "&") {
		key, _, _ := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(key); part != "" && (err != nil || plain != name) {
			kept = append(kept, part)
		}
	}
	u.RawQuery = strings.Join(kept, "&")
}

func apply(req *http.Request, i sandbox.Injection, v secret.Value, values Values, opts Options) error {
	text := string(v.Reveal())
	switch i.Mode {
	case sandbox.InjectHeader:
		format := i.Format
		if format == "" {
			format = "{}"
		}
		return setHeader(req, i, i.Name, strings.ReplaceAll(format, "{}", text))
	case sandbox.InjectBearer:
		return setHeader(req, i, "Authorization", "Bearer "+text)
	case sandbox.InjectBasic:
		pair := base64.StdEncoding.EncodeToString([]byte(i.Username + ":" + text))
		return setHeader(req, i, "Authorization", "Basic "+pair)
	case sandbox.InjectQuery:
		add := url.QueryEscape(i.Name) + "=" + url.QueryEscape(text)
		if req.URL.RawQuery != "" {
			add = req.URL.RawQuery + "&" + add
		}
		req.URL.RawQuery = add
		return nil
	case sandbox.InjectSigV4:
		return sign(req, i, v, values, opts)
	}
	return unusable(i, "unknown mode")
}

// applyParts sets a header to the concatenation of its parts.
func applyParts(req *http.Request, i sandbox.Injection, values Values) error {
	var whole strings.Builder
	for _, p := range i.Parts {
		whole.WriteString(p.Text)
		name := p.Secret
		if p.Audience != "" {
			name = sandbox.IdentityToken(p.Audience)
		}
		if name == "" {
			continue
		}
		v, err := values(name)
		if err != nil {
			return err
		}
		whole.Write(v.Reveal())
	}
	return setHeader(req, i, i.Name, whole.String())
}

// setHeader sets a header. It refuses control characters, so that a secret with
// a line break cannot add a second header.
func setHeader(req *http.Request, i sandbox.Injection, name, value string) error {
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return unusable(i, "the value contains a control character, which no header can carry")
	}
	req.Header.Set(name, value)
	return nil
}

func unusable(i sandbox.Injection, message string) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "secret.inject", Subject: cmp.Or(i.Secret, i.Name), Message: message, Hint: "rotate the secret, or fix the rule"}
}
