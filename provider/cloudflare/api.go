package cloudflare

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/records"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// api is a client of the bridge. It implements hosted.Service.
type api struct {
	*hosted.Login
	sandboxes hosted.Records
	// work and conns are those of the core.
	work, conns *sync.WaitGroup

	mu    sync.Mutex
	gates map[string]*gate // by mark
}

// gate keeps commands from a sandbox that is being removed: they would make a
// new one.
type gate struct {
	sync.RWMutex // held for reading until a command has started
	closed       bool
}

// gate returns the gate of a sandbox.
func (a *api) gate(one string) *gate {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gates[one] == nil {
		a.gates[one] = &gate{}
	}
	return a.gates[one]
}

// closing is how long a closed gate is kept: longer than any command takes to
// start.
const closing = time.Hour

// shut waits for commands that start, and refuses later ones.
func (a *api) shut(one string) {
	g := a.gate(one)
	g.Lock()
	defer g.Unlock()
	if !g.closed {
		g.closed = true
		time.AfterFunc(closing, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			delete(a.gates, one)
		})
	}
}

// parseError reads an error of the bridge.
func parseError(_ int, body []byte) (code, message string, ok bool) {
	var said struct{ Code, Error string }
	return said.Code, said.Error, json.Unmarshal(body, &said) == nil && said.Code != ""
}

// running is the only status of a sandbox.
const running = "running"

// spelling is the encoding of names.
var spelling = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// nameOf returns the bridge's name for a sandbox. It is the same in all
// directories, so that another one can adopt the sandbox.
func nameOf(id sandbox.ID) string {
	sum := sha256.Sum256([]byte("atoll\n" + string(id)))
	return spelling.EncodeToString(sum[:16])
}

func path(id sandbox.ID, rest string) string { return "/v1/sandbox/" + nameOf(id) + rest }

// mark identifies a sandbox inside it.
type mark struct {
	scope string
	id    sandbox.ID
	one   string // distinguishes it from later ones with its ID
	made  time.Time
}

// markFile is where the mark is.
const markFile = "/.atoll-sandbox"

func newMark(scope string, id sandbox.ID) mark { return mark{scope, id, rand.Text(), time.Now()} }

func (m mark) line() string { return fmt.Sprintf("%s %s %s %d", m.scope, m.one, m.id, m.made.Unix()) }

func parseMark(text string) (m mark, ok bool) {
	f := strings.Fields(text)
	if len(f) != 4 {
		return m, false
	}
	made, err := strconv.ParseInt(f[3], 10, 64)
	return mark{f[0], sandbox.ID(f[2]), f[1], time.Unix(made, 0)}, err == nil
}

func (m mark) sandbox() hosted.Sandbox {
	return hosted.Sandbox{ID: m.one, Sandbox: m.id, Status: running, State: sandbox.Running, Created: m.made, Scope: m.scope}
}

// write makes a sandbox and writes its mark, unless it has one.
func (a *api) write(ctx, open context.Context, m mark) error {
	in := a.enter(open, m.id, "")
	own := markFile + "." + m.one
	_, err := in.Run(ctx, "set -e; printf '%s\\n' '"+m.line()+"' >"+own+"; ln "+own+" "+markFile+" || :; rm -f "+own)
	return err
}

// none is what look's script writes without a mark.
const none = "no mark"

// runs asks the bridge whether a sandbox runs.
func (a *api) runs(ctx context.Context, id sandbox.ID) (bool, error) {
	var now struct {
		Running *bool `json:"running"`
	}
	err := a.Call(ctx, http.MethodGet, path(id, "/running"), nil, &now)
	if err == nil && now.Running == nil {
		err = a.ProtocolError("the bridge does not say whether the sandbox runs")
	}
	return err == nil && *now.Running, err
}

// look finds a sandbox by its name. It returns hosted.ErrNone if the bridge says
// that it does not run, or if it has no mark: then the bridge has made a new one
// for this request or an earlier one, which look removes, also when its caller
// gives up.
func (a *api) look(ctx context.Context, id sandbox.ID) (hosted.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return hosted.Sandbox{}, err
	}
	return records.Finish(ctx, a.work, func() (hosted.Sandbox, error) {
		late, cancel := outlive(ctx, new(atomic.Bool))
		defer cancel()
		return a.find(late, id)
	})
}

func (a *api) find(ctx context.Context, id sandbox.ID) (b hosted.Sandbox, err error) {
	if runs, err := a.runs(ctx, id); err != nil || !runs {
		return b, cmp.Or(err, hosted.ErrNone)
	}
	if r, _ := a.sandboxes.Get(string(id)); r.Destroying && r.ServiceID != "" { // a command could make it again
		scope, err := a.sandboxes.ScopeOf(id)
		return mark{scope, id, r.ServiceID, r.Asked}.sandbox(), err
	}
	out, err := a.enter(ctx, id, "").Run(ctx, "if [ -f "+markFile+" ]; then head -c 512 "+markFile+"; else echo '"+none+"'; fi")
	if sandbox.CodeOf(err) == sandbox.CodeUnavailable && a.ends(ctx, id) {
		err = hosted.ErrNone
	}
	if err != nil {
		return b, err
	}
	m, ok := parseMark(out)
	switch {
	case ok && m.id == id:
		return m.sandbox(), nil
	case strings.TrimSpace(out) != none:
		return b, a.ProtocolError("the mark in the sandbox is invalid")
	}
	if r, _ := a.sandboxes.Get(string(id)); r.ServiceID != "" || time.Since(r.Asked) > time.Hour { // it is not being created
		err = a.remove(ctx, id)
	}
	return b, cmp.Or(err, hosted.ErrNone)
}

// ends reports whether the bridge says that a sandbox has ended, which it may do
// a moment after a command failed for it.
func (a *api) ends(ctx context.Context, id sandbox.ID) bool {
	for wait := 20 * time.Millisecond; wait < 2*time.Second; wait *= 2 {
		if runs, err := a.runs(ctx, id); err != nil || !runs {
			return err == nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return false
		}
	}
	return false
}

func (a *api) remove(ctx context.Context, id sandbox.ID) error { return a.Remove(ctx, path(id, "")) }

// Get implements hosted.Service.
func (a *api) Get(ctx context.Context, id sandbox.ID, _ string) (hosted.Sandbox, error) {
	return a.look(ctx, id)
}

// List implements hosted.Service. The bridge has no list: without an ID, the
// records of the directory say which sandboxes there may be.
func (a *api) List(ctx context.Context, _ string, id sandbox.ID) (found []hosted.Sandbox, err error) {
	ids := []string{string(id)}
	if id == "" {
		ids = a.sandboxes.IDs()
	}
	for _, one := range ids {
		if r, ok := a.sandboxes.Get(one); id == "" && (!ok || r.Binding == "") {
			continue // only a lock
		}
		b, err := a.look(ctx, sandbox.ID(one))
		switch {
		case err == nil:
			found = append(found, b)
		case !errors.Is(err, hosted.ErrNone):
			return nil, err
		}
	}
	return found, nil
}

// End implements hosted.Service. Names are reused, so it does not end a newer
// sandbox with the same name.
func (a *api) End(ctx context.Context, id sandbox.ID, sb string) error {
	if r, _ := a.sandboxes.Get(string(id)); r.ServiceID != "" && r.ServiceID != sb {
		return hosted.ErrNone
	}
	if sb != "" {
		a.shut(sb)
	}
	return a.remove(ctx, id)
}

// inside runs commands in one sandbox.
type inside struct {
	hosted.Text
	api *api
	one string // of its mark; empty: whatever its mark is
}

// enter gives access to a sandbox until open ends.
func (a *api) enter(open context.Context, id sandbox.ID, one string) *inside {
	in := &inside{api: a, one: one}
	in.Text = hosted.Text{Commander: in, ID: id, Open: open, Dir: "/workspace", Pieces: true, Quiet: true, Exec: in.exec} // the bridge writes files only there
	return in
}

// starts is how often to start a short command.
const starts = 4

// exec runs a short command. It is repeated if it cannot start: that is so for a
// moment while a program replaces the directory in which the bridge starts it.
func (in *inside) exec(ctx context.Context, argv []string, env map[string]string) (code int, out string, err error) {
	for n := range starts {
		code, out, err = in.Collect(ctx, argv, env)
		if err != nil || code != 126 && code != 127 {
			break
		}
		if err := rest.Sleep(ctx, time.Duration(n+1)*50*time.Millisecond); err != nil {
			return 0, "", err
		}
	}
	return code, out, err
}

// Wake implements hosted.Inside: sandboxes do not sleep.
func (*inside) Wake(context.Context) error { return nil }

// guard runs a command as root, if the sandbox has the mark that it expects. Its
// arguments are itself, the mark or nothing, and the command. A sandbox without
// the mark is a new one, which the bridge made for this request.
const guard = `[ "$(id -u)" = 0 ] || exec sudo -n /bin/sh -c "$1" atoll "$@"
now=
[ -z "$2" ] || read -r scope now rest 2>/dev/null <` + markFile + ` || :
[ "$2" = "$now" ] || { echo "this is another sandbox" >&2; exit 96; } # another
shift 2
cd / && exec "$@"`

// another is the exit status of guard in another sandbox than it expects. Until it
// is known, guard writes nothing to its standard output, but it may to its
// standard error.
const another = 96

// tidy removes the sandbox that a command has made, if it is a new one.
func (a *api) tidy(in *inside) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(in.Open), time.Minute)
	defer cancel()
	_, _ = a.look(ctx, in.ID) // later requests try again
}

// starting limits how long a request continues after its caller gave up.
const starting = time.Minute

// outlive returns a context that ends a while after ctx, or with it if known is
// true by then. The bridge completes what a request has begun although its caller
// gave up: it may make a new sandbox, which must be noticed.
func outlive(ctx context.Context, known *atomic.Bool) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if !known.Load() {
			_ = rest.Sleep(late, starting)
		}
		cancel()
	})
	return late, func() {
		stop()
		cancel()
	}
}

// pass calls f, unless the sandbox has been removed. It is not removed meanwhile.
func (in *inside) pass(f func() error) error {
	if in.one != "" {
		g := in.api.gate(in.one)
		g.RLock()
		defer g.RUnlock()
		if g.closed {
			return in.Broken("the sandbox has been removed")
		}
	}
	return f()
}

// Stream implements hosted.Commander. The bridge has no variables.
func (in *inside) Stream(ctx context.Context, argv []string, env map[string]string) (hosted.Events, error) {
	args := []string{"/bin/sh", "-c", guard, "atoll", guard, in.one}
	if len(env) > 0 {
		args = append(args, "env")
	}
	for k, v := range env {
		args = append(args, k+"="+v)
	}
	e := &events{in: in, said: make(chan said), started: make(chan error, 1)}
	e.known.Store(in.one == "") // a caller with this option checks the result
	e.ctx, e.cancel = context.WithCancel(ctx)
	in.api.conns.Go(func() { e.run(append(args, argv...)) })
	var err error
	select {
	case err = <-e.started:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		e.cancel()
		return nil, err
	}
	return e, nil
}

// start asks the bridge to run a command, and returns its events.
func (in *inside) start(ctx context.Context, argv []string) (body io.ReadCloser, err error) {
	err = in.pass(func() (err error) {
		body, err = in.api.Listen(ctx, http.MethodPost, path(in.ID, "/exec"), map[string][]string{"argv": argv}, rest.Events)
		return err
	})
	return body, err
}

// Put implements hosted.Commander.
func (in *inside) Put(ctx context.Context, file string, open func() (io.ReadCloser, error)) error {
	done := make(chan error, 1)
	in.api.conns.Go(func() {
		late, cancel := outlive(ctx, new(atomic.Bool))
		defer cancel()
		err := in.pass(func() error {
			return in.api.Patient(late, func() error {
				body, err := open()
				if err != nil {
					return err
				}
				defer body.Close()
				return in.api.Upload(late, http.MethodPut, path(in.ID, "/file"+file), "application/octet-stream", body)
			})
		})
		if ctx.Err() != nil { // nobody uses the sandbox, which would show that it is a new one
			in.api.tidy(in)
		}
		done <- err
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// said is an event, or the error of what ended the events.
type said struct {
	hosted.Event
	err error
}

// events are the events of a command. They are read until it is known in which
// sandbox it runs, also when nobody wants them any more.
type events struct {
	in      *inside
	ctx     context.Context // of who wants them
	cancel  context.CancelFunc
	started chan error
	said    chan said
	known   atomic.Bool // it does not run in a new sandbox
}

// run runs the command.
func (e *events) run(argv []string) {
	late, cancel := outlive(e.ctx, &e.known)
	defer cancel()
	body, err := e.in.start(late, argv)
	if err != nil {
		if e.ctx.Err() != nil && !e.known.Load() {
			e.in.api.tidy(e.in)
		}
		e.started <- err
		return
	}
	defer close(e.said)
	defer body.Close()
	e.started <- nil
	for stream := rest.NewStream(body); ; {
		now := said{}
		now.Event, now.err = e.read(stream)
		ours := now.Stdout != "" || now.Exit != nil && *now.Exit != another
		if !e.known.Load() && !ours && (now.Exit != nil || now.err != nil) {
			e.in.api.tidy(e.in)
		}
		e.known.Store(e.known.Load() || ours)
		select {
		case e.said <- now:
		case <-e.ctx.Done():
		}
		if now.err != nil || now.Exit != nil || e.ctx.Err() != nil && e.known.Load() {
			return
		}
	}
}

// Next implements hosted.Events.
func (e *events) Next() (hosted.Event, error) {
	select {
	case now, more := <-e.said:
		if !more {
			now.err = e.in.Lost(io.ErrUnexpectedEOF)
		}
		return now.Event, now.err
	case <-e.ctx.Done():
		return hosted.Event{}, e.in.Lost(e.ctx.Err())
	}
}

// Close implements hosted.Events.
func (e *events) Close() error {
	e.cancel()
	return nil
}

// read reads an event. Output is base64.
func (e *events) read(stream *rest.Stream) (ev hosted.Event, err error) {
	for {
		name, data, err := stream.Next()
		if err != nil {
			return ev, e.in.Lost(err)
		}
		switch name {
		case "stdout", "stderr":
			out, err := base64.StdEncoding.DecodeString(data)
			if err != nil {
				return ev, e.in.Broken("the bridge's events are invalid")
			}
			if name == "stderr" {
				return hosted.Event{Stderr: string(out)}, nil
			}
			return hosted.Event{Stdout: string(out)}, nil
		case "error":
			_, message, _ := parseError(0, []byte(data))
			return ev, e.in.Broken("the bridge did not run the command: " + e.in.api.Clip(message))
		case "exit":
			var exit struct {
				Code *int `json:"exit_code"`
			}
			if json.Unmarshal([]byte(data), &exit) != nil || exit.Code == nil {
				return ev, e.in.Broken("the bridge's events are invalid")
			}
			return hosted.Event{Exit: exit.Code}, nil
		}
	}
}
