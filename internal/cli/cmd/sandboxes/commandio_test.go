package sandboxes

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/internal/cli/clitest"
	"github.com/atoll-run/atoll/internal/cli/cmd/request"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// command is a process with streams that the test controls.
type command struct {
	stdin          io.WriteCloser
	stdout, stderr io.Reader
	ended          chan struct{}
	exit           sandbox.Exit

	mu      sync.Mutex
	signals []int
}

func (c *command) Info() sandbox.ProcessInfo { return sandbox.ProcessInfo{ID: "1"} }

func (c *command) Stdin() io.WriteCloser { return c.stdin }

func (c *command) Stdout() io.Reader { return c.stdout }

func (c *command) Stderr() io.Reader { return c.stderr }

func (c *command) Close() error { return nil }

func (c *command) Signal(_ context.Context, sig int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signals = append(c.signals, sig)
	return nil
}

func (c *command) Resize(context.Context, sandbox.WindowSize) error { return nil }

func (c *command) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-c.ended:
		return c.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

func ended() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func TestDrainTakesEverything(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	p := &command{stdout: bytes.NewReader(big), stderr: strings.NewReader("err"), ended: ended()}
	var out, errs bytes.Buffer
	s := &commandIO{stdout: &out, stderr: &errs}
	if err := s.drain(t.Context(), p); err != nil || !bytes.Equal(out.Bytes(), big) || errs.String() != "err" {
		t.Errorf("%d bytes, %q, %v", out.Len(), errs.String(), err)
	}
}

// A process that was left behind holds the output open: what the command wrote
// arrives, and the wait has an end.
func TestDrainDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		p := &command{stdout: r, stderr: strings.NewReader(""), ended: make(chan struct{})}
		var out capture
		out.limit = 100
		s := &commandIO{stdout: &out, stderr: io.Discard}
		go func() {
			_, _ = w.Write([]byte("hello"))
			time.Sleep(time.Hour) // an hour of silence is fine while it runs
			close(p.ended)
		}()
		began := time.Now()
		if err := s.drain(t.Context(), p); err != nil || out.output().Data != "hello" {
			t.Errorf("%+v, %v", out.output(), err)
		}
		if took := time.Since(began); took < time.Hour || took > time.Hour+2*linger {
			t.Errorf("took %s", took)
		}
		_ = r.Close()
	})
}

// slowWriter is a reader of ours that takes its time.
type slowWriter struct {
	bytes.Buffer
	pause time.Duration
}

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(w.pause)
	return w.Buffer.Write(p)
}

func TestSlowReaderLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pieces := make([]io.Reader, 100)
		for i := range pieces {
			pieces[i] = strings.NewReader("x")
		}
		p := &command{stdout: io.MultiReader(pieces...), stderr: strings.NewReader(""), ended: ended()}
		out := &slowWriter{pause: time.Minute}
		s := &commandIO{stdout: out, stderr: io.Discard}
		if err := s.drain(t.Context(), p); err != nil || out.Len() != 100 {
			t.Errorf("%d bytes, %v", out.Len(), err)
		}
	})
}

func TestOutputErrors(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	p := &command{stdout: strings.NewReader("x"), stderr: strings.NewReader(""), ended: ended()}
	s := &commandIO{stdout: w, stderr: io.Discard}
	err = s.drain(t.Context(), p)
	if code, early := whyEnded(t.Context(), err); !early || code != 141 {
		t.Errorf("code %d, %v", code, err)
	}
	if code, early := whyEnded(t.Context(), syscall.EPIPE); early {
		t.Errorf("a broken pipe of our own became %d", code)
	}
}

func TestFirstSignalGoesToTheCommand(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	i := &interrupts{cancel: cancel}
	p := &command{}
	stop := i.forward(ctx, p)
	i.take(syscall.SIGINT)
	for sent := false; !sent; {
		p.mu.Lock()
		sent = len(p.signals) == 1 && p.signals[0] == 2
		p.mu.Unlock()
	}
	if ctx.Err() != nil {
		t.Fatal("the first signal ended everything")
	}
	i.take(syscall.SIGTERM)
	stop()
	if code, early := whyEnded(ctx, context.Canceled); !early || code != 143 {
		t.Errorf("code %d, %v", code, early)
	}
}

// TestSignalBeforeTheCommand sends one before there is a command, which comes at
// once, too late, or not before a second signal.
func TestSignalBeforeTheCommand(t *testing.T) {
	for _, tc := range []struct {
		name  string
		after time.Duration // when the command comes
		again bool          // a second signal comes before it
		ended syscall.Signal
	}{
		{name: "the command comes", after: aboutToRun / 2},
		{name: "it comes too late", after: 2 * aboutToRun, ended: syscall.SIGINT},
		{name: "a second signal", after: aboutToRun / 2, again: true, ended: syscall.SIGTERM},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				i := &interrupts{cancel: cancel}
				p := &command{}
				i.take(syscall.SIGINT)
				if tc.again {
					i.take(syscall.SIGTERM)
				}
				time.Sleep(tc.after)
				var sig interrupted
				if errors.As(context.Cause(ctx), &sig); syscall.Signal(sig) != tc.ended {
					t.Errorf("ended by %v, want %v", context.Cause(ctx), tc.ended)
				}
				if tc.ended != 0 {
					return
				}
				defer i.forward(ctx, p)()
				synctest.Wait()
				if !slices.Equal(p.signals, []int{2}) {
					t.Errorf("the command got %v", p.signals)
				}
				time.Sleep(2 * aboutToRun)
				if ctx.Err() != nil {
					t.Error("the signal that the command got ended everything")
				}
				cancel(nil)
			})
		})
	}
}

func TestFeedClosesInput(t *testing.T) {
	r, w := io.Pipe()
	go feed(&command{stdin: w}, strings.NewReader("hello"))
	if got, err := io.ReadAll(r); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestCapture(t *testing.T) {
	tests := []struct {
		name  string
		limit int64
		in    []string
		want  output
	}{
		{"all of it", 10, []string{"he", "llo"}, output{Data: "hello", Encoding: "utf-8"}},
		{"exactly", 5, []string{"hello"}, output{Data: "hello", Encoding: "utf-8"}},
		{"too much", 3, []string{"he", "llo", "!"}, output{Data: "hel", Encoding: "utf-8", Truncated: true, Dropped: 3}},
		{"cut in a character", 4, []string{"abc✓"}, output{Data: "abc", Encoding: "utf-8", Truncated: true, Dropped: 3}},
		{"cut after a character", 6, []string{"abc✓d"}, output{Data: "abc✓", Encoding: "utf-8", Truncated: true, Dropped: 1}},
		{"binary", 10, []string{"\xff\x00"}, output{Data: base64.StdEncoding.EncodeToString([]byte("\xff\x00")), Encoding: "base64"}},
		{"nothing", 10, nil, output{Encoding: "utf-8"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := &capture{limit: tt.limit}
			for _, s := range tt.in {
				if n, err := c.Write([]byte(s)); n != len(s) || err != nil {
					t.Errorf("wrote %d, %v", n, err)
				}
			}
			if got := c.output(); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func FuzzCapture(f *testing.F) {
	f.Add([]byte("abc✓"), int64(4))
	f.Fuzz(func(t *testing.T, data []byte, limit int64) {
		limit &= 0xffff
		c := &capture{limit: limit}
		_, _ = c.Write(data)
		o := c.output()
		got := []byte(o.Data)
		if o.Encoding == "base64" {
			got, _ = base64.StdEncoding.DecodeString(o.Data)
		}
		if !bytes.HasPrefix(data, got) || int64(len(got))+o.Dropped != int64(len(data)) || int64(len(got)) > limit {
			t.Errorf("%q limited to %d became %+v", data, limit, o)
		}
	})
}

func TestExitCodes(t *testing.T) {
	tests := []struct {
		exit sandbox.Exit
		want int
		say  string
	}{
		{sandbox.Exit{Code: 42, Reason: sandbox.ReasonExited}, 42, ""},
		{sandbox.Exit{Reason: sandbox.ReasonExited}, 0, ""},
		{sandbox.Exit{Code: 137, Signal: 9, Reason: sandbox.ReasonSignaled}, 137, ""},
		{sandbox.Exit{Code: 137, Signal: 9, Reason: sandbox.ReasonTimeout}, 124, "longer than 2s"},
		{sandbox.Exit{Code: 137, Reason: sandbox.ReasonLifetime}, 124, "lifetime"},
		{sandbox.Exit{Code: 137, Reason: sandbox.ReasonMemory, Detail: "\x1b[2J"}, 137, "memory limit"},
		{sandbox.Exit{Reason: sandbox.ReasonKilled}, 137, "removed"},
		{sandbox.Exit{Reason: sandbox.ReasonCrashed}, 125, "kernel"},
		{sandbox.Exit{Reason: sandbox.ReasonLost}, 125, "reached"},
	}
	for _, tt := range tests {
		t.Run(string(tt.exit.Reason), func(t *testing.T) {
			var errs bytes.Buffer
			a := &target.Env{Term: &term.Term{Stderr: &errs, LookupEnv: clitest.Lookup(nil)}}
			var code term.ExitCode
			_ = errors.As(endedWith(a, tt.exit, &request.CommandFlags{Timeout: resource.DurationFlag(2 * time.Second)}), &code)
			if int(code) != tt.want || !strings.Contains(errs.String(), tt.say) || (tt.say == "") != (errs.Len() == 0) {
				t.Errorf("code %d, said %q", code, errs.String())
			}
			if strings.Contains(errs.String(), "\x1b") {
				t.Error("an escape sequence reached the terminal")
			}
		})
	}
}

// A command that ignores SIGTERM or SIGHUP does not keep this program alive. It
// may ignore SIGINT, which a user can repeat.
func TestIgnoredSignals(t *testing.T) {
	for sig, ends := range map[syscall.Signal]bool{syscall.SIGTERM: true, syscall.SIGHUP: true, syscall.SIGINT: false, syscall.SIGQUIT: false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			sent := 0
			i := &interrupts{cancel: cancel, send: func(n int) { sent = n }}
			i.take(sig)
			if ctx.Err() != nil || sent != int(sig) {
				t.Errorf("%v: it was not passed on first", sig)
			}
			time.Sleep(signalPatience + time.Second)
			synctest.Wait()
			if (ctx.Err() != nil) != ends {
				t.Errorf("%v, ignored for %v: ended %v, want %v", sig, signalPatience, ctx.Err() != nil, ends)
			}
		})
	}
}
