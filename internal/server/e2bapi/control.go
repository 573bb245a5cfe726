package e2bapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/sandbox"
)

// maxBody limits a JSON request.
const maxBody = 4 << 20

// controlPlane returns the handler of E2B's control plane.
func (h *Handler) controlPlane(s *Services, metrics *metricsAPI) http.Handler {
	find := finder{s.Sandboxes}
	snapshots := &snapshotAPI{find, s.Snapshots}
	templates := &templateAPI{s.Templates, s.HasImage, s.Defaults, snapshots}
	builds := newBuildAPI(h.common, s, templates)
	volumes := &volumeAPI{h.common, s.Workspaces}
	sandboxes := &sandboxAPI{h.common, find, s.Lifecycle, s.Networks, templates, volumes, s.Identity}
	logs := &logAPI{find, s.Events}
	secrets := &secretAPI{s.Secrets}
	h.close = append(h.close, builds.builds.close)
	mux := http.NewServeMux()
	handle := func(pattern string, f func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			ctx, err := authenticate(r.Context(), s, apiKey(r))
			if err == nil {
				err = f(w, r.WithContext(ctx))
			}
			if err != nil && r.Context().Err() == nil {
				h.fail(w, r, err)
			}
		})
	}
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(headerToken) != "" {
			h.unnamed(w, r)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	for _, route := range []string{"/files", "/envs", "/metrics", "/process.Process/", "/filesystem.Filesystem/"} {
		mux.HandleFunc(route, h.unnamed)
	}
	handle("POST /sandboxes", sandboxes.create)
	handle("POST /v2/sandboxes", sandboxes.createV2)
	handle("GET /sandboxes", sandboxes.listRunning)
	handle("GET /v2/sandboxes", sandboxes.list)
	handle("GET /sandboxes/{id}", sandboxes.get)
	handle("DELETE /sandboxes/{id}", sandboxes.kill)
	handle("POST /sandboxes/{id}/connect", sandboxes.connect)
	handle("POST /v2/sandboxes/{id}/connect", sandboxes.connect)
	handle("POST /sandboxes/{id}/timeout", sandboxes.setTimeout)
	handle("POST /sandboxes/{id}/refreshes", sandboxes.refresh)
	handle("GET /sandboxes/{id}/metrics", metrics.metrics)
	handle("GET /sandboxes/metrics", metrics.metricsOfMany)
	handle("POST /sandboxes/{id}/pause", sandboxes.pause)
	handle("POST /sandboxes/{id}/resume", sandboxes.resume)
	handle("POST /sandboxes/{id}/fork", sandboxes.fork)
	handle("POST /sandboxes/{id}/snapshots", snapshots.create)
	handle("GET /snapshots", snapshots.list)
	handle("DELETE /templates/{id}", templates.remove)
	handle("PUT /sandboxes/{id}/network", sandboxes.setNetwork)
	handle("GET /sandboxes/{id}/logs", logs.logsV1)
	handle("GET /v2/sandboxes/{id}/logs", logs.logs)
	handle("GET /secrets", secrets.list)
	handle("POST /secrets", secrets.create)
	handle("GET /secrets/{id}", secrets.get)
	handle("POST /secrets/{id}", secrets.update)
	handle("DELETE /secrets/{id}", secrets.remove)
	handle("POST /v3/templates", builds.create)
	handle("POST /v2/templates", builds.create)
	handle("GET /templates", templates.list)
	handle("GET /v2/templates", templates.list)
	handle("GET /templates/{id}", templates.get)
	handle("PATCH /templates/{id}", templates.update)
	handle("PATCH /v2/templates/{id}", templates.update)
	handle("GET /templates/{id}/files/{hash}", builds.uploadLink)
	handle("POST /v2/templates/{id}/builds/{build}", builds.start)
	handle("GET /templates/{id}/builds/{build}/status", builds.status)
	handle("GET /templates/{id}/builds/{build}/logs", builds.logs)
	handle("GET /templates/{id}/{what}", templates.byName)
	handle("GET /templates/{id}/{what}/{name}", templates.byName)
	handle("POST /templates/tags", templates.addTags)
	handle("DELETE /templates/tags", templates.removeTags)
	mux.HandleFunc("PUT /uploads/{ticket}", builds.putUpload)
	h.identityRoutes(mux, s.Identity)
	handle("GET /volumes", volumes.list)
	handle("POST /volumes", volumes.create)
	handle("GET /volumes/{id}", volumes.get)
	handle("DELETE /volumes/{id}", volumes.remove)
	volumes.contentRoutes(mux)
	handle("/", func(_ http.ResponseWriter, r *http.Request) error {
		return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: r.Method + " " + r.URL.Path, Message: "there is no such route"}
	})
	return mux
}

type tenantKey struct{}

// tenantOf returns the tenant of an authenticated request.
func tenantOf(ctx context.Context) string { return ctx.Value(tenantKey{}).(string) }

// authenticate returns the context for requests with an API key, in E2B's spelling
// or Atoll's.
func authenticate(ctx context.Context, s *Services, key string) (context.Context, error) {
	ctx, tenant, err := s.Authenticate(ctx, envd.Token(key))
	if err != nil {
		return nil, err
	}
	return context.WithValue(ctx, tenantKey{}, tenant), nil
}

// apiKey returns the key of a request.
func apiKey(r *http.Request) string {
	if key := r.Header.Get("X-API-Key"); key != "" {
		return key
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token)
	}
	return ""
}

// Share returns the account for rate limits: the request's key, or its sandbox
// if there is no key.
func Share(r *http.Request) string {
	if key := apiKey(r); key != "" {
		return key
	}
	if id, port, named, err := destination(r); named && err == nil {
		return fmt.Sprintf("%s %d", id, port)
	}
	return ""
}

// read decodes the body of a request, which may be empty.
func read(r *http.Request, into any) error {
	err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxBody)).Decode(into)
	var large *http.MaxBytesError
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &large):
		return invalid("body", "more than %d bytes", maxBody)
	}
	return invalid("body", "is not the JSON that is expected here")
}
