package gvisor

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/provider/gvisor/kernel"
	"github.com/atoll-run/atoll/sandbox"
)

// EngineVersion is the linked version of gVisor.
const EngineVersion = kernel.Version

// engine identifies the kernels that can restore a sandbox's memory: the
// version of gVisor and of our changes to its state. Builds of Atoll with the
// same engine can restore each other's snapshots. The other requirements are
// saved with the memory: the guest's program and the names of the processor's
// features.
var engine = EngineVersion + "+" + kernel.StateFormat

// engineOn is the engine of kernels on a platform. The registers of programs are
// saved as the platform has them.
func engineOn(platform string) string {
	if platform == PlatformKVM {
		return engine + "+" + platform
	}
	return engine
}

// restorable reports whether this build restores the memory of an engine, if it
// uses the same platform.
func restorable(of string) bool { return of == engine || of == engineOn(PlatformKVM) }

// memoryLost returns why a snapshot of the sandbox's memory could not be
// restored, or nil. If it is not nil, Snapshot refuses to save memory.
func (in *Instance) memoryLost() error {
	own := engineOn(in.p.chosen().platform)
	if in.rec.Engine == own {
		return nil
	}
	what := "another version of Atoll started the sandbox, and this one cannot restore its memory"
	if restorable(in.rec.Engine) {
		what = "the sandbox was started with another platform of gVisor, and this one cannot restore its memory"
	}
	if in.rec.Engine != "" {
		what += fmt.Sprintf(" (its engine is %s, and this is %s)", in.rec.Engine, own)
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Subject: string(in.rec.ID), Message: what,
		Hint: "save its files only, or keep it running; if it is stopped and started, it has its files, and the engine of this Atoll",
	}
}

// guestImage opens the image of the sandbox's guest and returns its digest. It
// is the guest that the snapshot's memory needs, or else this Atoll's own.
func (m *creation) guestImage() (image *os.File, digest string, err error) {
	if m.restoresMemory() {
		image, err = reopen(m.from.Guest())
		return image, m.from.Memory.Guest, err
	}
	own, err := m.p.program()
	if err != nil {
		return nil, "", fmt.Errorf("preparing the guest: %w", err)
	}
	image, err = reopen(own.Image)
	return image, own.Digest, err
}

// keepGuest links the guest's image into the state directory and opens it.
func (m *creation) keepGuest() (*os.File, error) {
	image, digest, err := m.guestImage()
	if err != nil {
		return nil, err
	}
	defer image.Close()
	if err := linkOrCopy(image, m.stateDir.path(fileGuest)); err != nil {
		return nil, err
	}
	m.rec.Guest = digest
	return os.Open(m.stateDir.path(fileGuest))
}

// linkOrCopy links a file to another name, or copies it if that is on another
// file system. The file must never be written to.
func linkOrCopy(from *os.File, to string) error {
	if unix.Linkat(unix.AT_FDCWD, procFD(from), unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW) == nil {
		return nil
	}
	return copyFile(from, to)
}

// copyFile copies a file to another name.
func copyFile(from *os.File, to string) error {
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	info, err := from.Stat()
	if err == nil {
		_, err = io.Copy(out, io.NewSectionReader(from, 0, info.Size()))
	}
	if closed := out.Close(); err == nil {
		err = closed
	}
	return err
}

// guestMapped reports whether an address space, given by /proc/PID/maps, maps
// the guest's program.
func guestMapped(maps string) bool { return strings.Contains(maps, "/"+fileGuest) }
