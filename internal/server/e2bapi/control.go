package e2bapi

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// maxBody bounds a JSON request.
const maxBody = 4 << 20

// controlPlane returns the handler of what is not inside a sandbox.
func (h *Handler) controlPlane() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, f func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			ctx, err := h.service.Authenticate(r.Context(), apiKey(r))
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
	handle("POST /sandboxes", h.create)
	handle("POST /v2/sandboxes", h.createV2)
	handle("GET /sandboxes", h.listRunning)
	handle("GET /v2/sandboxes", h.list)
	handle("GET /sandboxes/{id}", h.get)
	handle("DELETE /sandboxes/{id}", h.kill)
	handle("POST /sandboxes/{id}/connect", h.connect)
	handle("POST /v2/sandboxes/{id}/connect", h.connect)
	handle("POST /sandboxes/{id}/timeout", h.setTimeout)
	handle("POST /sandboxes/{id}/refreshes", h.refresh)
	handle("GET /sandboxes/{id}/metrics", h.metrics)
	handle("GET /sandboxes/metrics", h.metricsOfMany)
	handle("POST /sandboxes/{id}/pause", h.pause)
	handle("POST /sandboxes/{id}/resume", h.resume)
	handle("POST /sandboxes/{id}/fork", h.fork)
	handle("POST /sandboxes/{id}/snapshots", h.snapshot)
	handle("GET /snapshots", h.snapshots)
	handle("DELETE /templates/{id}", h.removeTemplate)
	handle("PUT /sandboxes/{id}/network", h.setNetwork)
	handle("GET /sandboxes/{id}/logs", h.logsV1)
	handle("GET /v2/sandboxes/{id}/logs", h.logs)
	handle("GET /secrets", h.listSecrets)
	handle("POST /secrets", h.createSecret)
	handle("GET /secrets/{id}", h.getSecret)
	handle("POST /secrets/{id}", h.updateSecret)
	handle("DELETE /secrets/{id}", h.removeSecret)
	handle("POST /v3/templates", h.newTemplate)
	handle("POST /v2/templates", h.newTemplate)
	handle("GET /templates", h.listTemplates)
	handle("GET /v2/templates", h.listTemplates)
	handle("GET /templates/{id}", h.getTemplate)
	handle("PATCH /templates/{id}", h.updateTemplate)
	handle("PATCH /v2/templates/{id}", h.updateTemplate)
	handle("GET /templates/{id}/files/{hash}", h.uploadLink)
	handle("POST /v2/templates/{id}/builds/{build}", h.startBuild)
	handle("GET /templates/{id}/builds/{build}/status", h.buildStatus)
	handle("GET /templates/{id}/builds/{build}/logs", h.buildLogs)
	handle("GET /templates/{id}/{what}", h.ofTemplate)
	handle("POST /templates/tags", h.addTags)
	handle("DELETE /templates/tags", h.removeTags)
	mux.HandleFunc("PUT /uploads/{ticket}", h.putUpload)
	handle("GET /volumes", h.listVolumes)
	handle("POST /volumes", h.createVolume)
	handle("GET /volumes/{id}", h.getVolume)
	handle("DELETE /volumes/{id}", h.removeVolume)
	h.volumeRoutes(mux)
	handle("/", func(_ http.ResponseWriter, r *http.Request) error {
		return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: r.Method + " " + r.URL.Path, Message: "there is no such route"}
	})
	return mux
}

// apiKey returns the key that a request bears.
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
