package memfs

import (
	"context"
	"strings"
)

// Op is what happened to a node.
type Op byte

// The changes of a node.
const (
	Create Op = iota
	Write
	Remove
	Chmod
	Overflow
)

// Event is one change below a watched path.
type Event struct {
	Op   Op
	Path string // relative to the watched path, "." for itself
	Dir  bool
}

// queue is how many events wait for a slow receiver.
const queue = 1024

// Watch collects events. Close it when it is no longer needed.
type Watch struct {
	fs        *FS
	node      *Node
	recursive bool
	events    []Event
	closed    bool
	changed   chan struct{} // has room for one: something to look at
}

// Watch watches a directory, or a file, from now on.
func (f *FS) Watch(path string, recursive bool) (*Watch, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.find("watch", path, true)
	if err != nil {
		return nil, err
	}
	w := &Watch{fs: f, node: at.node, recursive: recursive, changed: make(chan struct{}, 1)}
	f.watches[w] = struct{}{}
	return w, nil
}

// Next returns the next event; ok is false when the watch has ended.
func (w *Watch) Next(ctx context.Context) (e Event, ok bool) {
	for {
		w.fs.mu.Lock()
		if len(w.events) > 0 {
			e, w.events = w.events[0], w.events[1:]
			w.fs.mu.Unlock()
			return e, true
		}
		closed := w.closed
		w.fs.mu.Unlock()
		if closed {
			return Event{}, false
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			return Event{}, false
		}
	}
}

// Close ends the watch.
func (w *Watch) Close() {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	w.close()
}

func (w *Watch) close() {
	delete(w.fs.watches, w)
	w.closed = true
	w.wake()
}

func (w *Watch) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// add queues an event. Writes that follow each other are one.
func (w *Watch) add(e Event) {
	n := len(w.events)
	switch {
	case n > 0 && w.events[n-1] == e && e.Op == Write:
		return
	case n > 0 && w.events[n-1].Op == Overflow:
		return
	case n >= queue:
		e = Event{Op: Overflow, Path: "."}
	}
	w.events = append(w.events, e)
	w.wake()
}

// notify reports a change of a node to the watches, with the node's last name.
func (f *FS) notify(op Op, n *Node) {
	f.notifyAt(op, n.parent, n.name, n)
}

func (f *FS) notifyAt(op Op, dir *Node, name string, n *Node) {
	for w := range f.watches {
		if w.node == n {
			w.add(Event{op, ".", n.typ == Dir})
			if op == Remove {
				w.close()
			}
			continue
		}
		if dir == nil {
			continue // A draft has no name yet.
		}
		if path, ok := w.relative(dir, name); ok {
			w.add(Event{op, path, n.typ == Dir})
		}
	}
}

// relative returns the path of a name in dir as the watch sees it.
func (w *Watch) relative(dir *Node, name string) (string, bool) {
	if dir == w.node {
		return name, true
	}
	if !w.recursive {
		return "", false
	}
	parts := []string{name}
	for d := dir; ; d = d.parent {
		if d == w.node {
			return strings.Join(parts, "/"), true
		}
		if d == d.parent || d.parent == nil {
			return "", false
		}
		parts = append([]string{d.name}, parts...)
	}
}
