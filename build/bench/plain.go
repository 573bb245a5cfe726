package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
)

// bubblewrap returns a program that runs a command in the root file system with
// all namespaces, or false if it is not installed. It isolates less, because
// the host's kernel handles every system call.
func bubblewrap(rootfs string) (program, bool) {
	if _, err := exec.LookPath("bwrap"); err != nil {
		return program{}, false
	}
	return program{args: []string{
		"bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", rootfs, "/",
		"--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
	}}, true
}

// runc is the runtime that Docker uses, run directly.
type runc struct {
	cli    program
	dir    string
	rootfs string
	count  atomic.Int64
}

func newRunc(dir, rootfs string) (*runc, bool) {
	if _, err := exec.LookPath("runc"); err != nil {
		return nil, false
	}
	return &runc{cli: program{args: []string{"runc", "--root", filepath.Join(dir, "runc")}}, dir: dir, rootfs: rootfs}, true
}

// bundle writes a bundle that runs the command. Its specification is runc's
// default with a few changes.
func (r *runc) bundle(ctx context.Context, argv []string) (string, error) {
	dir := filepath.Join(r.dir, fmt.Sprintf("bundle-%d", r.count.Add(1)))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	if err := r.cli.with("spec", "--bundle", dir).run(ctx); err != nil {
		return "", err
	}
	file := filepath.Join(dir, "config.json")
	js, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	spec := map[string]any{}
	if err := json.Unmarshal(js, &spec); err != nil {
		return "", err
	}
	process, ok := spec["process"].(map[string]any)
	if !ok {
		return "", fmt.Errorf("%s has no process", file)
	}
	process["terminal"], process["args"] = false, argv
	spec["root"] = map[string]any{"path": r.rootfs, "readonly": true}
	if js, err = json.Marshal(spec); err != nil {
		return "", err
	}
	return dir, os.WriteFile(file, js, 0o600)
}

// run runs the bundle in a container with a new name each time.
func (r *runc) run(bundle string) func(context.Context) (timing, error) {
	return func(ctx context.Context) (timing, error) {
		id := fmt.Sprintf("run-%d", r.count.Add(1))
		return r.cli.with("run", "--bundle", bundle, id).time(ctx)
	}
}

// start starts an idle container and returns its name.
func (r *runc) start(ctx context.Context) (string, error) {
	bundle, err := r.bundle(ctx, idle)
	if err != nil {
		return "", err
	}
	id := fmt.Sprintf("idle-%d", r.count.Add(1))
	cmd := r.cli.with("run", "--detach", "--bundle", bundle, id).command(ctx)
	// The container inherits these, so they must not be pipes, which Run would
	// wait for.
	return id, cmd.Run()
}

func (r *runc) remove(id string) error {
	return r.cli.with("delete", "--force", id).run(context.Background())
}
