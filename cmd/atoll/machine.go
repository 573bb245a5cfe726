//go:build linux && !light

package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/atoll-run/atoll/internal/cli/cmd/operate"
	"github.com/atoll-run/atoll/internal/fleet"
	"github.com/atoll-run/atoll/internal/fleet/kube"
	"github.com/atoll-run/atoll/internal/machine/agent"
	"github.com/atoll-run/atoll/internal/machine/hub"
	"github.com/atoll-run/atoll/internal/machine/local"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// machineProgram implements cli.MachineProgram.
type machineProgram struct{ sandboxes providerset.Entry }

// config is how the command atoll machine with these arguments uses a machine.
func (m machineProgram) config(dir string, verbose bool, command ...string) agent.Config {
	level := slog.LevelWarn
	if verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	again := append([]string{"--state-dir", filepath.Dir(dir), "machine"}, command...)
	return agent.Config{
		Dir: dir, Version: atollVersion(), Again: again, Logger: log,
		Restore: func(ctx context.Context, backup string) error { return local.Restore(ctx, dir, backup) },
		Serve: func(ctx context.Context, e agent.Enrolled) (agent.Local, error) {
			return local.Start(ctx, e, local.Options{Dir: dir, Sandboxes: m.sandboxes, Version: atollVersion(), Logger: log})
		},
	}
}

func (machineProgram) Enrol(ctx context.Context, e operate.MachineEnrolment, show func(string, time.Duration)) error {
	mode := operator.ModeSandboxes
	if e.Whole != "" {
		mode = operator.ModeWholeMachine
	}
	_, err := agent.Enrol(ctx, agent.Request{
		Dir: e.Dir, URL: e.URL, CA: e.CA, Name: e.Name, Mode: mode, Workdir: e.Whole, Token: e.Token, Consents: e.Consents, Version: atollVersion(),
	}, show)
	return err
}

func (m machineProgram) Serve(ctx context.Context, dir string, verbose bool) error {
	if err := leaveNoCore(); err != nil {
		return err
	}
	command := []string{"join"}
	if verbose {
		command = append(command, "--verbose")
	}
	return agent.Run(ctx, m.config(dir, verbose, command...))
}

func statusOf(s agent.Status, err error) (operate.MachineStatus, error) {
	out := operate.MachineStatus{
		Machine: s.Machine, Name: s.Name, Tenant: s.Tenant, URL: s.URL, Mode: s.Mode, Directory: s.Directory,
		Paused: s.Paused, Running: s.Running, Connected: s.Connected, Streams: s.Streams, Version: s.Version,
	}
	for _, c := range s.Consents {
		out.Consents = append(out.Consents, operate.MachineConsent(c))
	}
	return out, err
}

func (machineProgram) Status(dir string) (operate.MachineStatus, error) {
	return statusOf(agent.Look(dir))
}

func (machineProgram) Pause(dir string) (operate.MachineStatus, error) {
	return statusOf(agent.Pause(dir))
}

func (machineProgram) Resume(dir string) (operate.MachineStatus, error) {
	return statusOf(agent.Resume(dir))
}

func (machineProgram) Consent(dir string, to operator.Consent, agreed string) (operate.MachineStatus, error) {
	return statusOf(agent.SetConsent(dir, to, agreed))
}

func (m machineProgram) Leave(ctx context.Context, dir string) error {
	_, err := agent.Leave(ctx, m.config(dir, false, "leave"))
	return err
}

// machines reads what describes the NATS server for self-hosted machines. Nil:
// there is none.
func machines(path string) (*hub.Config, error) {
	if path == "" {
		return nil, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "daemon.start", Subject: path, Message: "others can read the file, which holds a password", Hint: "chmod 600 " + path,
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct{ URL, User, Password, Account, Issuer string }
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "daemon.start", Subject: path, Message: err.Error()}
	}
	// Machines whose owners want it get this program. The file may have been
	// replaced since it was started.
	own := &hub.Program{Version: atollVersion(), Open: func() (io.ReadCloser, error) { return os.Open("/proc/self/exe") }}
	return &hub.Config{Program: own, URL: file.URL, Account: file.Account, Issuer: []byte(file.Issuer), Options: []nats.Option{nats.UserInfo(file.User, file.Password)}}, nil
}

// others returns how the daemon reaches machines and nodes.
func others(o operate.UpOptions) (*hub.Config, *fleet.Config, error) {
	config, err := machines(o.MachinesFile)
	if err != nil {
		return nil, nil, err
	}
	all, err := nodes(o.Nodes)
	return config, all, err
}

// nodes names the daemons on which this one makes sandboxes. Nil: there are none.
func nodes(o operate.NodeOptions) (*fleet.Config, error) {
	config := &fleet.Config{Nodes: o.Nodes, File: o.File, KeyFile: o.KeyFile, CAFile: o.CAFile}
	if o.Service != "" {
		pods, err := kube.Open(o.Service)
		if err != nil {
			return nil, err
		}
		config.Discover = pods.Nodes
	} else if len(o.Nodes) == 0 && o.File == "" {
		return nil, nil
	}
	return config, nil
}
