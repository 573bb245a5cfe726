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

// The guest is executed from an EROFS image with nothing else in it. A program
// that a kernel maps from a descriptor of the host could not be restored: the
// kernel cannot save such mappings, while those of an image it can.
//
// The image is made once per version of the guest, in the state directory. Each
// sandbox keeps a link to its own, which is a part of every snapshot with memory:
// the program is mapped and not in the memory, and a sandbox goes on with the one
// that it began with, whatever guest its Atoll has by then.

// program is the guest that new sandboxes get. Its files are open, since another
// version of Atoll may remove them.
type program struct {
	digest     string   // names the guest
	image      *os.File // the image with the guest in it
	executable *os.File // and the guest alone
}

// halfWritten is how old an image that was never finished must be to be
// removed, and oldProgram that of one of another version.
const (
	halfWritten = time.Minute
	oldProgram  = 24 * time.Hour
)

// programSuffix ends the names of images; they begin with the guest's digest.
const programSuffix = ".erofs"

// findProgram finds the guest and its image, or makes them. Without an embedded
// guest the kernel's executable is the guest, too.
func findProgram(executable, stateDir string) (*program, error) {
	found, err := guestprogram.For(runtime.GOARCH, executable)
	if err != nil {
		return nil, err
	}
	return openProgram(found, stateDir)
}

// openProgram opens a guest and its image, which it makes if it is not there.
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
