package sandbox

import (
	"path"
	"strings"

	"github.com/atoll-run/atoll/sandbox/bounds"
)

// WorkspaceDir is where a sandbox sees its workspace.
const WorkspaceDir = "/workspace"

// WorkspaceMount attaches a durable directory to a sandbox. Its files outlive
// the sandbox.
type WorkspaceMount struct {
	// Name of a workspace of the same tenant.
	Name string `json:"name" minLength:"1" maxLength:"63"`
	// Mode says which other sandboxes may have it attached at the same time. Empty:
	// WorkspaceExclusive.
	Mode WorkspaceMode `json:"mode,omitempty" enum:"exclusive,shared,read" doc:"exclusive: no other sandbox may have it attached; shared or read: others may, in the same mode"`
	// Path is where the sandbox sees it. Empty: WorkspaceDir.
	Path string `json:"path,omitempty" maxLength:"4096" doc:"where the sandbox sees it; /workspace if left out"`
	// Create makes the workspace if there is none of that name.
	Create bool `json:"create,omitempty" doc:"make the workspace if there is none of that name"`
	// ReadOnly lists directories below the workspace that cannot be written to.
	ReadOnly []string `json:"readOnly,omitempty" maxItems:"32" doc:"directories below it that cannot be written to"`
	// Writable lists the only directories below the workspace that can be
	// written to; those that are missing are made. Empty: all but ReadOnly.
	Writable []string `json:"writable,omitempty" maxItems:"32" doc:"the only directories below it that can be written to"`
}

// WorkspaceMode says how a workspace is shared.
type WorkspaceMode string

// The modes. A workspace is attached to one exclusive sandbox, or to any number
// of shared ones, or to any number of reading ones.
const (
	WorkspaceExclusive WorkspaceMode = "exclusive"
	WorkspaceRead      WorkspaceMode = "read" // the newest version, read-only
	// WorkspaceShared is for sandboxes on one machine. They see each other's
	// changes at once, as on one disk.
	WorkspaceShared WorkspaceMode = "shared"
)

// maxWorkspacePaths limits the length of each list of paths, and
// maxWorkspaceDepth the depth of each path, because every parent directory
// becomes a mount.
const (
	maxWorkspacePaths = 32
	maxWorkspaceDepth = 16
)

// Validate returns an *Error with CodeInvalid if the mount is not valid.
func (w *WorkspaceMount) Validate() error {
	if !isName(w.Name) {
		return invalid("workspace", "%q is not 1 to %d characters of a-z, 0-9 and -, beginning with a letter", clip(w.Name), bounds.MaxNameLen)
	}
	switch w.Mode {
	case "", WorkspaceExclusive, WorkspaceShared:
	case WorkspaceRead:
		if len(w.ReadOnly)+len(w.Writable) > 0 {
			return invalid("workspace", "a read-only workspace cannot have readOnly or writable paths")
		}
	default:
		return invalid("workspace", "%q is not one of exclusive, shared and read", clip(string(w.Mode)))
	}
	if err := w.validatePath(); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, list := range [][]string{w.ReadOnly, w.Writable} {
		if len(list) > maxWorkspacePaths {
			return invalid("workspace", "%d paths, at most %d", len(list), maxWorkspacePaths)
		}
		for _, p := range list {
			if p == "" || len(p) > bounds.MaxPathLen || p[0] == '/' || strings.ContainsRune(p, 0) || path.Clean(p) != p ||
				p == "." || p == ".." || strings.HasPrefix(p, "../") {
				return invalid("workspace", "%q is not a path below the workspace", clip(p))
			}
			if strings.Count(p, "/") >= maxWorkspaceDepth {
				return invalid("workspace", "%s is more than %d directories deep", clip(p), maxWorkspaceDepth)
			}
			if seen[p] {
				return invalid("workspace", "%s is listed twice", clip(p))
			}
			seen[p] = true
		}
	}
	return nil
}

// Target returns the path of the workspace in the sandbox.
func (w *WorkspaceMount) Target() string {
	if w.Path == "" {
		return WorkspaceDir
	}
	return path.Clean(w.Path)
}

// validatePath refuses /, /proc, /sys and /dev as the path of a workspace.
func (w *WorkspaceMount) validatePath() error {
	if w.Path == "" {
		return nil
	}
	t := w.Target()
	if w.Path[0] != '/' || len(w.Path) > bounds.MaxPathLen || strings.ContainsRune(w.Path, 0) || t == "/" || under(t, "/proc") || under(t, "/sys") || under(t, "/dev") {
		return invalid("workspace", "%q cannot be the path of a workspace", clip(w.Path))
	}
	return nil
}

// maxWorkspaces is the maximum per sandbox.
const maxWorkspaces = 32

// checkWorkspaces refuses a workspace that overlaps with a mount or another
// workspace, and one that is attached twice.
func (s *Spec) checkWorkspaces() error {
	if len(s.Workspaces) > maxWorkspaces {
		return invalid("workspaces", "%d, at most %d", len(s.Workspaces), maxWorkspaces)
	}
	targets := make([]string, 0, len(s.Mounts)+len(s.Workspaces))
	for _, m := range s.Mounts {
		targets = append(targets, path.Clean(m.Target))
	}
	names := map[string]bool{}
	for i := range s.Workspaces {
		w := &s.Workspaces[i]
		if err := w.Validate(); err != nil {
			return err
		}
		if names[w.Name] {
			return invalid("workspaces", "%s is attached twice", clip(w.Name))
		}
		names[w.Name] = true
		for _, t := range targets {
			if under(t, w.Target()) || under(w.Target(), t) {
				return invalid("workspaces", "%s overlaps with the workspace %s", clip(t), clip(w.Name))
			}
		}
		targets = append(targets, w.Target())
	}
	return nil
}
