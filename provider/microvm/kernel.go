package microvm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/sandbox"
)

// boot is what machines are started from: a kernel, and an initial RAM file
// system with the guest and the kernel's drivers.
type boot struct {
	kernel, initrd string // files that every user may read
	version        string // of the kernel
	id             string // identifies both
}

// modules are the drivers of a machine. A kernel has them built in or as modules.
var modules = []string{"virtio_mmio", "virtio_blk", "virtio_console", "virtio_net", "virtio_rng", "ext4", "erofs", "overlay"}

// noKernel is the error for a kernel that cannot be used.
func noKernel(subject, format string, args ...any) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "microvm.kernel", Subject: subject, Message: fmt.Sprintf(format, args...),
		Hint: "install a kernel of the distribution, such as linux-image-cloud-amd64, or run: atoll microvm setup",
	}
}

// setupDir is where Setup puts the kernel.
func (p *Provider) setupDir() string { return filepath.Join(p.opts.StateDir, "kernel") }

// getBoot returns the boot files, which it makes if they are missing.
func (p *Provider) getBoot() (*boot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.boot != nil {
		return p.boot, nil
	}
	found, err := p.findBoot()
	if err == nil {
		p.boot = found
	}
	return found, err
}

// findBoot tries the kernels that there are, the one that was asked for first.
func (p *Provider) findBoot() (*boot, error) {
	if p.opts.Kernel != "" {
		return p.bootFrom(p.opts.Kernel)
	}
	if _, err := os.Stat(p.setupDir()); err == nil {
		return p.bootFrom(p.setupDir())
	}
	found, err := p.bootFrom("/")
	if err != nil {
		return nil, err
	}
	return found, nil
}

// bootFrom makes boot files from a kernel, or from a directory like the root of a
// file system, with boot and lib/modules. It uses the newest that has all
// drivers.
func (p *Provider) bootFrom(from string) (*boot, error) {
	info, err := os.Stat(from)
	if err != nil {
		return nil, noKernel(from, "there is no kernel: %v", err)
	}
	if !info.IsDir() {
		return p.bootWith(from, filepath.Dir(filepath.Dir(from)))
	}
	kernels, _ := filepath.Glob(filepath.Join(from, "boot", "vmlinuz-*"))
	if len(kernels) == 0 {
		return nil, noKernel(from, "there is no kernel in %s", filepath.Join(from, "boot"))
	}
	slices.Sort(kernels)
	for _, k := range slices.Backward(kernels) {
		var found *boot
		if found, err = p.bootWith(k, from); err == nil {
			return found, nil
		}
	}
	return nil, err
}

// bootWith makes the boot files of a kernel whose modules are below root.
func (p *Provider) bootWith(kernel, root string) (*boot, error) {
	version, err := kernelVersion(kernel)
	if err != nil {
		return nil, noKernel(kernel, "it cannot be used: %v", err)
	}
	guest, err := program.For(runtime.GOARCH, p.opts.Executable)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(kernel)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(fmt.Append(nil, kernel, root, version, info.Size(), info.ModTime().UnixNano(), guest.Digest(), bootFormat))
	b := &boot{version: version, id: hex.EncodeToString(sum[:8])}
	dir := filepath.Join(p.opts.StateDir, "boot", b.id)
	b.kernel, b.initrd = filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initrd")
	if _, err := os.Stat(dir); err == nil {
		return b, nil
	}
	return b, makeBoot(dir, kernel, root, version, guest)
}

// bootFormat changes with the content of the boot files.
const bootFormat = 1

func makeBoot(dir, kernel, root, version string, guest *program.Program) (err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), halfMade)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	drivers, err := findModules(root, version)
	if err != nil {
		return err
	}
	image, err := os.ReadFile(kernel)
	if err == nil {
		err = os.WriteFile(filepath.Join(tmp, "vmlinuz"), image, 0o444)
	}
	if err != nil {
		return err
	}
	in, err := guest.Open()
	if err != nil {
		return err
	}
	defer in.Close()
	exe, err := io.ReadAll(in)
	if err == nil {
		err = os.WriteFile(filepath.Join(tmp, "initrd"), initrd(exe, drivers), 0o444)
	}
	if err != nil {
		return err
	}
	if err = os.Rename(tmp, dir); errors.Is(err, fs.ErrExist) {
		err = nil // another process was faster
	}
	return err
}

// kernelVersion reads the version in the header of a kernel for x86, or the name
// of one for another architecture.
func kernelVersion(file string) (string, error) {
	if runtime.GOARCH != "amd64" {
		_, version, ok := strings.Cut(filepath.Base(file), "-")
		if !ok {
			return "", errors.New("its name has no version")
		}
		return version, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head := make([]byte, 64<<10)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", err
	}
	if head = head[:n]; n < 0x210 || string(head[0x202:0x206]) != "HdrS" {
		return "", errors.New("it is no Linux kernel for x86")
	}
	at := int(binary.LittleEndian.Uint16(head[0x20e:])) + 0x200
	if at >= n {
		return "", errors.New("its header has no version")
	}
	version, _, _ := strings.Cut(string(head[at:min(n, at+128)]), " ")
	return version, nil
}

// module is a kernel module.
type module struct {
	name    string
	content []byte
}

// findModules returns the drivers and what they depend on, in the order in which
// they must be loaded.
func findModules(root, version string) ([]module, error) {
	dir := filepath.Join(root, "lib", "modules", version)
	if _, err := os.Stat(dir); err != nil {
		dir = filepath.Join(root, "usr", "lib", "modules", version)
	}
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, noKernel(version, "its modules are not in %s", filepath.Join(root, "lib", "modules"))
	}
	l := &loader{files: map[string]string{}, loaded: map[string]bool{}}
	for line := range strings.Lines(string(builtin)) {
		l.loaded[moduleName(strings.TrimSpace(line))] = true
	}
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.Contains(filepath.Base(path), ".ko") {
			l.files[moduleName(path)] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, name := range modules {
		if err := l.load(name, version); err != nil {
			return nil, err
		}
	}
	return l.list, nil
}

// moduleName returns the name of a module by its file.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

type loader struct {
	files  map[string]string // by name
	loaded map[string]bool   // in the list, or built in
	list   []module
}

// load adds a module after those that it depends on.
func (l *loader) load(name, version string) error {
	if l.loaded[name] {
		return nil
	}
	file := l.files[name]
	if file == "" {
		return noKernel(version, "it has no driver %s", name)
	}
	l.loaded[name] = true
	content, err := readModule(file)
	if err != nil {
		return err
	}
	object, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	section := object.Section(".modinfo")
	if section == nil {
		return fmt.Errorf("%s: it is no kernel module", file)
	}
	info, err := section.Data()
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for field := range strings.SplitSeq(string(info), "\x00") {
		needs, ok := strings.CutPrefix(field, "depends=")
		if !ok || needs == "" {
			continue
		}
		for dep := range strings.SplitSeq(needs, ",") {
			if err := l.load(strings.ReplaceAll(dep, "-", "_"), version); err != nil {
				return err
			}
		}
	}
	l.list = append(l.list, module{name, content})
	return nil
}

// readModule reads a module, which may be compressed.
func readModule(file string) ([]byte, error) {
	switch filepath.Ext(file) {
	case ".xz":
		out, err := exec.CommandContext(context.Background(), "xz", "-dc", file).Output()
		if err != nil {
			return nil, fmt.Errorf("unpacking %s with xz: %w", file, err)
		}
		return out, nil
	case ".zst":
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r, err := zstd.NewReader(f)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return io.ReadAll(r)
	}
	return os.ReadFile(file)
}
