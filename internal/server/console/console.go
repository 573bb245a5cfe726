// Package console serves the web console: static files, and signing in and out.
// Everything else that the console does, it does through the native API.
//
// A page signs in with a one-time code or an API key. The key is then in a
// cookie, encrypted with a half that only the page has; see Token. So the
// daemon keeps no list of who is signed in, and a restart signs nobody out.
package console

import (
	"context"
	"embed"
	"encoding/json"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/internal/server/routes"
	"github.com/atoll-run/atoll/sandbox"
)

//go:embed dist
var dist embed.FS

// Root is the path below which the console is served.
const Root = "/console/"

// Keys makes, checks and ends the API keys of signed-in pages. Its methods may be
// called concurrently.
type Keys interface {
	// Redeem exchanges a one-time code for a new API key.
	Redeem(ctx context.Context, code string) (token string, err error)
	// Check returns an error if the API key is not valid.
	Check(ctx context.Context, token string) error
	// End revokes the API key if Redeem made it, and otherwise does nothing.
	End(ctx context.Context, token string) error
}

// Lifetime is how long a page stays signed in.
const Lifetime = 12 * time.Hour

// Handler serves the console.
type Handler struct {
	keys  Keys
	files fs.FS
	etags map[string]string
	mux   *routes.Mux
}

// New returns a handler.
func New(keys Keys) *Handler {
	files, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // cannot happen: the directory is embedded
	}
	h := &Handler{keys: keys, files: files, etags: digests(files), mux: &routes.Mux{}}
	open := func(pattern string, f func(http.ResponseWriter, *http.Request) error) {
		h.mux.Handle(ops.Route{Name: pattern, Open: true}, answer(f))
	}
	open("GET "+Root, h.file)
	open("POST "+Root+"session", h.signIn)
	open("DELETE "+Root+"session", h.signOut)
	h.mux.Pass("/", answer(elsewhere))
	return h
}

// Routes returns the routes. Requests to sign in have a code or a key in them,
// and those to sign out a cookie.
func (h *Handler) Routes() []ops.Route { return h.mux.List() }

func answer(f func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := f(w, r); err != nil {
			api.WriteProblem(w, api.NewProblem(err, nil))
		}
	})
}

// elsewhere answers requests without a route.
func elsewhere(w http.ResponseWriter, r *http.Request) error {
	if strings.HasPrefix(r.URL.Path, Root) {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Message: "the console does not know that method"}
	}
	http.Redirect(w, r, Root, http.StatusTemporaryRedirect)
	return nil
}

// Match reports whether a request is for the console. So is a browser's request
// for the root.
func (h *Handler) Match(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, Root) || r.URL.Path == strings.TrimSuffix(Root, "/") ||
		r.URL.Path == "/" && r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// Static reports whether a request only reads files, which any page may link to.
func (h *Handler) Static(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && h.Match(r)
}

// policy lets the console use its own files, and connect to its own origin.
// Pictures and recordings are blobs that the page has read with its
// credentials. Editors, terminals and charts set styles of elements. The player
// of recordings compiles WebAssembly, which 'wasm-unsafe-eval' allows; scripts
// are not evaluated.
const policy = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; media-src blob:; font-src 'self' data:; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", policy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("X-Frame-Options", "DENY")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("Cross-Origin-Opener-Policy", "same-origin")
	head.Set("Cross-Origin-Resource-Policy", "same-origin")
	head.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=()")
	if clean := path.Clean(r.URL.Path); r.URL.Path != clean && r.URL.Path != clean+"/" {
		answer(h.file).ServeHTTP(w, r) // the multiplexer would redirect
		return
	}
	h.mux.ServeHTTP(w, r)
}

// file serves a file of the build. Names below assets contain their hash.
func (h *Handler) file(w http.ResponseWriter, r *http.Request) error {
	name := strings.TrimPrefix(r.URL.Path, Root)
	if name == "" {
		name = "index.html"
	}
	tag, ok := h.etags[name]
	if !ok {
		return &sandbox.Error{Code: sandbox.CodeNotFound, Message: "the console has no such file", Hint: "open " + Root}
	}
	text, err := fs.ReadFile(h.files, name+".gz")
	if err != nil {
		return err
	}
	head := w.Header()
	head.Set("Content-Type", types[path.Ext(name)])
	head.Set("ETag", tag)
	head.Set("Vary", "Accept-Encoding")
	head.Set("Cache-Control", "no-cache")
	if strings.HasPrefix(name, "assets/") {
		head.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return sendGzip(w, r, text)
}

type credentials struct {
	Code string `json:"code"`
	Key  string `json:"key"`
}

// signIn sets the cookie, and answers with the page's half.
func (h *Handler) signIn(w http.ResponseWriter, r *http.Request) error {
	var in credentials
	text, err := api.ReadEntry(w, r, 4<<10)
	if err != nil || json.Unmarshal(text, &in) != nil || (in.Code == "") == (in.Key == "") {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Message: "give a code or a key"}
	}
	token := strings.TrimSpace(in.Key)
	if in.Code != "" {
		token, err = h.keys.Redeem(r.Context(), in.Code)
	} else {
		err = h.keys.Check(r.Context(), token)
	}
	if err != nil {
		return err
	}
	sealed, half := seal(token)
	http.SetCookie(w, cookie(r, sealed, int(Lifetime/time.Second)))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	return json.NewEncoder(w).Encode(map[string]string{"half": half})
}

// signOut removes the cookie and ends its key.
func (h *Handler) signOut(w http.ResponseWriter, r *http.Request) error {
	token := Token(r)
	http.SetCookie(w, cookie(r, "", -1))
	w.Header().Set("Cache-Control", "no-store")
	if token != "" {
		if err := h.keys.End(r.Context(), token); err != nil && sandbox.CodeOf(err) != sandbox.CodeUnauthorized {
			return err
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func cookie(r *http.Request, value string, age int) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: age,
		HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	}
}
