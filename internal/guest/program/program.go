// Package program provides the guest: the program that runs inside a sandbox.
//
// `make build` embeds one for each architecture. A program built without it,
// for example by `go run ./cmd/atoll`, embeds none and is its own guest on its
// own architecture, because it imports package early.
package program

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/atoll-run/atoll/sandbox"
)

//go:embed built
var built embed.FS

// Program is a guest for Linux on one architecture. It is immutable and safe
// for concurrent use.
type Program struct {
	arch, digest string
	packed       []byte // the gzipped executable, or nil
	file         string // the executable, if it is not embedded
}

// For returns the guest for an architecture, given by Go's name. Without an
// embedded guest it is the executable self, or the running executable if self
// is empty. If neither is for that architecture, the error has CodeUnsupported.
func For(arch, self string) (*Program, error) {
	p, err := embedded(built, arch)
	if err != nil || p != nil {
		return p, err
	}
	if arch != runtime.GOARCH {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "linux/" + arch, Message: "this atoll has no guest for linux/" + arch,
			Hint: "build atoll with make build",
		}
	}
	return File(cmp.Or(self, "/proc/self/exe"))
}

// embedded is the program in files, or nil.
func embedded(files fs.FS, arch string) (*Program, error) {
	name := "built/linux-" + arch
	packed, err := fs.ReadFile(files, name+".gz")
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // not embedded
	}
	sum, err := fs.ReadFile(files, name+".sha256")
	if err != nil {
		return nil, err
	}
	return &Program{arch: arch, digest: strings.TrimSpace(string(sum)), packed: packed}, nil
}

// File returns the guest in an executable for this architecture.
func File(path string) (*Program, error) {
	digest, err := identify(path)
	if err != nil {
		return nil, fmt.Errorf("identifying %s: %w", path, err)
	}
	return &Program{arch: runtime.GOARCH, digest: digest, file: path}, nil
}

// identify returns a digest of an executable's build ID. Digesting the whole
// file would take longer than starting it.
func identify(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	note := f.Section(".note.go.buildid")
	if note == nil {
		return "", errors.New("it has no build ID")
	}
	id, err := note.Data()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(id)
	return hex.EncodeToString(sum[:]), nil
}

// Arch returns the architecture by Go's name.
func (p *Program) Arch() string { return p.arch }

// Digest identifies the program by 64 hexadecimal digits.
func (p *Program) Digest() string { return p.digest }

// Open opens the executable. The caller closes it.
func (p *Program) Open() (io.ReadCloser, error) {
	if p.packed == nil {
		return os.Open(p.file)
	}
	return gzip.NewReader(bytes.NewReader(p.packed))
}

// OpenGzip opens the executable, compressed with gzip. The caller closes it.
func (p *Program) OpenGzip() (io.ReadCloser, error) {
	if p.packed != nil {
		return io.NopCloser(bytes.NewReader(p.packed)), nil
	}
	in, err := os.Open(p.file)
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	go func() {
		defer in.Close()
		z := gzip.NewWriter(w)
		_, err := io.Copy(z, in)
		_ = w.CloseWithError(cmp.Or(err, z.Close()))
	}()
	return r, nil
}

// temporary is the prefix of unfinished files of Install.
const temporary = ".new-"

// Install returns the path of the executable. An embedded program is written to
// a file in dir if it is not there yet. Several processes may install
// concurrently.
func (p *Program) Install(dir string) (_ string, err error) {
	if p.packed == nil {
		return p.file, nil
	}
	path := filepath.Join(dir, "guest-"+p.arch+"-"+p.digest[:16])
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	in, err := p.Open()
	if err != nil {
		return "", err
	}
	defer in.Close()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	// Executing a file fails with ETXTBSY while a forked child has it open for
	// writing.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	out, err := os.CreateTemp(dir, temporary)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			os.Remove(out.Name())
		}
	}()
	if _, err = io.Copy(out, in); err == nil {
		err = out.Chmod(0o555)
	}
	if closed := out.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return "", err
	}
	return path, os.Rename(out.Name(), path)
}
