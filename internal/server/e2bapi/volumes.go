package e2bapi

import (
	"context"
	"encoding/base32"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/server/routes"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// volumeAPI serves workspaces as volumes.
type volumeAPI struct {
	*common
	workspaces Workspaces
}

// volumeWrite says how files are made or changed. Nil fields use the volume's
// default or stay unchanged.
type volumeWrite struct {
	UID, GID *int
	Mode     *uint32 // permission bits
	Force    bool    // create parent directories
}

// volumeEntry is a file of a volume.
type volumeEntry struct {
	Name   string    `json:"name"`
	Type   string    `json:"type"` // file, directory, symlink or unknown
	Path   string    `json:"path"`
	Size   int64     `json:"size"`
	Mode   uint32    `json:"mode"`
	UID    uint32    `json:"uid"`
	GID    uint32    `json:"gid"`
	ATime  time.Time `json:"atime"`
	MTime  time.Time `json:"mtime"`
	CTime  time.Time `json:"ctime"`
	Target string    `json:"target,omitempty"`
}

var (
	volumeName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9_-]{1,60}$`) })
	ownName    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z]([a-z0-9-]{0,58}[a-z0-9])?$`) })
	nameCode   = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)
)

// codedPrefix is the prefix of a workspace for a volume with a name that is not
// valid for workspaces.
const codedPrefix = "e2b-"

// workspaceOf returns the name of a volume's workspace.
func workspaceOf(name string) (string, error) {
	if !volumeName().MatchString(name) {
		return "", invalid("name", "%.80q is not 1 to 60 letters, digits, _ and -", name)
	}
	if ownName().MatchString(name) && !strings.HasPrefix(name, codedPrefix) {
		return name, nil
	}
	coded := codedPrefix + nameCode.EncodeToString([]byte(name))
	if len(coded) > bounds.MaxNameLen {
		return "", invalid("name", "%.80q is too long for one with capitals, _ or a digit in front", name)
	}
	return coded, nil
}

// volumeOf is the reverse of workspaceOf.
func volumeOf(workspace string) string {
	if coded, ok := strings.CutPrefix(workspace, codedPrefix); ok {
		if name, err := nameCode.DecodeString(coded); err == nil && volumeName().Match(name) {
			return string(name)
		}
	}
	return workspace
}

// volumeInfo is a volume as clients see it.
type volumeInfo struct {
	VolumeID string `json:"volumeID"`
	Name     string `json:"name"`
	Token    string `json:"token,omitempty"`
}

func (h *volumeAPI) toVolume(v durable.Workspace, token string) volumeInfo {
	return volumeInfo{VolumeID: v.ID, Name: volumeOf(v.Name), Token: token}
}

func (h *volumeAPI) create(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Name string `json:"name"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	name, err := workspaceOf(req.Name)
	if err != nil {
		return err
	}
	v, err := h.workspaces.CreateWorkspace(r.Context(), durable.NewWorkspace{Name: name})
	if err == nil {
		writeJSON(w, http.StatusCreated, h.toVolume(v, h.tokens.volume(v.ID, h.rights.Key(r.Context()))))
	}
	return err
}

func (h *volumeAPI) list(w http.ResponseWriter, r *http.Request) error {
	all, err := h.workspaces.Workspaces(r.Context())
	if err != nil {
		return err
	}
	out := make([]volumeInfo, len(all))
	for i, v := range all {
		out[i] = h.toVolume(v, "")
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// find returns the caller's volume with an id or a name.
func (h *volumeAPI) find(ctx context.Context, ref string) (durable.Workspace, error) {
	all, err := h.workspaces.Workspaces(ctx)
	if err != nil {
		return durable.Workspace{}, err
	}
	for _, v := range all {
		if v.ID == ref || volumeOf(v.Name) == ref {
			return v, nil
		}
	}
	return durable.Workspace{}, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: clip(ref), Message: "there is no such volume"}
}

func (h *volumeAPI) get(w http.ResponseWriter, r *http.Request) error {
	v, err := h.find(r.Context(), r.PathValue("id"))
	if err == nil {
		writeJSON(w, http.StatusOK, h.toVolume(v, h.tokens.volume(v.ID, h.rights.Key(r.Context()))))
	}
	return err
}

func (h *volumeAPI) remove(w http.ResponseWriter, r *http.Request) error {
	v, err := h.find(r.Context(), r.PathValue("id"))
	if err == nil {
		err = h.workspaces.RemoveWorkspace(r.Context(), v.Name)
	}
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// volumeMount is a volume mounted in a sandbox.
type volumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// mount returns the workspaces for the volumes of a sandbox. They are shared.
func (h *volumeAPI) mount(ctx context.Context, mounts []volumeMount) (all []sandbox.WorkspaceMount, err error) {
	for _, m := range mounts {
		v, err := h.find(ctx, m.Name)
		if err != nil {
			return nil, err
		}
		all = append(all, sandbox.WorkspaceMount{Name: v.Name, Mode: sandbox.WorkspaceShared, Path: m.Path})
	}
	return all, nil
}

// toMounts is the reverse of mount.
func toMounts(s *sandbox.Detail) []volumeMount {
	out := make([]volumeMount, len(s.Spec.Workspaces))
	for i := range s.Spec.Workspaces {
		out[i] = volumeMount{volumeOf(s.Spec.Workspaces[i].Name), s.Spec.Workspaces[i].Target()}
	}
	return out
}

// contentProblem is an error in the format for clients of volumes.
type contentProblem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// content serves the files of a volume to callers with its token.
func (h *volumeAPI) content(f func(http.ResponseWriter, *http.Request, volumeFiles, string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := func() error {
			scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
			id := r.PathValue("id")
			keyID, ok := h.tokens.keyOf(forVolume, id, strings.TrimSpace(token))
			if !strings.EqualFold(scheme, "Bearer") || !ok {
				return unauthorized("the token is missing, or not that of the volume")
			}
			path := r.URL.Query().Get("path")
			if path == "" || strings.ContainsRune(path, 0) || len(path) > bounds.MaxPathLen {
				return invalid("path", "is missing or too long")
			}
			ctx, v, err := h.workspaces.EnterWorkspace(r.Context(), id, keyID)
			if err != nil {
				return err
			}
			return f(w, r.WithContext(ctx), volumeFiles{h.workspaces, v.Name}, path)
		}()
		if err == nil {
			return
		}
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler) // without an answer, the status would be 200
		}
		p := newProblem(err)
		if p.Code == http.StatusInternalServerError {
			h.opts.Logger.ErrorContext(r.Context(), "request failed", "path", r.URL.Path, "error", err)
		}
		writeJSON(w, p.Code, contentProblem{string(sandbox.CodeOf(err)), p.Message})
	}
}

// contentRoutes are the routes for files of volumes.
func (h *volumeAPI) contentRoutes(mux *routes.Mux) {
	handle := func(pattern string, op ops.Op, f func(http.ResponseWriter, *http.Request, volumeFiles, string) error) {
		mux.Handle(ops.Route{Name: pattern, Open: true, Ops: []ops.Op{op}}, h.content(f))
	}
	const base = " /volumecontent/{id}/"
	answer := func(w http.ResponseWriter, status int, v any, err error) error {
		if err == nil {
			writeJSON(w, status, v)
		}
		return err
	}
	handle("GET"+base+"path", ops.WorkspaceRead, func(w http.ResponseWriter, r *http.Request, f volumeFiles, path string) error {
		e, err := f.Stat(r.Context(), path)
		return answer(w, http.StatusOK, e, err)
	})
	handle("PATCH"+base+"path", ops.WorkspaceWrite, func(w http.ResponseWriter, r *http.Request, f volumeFiles, path string) error {
		var req struct {
			UID  *int    `json:"uid"`
			GID  *int    `json:"gid"`
			Mode *uint32 `json:"mode"`
		}
		if err := read(r, &req); err != nil {
			return err
		}
		how := volumeWrite{UID: req.UID, GID: req.GID, Mode: req.Mode}
		if err := how.check(); err != nil {
			return err
		}
		e, err := f.Change(r.Context(), path, how)
		return answer(w, http.StatusOK, e, err)
	})
	handle("DELETE"+base+"path", ops.WorkspaceWrite, func(w http.ResponseWriter, r *http.Request, f volumeFiles, path string) error {
		err := f.Remove(r.Context(), path)
		if err == nil {
			w.WriteHeader(http.StatusNoContent)
		}
		return err
	})
	handle("GET"+base+"dir", ops.WorkspaceRead, func(w http.ResponseWriter, r *http.Request, f volumeFiles, path string) error {
		depth := 1
		if text := r.URL.Query().Get("depth"); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 || n > 64 {
				return invalid("depth", "is not between 0 and 64")
			}
			depth = max(1, n)
		}
		all, err := f.List(r.Context(), path, depth)
		return answer(w, http.StatusOK, append([]volumeEntry{}, all...), err)
	})
	handle("POST"+base+"dir", ops.WorkspaceWrite, func(w http.ResponseWriter, r *http.Request, f volumeFiles, path string) error {
		how, err := readWrite(r)
		if err != nil {
			return err
		}
		e, err := f.Mkdir(r.Context(), path, how)
		return answer(w, http.StatusCreated, e, err)
	})
	handle("GET"+base+"file", ops.WorkspaceRead, func(w http.ResponseWriter, r *http.Request, f volumeFiles, path string) error {
		return f.Read(r.Context(), path, func(content io.ReadSeeker, e volumeEntry) error {
			w.Header().Set("Content-Type", "application/octet-stream")
			http.ServeContent(w, r, "", e.MTime, content)
			return nil
		})
	})
	handle("PUT"+base+"file", ops.WorkspaceWrite, func(w http.ResponseWriter, r *http.Request, f volumeFiles, path string) error {
		how, err := readWrite(r)
		if err != nil {
			return err
		}
		e, err := f.Write(r.Context(), path, r.Body, how)
		return answer(w, http.StatusCreated, e, err)
	})
}

// readWrite parses the options of a write.
func readWrite(r *http.Request) (how volumeWrite, err error) {
	q := r.URL.Query()
	for name, into := range map[string]**int{"uid": &how.UID, "gid": &how.GID} {
		if text := q.Get(name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil {
				return how, invalid(name, "is not a number")
			}
			*into = &n
		}
	}
	if text := q.Get("mode"); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return how, invalid("mode", "is not a number")
		}
		mode := uint32(n)
		how.Mode = &mode
	}
	if text := q.Get("force"); text != "" {
		if how.Force, err = strconv.ParseBool(text); err != nil {
			return how, invalid("force", "is neither true nor false")
		}
	}
	return how, how.check()
}

func (how *volumeWrite) check() error {
	for _, n := range []*int{how.UID, how.GID} {
		if n != nil && (*n < 0 || *n > 1<<31-1) {
			return invalid("owner", "%d is not the number of a user or group", *n)
		}
	}
	if how.Mode != nil && *how.Mode > 0o777 {
		return invalid("mode", "%o is more than permissions", *how.Mode)
	}
	return nil
}
