package bridgeapi

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"net/http"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Name is the name of the tenant's template and egress profile for its
// sandboxes, if they exist. Label is a label of those sandboxes; its value is
// the client's id of the sandbox.
const (
	Name  = "bridge"
	Label = "bridge.id"
)

// spelling is the encoding of ids: like Cloudflare's, in 26 letters and digits.
var spelling = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the program instead
	return spelling.EncodeToString(b[:])
}

// nameOf returns the name of the sandbox with an id. An id that cannot be part of
// a name is hashed.
func nameOf(id string) string {
	name := Name + "-" + id
	if sandbox.ValidateName(name) != nil {
		sum := sha256.Sum256([]byte(id))
		name = Name + "-" + spelling.EncodeToString(sum[:16])
	}
	return name
}

// create answers with a new id. Its sandbox is made when it is first used, so
// that no sandbox is left if the client never gets the response. One with
// mounts is made at once, because only this request has them.
func (h *Handler) create(w http.ResponseWriter, r *http.Request, c *call) error {
	var req struct { // other fields are ignored
		Mounts []mountRequest `json:"mounts"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	mounts, err := workspacesOf(req.Mounts)
	if err != nil {
		return err
	}
	c.id = newID()
	if len(mounts) > 0 {
		if err := h.make(r.Context(), c, mounts); err != nil {
			return err
		}
	}
	writeJSON(w, http.StatusOK, struct {
		ID string `json:"id"`
	}{c.id})
	return nil
}

// make creates the sandbox of an id.
func (h *Handler) make(ctx context.Context, c *call, mounts []sandbox.WorkspaceMount) error {
	spec := sandbox.Spec{
		Name: nameOf(c.id), User: "root", Workdir: root, Workspaces: mounts, Labels: map[string]string{Label: c.id},
		Lifetime: sandbox.Lifetime{Idle: h.opts.Idle, IdleAction: sandbox.IdleSleep, Wakes: true},
	}
	var err error
	if spec.Image, err = h.image(ctx); err != nil {
		return err
	}
	_, err = h.services.Profiles.Get(ctx, Name, 0)
	switch sandbox.CodeOf(err) {
	case "":
		spec.Network.Profile = Name
	case sandbox.CodeNotFound:
	default:
		return err
	}
	_, err = h.services.Sandboxes.CreateFor(ctx, spec, 0)
	return err
}

// image returns what sandboxes are made of: the tenant's template, the image
// "base", or this machine's own programs.
func (h *Handler) image(ctx context.Context) (string, error) {
	all, err := h.services.Templates.Templates(ctx)
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(all, func(t durable.Template) bool { return t.Name == Name && t.Tag == "latest" }) {
		return "template:" + Name + ":latest", nil
	}
	there, err := h.services.HasImage(ctx, "base")
	if there {
		return "base", err
	}
	return "host", err
}

// openLocked is open with the lock for changes to the sessions and tunnels of the
// sandbox. The caller calls release.
func (h *Handler) openLocked(ctx context.Context, c *call) (sb Sandbox, release func(), err error) {
	if sb, err = h.open(ctx, c); err != nil {
		return nil, nil, err
	}
	release, err = h.locks.Take(ctx, c.key())
	return sb, release, err
}

// open returns the running sandbox of an id. If it does not exist, or is gone,
// it is created.
func (h *Handler) open(ctx context.Context, c *call) (Sandbox, error) {
	sb, err := h.services.Open(ctx, nameOf(c.id))
	switch sandbox.CodeOf(err) {
	case sandbox.CodeNotFound, sandbox.CodeGone, sandbox.CodeConflict:
	default:
		return sb, err
	}
	made := h.making.DoChan(c.key(), func() (any, error) {
		ctx, cancel := late(ctx) // concurrent requests wait for it too
		defer cancel()
		return nil, h.bringUp(ctx, c)
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case result := <-made:
		if result.Err != nil {
			return nil, result.Err
		}
	}
	return h.services.Open(ctx, nameOf(c.id))
}

// bringUp starts, resumes or creates the sandbox of an id, depending on its
// state.
func (h *Handler) bringUp(ctx context.Context, c *call) error {
	name := nameOf(c.id)
	s, err := h.services.Sandboxes.Inspect(ctx, name)
	switch code := sandbox.CodeOf(err); {
	case code == sandbox.CodeNotFound || code == sandbox.CodeGone || err == nil && s.State == sandbox.Gone:
		return h.make(ctx, c, nil)
	case err != nil:
		return err
	case s.State == sandbox.Stopped && s.Kept:
		_, err = h.services.Sandboxes.Start(ctx, name)
		return err
	case s.State == sandbox.Stopped || s.State == sandbox.Failed:
		if err := h.services.Sandboxes.Destroy(ctx, name); err != nil {
			return err
		}
		return h.make(ctx, c, s.Spec.Workspaces)
	}
	return nil
}

// running reports whether the sandbox of an id still has the client's files. It
// neither resumes nor creates a sandbox.
func (h *Handler) running(w http.ResponseWriter, r *http.Request, c *call) error {
	s, err := h.services.Sandboxes.Inspect(r.Context(), nameOf(c.id))
	switch sandbox.CodeOf(err) {
	case "", sandbox.CodeNotFound, sandbox.CodeGone:
	default:
		return err
	}
	var answer struct {
		Running bool `json:"running"`
	}
	switch {
	case err != nil:
	case s.State == sandbox.Stopped:
		answer.Running = s.Kept
	default:
		answer.Running = slices.Contains([]sandbox.State{sandbox.Running, sandbox.Pausing, sandbox.Paused, sandbox.Resuming}, s.State)
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// remove destroys the sandbox of an id, if there is one.
func (h *Handler) remove(w http.ResponseWriter, r *http.Request, c *call) error {
	err := h.services.Sandboxes.Destroy(r.Context(), nameOf(c.id))
	switch sandbox.CodeOf(err) {
	case "", sandbox.CodeNotFound, sandbox.CodeGone:
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return err
}

// mountRequest asks for a durable directory.
type mountRequest struct {
	Bucket  string `json:"bucket"`
	Binding string `json:"binding"`
	Path    string `json:"mountPath"`
	Options struct {
		Endpoint string `json:"endpoint"`
		ReadOnly bool   `json:"readOnly"`
	} `json:"options"`
}

// workspacesOf returns the workspaces that the mounts of a new sandbox name as
// bindings.
func workspacesOf(mounts []mountRequest) ([]sandbox.WorkspaceMount, error) {
	var out []sandbox.WorkspaceMount
	for _, m := range mounts {
		p, err := m.check()
		if err != nil {
			return nil, err
		}
		if m.Binding == "" {
			return nil, noBuckets()
		}
		mode := sandbox.WorkspaceExclusive
		if m.Options.ReadOnly {
			mode = sandbox.WorkspaceRead
		}
		out = append(out, sandbox.WorkspaceMount{Name: m.Binding, Path: p, Mode: mode})
	}
	return out, nil
}

// check returns the path of a mount.
func (m *mountRequest) check() (string, error) {
	switch {
	case !strings.HasPrefix(m.Path, "/"):
		return "", invalid("mountPath must be an absolute path")
	case m.Options.Endpoint != "" && m.Bucket == "":
		return "", invalid("bucket must not be empty if options.endpoint is set")
	case m.Options.Endpoint != "" && m.Binding != "":
		return "", invalid("binding and options.endpoint exclude each other")
	case m.Options.Endpoint == "" && m.Binding == "":
		return "", invalid("binding is required unless options.endpoint is set")
	}
	return within(m.Path, "mountPath")
}

func noBuckets() error {
	return &problem{
		http.StatusBadGateway, "buckets cannot be mounted by their address here; give the bucket to the daemon as a workspace and name it as the binding of a mount when the sandbox is created",
		codeMount,
	}
}

// mount succeeds if the sandbox was created with that mount. A running sandbox
// cannot get other mounts.
func (h *Handler) mount(w http.ResponseWriter, r *http.Request, c *call) error {
	var req mountRequest
	if err := read(r, &req); err != nil {
		return err
	}
	p, err := req.check()
	if err != nil {
		return err
	}
	if req.Binding == "" {
		return noBuckets()
	}
	if _, err := h.open(r.Context(), c); err != nil {
		return err
	}
	s, err := h.services.Sandboxes.Inspect(r.Context(), nameOf(c.id))
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(s.Spec.Workspaces, func(m sandbox.WorkspaceMount) bool { return m.Name == req.Binding && m.Target() == p }) {
		return &problem{http.StatusBadGateway, "a sandbox that runs cannot get another mount; name it in the mounts of POST /v1/sandbox", codeMount}
	}
	writeJSON(w, http.StatusOK, done{true})
	return nil
}

// unmount is refused: the mounts of a sandbox cannot change.
func (h *Handler) unmount(_ http.ResponseWriter, r *http.Request, _ *call) error {
	var req mountRequest
	if err := read(r, &req); err != nil {
		return err
	}
	if !strings.HasPrefix(req.Path, "/") || strings.Trim(req.Path, "/.") == "" {
		return invalid("mountPath must be an absolute path other than /")
	}
	return &problem{http.StatusBadGateway, "the mounts of a sandbox stay until it is deleted", codeUnmount}
}
