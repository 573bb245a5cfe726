package hosted

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

// Event is what a service says of a command: output, or its end.
type Event struct {
	Stdout, Stderr string
	Exit           *int // the command has ended, with this exit code
}

// Events are the events of a command. An end without an exit code is an error.
type Events interface {
	Next() (Event, error)
	io.Closer
}

// Commander runs commands of a service and stores files. Its methods may be
// called concurrently.
type Commander interface {
	// Stream starts a command as root in the directory /. The events end when the
	// context ends.
	Stream(ctx context.Context, argv []string, env map[string]string) (Events, error)
	// Put writes a file that root can read. It may open the content repeatedly, and
	// closes it.
	Put(ctx context.Context, file string, open func() (io.ReadCloser, error)) error
}

// Text connects to the guest of a sandbox whose commands have no input, and
// whose output may be text. Output of the guest arrives in base64 as output of
// a command that joins it; each input is a separate command. It implements
// guestkit.Runner. Its methods may be called concurrently.
type Text struct {
	Commander
	ID   sandbox.ID
	Open context.Context // ends the connections
	// Dir is the directory for files of Put. Empty: one in the guest's directory
	// that only root can list, because the user that writes them is not known.
	Dir string
	// Pieces sends long input as several commands, because files of Put are where
	// programs of the sandbox see and remove them.
	Pieces bool
	// Quiet sends nothing after Close, because a command would make a sandbox that
	// has ended again. The guest notices the silence.
	Quiet bool
	// Script replaces Run for Upload. Nil: Run.
	Script func(ctx context.Context, script string) (string, error)
	// Exec runs a short command as root in the directory / and returns its exit code
	// and output. Nil: Collect.
	Exec func(ctx context.Context, argv []string, env map[string]string) (code int, out string, err error)
}

// guestDir is the guest's directory.
var guestDir = path.Dir(guest.NestedPrefix)

// Broken returns the error of a sandbox or a service that behaves incorrectly.
func (t *Text) Broken(message string) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(t.ID), Message: message}
}

// Lost returns the error of a connection that ended in the middle of a call.
func (t *Text) Lost(cause error) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(t.ID), Message: "the connection to the sandbox was lost", Cause: cause}
}

// Run runs a script as root and returns its output, which must be short and
// text.
func (t *Text) Run(ctx context.Context, script string) (string, error) {
	code, out, err := t.exec(ctx, []string{"/bin/sh", "-c", script}, nil)
	if err == nil && code != 0 {
		err = t.Broken("the command failed with exit code " + strconv.Itoa(code))
	}
	return out, err
}

func (t *Text) exec(ctx context.Context, argv []string, env map[string]string) (code int, out string, err error) {
	if t.Exec != nil {
		return t.Exec(ctx, argv, env)
	}
	return t.Collect(ctx, argv, env)
}

// Collect runs a short command with Stream and returns its exit code and output.
func (t *Text) Collect(ctx context.Context, argv []string, env map[string]string) (code int, _ string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e, err := t.Stream(ctx, argv, env)
	if err != nil {
		return 0, "", err
	}
	defer e.Close()
	var out strings.Builder
	for {
		ev, err := e.Next()
		switch {
		case ctx.Err() != nil:
			return 0, "", ctx.Err()
		case err != nil:
			return 0, "", err
		case ev.Exit != nil:
			return *ev.Exit, out.String(), nil
		case out.Len() < maxOutput:
			out.WriteString(ev.Stdout)
		}
	}
}

// put writes a new file and returns its path and SHA-256.
func (t *Text) put(ctx context.Context, open func() (io.ReadCloser, error)) (file, sum string, err error) {
	dir := t.Dir
	if dir == "" {
		dir = guestDir + "/in"
	}
	file = dir + "/.atoll-" + rand.Text()
	digest := sha256.New()
	err = t.Put(ctx, file, func() (io.ReadCloser, error) {
		body, err := open()
		digest.Reset()
		return struct {
			io.Reader
			io.Closer
		}{io.TeeReader(body, digest), body}, err
	})
	if err != nil { // the content may still be read
		return "", "", err
	}
	return file, hex.EncodeToString(digest.Sum(nil)), nil
}

// Upload implements guestkit.Runner. A command as root checks the file's hash
// and moves it to its place.
func (t *Text) Upload(ctx context.Context, to string, guest *program.Program) error {
	run := t.Script
	if run == nil {
		run = t.Run
	}
	prepare := "mkdir -p " + guestDir + "/in && chmod 0711 " + guestDir + " && chmod 1733 " + guestDir + "/in"
	if t.Dir != "" {
		prepare = "mkdir -p " + guestDir + " " + t.Dir + " && chmod 0711 " + guestDir
	}
	if _, err := run(ctx, prepare); err != nil {
		return err
	}
	file, sum, err := t.put(ctx, guest.Open)
	if err == nil {
		_, err = run(ctx, "set -e; cp "+file+" "+file+".own; rm -f "+file+"; mv "+file+".own "+to+".new; chmod 0755 "+to+".new; "+
			"set -- $(sha256sum "+to+".new); [ \"$1\" = "+sum+" ]; mv "+to+".new "+to)
	}
	return err
}

// talk is a program that joins the guest. It implements guestkit.Program.
type talk struct {
	*Text
	feed   string
	events Events
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once

	first  []byte // what was received by Start
	end    error
	half   string // of base64
	stderr []byte
}

// Start implements guestkit.Runner. It waits for the program's first message,
// which says that it accepts input.
func (t *Text) Start(ctx context.Context, argv, env []string) (guestkit.Program, error) {
	p := &talk{Text: t, feed: guestDir + "/feed-" + rand.Text()}
	vars := Env(env)
	vars[guest.FeedEnv] = p.feed
	p.ctx, p.cancel = context.WithCancel(t.Open)
	stop := context.AfterFunc(ctx, p.cancel)
	var err error
	if p.events, err = t.Stream(p.ctx, argv, vars); err == nil {
		p.first, p.end = p.listen()
	}
	if !stop() || ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

// maxText limits the bytes that are kept of a command's error output.
const maxText = 300

// listen waits for output or the end of the command.
func (t *talk) listen() ([]byte, error) {
	for {
		e, err := t.events.Next()
		if err != nil {
			return nil, err
		}
		t.stderr = append(t.stderr, e.Stderr[:min(len(e.Stderr), maxText-len(t.stderr))]...)
		switch {
		case e.Exit != nil:
			return nil, &guestkit.Exit{Code: *e.Exit, Status: "exited", Stderr: t.stderr}
		case e.Stdout != "":
			return t.decode(e.Stdout)
		}
	}
}

// decode decodes the complete part of base64 text that may be cut anywhere.
func (t *talk) decode(text string) (out []byte, err error) {
	text = t.half + strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == ' ' {
			return -1
		}
		return r
	}, text)
	whole := len(text) &^ 3
	t.half = text[whole:]
	// Each write of the program ends with padding if necessary.
	for text = text[:whole]; text != ""; {
		n := len(text)
		if i := strings.IndexByte(text, '='); i >= 0 {
			n = i&^3 + 4
		}
		if out, err = base64.StdEncoding.AppendDecode(out, []byte(text[:n])); err != nil {
			return nil, t.Broken("what the sandbox says was damaged on the way")
		}
		text = text[n:]
	}
	return out, nil
}

// Receive implements guestkit.Program.
func (t *talk) Receive() ([]byte, error) {
	if t.first != nil || t.end != nil {
		data, err := t.first, t.end
		t.first = nil
		return data, err
	}
	return t.listen()
}

// most is the maximum input in a variable of a command: Linux accepts strings
// of 128 KiB.
const most = 90_000

// Send implements guestkit.Program. Longer input goes through a file.
func (t *talk) Send(ctx context.Context, data []byte) error {
	switch {
	case t.Open.Err() != nil:
		return t.Broken("the provider was closed")
	case t.Quiet && t.ctx.Err() != nil:
		return t.Broken("the connection was closed")
	case len(data) > most && t.Pieces:
		for part := range slices.Chunk(data, most) {
			if err := t.line(ctx, base64.StdEncoding.EncodeToString(part)); err != nil {
				return err
			}
		}
		return nil
	case len(data) > most:
		file, sum, err := t.put(ctx, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
		if err != nil {
			return err
		}
		return t.line(ctx, "@"+file+" "+sum)
	}
	return t.line(ctx, base64.StdEncoding.EncodeToString(data))
}

// line sends a line to the guest.
func (t *talk) line(ctx context.Context, line string) error {
	const script = `[ -p "$ATOLL_TO" ] && printf '%s\n' "$ATOLL_LINE" 1<>"$ATOLL_TO"`
	code, _, err := t.exec(ctx, []string{"/bin/sh", "-c", script}, map[string]string{"ATOLL_TO": t.feed, "ATOLL_LINE": line})
	if err == nil && code != 0 {
		err = t.Broken("the sandbox takes no input")
	}
	return err
}

// Close implements guestkit.Program.
func (t *talk) Close() error {
	t.once.Do(func() {
		t.cancel()
		if t.events != nil {
			_ = t.events.Close()
		}
	})
	return nil
}

// parted is how long it may take to end a command that nobody listens to.
const parted = 10 * time.Second

// Reap ends a command with kill when the context ends, unless it is over.
func (c *Core) Reap(ctx context.Context, over *atomic.Bool, kill func(context.Context)) {
	c.Conns.Go(func() {
		<-ctx.Done()
		if over.Load() {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), parted)
		defer cancel()
		kill(ctx)
	})
}

// AsRoot is a script that runs its arguments as root in the directory /, after
// the script itself, which is the first one.
const AsRoot = `[ "$(id -u)" = 0 ] || exec sudo -n /bin/sh -c "$1" atoll "$@"
shift
cd / && exec "$@"`

// Rooted returns a command as an argument list that AsRoot runs, with variables.
func Rooted(argv []string, env map[string]string) []string {
	args := []string{"/bin/sh", "-c", AsRoot, "atoll", AsRoot}
	if len(env) > 0 {
		args = append(args, "env")
	}
	for k, v := range env {
		args = append(args, k+"="+v)
	}
	return append(args, argv...)
}
