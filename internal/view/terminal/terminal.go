package terminal

import (
	"context"
	"crypto/rand"
	"io"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	maxKept  = 1 << 20 // bytes of output for viewers that reconnect
	maxPiece = 16 << 10
	// maxClients is the maximum number of clients whose input is counted.
	maxClients = 256
	// resizeTime bounds a change of the size.
	resizeTime = 5 * time.Second
	settleTime = time.Second
)

// Terminal is a terminal with viewers. It is safe for concurrent use.
type Terminal struct {
	id     string
	p      driver.Process
	ctx    context.Context
	cancel context.CancelFunc
	typed  chan []byte   // input
	size   chan struct{} // asks for a change of the size
	done   chan struct{} // closed when all output has been read

	mu      sync.Mutex
	screen  *screen
	kept    []byte // the last output
	end     int64  // offset of its end
	viewers map[*Viewer]bool
	inputs  map[string]int64 // bytes of input accepted of each client
	changed chan struct{}    // closed at the next change
	exit    *sandbox.Exit    // once the command has ended
	err     error            // why the connection to it was lost
	over    bool
}

// New shares the terminal of a process whose output begins at an offset. The
// caller closes the Terminal, which detaches the process.
func New(p driver.Process, offset int64, size sandbox.WindowSize) *Terminal {
	t := &Terminal{
		id: rand.Text(), p: p, typed: make(chan []byte, 64), size: make(chan struct{}, 1), done: make(chan struct{}),
		end: offset, viewers: map[*Viewer]bool{}, inputs: map[string]int64{}, changed: make(chan struct{}),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.screen = newScreen(size, t.answer)
	go t.read()
	go t.feed()
	go t.resizes()
	return t
}

// Close detaches the process and ends all viewers.
func (t *Terminal) Close() {
	t.cancel()
	if d, ok := driver.As[driver.Detacher](t.p); ok {
		_ = d.Detach()
	} else {
		_ = t.p.Close()
	}
	<-t.done
}

// Lost reports whether the connection to the terminal has ended without an exit
// of its command. A command that was killed may go on: its sandbox may have been
// put to disk with its memory.
func (t *Terminal) Lost() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over && (t.exit == nil || t.exit.Reason == sandbox.ReasonKilled)
}

// Settle waits until the output of the past has arrived, after which there is a
// moment of silence.
func (t *Terminal) Settle() {
	late := time.After(settleTime)
	for {
		t.mu.Lock()
		changed, over := t.changed, t.over
		t.mu.Unlock()
		if over {
			return
		}
		select {
		case <-changed:
		case <-late:
			return
		case <-time.After(settleTime / 20):
			return
		}
	}
}

// wake tells all viewers that something changed. The mutex is held.
func (t *Terminal) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// answer passes on what the emulator answers to a query of the program, if no
// viewer's terminal does.
func (t *Terminal) answer(p []byte) {
	go func() { // the emulator waits for it, with the mutex held
		t.mu.Lock()
		defer t.mu.Unlock()
		for v := range t.viewers {
			if v.control {
				return
			}
		}
		select {
		case t.typed <- p:
		default:
		}
	}()
}

func (t *Terminal) read() {
	defer close(t.done)
	buf := make([]byte, maxPiece)
	for {
		n, err := t.p.Stdout().Read(buf)
		t.mu.Lock()
		if n > 0 {
			if t.kept = append(t.kept, buf[:n]...); len(t.kept) > 2*maxKept {
				t.kept = append(t.kept[:0], t.kept[len(t.kept)-maxKept:]...)
			}
			t.end += int64(n)
			t.screen.write(buf[:n])
			t.wake()
		}
		t.mu.Unlock()
		if err != nil {
			break
		}
	}
	exit, err := t.p.Wait(t.ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over = true; err == nil {
		t.exit = &exit
	}
	t.err = err
	t.screen.close()
	t.wake()
}

func (t *Terminal) feed() {
	for {
		select {
		case p := <-t.typed:
			if _, err := t.p.Stdin().Write(p); err != nil {
				t.discard()
				return
			}
		case <-t.ctx.Done():
			return
		}
	}
}

// discard drops input that nobody reads.
func (t *Terminal) discard() {
	for {
		select {
		case <-t.typed:
		case <-t.ctx.Done():
			return
		}
	}
}

// resizes gives the terminal the size of the smallest viewer with control.
func (t *Terminal) resizes() {
	for {
		select {
		case <-t.size:
		case <-t.ctx.Done():
			return
		}
		t.mu.Lock()
		want, any := smallest(t.viewers)
		same := want == t.screen.size
		t.mu.Unlock()
		if !any || same {
			continue
		}
		ctx, cancel := context.WithTimeout(t.ctx, resizeTime)
		err := t.p.Resize(ctx, want)
		cancel()
		if err != nil {
			continue
		}
		t.mu.Lock()
		t.screen.resize(want)
		t.wake()
		t.mu.Unlock()
	}
}

// smallest returns the size of the smallest viewer with control. One that only
// watches for now has told none.
func smallest(viewers map[*Viewer]bool) (size sandbox.WindowSize, found bool) {
	for v := range viewers {
		if !v.control || v.size == (sandbox.WindowSize{}) {
			continue
		}
		if found {
			v := clamp(v.size)
			size = sandbox.WindowSize{Cols: min(size.Cols, v.Cols), Rows: min(size.Rows, v.Rows)}
			continue
		}
		size, found = clamp(v.size), true
	}
	return size, found
}

func (t *Terminal) fit() {
	select {
	case t.size <- struct{}{}:
	default:
	}
}

// Join is what a viewer wants.
type Join struct {
	Size sandbox.WindowSize
	// Client names a viewer that may reconnect; its earlier connection ends.
	Client string
	// Terminal and From say which output it has already; see Welcome.
	Terminal string
	From     int64
	// Input asks for what viewers type, too.
	Input bool
}

// Welcome is what a viewer gets first.
type Welcome struct {
	Terminal string // changes when offsets do
	Offset   int64  // in the output, of what follows
	Input    int64  // bytes of the client's input that have arrived
	Resumed  bool   // the output goes on at Join.From; otherwise the screen comes first
	Size     sandbox.WindowSize
}

// Viewer is one viewer of a terminal. Next has one caller.
type Viewer struct {
	t       *Terminal
	client  string
	named   bool // and may reconnect
	control bool
	size    sandbox.WindowSize // guarded by the mutex of t
	at      int64
	shown   sandbox.WindowSize
	typing  sync.Mutex
	hears   bool   // input too
	heard   []byte // input for it; guarded by the mutex of t
	idle    bool   // Next waits; guarded by the mutex of t
	quit    chan struct{}
	once    sync.Once
}

// View adds a viewer. The caller closes it.
func (t *Terminal) View(control bool, j Join) (*Viewer, Welcome) {
	v := &Viewer{t: t, client: j.Client, named: j.Client != "", control: control, size: j.Size, hears: j.Input, quit: make(chan struct{})}
	if !v.named {
		v.client = rand.Text()
	}
	t.mu.Lock()
	var earlier []*Viewer
	for other := range t.viewers {
		if other.client == v.client {
			earlier = append(earlier, other)
		}
	}
	t.mu.Unlock()
	for _, other := range earlier {
		other.Close()
		other.typing.Lock()   // its input is counted
		other.typing.Unlock() //nolint:staticcheck // waiting is all
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.viewers[v] = true
	t.forget()
	w := Welcome{Terminal: t.id, Input: t.inputs[v.client], Size: t.screen.size}
	v.at, v.shown = t.end-t.unfinished(), t.screen.size
	if first := t.end - int64(len(t.kept)); j.Terminal == t.id && j.From >= first && j.From <= t.end {
		v.at, w.Resumed = j.From, true
	}
	w.Offset = v.at
	t.fit()
	return v, w
}

// forget bounds the number of remembered clients. The mutex is held.
func (t *Terminal) forget() {
	if len(t.inputs) < maxClients {
		return
	}
	here := map[string]int64{}
	for v := range t.viewers {
		if n, ok := t.inputs[v.client]; ok {
			here[v.client] = n
		}
	}
	t.inputs = here
}

// unfinished returns how many of the last bytes are not in a snapshot, because
// they begin a sequence. The mutex is held.
func (t *Terminal) unfinished() int64 { return int64(min(t.screen.behind, len(t.kept))) }

// Close removes the viewer.
func (v *Viewer) Close() {
	v.once.Do(func() {
		close(v.quit)
		v.t.mu.Lock()
		defer v.t.mu.Unlock()
		delete(v.t.viewers, v)
		if !v.named {
			delete(v.t.inputs, v.client)
		}
		v.t.fit()
	})
}

// Resize changes the size of the viewer's window.
func (v *Viewer) Resize(size sandbox.WindowSize) {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	v.size = size
	v.t.fit()
}

// Type passes on input, and returns how much of the client's input has arrived.
// Input of a viewer without control is dropped.
func (v *Viewer) Type(p []byte) (arrived int64, err error) {
	v.typing.Lock()
	defer v.typing.Unlock()
	if !v.control {
		return 0, nil
	}
	select {
	case <-v.quit:
		return 0, io.ErrClosedPipe
	default:
	}
	select {
	case v.t.typed <- p:
	case <-v.quit:
		return 0, io.ErrClosedPipe
	case <-v.t.ctx.Done():
		return 0, io.ErrClosedPipe
	}
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	v.t.inputs[v.client] += int64(len(p))
	v.t.tell(p)
	return v.t.inputs[v.client], nil
}

// tell passes input on to the viewers that asked for it. The mutex is held.
func (t *Terminal) tell(p []byte) {
	for v := range t.viewers {
		if !v.hears {
			continue
		}
		if v.heard = append(v.heard, p...); len(v.heard) > maxKept {
			v.heard = append([]byte(nil), v.heard[len(v.heard)-maxKept:]...)
		}
		t.wake()
	}
}

// Change is what happened to a terminal. Exactly one field is set, except that
// Screen has its Offset and Size.
type Change struct {
	Input  []byte // what viewers typed, if the viewer asked for it
	Output []byte
	Screen []byte // in place of output that was too fast for the viewer
	Offset int64  // of what follows the screen
	Size   sandbox.WindowSize
	Exit   *sandbox.Exit
	Err    error // the connection to the terminal was lost
}

// Screen returns the current screen.
func (v *Viewer) Screen() Change {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	return v.repaint()
}

func (v *Viewer) repaint() Change {
	t := v.t
	v.at, v.shown = t.end-t.unfinished(), t.screen.size
	return Change{Screen: t.screen.snapshot(), Offset: v.at, Size: t.screen.size}
}

// Behind reports whether there is a change for which the caller of Next has not
// returned to it yet.
func (v *Viewer) Behind() bool {
	t := v.t
	t.mu.Lock()
	defer t.mu.Unlock()
	return !v.idle || len(v.heard) > 0 || v.shown != t.screen.size || v.at < t.end
}

// Next waits for the next change. After Close it returns io.ErrClosedPipe.
func (v *Viewer) Next() (Change, error) {
	for {
		c, wait := v.next()
		if wait == nil {
			return c, nil
		}
		select {
		case <-wait:
		case <-v.quit:
			return c, io.ErrClosedPipe
		}
	}
}

func (v *Viewer) next() (_ Change, wait <-chan struct{}) {
	t := v.t
	t.mu.Lock()
	defer t.mu.Unlock()
	defer func() { v.idle = wait != nil }()
	first := t.end - int64(len(t.kept))
	switch {
	case len(v.heard) > 0:
		p := v.heard
		v.heard = nil
		return Change{Input: p}, nil
	case v.shown != t.screen.size:
		v.shown = t.screen.size
		return Change{Size: v.shown}, nil
	case v.at < first:
		return v.repaint(), nil
	case v.at < t.end:
		rest := t.kept[v.at-first:]
		p := append([]byte(nil), rest[:min(len(rest), maxPiece)]...)
		v.at += int64(len(p))
		return Change{Output: p}, nil
	case t.exit != nil:
		return Change{Exit: t.exit}, nil
	case t.over:
		return Change{Err: t.err}, nil
	}
	return Change{}, t.changed
}
