package microvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// kernelPackage is Debian's package with a kernel for virtual machines.
const kernelPackage = "linux-image-cloud-" + runtime.GOARCH

// Prepare implements driver.Preparer: it finds a kernel with all drivers and
// makes the boot files. Without a source it tries /boot and then downloads
// Debian's package, which it unpacks and does not install.
func (p *Provider) Prepare(ctx context.Context, source string, say func(string)) error {
	qemu, err := p.qemuVersion(ctx)
	if err != nil {
		return err
	}
	say("QEMU " + qemu + " is installed")
	source = cmp.Or(source, p.opts.Kernel)
	b, err := p.bootFrom(cmp.Or(source, "/"))
	switch {
	case err != nil && source != "":
		return err
	case err != nil:
		say("the kernels in /boot cannot be used: " + err.Error())
		if b, err = p.download(ctx, say); err != nil {
			return err
		}
	case source != "":
		// It stays the source: the boot files are made again for a new guest.
		if err := p.keepSource(source); err != nil {
			return err
		}
	}
	say("the kernel is Linux " + b.version + "; machines start from the files in " + filepath.Dir(b.kernel))
	p.mu.Lock()
	p.boot = b
	p.mu.Unlock()
	say("starting a machine with " + p.opts.Accel)
	t, err := p.tried(ctx, b, qemu)
	if err != nil {
		return err
	}
	if t.Failed != "" {
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "microvm.setup", Message: t.Failed,
			Hint: "use a machine whose processor's virtualization can be used; for tests, set ATOLL_MICROVM_ACCEL=tcg",
		}
	}
	say("its guest started in " + t.Took.Round(time.Millisecond).String())
	return nil
}

// keepSource makes the directory of Setup a link to a source.
func (p *Provider) keepSource(source string) error {
	source, err := filepath.Abs(source)
	if err == nil {
		err = os.MkdirAll(p.opts.StateDir, 0o700)
	}
	if err == nil {
		err = os.RemoveAll(p.setupDir())
	}
	if err != nil {
		return err
	}
	return os.Symlink(source, p.setupDir())
}

// download gets the kernel's package with apt-get and unpacks it with dpkg.
func (p *Provider) download(ctx context.Context, say func(string)) (*boot, error) {
	if err := os.MkdirAll(p.opts.StateDir, 0o700); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(p.opts.StateDir, halfMade)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	run := func(name string, args ...string) (string, error) {
		say(strings.Join(append([]string{name}, args...), " "))
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = tmp
		out, err := cmd.CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			return "", noKernel(name, "the package of a kernel cannot be downloaded: this is no Debian, Ubuntu or the like")
		}
		if err != nil {
			return "", noKernel(kernelPackage, "%s failed: %v: %s", name, err, lastLines(strings.TrimSpace(string(out))))
		}
		return string(out), nil
	}
	deps, err := run("apt-cache", "depends", "--important", kernelPackage)
	if err != nil {
		return nil, err
	}
	name := ""
	for line := range strings.Lines(deps) {
		if _, dep, ok := strings.Cut(line, "Depends: "); ok && strings.HasPrefix(dep, "linux-image-") {
			name = strings.TrimSpace(dep)
			break
		}
	}
	if name == "" {
		return nil, noKernel(kernelPackage, "there is no such package")
	}
	if _, err := run("apt-get", "download", name); err != nil {
		return nil, err
	}
	packages, _ := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if len(packages) != 1 {
		return nil, noKernel(name, "apt-get downloaded %d files", len(packages))
	}
	unpacked := filepath.Join(tmp, "kernel")
	if _, err := run("dpkg", "-x", packages[0], unpacked); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(p.setupDir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.Rename(unpacked, p.setupDir()); err != nil {
		return nil, fmt.Errorf("keeping the kernel: %w", err)
	}
	return p.bootFrom(p.setupDir())
}
