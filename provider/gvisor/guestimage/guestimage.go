// Package guestimage keeps the image that the guest of new sandboxes runs from.
//
// The guest is executed from an EROFS image that contains nothing else. A
// kernel can save mappings of an image, but not mappings of a host descriptor.
//
// The image is created once per version of the guest, in the state directory.
// Each sandbox keeps a link to its own, which is a part of every snapshot with
// memory: the program is mapped and is not part of the saved memory. A sandbox
// keeps the guest it started with, whatever guest its Atoll has later.
package guestimage

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
	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/image/mkfs"
)

// Guest is the guest of new sandboxes. Its files are open, because another
// version of Atoll may remove them. They belong to the Guest, and their users
// share the offset. A Guest may be used concurrently.
type Guest struct {
	Digest     string   // identifies the guest
	Image      *os.File // the image with the guest in it
	Executable *os.File // the guest's executable
}

const halfMade = ".new-" // prefix of unfinished images

// halfWritten is the age after which an unfinished image is removed, and
// unused that of an image of another version.
const (
	halfWritten = time.Minute
	unused      = 24 * time.Hour
)

// suffix is the suffix of the images' names. They start with the guest's
// digest.
const suffix = ".erofs"

// Find finds or creates the guest and its image. Without an embedded guest, the
// kernel's executable is also the guest. The caller closes the Guest.
func Find(executable, stateDir string) (*Guest, error) {
	found, err := program.For(runtime.GOARCH, executable)
	if err != nil {
		return nil, err
	}
	return Open(found, stateDir)
}

// Open opens a guest and its image, and creates the image if it is missing. The
// caller closes the Guest.
func Open(found *program.Program, stateDir string) (*Guest, error) {
	dir := filepath.Join(stateDir, "guest")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := found.Install(dir)
	if err != nil {
		return nil, err
	}
	image := filepath.Join(dir, found.Digest()[:16]+suffix)
	if _, err := os.Stat(image); errors.Is(err, fs.ErrNotExist) {
		sweep(dir, time.Now())
		err = pack(file, image)
		if err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	g := &Guest{Digest: found.Digest()}
	if g.Executable, err = os.Open(file); err != nil {
		return nil, err
	}
	if g.Image, err = os.Open(image); err != nil {
		g.Close()
		return nil, err
	}
	now := time.Now() // they are in use
	_ = os.Chtimes(image, now, now)
	if filepath.Dir(file) == dir {
		_ = os.Chtimes(file, now, now)
	}
	return g, nil
}

// Close closes the files of the guest. Nil does nothing.
func (g *Guest) Close() {
	if g == nil {
		return
	}
	g.Executable.Close()
	g.Image.Close()
}

// sweep removes images that were not used recently. Sandboxes that run
// from one keep it open.
func sweep(dir string, now time.Time) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		most := unused
		if strings.HasPrefix(e.Name(), halfMade) {
			most = halfWritten
		}
		if now.Sub(info.ModTime()) > most {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// pack writes the image and renames it when it is complete.
func pack(executable, image string) (err error) {
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
