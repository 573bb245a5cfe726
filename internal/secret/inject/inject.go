// Package inject puts credentials into HTTP requests that have left a sandbox,
// as the rule that allowed them says: after taking out what the client put
// there itself. It is asked for every single request, so that a redirect,
// which is a request of its own to wherever it leads, carries nothing that
// its own rule does not add.
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

// Values finds the current value of a secret by its name.
type Values func(name string) (secret.Value, error)

// Options of Apply. The zero value is usable for all but SigV4.
type Options struct {
	// Now is when a request is signed. Zero: time.Now.
	Now time.Time
	// PayloadHash is the SHA-256 of the body in hexadecimal, for SigV4. Empty:
	// the body is left out of the signature, which S3 accepts and other
	// services may not.
	PayloadHash string
}

// Apply adds credentials to a request, in the order of in. On an error the
// request must not be sent; the error names no value.
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

// strip removes what the client sent in the place of a credential.
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

// del removes a header however it is written: a map that was filled by hand
// may hold it in another case.
func del(h http.Header, name string) {
	for k := range h {
		if strings.EqualFold(k, name) {
			delete(h, k)
		}
	}
}

// delQuery removes a parameter from a query and leaves the others as they
// are, byte by byte and in their order.
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
	return unusable(i, "the mode is not known")
}

// applyParts sets a header to its parts, one after the other.
func applyParts(req *http.Request, i sandbox.Injection, values Values) error {
	var whole strings.Builder
	for _, p := range i.Parts {
		whole.WriteString(p.Text)
		if p.Secret == "" {
			continue
		}
		v, err := values(p.Secret)
		if err != nil {
			return err
		}
		whole.Write(v.Reveal())
	}
	return setHeader(req, i, i.Name, whole.String())
}

// setHeader refuses a value that would end the header: a stored value with a
// line break must not become a second one.
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
