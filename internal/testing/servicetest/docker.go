package servicetest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Docker is a Docker daemon with its own directory and socket, for tests as
// root.
type Docker struct {
	Host string // its address

	dir   string
	log   *os.File
	cmd   *exec.Cmd
	ended chan error
}

// StartDocker starts a daemon below a directory. Its containers have the network
// that the arguments say.
func StartDocker(dir string, network ...string) (*Docker, error) {
	for program, pkg := range map[string]string{"dockerd": "docker.io", "containerd": "containerd", "runc": "runc", "busybox": "busybox-static"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("these tests need %s: apt-get install %s", program, pkg)
		}
	}
	if os.Getuid() != 0 {
		return nil, errors.New("these tests start a Docker daemon, which only root can")
	}
	none := filepath.Join(dir, "none.json")
	if err := os.WriteFile(none, []byte("{}"), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	d := &Docker{Host: "unix://" + filepath.Join(dir, "docker.sock"), dir: dir, log: log, ended: make(chan error, 1)}
	d.cmd = exec.CommandContext(context.Background(), "dockerd", append([]string{
		"--host", d.Host, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "--iptables=false", "--ip6tables=false", "--config-file", none,
	}, network...)...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { d.ended <- d.cmd.Wait() }()
	if err := d.ready(); err != nil {
		text, _ := os.ReadFile(log.Name())
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, text), d.Stop())
	}
	return d, nil
}

// ready waits until the daemon answers.
func (d *Docker) ready() error {
	for deadline := time.Now().Add(time.Minute); ; {
		out, err := d.Run(nil, "version")
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("dockerd does not answer: %w\n%s", err, out)
		}
		select {
		case err := <-d.ended:
			d.ended <- err
			return fmt.Errorf("dockerd has ended: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Run runs a command of the client.
func (d *Docker) Run(input []byte, args ...string) (output string, err error) {
	cmd := exec.CommandContext(context.Background(), "docker", append([]string{"--host", d.Host}, args...)...)
	cmd.Stdin = bytes.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Import makes an image with busybox, with files by their paths, and with a
// command for /bin/sh.
func (d *Docker) Import(image string, files map[string]string, command string) error {
	root, err := rootfs(files)
	if err != nil {
		return err
	}
	if out, err := d.Run(root, "import", "--change", "CMD "+command, "-", image); err != nil {
		return fmt.Errorf("importing %s: %w\n%s", image, err, out)
	}
	return nil
}

// Stop stops the daemon, and unmounts everything that it left below its
// directory.
func (d *Docker) Stop() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	err := errors.Join(<-d.ended, d.log.Close())
	text, failed := os.ReadFile("/proc/self/mountinfo")
	err = errors.Join(err, failed)
	var mounted []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], d.dir+"/") {
			mounted = append(mounted, f[4])
		}
	}
	for _, m := range slices.Backward(mounted) {
		err = errors.Join(err, syscall.Unmount(m, syscall.MNT_DETACH))
	}
	return err
}

// rootfs returns a small root file system as a tar archive.
func rootfs(files map[string]string) ([]byte, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	list, err := exec.CommandContext(context.Background(), busybox, "--list").Output()
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
	file := func(name, from string) {
		text, failed := os.ReadFile(from)
		err = errors.Join(err, failed)
		add(tar.Header{Name: name, Mode: 0o755}, text)
	}
	file("bin/busybox", busybox)
	for name, from := range files {
		file(name, from)
	}
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			add(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox", Mode: 0o777}, nil)
		}
	}
	add(tar.Header{Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"))
	add(tar.Header{Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\nnogroup:x:65534:\n"))
	return archive.Bytes(), errors.Join(err, w.Close())
}
