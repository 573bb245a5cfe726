package mcpserver

import (
	"context"
	"strings"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// specArgs describe a sandbox to create.
type specArgs struct {
	Image      string            `json:"image,omitempty" jsonschema:"OCI reference such as debian:12, or template:NAME; the machine's programs if left out"`
	Snapshot   string            `json:"snapshot,omitempty" jsonschema:"to start from, instead of an image"`
	Provider   string            `json:"provider,omitempty"`
	CPUs       float64           `json:"cpus,omitempty"`
	MemoryMB   int64             `json:"memory_mb,omitempty"`
	DiskMB     int64             `json:"disk_mb,omitempty"`
	Env        map[string]string `json:"env,omitempty" jsonschema:"of every command; no secrets here"`
	Egress     []string          `json:"egress,omitempty" jsonschema:"hosts it may reach, such as *.example.com:8443; none if left out"`
	Profile    string            `json:"profile,omitempty" jsonschema:"stored egress profile, instead of egress"`
	Secrets    []string          `json:"secrets,omitempty" jsonschema:"names of stored secrets; a variable of that name holds a placeholder"`
	Workspaces []string          `json:"workspaces,omitempty" jsonschema:"durable directories: NAME, which is at /workspace, or NAME:/path"`
}

func (a *specArgs) spec() sandbox.Spec {
	spec := sandbox.Spec{
		Image: a.Image, Snapshot: a.Snapshot, Provider: a.Provider, Env: a.Env,
		Resources: sandbox.Resources{CPUs: a.CPUs, Memory: a.MemoryMB << 20, Disk: a.DiskMB << 20},
		Network:   sandbox.Network{Egress: a.Egress, Profile: a.Profile},
	}
	for _, name := range a.Secrets {
		spec.Secrets = append(spec.Secrets, sandbox.SecretRef{Name: name})
	}
	for _, w := range a.Workspaces {
		name, path, _ := strings.Cut(w, ":")
		spec.Workspaces = append(spec.Workspaces, sandbox.WorkspaceMount{Name: name, Path: path, Create: true})
	}
	return spec
}

type createArgs struct {
	specArgs
	Name            string            `json:"name,omitempty" jsonschema:"unique among your sandboxes: a-z, 0-9 and -; generated if left out"`
	Labels          map[string]string `json:"labels,omitempty" jsonschema:"labels to find it by"`
	LifetimeSeconds int64             `json:"lifetime_seconds,omitempty" jsonschema:"remove it after this time; never if left out"`
	IdleSeconds     int64             `json:"idle_seconds,omitempty" jsonschema:"stop it, keeping its files, when unused for this time; never if left out"`
}

// sandboxOut describes a sandbox.
type sandboxOut struct {
	Sandbox   string            `json:"sandbox" jsonschema:"its name; pass it to the other tools"`
	ID        string            `json:"id"`
	State     string            `json:"state"`
	Reason    string            `json:"reason,omitempty"`
	Image     string            `json:"image"`
	Provider  string            `json:"provider,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Created   time.Time         `json:"created"`
	Expires   *time.Time        `json:"expires,omitempty" jsonschema:"when its lifetime ends"`
	CPUs      float64           `json:"cpus,omitempty"`
	MemoryMB  int64             `json:"memory_mb,omitempty"`
	DiskMB    int64             `json:"disk_mb,omitempty"`
	Processes []processOut      `json:"processes,omitempty" jsonschema:"only in sandbox_inspect"`
}

func toSandbox(s sandbox.Sandbox) sandboxOut {
	out := sandboxOut{
		Sandbox: s.Name, ID: string(s.ID), State: string(s.State), Reason: s.Reason, Image: s.Image, Provider: s.Provider,
		Labels: s.Labels, Created: s.Created, CPUs: s.Resources.CPUs, MemoryMB: s.Resources.Memory >> 20, DiskMB: s.Resources.Disk >> 20,
	}
	if !s.Expires.IsZero() {
		out.Expires = &s.Expires
	}
	return out
}

// sandboxArgs name a sandbox.
type sandboxArgs struct {
	Sandbox string `json:"sandbox"` // its name or id
}

type listArgs struct {
	Labels map[string]string `json:"labels,omitempty" jsonschema:"only sandboxes with all of these labels"`
	Limit  int               `json:"limit,omitempty" jsonschema:"50 if left out"`
}

type listOut struct {
	Sandboxes []sandboxOut `json:"sandboxes"`
	More      bool         `json:"more,omitempty" jsonschema:"there are more than the limit"`
}

// Bounds of a list of sandboxes.
const (
	defaultList = 50
	maxList     = 500
)

func (s *Server) sandboxTools() {
	add(s, "sandbox_run", "Run a command in a new sandbox",
		"Run one command in a new sandbox, and remove it.", adds, does(ops.SandboxCreate, ops.SandboxFind, ops.ProcessExec, ops.SandboxDestroy), runOnce)
	add(s, "sandbox_create", "Create a sandbox",
		"Make a sandbox that stays until it is removed. With idle_seconds or lifetime_seconds, a forgotten one ends.", adds, does(ops.SandboxCreate),
		func(ctx context.Context, c *call, in createArgs) (sandboxOut, error) {
			spec := in.spec()
			spec.Name, spec.Labels = in.Name, in.Labels
			spec.Lifetime = sandbox.Lifetime{Timeout: time.Duration(in.LifetimeSeconds) * time.Second, Idle: time.Duration(in.IdleSeconds) * time.Second}
			b, err := c.Create(ctx, spec, atoll.CreateOptions{})
			if err != nil {
				return sandboxOut{}, err
			}
			return toSandbox(b.Info()), nil
		})
	add(s, "sandbox_list", "List sandboxes", "List sandboxes, newest first.", looks, does(ops.SandboxList), list)
	add(s, "sandbox_inspect", "Inspect a sandbox", "Show the state, limits and processes of a sandbox.", looks, does(ops.SandboxGet, ops.ProcessList),
		func(ctx context.Context, c *call, in sandboxArgs) (sandboxOut, error) {
			b, err := c.sandbox(ctx, in.Sandbox)
			if err != nil {
				return sandboxOut{}, err
			}
			out := toSandbox(b.Info())
			if b.Info().State == sandbox.Running {
				if out.Processes, err = processes(ctx, b); err != nil {
					return sandboxOut{}, err
				}
			}
			return out, nil
		})
	add(s, "sandbox_remove", "Remove a sandbox", "Remove a sandbox. Workspaces and snapshots stay. One that is gone is success.", removes, does(ops.SandboxGet, ops.SandboxDestroy),
		func(ctx context.Context, c *call, in sandboxArgs) (removeOut, error) {
			b, err := c.sandbox(ctx, in.Sandbox)
			if err != nil {
				return removeOut{}, err
			}
			return removeOut{Removed: b.Name()}, b.Destroy(ctx)
		})
}

type removeOut struct {
	Removed string `json:"removed" jsonschema:"its name"`
}

func list(ctx context.Context, c *call, in listArgs) (listOut, error) {
	if in.Limit <= 0 {
		in.Limit = defaultList
	}
	in.Limit = min(in.Limit, maxList)
	out := listOut{Sandboxes: []sandboxOut{}}
	for b, err := range c.List(ctx, atoll.ListOptions{Labels: in.Labels, Page: in.Limit}) {
		if err != nil {
			return listOut{}, err
		}
		if len(out.Sandboxes) == in.Limit {
			out.More = true
			break
		}
		out.Sandboxes = append(out.Sandboxes, toSandbox(b))
	}
	return out, nil
}

type snapshotArgs struct {
	sandboxArgs
	Name   string `json:"name,omitempty" jsonschema:"generated if left out"`
	Memory bool   `json:"memory,omitempty" jsonschema:"save processes and memory too"`
}

type snapshotOut struct {
	Snapshot string `json:"snapshot" jsonschema:"its name; pass it to sandbox_create or sandbox_run"`
	ID       string `json:"id"`
	Memory   bool   `json:"memory"`
	Bytes    int64  `json:"bytes"`
}

type forkArgs struct {
	sandboxArgs
	Count  int    `json:"count,omitempty" jsonschema:"1 if left out, at most 100"`
	Prefix string `json:"prefix,omitempty" jsonschema:"of their names, PREFIX-1 and so on"`
}

type pauseArgs struct {
	sandboxArgs
	ToDisk bool `json:"to_disk,omitempty" jsonschema:"write its memory to disk, so that it uses none"`
}

// stateTools are the tools that pause, resume, stop, start, snapshot and fork
// sandboxes.
func (s *Server) stateTools() {
	add(s, "sandbox_snapshot", "Take a snapshot", "Save the files of a sandbox and, on request, its memory, for sandbox_create.", adds, does(ops.SandboxGet, ops.SnapshotCreate),
		func(ctx context.Context, c *call, in snapshotArgs) (snapshotOut, error) {
			b, err := c.sandbox(ctx, in.Sandbox)
			if err != nil {
				return snapshotOut{}, err
			}
			snap, err := b.Snapshot(ctx, durable.SnapshotRequest{Name: in.Name, Memory: in.Memory})
			return snapshotOut{Snapshot: snap.Name, ID: snap.ID, Memory: snap.Memory, Bytes: snap.Size}, err
		})
	add(s, "sandbox_fork", "Fork a sandbox", "Copy a running sandbox with its files, processes and memory.", adds, does(ops.SandboxGet, ops.SandboxFork),
		func(ctx context.Context, c *call, in forkArgs) (listOut, error) {
			b, err := c.sandbox(ctx, in.Sandbox)
			if err != nil {
				return listOut{}, err
			}
			copies, err := b.Fork(ctx, durable.ForkRequest{Count: in.Count, Prefix: in.Prefix})
			out := listOut{Sandboxes: []sandboxOut{}}
			for _, f := range copies {
				out.Sandboxes = append(out.Sandboxes, toSandbox(f.Info()))
			}
			return out, err
		})
	add(s, "sandbox_pause", "Pause a sandbox", "Freeze a sandbox with its processes. It cannot be used until sandbox_resume.", idempotent, does(ops.SandboxGet, ops.SandboxPause),
		func(ctx context.Context, c *call, in pauseArgs) (sandboxOut, error) {
			b, err := c.sandbox(ctx, in.Sandbox)
			if err != nil {
				return sandboxOut{}, err
			}
			kind := sandbox.PauseMemory
			if in.ToDisk {
				kind = sandbox.PauseDisk
			}
			info, err := b.Pause(ctx, kind)
			return toSandbox(info), err
		})
	add(s, "sandbox_resume", "Resume a sandbox", "Continue a paused or stopped sandbox. A running one is success.", idempotent, does(ops.SandboxGet, ops.SandboxResume).sometimes(ops.SandboxStart),
		func(ctx context.Context, c *call, in sandboxArgs) (sandboxOut, error) {
			b, err := c.sandbox(ctx, in.Sandbox)
			if err != nil {
				return sandboxOut{}, err
			}
			back := b.Resume
			if b.Info().State == sandbox.Stopped {
				back = b.Start
			}
			info, err := back(ctx)
			return toSandbox(info), err
		})
}
