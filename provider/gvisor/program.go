package gvisor

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest"
	guestprogram "github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/image/mkfs"
)

// The guest is executed from an EROFS image that contains nothing else. A
// kernel can save mappings of an image, but not mappings of a host descriptor.
//
// The image is created once per version of the guest, in the state directory.
// Each sandbox keeps a link to its own, which is a part of every snapshot with
// memory: the program is mapped and is not part of the saved memory. A sandbox
// keeps the guest it started with, whatever guest its Atoll has later.

// program is the guest of new sandboxes. Its files are open, because another
// version of Atoll may remove them.
type program struct {
	digest     string   // identifies the guest
	image      *os.File // the image with the guest in it
	executable *os.File // the guest's executable
}

// halfWritten is the age after which an unfinished image is removed, and
// oldProgram that of an image of another version.
const (
	halfWritten = time.Minute
	oldProgram  = 24 * time.Hour
)

// programSuffix is the suffix of the images' names. They start with the guest's
// digest.
const programSuffix = ".erofs"

// findProgram finds or creates the guest and its image. Without an embedded
// guest, the kernel's executable is also the guest.
func findProgram(executable, stateDir string) (*program, error) {
	found, err := guestprogram.For(runtime.GOARCH, executable)
	if err != nil {
		return nil, err
	}
	return openProgram(found, stateDir)
}

// openProgram opens a guest and its image, and creates the image if it is
// missing.
func openProgram(found *guestprogram.Program, stateDir string) (*program, error) {
	dir := filepath.Join(stateDir, "guest")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := found.Install(dir)
	if err != nil {
		return nil, err
	}
	image := filepath.Join(dir, found.Digest()[:16]+programSuffix)
	if _, err := os.Stat(image); errors.Is(err, fs.ErrNotExist) {
		sweepPrograms(dir, time.Now())
		err = packProgram(file, image)
		if err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	p := &program{digest: found.Digest()}
	if p.executable, err = os.Open(file); err != nil {
		return nil, err
	}
	if p.image, err = os.Open(image); err != nil {
		p.close()
		return nil, err
	}
	now := time.Now() // they are in use
	_ = os.Chtimes(image, now, now)
	if filepath.Dir(file) == dir {
		_ = os.Chtimes(file, now, now)
	}
	return p, nil
}

func (p *program) close() {
	p.executable.Close()
	p.image.Close()
}

// sweepPrograms removes images that were not used recently. Sandboxes that run
// from one keep it open.
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

// packProgram writes the image and renames it when it is complete.
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
