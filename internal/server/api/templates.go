package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Templates builds and manages templates.
type Templates interface {
	// BuildFromTar builds a template and reports progress, from one goroutine at a
	// time.
	BuildFromTar(ctx context.Context, req template.TarRequest, tell func(durable.BuildEvent)) (durable.Template, error)
	Templates(ctx context.Context) ([]durable.Template, error)
	Template(ctx context.Context, ref string) (durable.Template, error)
	TagTemplate(ctx context.Context, ref, as string) (durable.Template, error)
	RemoveTemplate(ctx context.Context, ref string) error
	// PublishTemplate lets other tenants use a template, or ends that.
	PublishTemplate(ctx context.Context, name string, public bool) (durable.Visibility, error)
	// PruneTemplates returns how many bytes it freed.
	PruneTemplates(ctx context.Context, unused time.Duration) (int64, error)
}

// buildLine is one line of the response to a build. Exactly one field is set.
type buildLine struct {
	Event    *durable.BuildEvent `json:"event,omitempty"`
	Template *durable.Template   `json:"template,omitempty"`
	Problem  *Problem            `json:"problem,omitempty"`
}

// TemplateRef names a template in a path. It is exported for huma.
type TemplateRef struct {
	Name string `path:"name" maxLength:"320" doc:"NAME or NAME:TAG; TENANT/NAME for another tenant's public template"`
}

type visibilityInput struct {
	Name string `path:"name" maxLength:"320" doc:"NAME, without a tag"`
	Body struct {
		Public bool `json:"public" doc:"other tenants may use it; only admin keys may set it to true"`
	}
}

type visibilityOutput struct{ Body durable.Visibility }

type tagInput struct {
	TemplateRef
	Body struct {
		As string `json:"as" maxLength:"260" doc:"the name to give it, NAME or NAME:TAG"`
	}
}

type templateOutput struct{ Body durable.Template }

type templatesOutput struct {
	Body struct {
		Templates []durable.Template `json:"templates" doc:"by name and tag"`
	}
}

type pruneBuildsInput struct {
	Body struct {
		UnusedMS int64 `json:"unusedMs,omitempty" minimum:"0" doc:"only entries that no build has used for this time, in milliseconds"`
	}
}

type pruneBuildsOutput struct {
	Body struct {
		Freed int64 `json:"freed" doc:"bytes"`
	}
}

func (a *API) templates() {
	const base = "/v1/templates"
	a.raw(operation("buildTemplate", http.MethodPost, base, "Templates", "Build a template from a tar of files; the response is JSON lines, of which the last is the template or a problem", ops.TemplateBuild), map[string]string{
		"name": "the name to give it, NAME or NAME:TAG", "file": "path of the Dockerfile in the tar, or of a description that ends in .json",
		"arg": "NAME=VALUE of an ARG; may be repeated, and is no place for a secret", "noCache": "true: carry every step out",
		"egress": "a host that RUN steps may reach, as in the network of a sandbox; may be repeated; without one there is no network",
		"start":  "a script that runs in every sandbox of it, whose memory is kept", "ready": "a script that succeeds when that is ready",
	}, "application/x-tar", "application/x-ndjson", a.buildTemplate)
	huma.Register(a.huma, operation("listTemplates", http.MethodGet, base, "Templates", "List templates", ops.TemplateList), func(ctx context.Context, _ *none) (*templatesOutput, error) {
		all, err := a.services.Templates.Templates(ctx)
		out := &templatesOutput{}
		out.Body.Templates = append([]durable.Template{}, all...)
		return out, a.problem(ctx, err)
	})
	huma.Register(a.huma, operation("getTemplate", http.MethodGet, base+"/{name}", "Templates", "Get a template", ops.TemplateGet), func(ctx context.Context, in *TemplateRef) (*templateOutput, error) {
		t, err := a.services.Templates.Template(ctx, in.Name)
		return &templateOutput{t}, a.problem(ctx, err)
	})
	huma.Register(a.huma, operation("tagTemplate", http.MethodPost, base+"/{name}/tag", "Templates", "Give a template one more name", ops.TemplateTag), func(ctx context.Context, in *tagInput) (*templateOutput, error) {
		t, err := a.services.Templates.TagTemplate(ctx, in.Name, in.Body.As)
		return &templateOutput{t}, a.problem(ctx, err)
	})
	huma.Register(a.huma, sometimes(operation("publishTemplate", http.MethodPut, base+"/{name}/public", "Templates", "Let other tenants use all tags of a template, or end that; their sandboxes are not affected", ops.TemplateUnpublish), ops.TemplatePublish), func(ctx context.Context, in *visibilityInput) (*visibilityOutput, error) {
		v, err := a.services.Templates.PublishTemplate(ctx, in.Name, in.Body.Public)
		return &visibilityOutput{v}, a.problem(ctx, err)
	})
	remove := operation("removeTemplate", http.MethodDelete, base+"/{name}", "Templates", "Remove a name of a template; sandboxes made from it are not affected", ops.TemplateRemove)
	remove.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, remove, func(ctx context.Context, in *TemplateRef) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Templates.RemoveTemplate(ctx, in.Name))
	})
	huma.Register(a.huma, operation("pruneTemplates", http.MethodPost, "/v1/templates:prune", "Templates", "Remove unused entries of the build cache", ops.TemplatePrune), func(ctx context.Context, in *pruneBuildsInput) (*pruneBuildsOutput, error) {
		freed, err := a.services.Templates.PruneTemplates(ctx, milliseconds(in.Body.UnusedMS))
		out := &pruneBuildsOutput{}
		out.Body.Freed = freed
		return out, a.problem(ctx, err)
	})
}

// archivePadding bounds the padding after the end of a tar archive: tar fills
// up a block of at most this size.
const archivePadding = 1 << 20

// buildTemplate answers a build. Errors before the build begins have their own
// HTTP status.
func (a *API) buildTemplate(w http.ResponseWriter, r *http.Request) error {
	req, err := buildRequest(r)
	if err != nil {
		return err
	}
	_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/1.1: respond while the request body is still being sent
	// Read the padding of the archive. If it stays unread, the connection is reset
	// and the client may not get the response.
	defer func() { _, _ = io.CopyN(io.Discard, r.Body, archivePadding) }()
	var mu sync.Mutex
	var out *lines
	write := func(line buildLine) {
		mu.Lock()
		defer mu.Unlock()
		if out == nil {
			out = newLines(w)
		}
		out.write(line)
	}
	t, err := a.services.Templates.BuildFromTar(r.Context(), req, func(e durable.BuildEvent) { write(buildLine{Event: &e}) })
	switch {
	case err == nil:
		write(buildLine{Template: &t})
	case out == nil:
		return err
	default:
		p := new(Problem)
		errors.As(a.problem(r.Context(), err), &p)
		write(buildLine{Problem: p})
	}
	return nil
}

func buildRequest(r *http.Request) (template.TarRequest, error) {
	q := r.URL.Query()
	req := template.TarRequest{Name: q.Get("name"), File: q.Get("file"), Files: r.Body, Args: map[string]string{}, Egress: q["egress"], Start: q.Get("start"), Ready: q.Get("ready")}
	if text := q.Get("noCache"); text != "" {
		var err error
		if req.NoCache, err = strconv.ParseBool(text); err != nil {
			return req, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "noCache", Message: "is neither true nor false"}
		}
	}
	for _, arg := range q["arg"] {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return req, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "arg", Message: "is not NAME=VALUE"}
		}
		req.Args[name] = value
	}
	return req, nil
}
