package agent

import (
	"encoding/binary"
	"errors"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// maxPending limits the events that wait for a slow client.
const maxPending = 8192

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_EXCL_UNLINK

// watcher reports the changes below one directory, or of one file.
type watcher struct {
	recursive bool
	find      func(path string, follow bool) (place, error)
	base      string   // the watched path
	only      string   // the name of a watched file, whose directory is watched
	file      *os.File // the inotify instance
	fd        int

	// Used only by the reading goroutine.
	paths map[int32]string // by watch descriptor, relative; "." for the watched path
	root  int32
	done  bool

	mu      sync.Mutex
	pending []sandbox.FileEvent
	ended   bool
	ready   chan struct{} // holds a token when there is something to send
}

// watch reports changes until the client leaves or the watched path is gone.
func (s *fileServer) watch(op *wire.Op, d *wire.Decoder) error {
	p, recursive := d.String(), d.Bool()
	if err := d.End(); err != nil {
		return err
	}
	at, err := s.root.find(p, true)
	if err != nil {
		return named(p, err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		at.close()
		return named(p, err)
	}
	w := &watcher{
		recursive: recursive, find: s.root.find, base: at.path, fd: fd, file: os.NewFile(uintptr(fd), "inotify"),
		paths: map[int32]string{}, ready: make(chan struct{}, 1),
	}
	defer w.file.Close()
	err = w.begin(at)
	at.close() // an open directory would not be reported as removed
	if err != nil {
		return named(p, err)
	}
	if err := op.Message([]byte{wire.MsgReady}); err != nil {
		return err
	}
	var reader sync.WaitGroup
	reader.Go(w.read)
	err = w.send(op)
	w.file.Close()
	reader.Wait()
	return err
}

// begin watches the path. A file is watched through its directory, because
// replacing the file is a change, too.
func (w *watcher) begin(at place) error {
	name := at.name
	if !isDir(at.dir, at.name) {
		var st unix.Stat_t
		if err := unix.Fstatat(at.dir, at.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		w.only, name = at.name, "."
	}
	wd, err := w.add(at.dir, name, ".")
	if err != nil {
		return err
	}
	w.root = wd
	if w.only == "" && w.recursive {
		return w.addBelow(at.dir, at.name, ".", false)
	}
	return nil
}

// add watches one directory or file through its descriptor, because its name
// could have become a link and its path could be too long.
func (w *watcher) add(dir int, name, rel string) (int32, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	wd, err := unix.InotifyAddWatch(w.fd, "/proc/self/fd/"+strconv.Itoa(fd), watchMask)
	if err != nil {
		if err == unix.ENOSPC {
			err = fail(sandbox.CodeExhausted, "", "too many directories to watch")
		}
		return 0, err
	}
	w.paths[int32(wd)] = rel
	return int32(wd), nil
}

// addBelow watches the directories below one. With report it also reports their
// entries, which were created before the watch.
func (w *watcher) addBelow(dir int, name, rel string, report bool) error {
	t, err := openTree(dir, name)
	if err != nil {
		return err
	}
	defer t.close()
	return t.walk(func(dir int, name string, _ int) (bool, error) {
		is := isDir(dir, name)
		if !is && !report {
			return false, nil
		}
		at := path.Join(rel, t.rel(name))
		if len(at) > maxListPath {
			return false, fail(sandbox.CodeExhausted, "", "a path below it is too long to watch")
		}
		if is {
			if _, err := w.add(dir, name, at); err != nil {
				return false, ignoreGone(err)
			}
		}
		if report && !strings.HasPrefix(name, tempPrefix) {
			w.put(sandbox.FileEvent{Op: sandbox.OpCreate, Path: at, Dir: is})
		}
		return is, nil
	})
}

// read reads events from the kernel until the instance is closed.
func (w *watcher) read() {
	buf := make([]byte, 16<<10)
	for !w.done {
		n, err := w.file.Read(buf)
		if err != nil {
			break
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			wd := int32(binary.NativeEndian.Uint32(b))
			mask := binary.NativeEndian.Uint32(b[4:])
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:size]), "\x00")
			b = b[size:]
			w.event(wd, mask, name)
		}
	}
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	w.wake()
}

// event converts an event of the kernel to one for the client.
func (w *watcher) event(wd int32, mask uint32, name string) {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		w.overflow()
		return
	}
	rel, known := w.paths[wd]
	if !known || strings.HasPrefix(name, tempPrefix) {
		return
	}
	at, dir := path.Join(rel, name), mask&unix.IN_ISDIR != 0
	if w.only != "" && name != "" {
		if name != w.only {
			return
		}
		at = "."
	}
	switch {
	case mask&unix.IN_IGNORED != 0:
		delete(w.paths, wd)
	case name == "" && wd != w.root:
		// The parent's watch reports the same.
	case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0:
		w.gone(dir)
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		w.put(sandbox.FileEvent{Op: sandbox.OpCreate, Path: at, Dir: dir})
		if dir && w.recursive && w.only == "" {
			w.appeared(at)
		}
	case mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		if w.only != "" {
			w.gone(dir)
			return
		}
		if dir {
			w.forget(at)
		}
		w.put(sandbox.FileEvent{Op: sandbox.OpRemove, Path: at, Dir: dir})
	case w.only != "" && name == "": // about the directory of the file
	case mask&unix.IN_MODIFY != 0:
		w.put(sandbox.FileEvent{Op: sandbox.OpWrite, Path: at, Dir: dir})
	case mask&unix.IN_ATTRIB != 0:
		w.put(sandbox.FileEvent{Op: sandbox.OpChmod, Path: at, Dir: dir})
	}
}

// gone queues the last event: the watched path no longer exists.
func (w *watcher) gone(dir bool) {
	w.put(sandbox.FileEvent{Op: sandbox.OpRemove, Path: ".", Dir: dir})
	w.done = true
}

// appeared watches a new directory and reports its entries. The directory may
// already be gone.
func (w *watcher) appeared(rel string) {
	at, err := w.find(path.Join(w.base, rel), false)
	if err != nil {
		return
	}
	defer at.close()
	if _, err = w.add(at.dir, at.name, rel); err == nil {
		err = w.addBelow(at.dir, at.name, rel, true)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
		w.overflow() // something is not watched, so the client must list again
	}
}

// forget removes the watches of a directory that was moved away and of
// everything below it.
func (w *watcher) forget(rel string) {
	for wd, p := range w.paths {
		if p == rel || strings.HasPrefix(p, rel+"/") {
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
			delete(w.paths, wd)
		}
	}
}

// put queues an event, unless it repeats one of the last events. When the
// client is too slow, one overflow replaces all queued events.
func (w *watcher) put(ev sandbox.FileEvent) {
	w.mu.Lock()
	for i := len(w.pending) - 1; i >= max(0, len(w.pending)-8); i-- {
		if w.pending[i].Path == ev.Path {
			if w.pending[i] == ev {
				w.mu.Unlock()
				return
			}
			break
		}
	}
	w.pending = append(w.pending, ev)
	full := len(w.pending) > maxPending
	w.mu.Unlock()
	if full {
		w.overflow()
		return
	}
	w.wake()
}

func (w *watcher) overflow() {
	w.mu.Lock()
	w.pending = []sandbox.FileEvent{{Op: sandbox.OpOverflow, Path: "."}}
	w.mu.Unlock()
	w.wake()
}

func (w *watcher) wake() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// send sends events until the last one, or until the client leaves.
func (w *watcher) send(op *wire.Op) error {
	for {
		select {
		case <-op.Over():
			return nil
		case <-w.ready:
		}
		w.mu.Lock()
		events, ended := w.pending, w.ended
		w.pending = nil
		w.mu.Unlock()
		var one, e wire.Encoder
		for _, ev := range events {
			one.B = one.B[:0]
			wire.PutEvent(&one, ev)
			e.Bytes(one.B)
		}
		if _, err := op.Write(0, e.B); err != nil || ended {
			return err
		}
	}
}
