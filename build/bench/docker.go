package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// docker is a private Docker daemon, separate from any other on this machine.
type docker struct {
	dir    string
	cli    program
	daemon *exec.Cmd
	ended  chan error
	api    *dockerAPI
}

// startDocker starts a daemon with all its files below dir. It neither creates
// a bridge nor changes the firewall. The caller stops it.
func startDocker(ctx context.Context, dir string) (*docker, error) {
	for _, name := range []string{"docker", "dockerd"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, err
		}
	}
	if err := os.Mkdir(dir, 0o711); err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "d.sock")
	logFile, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	d := &docker{
		dir: dir, ended: make(chan error, 1), api: newDockerAPI(socket),
		cli: program{
			args: []string{"docker", "-H", "unix://" + socket},
			env:  []string{"DOCKER_CONFIG=" + filepath.Join(dir, "config")},
		},
	}
	d.daemon = exec.CommandContext(context.WithoutCancel(ctx), "dockerd", "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"-H", "unix://"+socket, "--pidfile", filepath.Join(dir, "pid"), "--iptables=false", "--bridge=none")
	d.daemon.Stdout, d.daemon.Stderr = logFile, logFile
	d.daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	if err := d.daemon.Start(); err != nil {
		return nil, err
	}
	go func() { d.ended <- d.daemon.Wait() }()
	if err := d.await(ctx); err != nil {
		return nil, errors.Join(err, d.stop())
	}
	return d, nil
}

// await waits until the daemon answers.
func (d *docker) await(ctx context.Context) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := d.api.ping(ctx)
		if err == nil {
			return nil
		}
		select {
		case died := <-d.ended:
			d.ended <- died
			return fmt.Errorf("dockerd ended: %w: %s", died, d.lastLine())
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("dockerd does not answer: %w", err)
		}
	}
}

func (d *docker) lastLine() string {
	text, _ := os.ReadFile(filepath.Join(d.dir, "log"))
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// stop removes all containers, ends the daemon and removes its files.
func (d *docker) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if ids, err := d.cli.with("ps", "-aq").output(ctx); err == nil && ids != "" {
		_ = d.cli.with(append([]string{"rm", "-f"}, strings.Fields(ids)...)...).run(ctx)
	}
	_ = d.daemon.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.ended: //nolint:errcheck // its status does not matter
	case <-time.After(30 * time.Second):
		_ = d.daemon.Process.Kill()
		<-d.ended //nolint:errcheck // as above
	}
	// Mounts that the daemon could not unmount would prevent removing its
	// directory.
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], d.dir+"/") {
			_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
	return os.RemoveAll(d.dir)
}

// belongs reports whether a process is the daemon's: its command line contains
// the daemon's directory.
func (d *docker) belongs(_ int, cmdline string) bool {
	return strings.Contains(cmdline, d.dir+"/")
}
