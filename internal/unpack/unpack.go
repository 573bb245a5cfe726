//go:build linux

// Package unpack unpacks the engine that a light program embeds, and continues
// in it.
//
// The light program is the command line with a client of the daemon. The engine
// is the program with everything linked in. It is unpacked once, to
// engine/DIGEST/atoll in the state directory, when a command needs it.
package unpack

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/statedir"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	dirName     = "engine" // in the state directory
	programName = "atoll"
	lockName    = "lock"
	temporary   = ".new-" // prefix of unfinished directories

	// maxMemory limits the memory for unpacking.
	maxMemory = 256 << 20
	// lockTime limits the wait for another process that unpacks.
	lockTime = time.Minute
	lockPoll = 10 * time.Millisecond
	// unusedTime is for how long an engine of another version was not started
	// when it is removed.
	unusedTime = time.Hour
)

// Packed is an engine that is embedded in this program. It is immutable and safe
// for concurrent use.
type Packed struct {
	digest string                  // SHA-256 of the executable, in hexadecimal
	size   int64                   // of the executable
	open   func() (fs.File, error) // the executable, compressed with zstd
}

// Embedded returns the engine that Pack wrote to a directory.
func Embedded(files fs.FS, dir string) (*Packed, error) {
	sum, err := fs.ReadFile(files, path.Join(dir, sumFile))
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "this program was built without its engine", Hint: "build atoll with make build", Cause: err}
	}
	p := &Packed{digest: strings.TrimSpace(string(sum)), open: func() (fs.File, error) { return files.Open(path.Join(dir, packedFile)) }}
	f, err := p.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, zstd.HeaderMaxSize) // reading all of it would take longer than starting
	n, _ := io.ReadFull(f, head)
	var h zstd.Header
	if err := h.Decode(head[:n]); err != nil || !h.HasFCS {
		return nil, damaged()
	}
	p.size = int64(h.FrameContentSize)
	return p, nil
}

// Exec replaces this process by the engine, with the arguments args and, as its
// name, the path of this program. Empty stateDir means the user's own. Exec unpacks
// the engine first if that is necessary; without unpack, the error then has
// CodeNotFound. It returns only if it fails.
func (p *Packed) Exec(stateDir string, args []string, unpack bool) error {
	state, err := statedir.Open(stateDir, os.LookupEnv)
	if err != nil {
		return err
	}
	dir := filepath.Join(state, dirName)
	path := filepath.Join(dir, p.digest, programName)
	if err = p.check(dir); errors.Is(err, fs.ErrNotExist) {
		if !unpack {
			return &sandbox.Error{Code: sandbox.CodeNotFound, Op: "engine.start", Subject: path, Message: "the engine is not unpacked yet"}
		}
		err = p.Unpack(dir)
	}
	if err != nil {
		return err
	}
	removeOthers(dir, p.digest)
	self, err := os.Executable()
	if err != nil {
		self = programName
	}
	if err := syscall.Exec(path, append([]string{self}, args...), os.Environ()); err != nil { //nolint:gosec // the program that was unpacked
		return failed(dir, err)
	}
	return nil
}

// check returns nil if the engine is in dir. An error with fs.ErrNotExist means
// that it is not, or is incomplete. The digest was checked when it was unpacked,
// and only the owner can have changed it since.
func (p *Packed) check(dir string) error {
	for _, d := range []string{dir, filepath.Join(dir, p.digest)} {
		if _, err := os.Lstat(d); err != nil {
			return err
		}
		if err := statedir.CheckOwned(d, uint32(os.Geteuid())); err != nil {
			return err
		}
	}
	path := filepath.Join(dir, p.digest, programName)
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode != unix.S_IFREG|mode || st.Uid != uint32(os.Geteuid()) || st.Size != p.size {
		return &os.PathError{Op: "check", Path: path, Err: unix.ENOENT} // is replaced
	}
	if now := time.Now(); now.Sub(time.Unix(st.Mtim.Sec, st.Mtim.Nsec)) > unusedTime/2 {
		_ = os.Chtimes(path, time.Time{}, now) // it is used; see removeOthers
	}
	return nil
}

// mode is that of the executable. Kernels of root's sandboxes run as nobody.
const mode = 0o755

// Unpack writes the engine to dir/DIGEST/atoll. Of several processes, one does.
func (p *Packed) Unpack(dir string) (err error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return failed(dir, err)
	}
	if err := statedir.CheckOwned(dir, uint32(os.Geteuid())); err != nil {
		return err
	}
	if noExec(dir) {
		return failed(dir, unix.EACCES)
	}
	release, err := lock(filepath.Join(dir, lockName), lockTime)
	if err != nil {
		return failed(dir, err)
	}
	defer release()
	if p.check(dir) == nil {
		return nil // by another process, meanwhile
	}
	clearUnfinished(dir)
	tmp, err := os.MkdirTemp(dir, temporary)
	if err != nil {
		return failed(dir, err)
	}
	defer os.RemoveAll(tmp)
	if err := p.write(filepath.Join(tmp, programName)); err != nil {
		return failed(dir, err)
	}
	final := filepath.Join(dir, p.digest)
	if err := os.RemoveAll(final); err != nil { // incomplete
		return failed(dir, err)
	}
	if err := os.Rename(tmp, final); err != nil {
		return failed(dir, err)
	}
	return nil
}

var errDamaged = errors.New("the engine in this program is damaged")

func damaged() error {
	return &sandbox.Error{Code: sandbox.CodeInternal, Op: "engine.start", Message: errDamaged.Error(), Hint: "install atoll again"}
}

// write unpacks the engine into a new file, and checks its digest.
func (p *Packed) write(path string) (err error) {
	in, err := p.open()
	if err != nil {
		return err
	}
	defer in.Close()
	z, err := zstd.NewReader(in, zstd.WithDecoderMaxMemory(maxMemory))
	if err != nil {
		return err
	}
	defer z.Close()
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, sum), z)
	switch {
	case err == nil && (n != p.size || hex.EncodeToString(sum.Sum(nil)) != p.digest), err != nil && !isFile(err):
		return errDamaged
	case err != nil:
		return err
	}
	if err := out.Chmod(mode); err != nil {
		return err
	}
	return out.Sync() // after a crash it must not be there in part
}

// isFile reports whether err is of a file, and not of zstd.
func isFile(err error) bool {
	var p *fs.PathError
	return errors.As(err, &p)
}

// failed returns the error of a user whose engine cannot be unpacked or started.
func failed(dir string, cause error) error {
	e := &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "engine.start", Subject: dir, Message: "the engine of Atoll cannot be unpacked and started: " + reason(cause),
		Hint: "choose another directory with --state-dir or $ATOLL_STATE_DIR", Cause: cause,
	}
	switch {
	case errors.Is(cause, unix.ENOSPC), errors.Is(cause, unix.EDQUOT):
		e.Code, e.Message = sandbox.CodeExhausted, "no space left for the engine of Atoll"
		e.Hint = "free 100 MB there, or " + e.Hint
	case noExec(dir):
		e.Message = "the engine of Atoll cannot run there: the file system is mounted with noexec"
	case errors.Is(cause, errDamaged):
		return damaged()
	case errors.Is(cause, errLocked):
		e.Code, e.Message, e.Hint = sandbox.CodeTimeout, cause.Error(), "see which process uses it: fuser "+filepath.Join(dir, lockName)
	}
	return e
}

func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// noExec reports whether the file system of a directory is mounted with noexec.
func noExec(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Flags&unix.ST_NOEXEC != 0
}
