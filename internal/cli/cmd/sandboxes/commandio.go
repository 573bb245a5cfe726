package sandboxes

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/offline"
	"github.com/atoll-run/atoll/sandbox"
)

// linger is how long output is awaited after the command itself has ended:
// processes it left behind may hold its output open for ever.
const linger = 2 * time.Second

// commandIO connects a command to our own streams, terminal and signals.
type commandIO struct {
	stdin          io.Reader // nil: the command reads an empty input
	stdout, stderr io.Writer
	terminal       *os.File // put into raw mode while the command runs; may be nil
	sizes          *os.File // the terminal that determines the size; may be nil
	signals        *interrupts
	detachKeys     []byte             // keys that leave the command to itself; nil: none
	leave          func() error       // makes it outlive us
	offline        [2]offline.Scanner // of standard output and error
}

// canLeave sets the keys that leave a command on our terminal to itself, if it can
// outlive us.
func (s *commandIO) canLeave(ctx context.Context, p driver.Process, keys []byte) {
	if s.terminal == nil {
		return
	}
	switch p := p.(type) {
	case *atoll.Terminal:
		s.detachKeys, s.leave = keys, func() error { return nil }
	case *atoll.Process:
		s.detachKeys, s.leave = keys, func() error {
			if p.Info().Background {
				return nil
			}
			return p.Background(ctx)
		}
	}
}

// unreached reports whether the output says that a host could not be reached.
func (s *commandIO) unreached() bool { return s.offline[0].Found() || s.offline[1].Found() }

// use connects one command and returns when its output has ended.
func (s *commandIO) use(ctx context.Context, p driver.Process) error {
	defer s.signals.forward(ctx, p)()
	restore, err := term.RawMode(s.terminal)
	if err != nil {
		return err
	}
	defer restore()
	if s.sizes != nil {
		defer followSize(ctx, s.sizes, p)()
	}
	if s.stdin == nil {
		return s.drain(ctx, p)
	}
	in := s.stdin
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if len(s.detachKeys) > 0 {
		in = &term.KeyReader{From: in, Keys: s.detachKeys, Leave: s.leave, Cancel: cancel}
	}
	go feed(p, in)
	return s.drain(ctx, p)
}

// feed passes our input on until either side ends. It may stay blocked in a
// read of a terminal when the command ends first; only the end of the program
// ends it then.
func feed(p driver.Process, in io.Reader) {
	_, err := io.Copy(p.Stdin(), in) // a command need not read all there is
	if !errors.Is(err, term.ErrDetached) {
		_ = p.Stdin().Close()
	}
}

// drain copies output until it ends, ctx ends, or the command has ended and
// nothing more came for a while.
func (s *commandIO) drain(ctx context.Context, p driver.Process) error {
	streams := []*outflow{
		{to: s.stdout, from: p.Stdout(), scan: &s.offline[0]},
		{to: s.stderr, from: p.Stderr(), scan: &s.offline[1]},
	}
	copied := make(chan error, len(streams))
	for _, o := range streams {
		go func() { copied <- o.copy() }()
	}
	waitCtx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = p.Wait(waitCtx) // the caller calls Wait again
	}()
	var late <-chan time.Time
	for open := len(streams); open > 0; {
		select {
		case err := <-copied:
			if err != nil {
				return err
			}
			open--
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ended:
			ended = nil
			for _, o := range streams {
				o.waited.Store(0)
			}
			tick := time.NewTicker(linger / 20)
			defer tick.Stop()
			late = tick.C
		case <-late:
			if streams[0].stalled() && streams[1].stalled() {
				return nil
			}
		}
	}
	return nil
}

// outflow copies one stream, and knows how long it waited for the sandbox. Time
// spent waiting for our own reader does not count: a slow reader loses nothing.
type outflow struct {
	to      io.Writer
	from    io.Reader
	scan    *offline.Scanner
	waited  atomic.Int64 // nanoseconds spent in reads that ended
	reading atomic.Int64 // when the present read began; 0: none
	done    atomic.Bool
}

func (o *outflow) copy() error {
	defer o.done.Store(true)
	buf := make([]byte, 64<<10)
	for {
		began := time.Now()
		o.reading.Store(began.UnixNano())
		n, err := o.from.Read(buf)
		o.reading.Store(0)
		o.waited.Add(int64(time.Since(began)))
		if n > 0 {
			_, _ = o.scan.Write(buf[:n])
			if _, err := o.to.Write(buf[:n]); err != nil {
				return &outputError{err}
			}
		}
		if err != nil {
			// The end, or the command was detached; Wait reports which.
			return nil
		}
	}
}

// stalled reports whether the stream ended or was waited for long enough.
func (o *outflow) stalled() bool {
	waited := o.waited.Load()
	if began := o.reading.Load(); began != 0 {
		waited += time.Now().UnixNano() - began
	}
	return o.done.Load() || waited >= int64(linger)
}

// outputError says that our own output could not be written.
type outputError struct{ err error }

func (e *outputError) Error() string { return "cannot write the command's output: " + e.err.Error() }

func (e *outputError) Unwrap() error { return e.err }

// followSize keeps the command's terminal as large as ours, until the returned
// function is called.
func followSize(ctx context.Context, f *os.File, p driver.Process) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	changed := make(chan os.Signal, 1)
	term.NotifyResize(changed)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-changed:
				_ = p.Resize(ctx, term.WindowSize(f)) // it may just have ended
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		signal.Stop(changed)
		cancel()
		wg.Wait()
	}
}

// interrupted is the cause of a context that ended because of a signal.
type interrupted syscall.Signal

func (i interrupted) Error() string { return "interrupted" }

// interrupts handles our signals. The first one is forwarded to the command, if
// one runs, which may take its time to end. Any further one ends everything.
type interrupts struct {
	cancel context.CancelCauseFunc
	mu     sync.Mutex
	send   func(sig int) // to the command; nil while none runs
	early  int           // one that came before the command, 0 if none did
	passed bool          // one was passed on, or is to be
}

// aboutToRun is how long a signal waits for a command, because it may already
// run while we have not received its start.
const aboutToRun = 100 * time.Millisecond

// catchSignals begins to turn signals into what they mean. The returned
// context ends when everything is to end; stop gives signals back.
func catchSignals(ctx context.Context) (_ *interrupts, _ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	i := &interrupts{cancel: cancel}
	caught := make(chan os.Signal, 4)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case sig := <-caught:
				i.take(sig.(syscall.Signal))
			case <-quit:
				return
			}
		}
	})
	return i, ctx, func() {
		signal.Stop(caught)
		close(quit)
		wg.Wait()
		cancel(nil)
	}
}

// signalPatience is how long a command may go on after a SIGTERM or SIGHUP. A shell on
// a terminal ignores SIGTERM.
const signalPatience = 10 * time.Second

func (i *interrupts) take(sig syscall.Signal) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.passed:
		i.cancel(interrupted(sig))
	case i.send != nil:
		i.send(int(sig))
		if sig != syscall.SIGINT && sig != syscall.SIGQUIT { // nobody is there to send another one
			time.AfterFunc(signalPatience, func() { i.cancel(interrupted(sig)) })
		}
	default:
		i.early = int(sig)
		time.AfterFunc(aboutToRun, i.giveUp)
	}
	i.passed = true
}

// giveUp ends everything if no command came for an early signal.
func (i *interrupts) giveUp() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.early != 0 {
		i.cancel(interrupted(i.early))
	}
}

// forward sends signals to p until the returned function is called.
func (i *interrupts) forward(ctx context.Context, p driver.Process) (stop func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.send = func(sig int) {
		// Sending must not keep the next signal from being seen.
		go func() {
			err := p.Signal(ctx, sig)
			if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
				i.cancel(interrupted(sig))
			}
		}()
	}
	if i.early != 0 {
		i.send(i.early)
		i.early = 0
	}
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.send = nil
	}
}

// whyEnded returns the exit code for a command whose output ended early, and whether
// there is one.
func whyEnded(ctx context.Context, err error) (code term.ExitCode, early bool) {
	var sig interrupted
	var out *outputError
	switch {
	case errors.As(err, &out) && errors.Is(err, syscall.EPIPE):
		return term.ExitCode(128 + int(syscall.SIGPIPE)), true
	case errors.As(context.Cause(ctx), &sig):
		return term.ExitCode(128 + int(sig)), true
	}
	return 0, false
}
