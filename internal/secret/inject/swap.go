package inject

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/sandbox"
)

// Swapper replaces the placeholders of one sandbox in its requests, and finds
// misplaced ones. It is safe for concurrent use.
type Swapper struct {
	matcher *secret.Matcher
	names   *secret.Matcher // the same needles in lower case
	secrets []string        // for each needle of the matchers
}

// NewSwapper returns a Swapper for the placeholders of Policy.Placeholders.
func NewSwapper(placeholders map[string]string) *Swapper {
	s := &Swapper{}
	var needles [][]byte
	add := func(needle []byte, name string) {
		needles = append(needles, needle)
		s.secrets = append(s.secrets, name)
	}
	for p, name := range placeholders {
		for _, form := range secret.Forms(secret.NewValue([]byte(p))) {
			add(form, name)
		}
	}
	s.matcher, s.names = secret.NewMatcher(needles), secret.NewMatcher(secret.Lower(needles))
	return s
}

// Stray is the error for a placeholder in a place where it is not allowed.
type Stray struct {
	Secret string
	Place  string
}

func (s *Stray) Error() string {
	return fmt.Sprintf("the placeholder of %s was sent in the %s, where it does not belong", s.Secret, s.Place)
}

// Swap replaces the placeholders that a decision allows in a request. If it
// returns an error, such as a *Stray for a misplaced placeholder, the request
// must not be sent. The body is processed while it is read: reading it then
// fails with the *Stray. values is called only for secrets that are used.
func (s *Swapper) Swap(req *http.Request, swaps []policy.SwapFor, values Values) error {
	w := &swapping{req: req, values: values}
	for _, sw := range swaps {
		if err := w.swap(sw); err != nil {
			return err
		}
	}
	if err := s.stray(req); err != nil {
		return err
	}
	s.body(req, swaps, values)
	return nil
}

// swapping is the state of one Swap.
type swapping struct {
	req    *http.Request
	values Values
}

func (w *swapping) swap(sw policy.SwapFor) error {
	for name, all := range w.req.Header {
		low := strings.ToLower(name)
		anywhere := sw.Places.Any.Header || slices.Contains(sw.Places.Headers, low)
		for i, old := range all {
			if anywhere && strings.Contains(old, sw.Placeholder) {
				v, err := w.value(sw)
				if err != nil {
					return err
				}
				if all[i] = strings.ReplaceAll(old, sw.Placeholder, v); strings.ContainsAny(all[i], "\r\n\x00") {
					return unusable(sandbox.Injection{Secret: sw.Secret}, "the value contains a control character, which no header can carry")
				}
			}
			if sw.Places.Basic && low == "authorization" {
				if err := w.basic(sw, &all[i]); err != nil {
					return err
				}
			}
		}
	}
	return w.query(sw)
}

func (w *swapping) value(sw policy.SwapFor) (string, error) {
	v, err := w.values(sw.Secret)
	if err != nil {
		return "", err
	}
	return string(v.Reveal()), nil
}

// basic replaces placeholders in the user name and password of basic
// authentication.
func (w *swapping) basic(sw policy.SwapFor, header *string) error {
	scheme, pair, ok := strings.Cut(*header, " ")
	if !ok || !strings.EqualFold(scheme, "basic") {
		return nil
	}
	plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(pair))
	if err != nil || !bytes.Contains(plain, []byte(sw.Placeholder)) {
		return nil // not ours, or found by stray
	}
	v, err := w.value(sw)
	if err != nil {
		return err
	}
	*header = scheme + " " + base64.StdEncoding.EncodeToString(bytes.ReplaceAll(plain, []byte(sw.Placeholder), []byte(v)))
	return nil
}

// query replaces placeholders in parameter values, and leaves everything else
// unchanged.
func (w *swapping) query(sw policy.SwapFor) error {
	if !sw.Places.Any.Query && len(sw.Places.Queries) == 0 || w.req.URL.RawQuery == "" {
		return nil
	}
	parts := strings.Split(w.req.URL.RawQuery, "&")
	for i, part := range parts {
		key, val, _ := strings.Cut(part, "=")
		name, err1 := url.QueryUnescape(key)
		plain, err2 := url.QueryUnescape(val)
		if err1 != nil || err2 != nil || !strings.Contains(plain, sw.Placeholder) ||
			!sw.Places.Any.Query && !slices.Contains(sw.Places.Queries, name) {
			continue
		}
		v, err := w.value(sw)
		if err != nil {
			return err
		}
		parts[i] = key + "=" + url.QueryEscape(strings.ReplaceAll(plain, sw.Placeholder, v))
	}
	w.req.URL.RawQuery = strings.Join(parts, "&")
	return nil
}

// stray looks for remaining placeholders outside the body.
func (s *Swapper) stray(req *http.Request) error {
	look := func(place, text string) error {
		if _, n := s.matcher.Find([]byte(text)); n >= 0 {
			return &Stray{Secret: s.secrets[n], Place: place}
		}
		return nil
	}
	if err := look("path", req.URL.EscapedPath()); err != nil {
		return err
	}
	if err := look("query", req.URL.RawQuery); err != nil {
		return err
	}
	if err := look("host", req.Host); err != nil {
		return err
	}
	for _, h := range []http.Header{req.Header, req.Trailer} {
		for name, all := range h {
			if _, n := s.names.Find([]byte(strings.ToLower(name))); n >= 0 {
				return &Stray{Secret: s.secrets[n], Place: "header"}
			}
			for _, v := range all {
				if err := look("header", v); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// body replaces allowed placeholders in the body, and fails at any other.
func (s *Swapper) body(req *http.Request, swaps []policy.SwapFor, values Values) {
	if req.Body == nil || req.Body == http.NoBody || len(s.secrets) == 0 {
		return
	}
	allowed := map[string]string{} // placeholder → secret
	for _, sw := range swaps {
		if sw.Places.Body {
			allowed[sw.Placeholder] = sw.Secret
		}
	}
	if len(allowed) > 0 {
		req.ContentLength = -1 // values and placeholders differ in length
		del(req.Header, "Content-Length")
	}
	needles := s.matcher.Needles()
	body := s.matcher.Reader(req.Body, func(n int) ([]byte, error) {
		name, ok := allowed[string(needles[n])]
		if !ok {
			return nil, &Stray{Secret: s.secrets[n], Place: "body"}
		}
		v, err := values(name)
		return v.Reveal(), err
	})
	req.Body = struct {
		io.Reader
		io.Closer
	}{body, req.Body}
}
