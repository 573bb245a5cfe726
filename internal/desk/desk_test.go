package desk

import (
	"bytes"
	"context"
	"image"
	"image/png"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

func number(n int) *int { return &n }

// RB-77.
func TestActionsAsCommands(t *testing.T) {
	t.Parallel()
	at := func(a viewing.ComputerAction) viewing.ComputerAction {
		a.X, a.Y = number(10), number(0)
		return a
	}
	for _, c := range []struct {
		a    viewing.ComputerAction
		want string
	}{
		{at(viewing.ComputerAction{Action: "move"}), "mousemove 10 0"},
		{viewing.ComputerAction{Action: "click"}, "click --repeat 1 --delay 60 1"},
		{at(viewing.ComputerAction{Action: "click", Count: 2}), "mousemove 10 0 click --repeat 2 --delay 60 1"},
		{at(viewing.ComputerAction{Action: "click", Button: "middle", Keys: []string{"ctrl", "Shift"}}), "mousemove 10 0 keydown Control_L keydown Shift_L click --repeat 1 --delay 60 2 keyup Shift_L keyup Control_L"},
		{viewing.ComputerAction{Action: "down", Button: "right"}, "mousedown 3"},
		{viewing.ComputerAction{Action: "up", Button: "back"}, "mouseup 8"},
		{viewing.ComputerAction{Action: "click", Button: "forward"}, "click --repeat 1 --delay 60 9"},
		{viewing.ComputerAction{Action: "drag", Path: []viewing.Point{{X: 1, Y: 2}, {X: 3, Y: 4}}}, "mousemove 1 2 mousedown 1 sleep 0.02 mousemove 3 4 sleep 0.02 mouseup 1"},
		{at(viewing.ComputerAction{Action: "scroll", ScrollY: 249}), "mousemove 10 0 click --repeat 2 --delay 10 5"},
		{viewing.ComputerAction{Action: "scroll", ScrollY: -5000}, "click --repeat 15 --delay 10 4"},
		{viewing.ComputerAction{Action: "scroll", ScrollX: 10, ScrollY: 250}, "click --repeat 3 --delay 10 5 click --repeat 1 --delay 10 7"},
		{viewing.ComputerAction{Action: "scroll", ScrollX: -100}, "click --repeat 1 --delay 10 6"},
		{viewing.ComputerAction{Action: "type", Text: "--delay 'x'; rm"}, "type --delay 12 --file -"},
		{viewing.ComputerAction{Action: "type", Text: "für"}, "type --delay 120 --file -"},
		{viewing.ComputerAction{Action: "key", Keys: []string{"CTRL", "s"}}, "key --repeat 1 --delay 12 Control_L+s"},
		{viewing.ComputerAction{Action: "key", Keys: []string{"ctrl+f5"}, Count: 3}, "key --repeat 3 --delay 12 Control_L+F5"},
		{viewing.ComputerAction{Action: "key", Keys: []string{"+"}}, "key --repeat 1 --delay 12 plus"},
		{viewing.ComputerAction{Action: "key", Keys: []string{"ArrowUp", "PAGEDOWN", "KP_0"}}, "key --repeat 1 --delay 12 Up+Next+KP_0"},
		{viewing.ComputerAction{Action: "key", Keys: []string{"a"}, DurationMS: 1500}, "keydown a sleep 1.5 keyup a"},
		{viewing.ComputerAction{Action: "cursor"}, "getmouselocation --shell"},
	} {
		s, err := plan(&c.a)
		if err != nil {
			t.Errorf("%+v: %v", c.a, err)
			continue
		}
		if got := strings.Join(s.args, " "); got != "xdotool "+c.want {
			t.Errorf("%s is\n%s, want\nxdotool %s", c.a.Action, got, c.want)
		}
		if looks := c.a.Action == "cursor"; s.changes == looks || s.stdin != c.a.Text {
			t.Errorf("%s: changes %t, input %q", c.a.Action, s.changes, s.stdin)
		}
	}
	for subject, a := range map[string]viewing.ComputerAction{
		"x": {Action: "move"}, "y without x": {Action: "click", Y: number(1)}, "button": {Action: "click", Button: "4"}, "path": {Action: "drag", Path: []viewing.Point{{}}},
		"text": {Action: "type"}, "no keys": {Action: "key"}, "an option": {Action: "key", Keys: []string{"--window"}}, "a command": {Action: "click", Keys: []string{"a exec"}},
		"scroll": {Action: "scroll"}, "typed": {Action: "type", Text: strings.Repeat("é", viewing.MaxTyped+1)}, "copied": {Action: "copy", Text: strings.Repeat("x", viewing.MaxClipboard+1)}, "action": {Action: "exec"}, "count": {Action: "click", Count: 101}, "negative": {Action: "move", X: number(-1), Y: number(1)},
	} {
		if _, err := plan(&a); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v, want invalid", subject, err)
		}
	}
}

// ending is what a command prints, and its exit code.
type ending struct {
	stdout, stderr string
	code           int
}

// script answers commands in order, with the last one for ever.
type script struct {
	mu   sync.Mutex
	ends []ending
	ran  []string
}

func (s *script) Exec(_ context.Context, cmd sandbox.Command) (driver.Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ran = append(s.ran, strings.Join(cmd.Args, " "))
	e := s.ends[0]
	if len(s.ends) > 1 {
		s.ends = s.ends[1:]
	}
	return &process{ending: e}, nil
}

type process struct {
	driver.Process
	ending
}

func (p *process) Stdin() io.WriteCloser { return discard{} }
func (p *process) Stdout() io.Reader     { return strings.NewReader(p.stdout) }
func (p *process) Stderr() io.Reader     { return strings.NewReader(p.stderr) }
func (p *process) Close() error          { return nil }

func (p *process) Wait(context.Context) (sandbox.Exit, error) {
	return sandbox.Exit{Code: p.code, Reason: sandbox.ReasonExited}, nil
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Close() error                { return nil }

func picture(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 3, 2))); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// RB-76.
func TestScreenshotsAreNeverEmpty(t *testing.T) {
	between = 0
	whole := picture(t)
	shot, _ := plan(&viewing.ComputerAction{Action: "screenshot"})
	for _, c := range []struct {
		name string
		ends []ending
		runs int
		want sandbox.Code
	}{
		{"at once", []ending{{stdout: whole}}, 1, ""},
		{"after an empty one", []ending{{}, {stdout: whole}}, 2, ""},
		{"after one that was cut", []ending{{stdout: whole[:len(whole)-1]}, {code: 1}, {stdout: whole}}, 3, ""},
		{"never", []ending{{}}, 3, sandbox.CodeUnavailable},
		{"no scrot", []ending{{code: 127}}, 1, sandbox.CodeUnsupported},
	} {
		s := &script{ends: c.ends}
		d := desktop{sandbox: s, may: true}
		got, err := d.screenshot(t.Context(), &shot)
		if sandbox.CodeOf(err) != c.want || len(s.ran) != c.runs {
			t.Errorf("%s: %v after %d attempts, want %q after %d", c.name, err, len(s.ran), c.want, c.runs)
		}
		if err == nil && (got.Width != 3 || got.Height != 2 || string(got.PNG) != whole) {
			t.Errorf("%s: %d×%d", c.name, got.Width, got.Height)
		}
	}
}

// RB-69.
func TestStages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		e       ending
		code    sandbox.Code
		subject string
	}{
		{ending{code: 11, stderr: "no memory"}, sandbox.CodeUnavailable, "computer: xvfb: the desktop did not start, exit code 11: no memory"},
		{ending{code: 12}, sandbox.CodeUnavailable, "computer: x11vnc: "},
		{ending{code: 10}, sandbox.CodeUnavailable, "computer: lock: "},
		{ending{code: 20}, sandbox.CodeUnsupported, "computer: the image has no desktop"},
		{ending{code: 0, stdout: "something"}, sandbox.CodeUnavailable, "computer: desktop: "},
	} {
		_, err := Ensure(t.Context(), &script{ends: []ending{c.e}}, viewing.Screen{}, true)
		if sandbox.CodeOf(err) != c.code || !strings.HasPrefix(err.Error(), c.subject) {
			t.Errorf("exit code %d: %v, want %s", c.e.code, err, c.subject)
		}
	}
	got, err := Ensure(t.Context(), &script{ends: []ending{{stdout: "noise\ndesktop 800x600\n"}}}, viewing.Screen{}, true)
	if want := (viewing.DesktopState{Width: 800, Height: 600, Port: 5900}); err != nil || got != want {
		t.Errorf("%+v %v", got, err)
	}
}

// RB-69.
func TestClipboards(t *testing.T) {
	t.Parallel()
	copied, err := plan(&viewing.ComputerAction{Action: "copy", Text: "$(rm -rf /)'"})
	if err != nil || !copied.changes || copied.stdin != "$(rm -rf /)'" || strings.Contains(strings.Join(copied.args, " "), "rm -rf") {
		t.Errorf("%+v %v", copied, err)
	}
	read, err := plan(&viewing.ComputerAction{Action: "clipboard"})
	if err != nil || !read.changes {
		t.Errorf("%+v %v: who may only look must not read it", read, err)
	}
	for name, c := range map[string]struct {
		e    ending
		want string
		code sandbox.Code
	}{
		"text": {ending{stdout: "a\nb"}, "a\nb", ""}, "nothing": {ending{}, "", ""}, "not text": {ending{stdout: "a\xff"}, "a\uFFFD", ""},
		"all that fits": {ending{stdout: strings.Repeat("x", viewing.MaxClipboard)}, strings.Repeat("x", viewing.MaxClipboard), ""},
		"too large":     {ending{stdout: strings.Repeat("x", viewing.MaxClipboard+1)}, "", sandbox.CodeExhausted},
		"no xclip":      {ending{code: 127, stderr: "sh: xclip: not found"}, "", sandbox.CodeUnsupported},
	} {
		var out viewing.ComputerResult
		d := desktop{sandbox: &script{ends: []ending{c.e}}, may: true}
		err := d.do(t.Context(), &read, &out)
		if sandbox.CodeOf(err) != c.code || (err == nil) != (out.Clipboard != nil) || out.Clipboard != nil && *out.Clipboard != c.want {
			t.Errorf("%s: %v, %v", name, out.Clipboard, err)
		}
	}
}

func TestDesktopsAreStartedWhenUsed(t *testing.T) {
	t.Parallel()
	click, _ := plan(&viewing.ComputerAction{Action: "click"})
	none := ending{code: 1, stderr: "Error: Can't open display: :0\nFailed creating new xdo instance."}
	s := &script{ends: []ending{none, {stdout: "desktop 1280x800\n"}, {}}}
	d := desktop{sandbox: s, may: true}
	if err := d.do(t.Context(), &click, &viewing.ComputerResult{}); err != nil || len(s.ran) != 3 || s.ran[0] != s.ran[2] || !strings.Contains(s.ran[1], "Xvfb") {
		t.Errorf("%v, ran %q", err, s.ran)
	}
	s = &script{ends: []ending{none}}
	d = desktop{sandbox: s}
	if err := d.do(t.Context(), &click, &viewing.ComputerResult{}); sandbox.CodeOf(err) != sandbox.CodeConflict || slices.ContainsFunc(s.ran, func(c string) bool { return strings.Contains(c, "Xvfb") }) {
		t.Errorf("without the right to: %v, ran %q", err, s.ran)
	}
	s = &script{ends: []ending{none}}
	d = desktop{sandbox: s, may: true, own: true}
	if err := d.do(t.Context(), &click, &viewing.ComputerResult{}); sandbox.CodeOf(err) != sandbox.CodeConflict || len(s.ran) != 1 {
		t.Errorf("a person's screen that is not there: %v, ran %q", err, s.ran)
	}
	s = &script{ends: []ending{{stderr: "(symbol) No such key name 'x'. Ignoring it."}}}
	d = desktop{sandbox: s, may: true}
	if err := d.do(t.Context(), &click, &viewing.ComputerResult{}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("an unknown key: %v", err)
	}
}
