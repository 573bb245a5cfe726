//go:build docker

package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/drivertest"
	"github.com/atoll-run/atoll/internal/scratch"
	"github.com/atoll-run/atoll/provider/docker"
	"github.com/atoll-run/atoll/sandbox"
)

// The daemon of the tests. TestMain sets these variables.
var (
	host string // its address
	bin  string // a static atoll, which serves as the guest
	api  *client.Client
)

// image is the test image, with busybox and the helper.
const image = "atoll-test"

// TestMain starts a Docker daemon with its own directory and socket.
func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, remove, err := scratch.Dir("atoll-docker-")
	if err == nil {
		defer func() { _ = remove() }()
		err = prepare(dir)
	}
	var stop func() error
	if err == nil {
		stop, err = startDaemon(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping the daemon:", err)
		return 1
	}
	return code
}

// prepare builds the programs for the containers, unless make has.
func prepare(dir string) error {
	for program, pkg := range map[string]string{"dockerd": "docker.io", "containerd": "containerd", "runc": "runc", "busybox": "busybox-static"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("these tests need %s: apt-get install %s", program, pkg)
		}
	}
	if os.Getuid() != 0 {
		return errors.New("these tests start a Docker daemon, which only root can")
	}
	build := map[string]string{"helper": "./testdata/helper"}
	if bin = os.Getenv("ATOLL_BIN"); bin == "" {
		bin = filepath.Join(dir, "atoll")
		build["atoll"] = "../../cmd/atoll"
	}
	for name, pkg := range build {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, name), pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
		}
	}
	return nil
}

// startDaemon starts a daemon and loads the image.
func startDaemon(dir string) (stop func() error, err error) {
	host = "unix://" + filepath.Join(dir, "docker.sock")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	daemon := exec.Command("dockerd", "--host", host, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "--bridge=none", "--iptables=false", "--ip6tables=false", "--config-file", filepath.Join(dir, "none.json"))
	daemon.Stdout, daemon.Stderr = log, log
	if err := os.WriteFile(filepath.Join(dir, "none.json"), []byte("{}"), 0o600); err != nil {
		return nil, err
	}
	if err := daemon.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	stop = func() error {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		return errors.Join(<-ended, log.Close(), unmount(dir))
	}
	if err := ready(ended); err != nil {
		text, _ := os.ReadFile(log.Name())
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, text), stop())
	}
	root, err := rootfs(filepath.Join(dir, "helper"))
	if err == nil {
		var res client.ImageImportResult
		res, err = api.ImageImport(context.Background(), client.ImageImportSource{Source: root, SourceName: "-"}, image, client.ImageImportOptions{})
		if err == nil {
			_, err = io.Copy(io.Discard, res)
			res.Close()
		}
	}
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

// ready waits until the daemon answers.
func ready(ended chan error) (err error) {
	api, err = client.New(client.WithHost(host))
	for deadline := time.Now().Add(30 * time.Second); err == nil; {
		if _, err := api.Ping(context.Background(), client.PingOptions{}); err == nil {
			return nil
		} else if time.Now().After(deadline) {
			return fmt.Errorf("dockerd does not answer: %w", err)
		}
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("dockerd has ended: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return err
}

// unmount unmounts everything that a daemon left below its directory.
func unmount(dir string) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	var mounted []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			mounted = append(mounted, f[4])
		}
	}
	for _, m := range slices.Backward(mounted) {
		err = errors.Join(err, syscall.Unmount(m, syscall.MNT_DETACH))
	}
	return err
}

// rootfs returns a small root file system as a tar archive.
func rootfs(helper string) (io.Reader, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		err = errors.Join(err, w.WriteHeader(&h))
		_, failed := w.Write(content)
		err = errors.Join(err, failed)
	}
	for name, mode := range map[string]int64{"bin": 0o755, "etc": 0o755, "proc": 0o755, "sys": 0o755, "dev": 0o755, "root": 0o700, "tmp": 0o1777, "var": 0o755} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}, nil)
	}
	for name, file := range map[string]string{"bin/busybox": busybox, "bin/helper": helper} {
		text, failed := os.ReadFile(file)
		err = errors.Join(err, failed)
		add(tar.Header{Name: name, Mode: 0o755}, text)
	}
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			add(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox", Mode: 0o777}, nil)
		}
	}
	add(tar.Header{Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"))
	add(tar.Header{Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\nnogroup:x:65534:\n"))
	return &archive, errors.Join(err, w.Close())
}

// options returns the options of a provider that uses the daemon.
func options(dir string) docker.Options {
	return docker.Options{Dir: dir, Host: host, Image: image, Executable: bin}
}

func TestConformance(t *testing.T) {
	dir := t.TempDir()
	drivertest.Run(t, drivertest.Harness{
		New:  func(context.Context) (driver.Provider, error) { return docker.New(options(dir)) },
		Spec: func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
		Echo: []string{"/bin/helper"},
	})
}
