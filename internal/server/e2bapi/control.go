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
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/server/routes"
	"github.com/atoll-run/atoll/sandbox"
)

// maxBody limits a JSON request.
const maxBody = 4 << 20

// controlPlane returns the handler of E2B's control plane.
func (h *Handler) controlPlane(s *Services, metrics *metricsAPI) *routes.Mux {
	find := finder{s.Sandboxes}
	snapshots := &snapshotAPI{find, s.Snapshots}
	templates := &templateAPI{s.Templates, s.HasImage, s.Defaults, snapshots}
	builds := newBuildAPI(h.common, s, templates)
	volumes := &volumeAPI{h.common, s.Workspaces}
	sandboxes := &sandboxAPI{h.common, find, s.Lifecycle, s.Networks, templates, volumes, s.Identity}
	logs := &logAPI{find, s.Events}
	secrets := &secretAPI{s.Secrets}
	h.close = append(h.close, builds.builds.close)
	mux := &routes.Mux{}
	handle := func(pattern string, f func(http.ResponseWriter, *http.Request) error, does ...ops.Op) *ops.Route {
		return mux.Handle(ops.Route{Name: pattern, Ops: does}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, err := authenticate(r.Context(), s, apiKey(r))
			if err == nil {
				err = h.allow(ctx, "", does)
			}
			if err == nil {
				err = f(w, r.WithContext(ctx))
			}
			if err != nil && r.Context().Err() == nil {
				h.fail(w, r, err)
			}
		}))
	}
	mux.Handle(ops.Route{Name: "GET /health", Open: true}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(headerToken) != "" {
			h.unnamed(w, r)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	for _, route := range []string{"/files", "/envs", "/metrics", "/process.Process/", "/filesystem.Filesystem/"} {
		mux.Pass(route, http.HandlerFunc(h.unnamed))
	}
	for _, route := range []*ops.Route{
		handle("POST /sandboxes", sandboxes.create, ops.SandboxCreate),
		handle("POST /v2/sandboxes", sandboxes.createV2, ops.SandboxCreate),
	} {
		route.Some = []ops.Op{ops.TemplateGet, ops.SnapshotList, ops.WorkspaceList} // if it names one
	}
	handle("GET /sandboxes", sandboxes.listRunning, ops.SandboxList)
	handle("GET /v2/sandboxes", sandboxes.list, ops.SandboxList)
	handle("GET /sandboxes/{id}", sandboxes.get, ops.SandboxGet)
	handle("DELETE /sandboxes/{id}", sandboxes.kill, ops.SandboxGet, ops.SandboxDestroy)
	for _, route := range []*ops.Route{
		handle("POST /sandboxes/{id}/connect", sandboxes.connect, ops.SandboxGet, ops.SandboxUpdate),
		handle("POST /v2/sandboxes/{id}/connect", sandboxes.connect, ops.SandboxGet, ops.SandboxUpdate),
	} {
		route.Some = []ops.Op{ops.SandboxResume, ops.SandboxStart}
	}
	handle("POST /sandboxes/{id}/timeout", sandboxes.setTimeout, ops.SandboxGet, ops.SandboxUpdate)
	handle("POST /sandboxes/{id}/refreshes", sandboxes.refresh, ops.SandboxGet, ops.SandboxUpdate)
	handle("GET /sandboxes/{id}/metrics", metrics.metrics, ops.SandboxGet, ops.SandboxUsage)
	handle("GET /sandboxes/metrics", metrics.metricsOfMany, ops.SandboxList, ops.SandboxUsage)
	handle("POST /sandboxes/{id}/pause", sandboxes.pause, ops.SandboxGet, ops.SandboxPause).Some = []ops.Op{ops.SandboxStop}
	handle("POST /sandboxes/{id}/resume", sandboxes.resume, ops.SandboxGet, ops.SandboxResume, ops.SandboxUpdate)
	handle("POST /sandboxes/{id}/fork", sandboxes.fork, ops.SandboxGet, ops.SandboxFork, ops.SandboxUpdate)
	handle("POST /sandboxes/{id}/snapshots", snapshots.create, ops.SandboxGet, ops.SnapshotCreate)
	handle("GET /snapshots", snapshots.list, ops.SnapshotList)
	handle("DELETE /templates/{id}", templates.remove, ops.TemplateList, ops.TemplateRemove).Some = []ops.Op{ops.SnapshotRemove}
	handle("PUT /sandboxes/{id}/network", sandboxes.setNetwork, ops.SandboxGet, ops.SandboxUpdate)
	handle("GET /sandboxes/{id}/logs", logs.logsV1, ops.SandboxGet, ops.EventList)
	handle("GET /v2/sandboxes/{id}/logs", logs.logs, ops.SandboxGet, ops.EventList)
	handle("GET /secrets", secrets.list, ops.SecretList)
	handle("POST /secrets", secrets.create, ops.SecretCreate)
	handle("GET /secrets/{id}", secrets.get, ops.SecretList)
	handle("POST /secrets/{id}", secrets.update, ops.SecretList, ops.SecretRotate)
	handle("DELETE /secrets/{id}", secrets.remove, ops.SecretList, ops.SecretRemove)
	handle("POST /v3/templates", builds.create, ops.TemplateList, ops.TemplateBuild)
	handle("POST /v2/templates", builds.create, ops.TemplateList, ops.TemplateBuild)
	handle("GET /templates", templates.list, ops.TemplateList)
	handle("GET /v2/templates", templates.list, ops.TemplateList)
	handle("GET /templates/{id}", templates.get, ops.TemplateList)
	for _, route := range []*ops.Route{
		handle("PATCH /templates/{id}", templates.update, ops.TemplateUnpublish),
		handle("PATCH /v2/templates/{id}", templates.update, ops.TemplateUnpublish),
	} {
		route.Some = []ops.Op{ops.TemplatePublish}
	}
	handle("GET /templates/{id}/files/{hash}", builds.uploadLink, ops.TemplateBuild)
	handle("POST /v2/templates/{id}/builds/{build}", builds.start, ops.TemplateBuild)
	handle("GET /templates/{id}/builds/{build}/status", builds.status, ops.TemplateGet)
	handle("GET /templates/{id}/builds/{build}/logs", builds.logs, ops.TemplateGet)
	handle("GET /templates/{id}/{what}", templates.byName, ops.TemplateGet)
	handle("GET /templates/{id}/{what}/{name}", templates.byName, ops.TemplateGet)
	handle("POST /templates/tags", templates.addTags, ops.TemplateTag)
	handle("DELETE /templates/tags", templates.removeTags, ops.TemplateRemove)
	mux.Handle(ops.Route{Name: "PUT /uploads/{ticket}", Open: true, Ops: []ops.Op{ops.TemplateBuild}}, http.HandlerFunc(builds.putUpload))
	h.identityRoutes(mux, s.Identity)
	handle("GET /volumes", volumes.list, ops.WorkspaceList)
	handle("POST /volumes", volumes.create, ops.WorkspaceCreate)
	handle("GET /volumes/{id}", volumes.get, ops.WorkspaceList)
	handle("DELETE /volumes/{id}", volumes.remove, ops.WorkspaceList, ops.WorkspaceRemove)
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

// allow checks whether the caller may carry out operations. id may be empty.
func (h *common) allow(ctx context.Context, id sandbox.ID, does []ops.Op) error {
	for _, op := range does {
		if err := h.rights.Allow(ctx, id, op); err != nil {
			return err
		}
	}
	return nil
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
	return invalid("body", "is not the expected JSON")
}
