package portproxy

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/sandbox"
)

// OpenPath is the path of every port at which a browser exchanges a token for a
// cookie. The token is in the fragment of the address, which browsers do not
// send.
const OpenPath = "/.atoll/open"

const (
	cookieName = "atoll_port"
	maxToken   = 8 << 10
	// remembered is how long a token that was exchanged is remembered. It is at
	// least as long as the links last that Atoll makes.
	remembered = 24 * time.Hour
	maxOpened  = 1 << 16
)

// openScript sends the token in the fragment to the same address.
const openScript = `const t=location.hash.slice(1);history.replaceState(null,"",location.pathname);` +
	`fetch(location.pathname,{method:"POST",body:t}).then(async r=>{if(r.ok)location.replace("/");` +
	`else document.body.textContent=(await r.json()).detail+". Open the port again."},` +
	`()=>{document.body.textContent="The daemon does not answer."})`

var openPage = "<!doctype html><meta charset=utf-8><title>Opening…</title><body>Opening…<script>" + openScript + "</script>"

// openPolicy allows that script only.
var openPolicy = func() string {
	sum := sha256.Sum256([]byte(openScript))
	return "default-src 'none'; connect-src 'self'; frame-ancestors 'none'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}()

// opened remembers the tokens that were exchanged, by their hashes. It may be
// used concurrently.
type opened struct {
	mu   sync.Mutex
	seen map[[sha256.Size]byte]time.Time
}

// first reports whether a token is exchanged for the first time.
func (o *opened) first(token string, now time.Time) bool {
	sum := sha256.Sum256([]byte(token))
	o.mu.Lock()
	defer o.mu.Unlock()
	for k, at := range o.seen {
		if now.Sub(at) > remembered {
			delete(o.seen, k)
		}
	}
	if _, again := o.seen[sum]; again || len(o.seen) >= maxOpened {
		return false
	}
	if o.seen == nil {
		o.seen = map[[sha256.Size]byte]time.Time{}
	}
	o.seen[sum] = now
	return true
}

// open serves OpenPath.
func (p *Proxy) open(w http.ResponseWriter, r *http.Request, t target) {
	head := w.Header()
	head.Set("Cache-Control", "no-store")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("X-Content-Type-Options", "nosniff")
	switch r.Method {
	case http.MethodGet:
		head.Set("Content-Type", "text/html; charset=utf-8")
		head.Set("Content-Security-Policy", openPolicy)
		_, _ = io.WriteString(w, openPage)
	case http.MethodPost:
		if err := p.exchange(w, r, t); err != nil {
			refuse(w, err)
		}
	default:
		refuse(w, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "method", Message: "is not GET or POST"})
	}
}

func (p *Proxy) exchange(w http.ResponseWriter, r *http.Request, t target) error {
	if !sameOrigin(r) {
		return &sandbox.Error{Code: sandbox.CodeDenied, Subject: "origin", Message: "another page may not open a port"}
	}
	text, err := api.ReadEntry(w, r, maxToken)
	if err != nil {
		return err
	}
	token := strings.TrimSpace(string(text))
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if _, _, err := p.service.EnterPort(ctx, token, t.ref, t.port); err != nil {
		return err
	}
	if !p.opened.first(token, time.Now()) {
		return &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "the link was used already"}
	}
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: token, Path: "/", HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	})
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// sameOrigin reports whether a page of the same origin makes a request, or a
// person who entered its address. Pages of other sandboxes have other host
// names of the same site, to which browsers send strict cookies, too.
func sameOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return true
	case "":
		u, err := url.Parse(r.Header.Get("Origin"))
		return err == nil && u.Host != "" && u.Host == r.Host
	}
	return false
}

// cookieToken removes the cookie of a browser from a request, and returns the
// token in it if the request may use it.
func cookieToken(r *http.Request) string {
	token := ""
	kept := []string{}
	for _, line := range r.Header.Values("Cookie") {
		for part := range strings.SplitSeq(line, ";") {
			name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			if name == cookieName {
				token = value
			} else if name != "" {
				kept = append(kept, strings.TrimSpace(part))
			}
		}
	}
	if token == "" {
		return ""
	}
	if r.Header.Del("Cookie"); len(kept) > 0 {
		r.Header.Set("Cookie", strings.Join(kept, "; "))
	}
	if !sameOrigin(r) {
		return ""
	}
	return token
}
