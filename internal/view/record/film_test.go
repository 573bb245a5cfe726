package record

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

func TestMain(m *testing.M) {
	lookAgain = 5 * time.Millisecond
	os.Exit(m.Run())
}

// run is a run of ffmpeg: what it writes, and how it ends.
type run struct {
	stdout, stderr string
	code           int
	stays          bool // until it gets a signal, and then writes last
	last           string
}

// studio runs ffmpeg in a sandbox, with the last run for ever.
type studio struct {
	mu    sync.Mutex
	runs  []run
	begun int
	gone  bool // the sandbox, after the runs
}

func (s *studio) Exec(context.Context, sandbox.Command) (driver.Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.runs[min(s.begun, len(s.runs)-1)]
	s.begun++
	p := &ffmpeg{run: one, told: make(chan struct{})}
	out, in := io.Pipe()
	p.out = out
	go func() {
		_, _ = io.WriteString(in, one.stdout)
		if one.stays {
			<-p.told
			_, _ = io.WriteString(in, one.last)
		}
		_ = in.Close()
	}()
	return p, nil
}

func (s *studio) find(context.Context, string) (sandbox.Sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone && s.begun >= len(s.runs) {
		return sandbox.Sandbox{}, &sandbox.Error{Code: sandbox.CodeNotFound}
	}
	return sandbox.Sandbox{State: sandbox.Running}, nil
}

type ffmpeg struct {
	driver.Process
	run
	out  *io.PipeReader
	once sync.Once
	told chan struct{}
}

func (p *ffmpeg) Stdout() io.Reader { return p.out }
func (p *ffmpeg) Stderr() io.Reader { return strings.NewReader(p.stderr) }
func (p *ffmpeg) Close() error      { return p.out.Close() }

func (p *ffmpeg) Signal(context.Context, int) error {
	p.once.Do(func() { close(p.told) })
	return nil
}

func (p *ffmpeg) Wait(context.Context) (sandbox.Exit, error) {
	return sandbox.Exit{Code: p.code, Reason: sandbox.ReasonExited}, nil
}

// filming returns a film of a studio, and its file.
func filming(t *testing.T, s *studio, limit int64) (*film, string) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "x.mp4"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	cfg := Config{
		SizeLimit: limit, Guard: &guard.Guard{}, Find: s.find, Life: t.Context(),
		Open: func(context.Context, string) (Commands, error) { return s, nil },
	}
	f := &film{recorder: &recorder{s: &Service{cfg: cfg}, file: file, ctx: t.Context(), done: make(chan struct{}), row: store.Recording{Recording: viewing.Recording{Started: time.Now()}}}, width: 641, height: 480}
	f.from = f
	return f, file.Name()
}

// A recording goes on when ffmpeg ends, as with a changed size of the display,
// and is one video (RB-72).
func TestOneVideoOfSeveralRuns(t *testing.T) {
	s := &studio{gone: true, runs: []run{
		{stdout: string(header) + string(fragment(0, "a")) + string(fragment(90000, "b"))},
		{stderr: "Cannot open display :0, error 1.", code: 1},
		{stdout: string(header) + string(fragment(0, "c")) + string(box("mfra", []byte("index"))) + string(fragment(90000, "d"))[:60]},
	}}
	f, name := filming(t, s, maxSize)
	var err error
	if f.first, err = f.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if why := f.record(t.Context()); why != viewing.ReasonReaped {
		t.Errorf("it ended because of %q", why)
	}
	file, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	times, data := shown(t, file)
	if data != "abc" || len(times) != 3 || times[0] != 0 || times[1] != timescale || times[2] <= times[1] {
		t.Errorf("it shows %q at %v", data, times)
	}
}

// Stopping has ffmpeg end the video, and what it writes then belongs to it (RB-72).
func TestStoppedVideosHaveTheirEnd(t *testing.T) {
	for _, c := range []struct {
		why  error
		want sandbox.Reason
	}{{errStopped, viewing.ReasonAdmin}, {errTime, viewing.ReasonTimeLimit}, {errClosing, viewing.ReasonReaped}} {
		f, name := filming(t, &studio{runs: []run{{stdout: string(header) + string(fragment(0, "a")), stays: true, last: string(fragment(90000, "end"))}}}, maxSize)
		first, err := f.begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.first = first
		ctx, stop := context.WithCancelCause(t.Context())
		stop(c.why)
		if why := f.record(ctx); why != c.want {
			t.Errorf("after %v it ended because of %q", c.why, why)
		}
		file, _ := os.ReadFile(name)
		if _, data := shown(t, file); data != "aend" {
			t.Errorf("after %v it shows %q", c.why, data)
		}
	}
}

// The reasons for which a video ends by itself. It keeps what it has (RB-73).
func TestVideosThatEnd(t *testing.T) {
	whole := string(header) + string(fragment(0, "a"))
	other := strings.Replace(whole, "how", "why", 1)
	noDisplay := run{stderr: "[x11grab] Cannot open display :0, error 1.", code: 1}
	for name, c := range map[string]struct {
		runs  []run
		limit int64
		want  sandbox.Reason
	}{
		"no display":      {[]run{{stdout: whole}, noDisplay}, maxSize, viewing.ReasonNoDisplay},
		"ffmpeg fails":    {[]run{{stdout: whole}, {stderr: "out of memory", code: 1}}, maxSize, viewing.ReasonFFmpeg},
		"no ffmpeg":       {[]run{{stdout: whole}, {code: 127}}, maxSize, viewing.ReasonFFmpeg},
		"no video":        {[]run{{stdout: whole + "<html><script>alert(1)</script>"}}, maxSize, viewing.ReasonFFmpeg},
		"another video":   {[]run{{stdout: whole}, {stdout: other}}, maxSize, viewing.ReasonFFmpeg},
		"too large":       {[]run{{stdout: whole + string(fragment(1, strings.Repeat("b", 1000)))}}, 800, viewing.ReasonSizeLimit},
		"a huge fragment": {[]run{{stdout: whole + "\xff\xff\xff\xffmoof"}}, maxSize, viewing.ReasonFFmpeg},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, file := filming(t, &studio{runs: c.runs}, c.limit)
			var err error
			if f.first, err = f.begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			if why := f.record(t.Context()); why != c.want {
				t.Errorf("it ended because of %q, want %q", why, c.want)
			}
			got, _ := os.ReadFile(file)
			if _, data := shown(t, got); data != "a" || int64(len(got)) != f.bytes {
				t.Errorf("it shows %q", data)
			}
		})
	}
}

// A recording that cannot begin says why (RB-73).
func TestVideosThatCannotBegin(t *testing.T) {
	for name, c := range map[string]struct {
		run  run
		want sandbox.Code
		say  string
	}{
		"no ffmpeg":  {run{code: 127, stderr: "sh: ffmpeg: not found"}, sandbox.CodeUnsupported, "desktop-image"},
		"no display": {run{code: 1, stderr: "Cannot open display :0, error 1."}, sandbox.CodeUnavailable, "computer start"},
		"disk":       {run{code: 1, stderr: "No space \x1b[2J left"}, sandbox.CodeUnavailable, "No space [2J left"},
	} {
		f, _ := filming(t, &studio{runs: []run{c.run}}, maxSize)
		_, err := f.begin(t.Context())
		var got *sandbox.Error
		if !errors.As(err, &got) || got.Code != c.want || !strings.Contains(got.Message+got.Hint, c.say) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f, _ := filming(t, &studio{runs: []run{{stdout: "not a video at all"}}}, maxSize)
	if _, err := f.begin(t.Context()); !errors.Is(err, errNoVideo) {
		t.Errorf("no video: %v", err)
	}
	stuck := &studio{runs: []run{{stays: true}}}
	f, _ = filming(t, stuck, maxSize)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.begin(ctx); err == nil {
		t.Error("it began")
	}
}

// Storing waits for the fragment that is being recorded (RB-74).
func TestFlushedVideosHaveWhatWasShown(t *testing.T) {
	f, _ := filming(t, &studio{}, maxSize)
	f.header = bytes.Clone(header)
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		f.settle(t.Context(), false)
	}()
	var why sandbox.Reason
	moof, mdat, err := readFragment(bytes.NewReader(fragment(0, "a")))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.write(moof, mdat, 0, &why); err != nil || why != "" {
		t.Fatal(err, why)
	}
	<-settled
	f.settle(t.Context(), true) // at once
}
