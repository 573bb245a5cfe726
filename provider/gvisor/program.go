package gvisor

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/image/mkfs"
)

// The guest is executed from an EROFS image with nothing else in it. A program
// that a kernel maps from a descriptor of the host could not be restored: the
// kernel cannot save such mappings, while those of an image it can.
//
// The image is made once per version of the program, in the state directory.

// engineOf names what the memory of a sandbox is bound to: the kernel, and the
// guest, whose program is mapped and not a part of the memory. The build ID
// stands for the content of the executable that both are.
func engineOf(kernel string) (string, error) {
	f, err := elf.Open(guestProgram(kernel))
	if err != nil {
		return "", err
	}
	defer f.Close()
	note := f.Section(".note.go.buildid")
	if note == nil {
		return "", errors.New("the kernel's executable has no build ID")
	}
	id, err := note.Data()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(id)
	return EngineVersion + "+" + hex.EncodeToString(sum[:8]), nil
}

// program is what sandboxes are made with.
type program struct {
	engine string // see engineOf
	image  string // path of the image with the guest in it
}

// halfWritten is how old an image that was never finished must be to be
// removed, and oldProgram that of one of another version.
const (
	halfWritten = time.Minute
	oldProgram  = 24 * time.Hour
)

// findProgram finds the guest's image, or makes it.
// programSuffix ends the names of files that hold the guest's program; they begin
// with the engine's version.
const programSuffix = ".erofs"

func findProgram(kernel, stateDir string) (program, error) {
	engine, err := engineOf(kernel)
	if err != nil {
		return program{}, fmt.Errorf("identifying the kernel: %w", err)
	}
	dir := filepath.Join(stateDir, "guest")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return program{}, err
	}
	p := program{engine, filepath.Join(dir, engine+programSuffix)}
	if _, err := os.Stat(p.image); err == nil {
		now := time.Now()
		_ = os.Chtimes(p.image, now, now) // in use
		return p, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return program{}, err
	}
	sweepPrograms(dir, time.Now())
	return p, packProgram(guestProgram(kernel), p.image)
}

// sweepPrograms removes images that nobody has asked for lately. Sandboxes
// that run from one keep it open.
func sweepPrograms(dir string, now time.Time) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		most := oldProgram
		if strings.HasPrefix(e.Name(), halfMade) {
			most = halfWritten
		}
		if now.Sub(info.ModTime()) > most {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// packProgram writes the image. It appears under its name when it is whole.
func packProgram(executable, image string) (err error) {
	in, err := os.Open(executable)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.CreateTemp(filepath.Dir(image), halfMade)
	if err != nil {
		return err
	}
	defer func() {
		out.Close()
		if err != nil {
			os.Remove(out.Name())
		}
	}()
	w := mkfs.NewWriter(out)
	block, size, err := w.WriteFile(in)
	if err != nil {
		return err
	}
	file := &mkfs.Node{Mode: unix.S_IFREG | 0o555, Size: size, Block: block}
	root := &mkfs.Node{Mode: unix.S_IFDIR | 0o555, Children: map[string]*mkfs.Node{path.Base(guest.Path): file}}
	if _, err := w.Finish(root); err != nil {
		return err
	}
	if err := out.Sync(); err != nil {
		return err
	}
	return os.Rename(out.Name(), image)
}
