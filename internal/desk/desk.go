// Package desk lets callers use the desktop of a sandbox: it starts the display,
// turns actions into X events, takes screenshots, and has the clipboard. It runs
// xdotool, scrot and xclip in the sandbox, so it works with every provider that runs commands.
package desk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

const (
	op = "computer"
	// budget bounds one action, in addition to the time that it asks for.
	budget = 15 * time.Second
	// typing is how long a character may take.
	typing         = 150 * time.Millisecond
	attempts       = 3
	maxScreenshot  = 64 << 20
	maxComplaint   = 1 << 10
	maxOtherOutput = 64 << 10
)

// between is the pause between attempts to take a screenshot.
var between = 400 * time.Millisecond

// Commands runs commands of a sandbox.
type Commands interface {
	Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error)
}

// Config configures a Service. Its functions may be called concurrently.
type Config struct {
	Guard *guard.Guard
	// Find returns a sandbox that exists, by id or name, for the caller in ctx.
	Find func(ctx context.Context, ref string) (sandbox.Sandbox, error)
	// Open opens a running sandbox for commands, until ctx ends.
	Open func(ctx context.Context, ref string) (Commands, error)
	// Own reports whether the screen of a sandbox is that of a person's machine,
	// which is used as it is. An error: its owner does not share it. It may be nil.
	Own func(ctx context.Context, sb sandbox.Sandbox) (bool, error)
	// Used is called before actions of callers who may use the desktop. It may be
	// nil.
	Used func(ctx context.Context, id sandbox.ID)
}

// Service uses desktops. It is safe for concurrent use.
type Service struct{ cfg Config }

// New returns a Service.
func New(cfg Config) *Service { return &Service{cfg} }

// Act carries out actions. Callers who may only read can look. For the others, a
// desktop that does not run is started.
func (s *Service) Act(ctx context.Context, ref string, req viewing.ComputerRequest) (out viewing.ComputerResult, err error) {
	if len(req.Actions) == 0 {
		return out, invalid("actions", "are missing")
	}
	steps := make([]step, len(req.Actions))
	does := ops.ComputerView
	for i := range req.Actions {
		if steps[i], err = plan(&req.Actions[i]); err != nil {
			return out, err
		}
		if steps[i].changes {
			does = ops.ComputerAct
		}
	}
	if req.ReadOnly && does == ops.ComputerAct {
		return out, &sandbox.Error{Code: sandbox.CodeDenied, Op: op, Message: "the request is read-only, but has an action that changes something"}
	}
	err = s.use(ctx, ref, does, func(ctx context.Context, id sandbox.ID, d *desktop) error {
		if d.may && s.cfg.Used != nil {
			s.cfg.Used(ctx, id)
		}
		for i := range steps {
			if err := d.do(ctx, &steps[i], &out); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return viewing.ComputerResult{}, err
	}
	return out, nil
}

// Start starts the desktop of a sandbox if it does not run. A running one of
// another size is started again. With vnc, a VNC server on localhost shows it.
func (s *Service) Start(ctx context.Context, ref string, want viewing.Screen, vnc bool) (out viewing.DesktopState, err error) {
	if (want.Width == 0) != (want.Height == 0) {
		return out, invalid("width", "give both width and height, or none")
	}
	err = s.use(ctx, ref, ops.ComputerAct, func(ctx context.Context, _ sandbox.ID, d *desktop) error {
		if d.own && (!vnc || want != viewing.Screen{}) {
			return AsItIs(ref)
		}
		if d.own {
			out.Port = VNCPort
			return nil
		}
		out, err = Ensure(ctx, d.sandbox, want, vnc)
		return err
	})
	return out, err
}

// AsItIs is the error for what nobody agrees to for the screen of a person's
// machine.
func AsItIs(ref string) error {
	return &sandbox.Error{
		Code: sandbox.CodeConflict, Op: op, Subject: ref, Message: "the screen of a person's machine is used as it is: it is not resized, not recorded, and at no other port",
		Hint: "look at it with: atoll desktop " + ref,
	}
}

// use opens a sandbox for an operation. Looking runs commands too; it has been
// authorized then, and what runs is not the caller's choice.
func (s *Service) use(ctx context.Context, ref string, does ops.Op, do func(ctx context.Context, id sandbox.ID, d *desktop) error) error {
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	sb, err := s.cfg.Find(ctx, ref)
	if err != nil {
		return err
	}
	return s.cfg.Guard.Do(ctx, does, guard.Subject{Sandbox: sb.ID, Name: sb.Name}, func(ctx context.Context) error {
		d := &desktop{may: who.AllowIn(sb.ID, ops.ComputerAct) == nil}
		if s.cfg.Own != nil {
			if d.own, err = s.cfg.Own(ctx, sb); err != nil {
				return err
			}
		}
		if !d.may {
			looking := who
			looking.Verbs = []key.Verb{key.Read, key.Exec}
			ctx = guard.WithPrincipal(ctx, looking)
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if d.sandbox, err = s.cfg.Open(ctx, string(sb.ID)); err != nil {
			return err
		}
		return do(ctx, sb.ID, d)
	})
}

// desktop is the desktop of an open sandbox.
type desktop struct {
	sandbox Commands
	may     bool // the caller could run commands, and so start it
	own     bool // a person's, which is not started
}

func (d *desktop) do(ctx context.Context, s *step, out *viewing.ComputerResult) error {
	if s.pause > 0 {
		select {
		case <-time.After(s.pause):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if s.shot {
		shot, err := d.screenshot(ctx, s)
		if err == nil {
			out.Screenshot = shot
		}
		return err
	}
	if s.paste {
		text, err := d.run(ctx, s, viewing.MaxClipboard)
		if sandbox.CodeOf(err) == sandbox.CodeExhausted {
			return &sandbox.Error{Code: sandbox.CodeExhausted, Op: op, Subject: "clipboard", Message: "is larger than 1 MiB"}
		}
		if err == nil {
			valid := strings.ToValidUTF8(string(text), "\uFFFD")
			out.Clipboard = &valid
		}
		return err
	}
	text, err := d.run(ctx, s, maxOtherOutput)
	if err != nil || !s.cursor {
		return err
	}
	at := viewing.Point{}
	if n, _ := fmt.Sscanf(string(text), "X=%d\nY=%d\n", &at.X, &at.Y); n != 2 {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: op, Message: "xdotool did not say where the pointer is"}
	}
	out.Cursor = &at
	return nil
}

// screenshot tries a few times: a display that has just started may be empty.
func (d *desktop) screenshot(ctx context.Context, s *step) (*viewing.Screenshot, error) {
	var failed error
	for i := range attempts {
		if i > 0 {
			select {
			case <-time.After(between):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		png, err := d.run(ctx, s, maxScreenshot)
		if err == nil {
			if shot := pictureOf(png); shot != nil {
				return shot, nil
			}
			err = &sandbox.Error{Code: sandbox.CodeUnavailable, Op: op, Message: "the screenshot is empty"}
		} else if sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			return nil, err
		}
		failed = err
	}
	return nil, failed
}

// pictureOf returns nil unless the bytes are a complete PNG image with pixels.
func pictureOf(png []byte) *viewing.Screenshot {
	const header, end = "\x89PNG\r\n\x1a\n", "IEND\xaeB`\x82"
	if len(png) < 24 || !bytes.HasPrefix(png, []byte(header)) || !bytes.HasSuffix(png, []byte(end)) {
		return nil
	}
	w, h := binary.BigEndian.Uint32(png[16:]), binary.BigEndian.Uint32(png[20:])
	if w == 0 || h == 0 || w > 1<<16 || h > 1<<16 {
		return nil
	}
	return &viewing.Screenshot{PNG: png, Width: int(w), Height: int(h)}
}

// run runs the command of a step. If there is no display, it is started first.
func (d *desktop) run(ctx context.Context, s *step, most int64) ([]byte, error) {
	args := append([]string{"/bin/sh", "-c", `export DISPLAY="${DISPLAY:-:0}"; exec "$@"`, "computer"}, s.args...)
	r, err := execute(ctx, d.sandbox, args, s.stdin, budget+s.extra, most)
	if err == nil && r.noDisplay() {
		if d.own {
			return nil, &sandbox.Error{
				Code: sandbox.CodeConflict, Op: op, Message: "the machine's program has no display",
				Hint: "on that machine, in its graphical session: atoll machine join",
			}
		}
		if !d.may {
			return nil, &sandbox.Error{Code: sandbox.CodeConflict, Op: op, Message: "no desktop runs in the sandbox", Hint: "start it with: atoll computer start SANDBOX"}
		}
		if _, err := Ensure(ctx, d.sandbox, viewing.Screen{}, false); err != nil {
			return nil, err
		}
		r, err = execute(ctx, d.sandbox, args, s.stdin, budget+s.extra, most)
	}
	if err != nil {
		return nil, err
	}
	return r.stdout, r.failure(s.args[0])
}

// result is the end of a command.
type result struct {
	exit           sandbox.Exit
	stdout, stderr []byte
}

func (r *result) noDisplay() bool {
	text := strings.ToLower(string(r.stderr))
	return strings.Contains(text, "can't open display") || strings.Contains(text, "can't open x display") || strings.Contains(text, "failed creating new xdo instance")
}

// failure returns the error of a command that failed. xdotool ignores keys that
// it does not know.
func (r *result) failure(program string) error {
	complaint := strings.TrimSpace(strings.ToValidUTF8(string(r.stderr), ""))
	switch {
	case strings.Contains(complaint, "No such key name"):
		return invalid("keys", "%s", complaint)
	case r.exit.Reason == sandbox.ReasonTimeout:
		return &sandbox.Error{Code: sandbox.CodeTimeout, Op: op, Subject: program, Message: "did not end in time"}
	case r.exit.Code == 127:
		return missing(nil)
	case r.exit.Reason != sandbox.ReasonExited || r.exit.Code != 0:
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: op, Subject: program, Message: fmt.Sprintf("ended with exit code %d: %s", r.exit.Code, complaint)}
	}
	return nil
}

// execute runs a command and returns at most so much of its output. More is an
// error, because the output would be cut.
func execute(ctx context.Context, sb Commands, args []string, stdin string, timeout time.Duration, most int64) (*result, error) {
	p, err := sb.Exec(ctx, sandbox.Command{Args: args, Stdin: stdin != "", Timeout: timeout})
	if err != nil {
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil, missing(err)
		}
		return nil, err
	}
	defer p.Close()
	var r result
	var cut error
	var both sync.WaitGroup
	both.Go(func() { r.stdout, cut = io.ReadAll(io.LimitReader(p.Stdout(), most+1)) })
	both.Go(func() {
		r.stderr, _ = io.ReadAll(io.LimitReader(p.Stderr(), maxComplaint))
		_, _ = io.Copy(io.Discard, p.Stderr())
	})
	if stdin != "" {
		in := p.Stdin()
		_, err = io.WriteString(in, stdin)
		_ = errors.Join(err, in.Close()) // a command that ended early says why
	}
	both.Wait()
	if int64(len(r.stdout)) > most {
		return nil, &sandbox.Error{Code: sandbox.CodeExhausted, Op: op, Subject: args[0], Message: "the output is too large"}
	}
	if r.exit, err = p.Wait(ctx); err == nil {
		err = cut
	}
	return &r, err
}

func missing(cause error) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Op: op, Message: "the image has no desktop", Cause: cause,
		Hint: "use an image with Xvfb, xdotool, scrot and xclip; build one with: make desktop-image",
	}
}

func invalid(subject, format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: op, Subject: subject, Message: fmt.Sprintf(format, args...)}
}
