package atoll_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func client(t *testing.T) *atoll.Client {
	t.Helper()
	return daemontest.Client(t, daemontest.New(t).Start(t, nil))
}

func create(t *testing.T, c *atoll.Client, name string) *atoll.Sandbox {
	t.Helper()
	s, err := c.Create(t.Context(), sandbox.Spec{Name: name}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wantCode(t *testing.T, err error, code sandbox.Code) {
	t.Helper()
	if sandbox.CodeOf(err) != code || err == nil {
		t.Helper()
		t.Errorf("got %v (%s), want %s", err, sandbox.CodeOf(err), code)
	}
}

func TestLifecycle(t *testing.T) {
	c, ctx := client(t), t.Context()
	if err := c.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := c.Create(ctx, sandbox.Spec{Name: "one", Labels: map[string]string{"team": "red"}, Env: map[string]string{"A": "b c"}}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Name() != "one" || s.Info().State != sandbox.Running || s.Info().Labels["team"] != "red" || s.Info().Created.IsZero() {
		t.Errorf("%+v", s.Info())
	}
	_, err = c.Create(ctx, sandbox.Spec{Name: "one"}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeAlreadyExists)
	for _, ref := range []string{"one", string(s.ID())} {
		if again, err := c.Get(ctx, ref); err != nil || again.ID() != s.ID() {
			t.Errorf("%s: %v", ref, err)
		}
	}
	_, err = c.Get(ctx, "two")
	wantCode(t, err, sandbox.CodeNotFound)
	res, err := s.Run(ctx, sandbox.Command{Shell: "echo $A; echo no >&2; exit 3"}, atoll.RunOptions{})
	if err != nil || string(res.Stdout) != "b c\n" || string(res.Stderr) != "no\n" || res.Exit.Code != 3 || res.Truncated {
		t.Errorf("%+v %v", res, err)
	}
	if err := s.Destroy(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(ctx); err != nil {
		t.Errorf("again: %v", err)
	}
	_, err = s.Run(ctx, sandbox.Command{Shell: "true"}, atoll.RunOptions{})
	wantCode(t, err, sandbox.CodeGone)
	if gone, err := c.Get(ctx, string(s.ID())); err != nil || gone.Info().State != sandbox.Gone {
		t.Errorf("%+v %v", gone.Info(), err)
	}
	create(t, c, "one") // the name is free again
}

func TestListPages(t *testing.T) {
	c, ctx := client(t), t.Context()
	want := map[string]bool{}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		spec := sandbox.Spec{Name: name, Labels: map[string]string{"kind": "letter"}}
		if _, err := c.Create(ctx, spec, atoll.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		want[name] = true
	}
	create(t, c, "other")
	for s, err := range c.List(ctx, atoll.ListOptions{Labels: map[string]string{"kind": "letter"}, Page: 2}) {
		if err != nil || !want[s.Name] {
			t.Fatalf("%+v %v", s, err)
		}
		delete(want, s.Name)
	}
	if len(want) != 0 {
		t.Errorf("missing %v", want)
	}
	for s, err := range c.List(ctx, atoll.ListOptions{States: []sandbox.State{sandbox.Gone}}) {
		t.Errorf("%+v %v", s, err)
	}
	for _, err := range c.List(ctx, atoll.ListOptions{States: []sandbox.State{"asleep"}}) {
		wantCode(t, err, sandbox.CodeInvalid)
	}
}

func TestIdempotentCreate(t *testing.T) {
	c, ctx := client(t), t.Context()
	opts := atoll.CreateOptions{IdempotencyKey: "k1"}
	first, err := c.Create(ctx, sandbox.Spec{}, opts)
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Create(ctx, sandbox.Spec{}, opts)
	if err != nil || again.ID() != first.ID() {
		t.Errorf("%v %v", again.ID(), err)
	}
	_, err = c.Create(ctx, sandbox.Spec{Name: "x"}, opts)
	wantCode(t, err, sandbox.CodeConflict)
}

func TestStreams(t *testing.T) {
	s, ctx := create(t, client(t), "one"), t.Context()
	p, err := s.Exec(ctx, sandbox.Command{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	// More than all flow control windows together, so that acknowledgements are
	// needed.
	sent := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	go func() {
		_, _ = p.Stdin().Write(sent)
		_ = p.Stdin().Close()
	}()
	got, err := io.ReadAll(p.Stdout())
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d, %v", len(got), len(sent), err)
	}
	if rest, err := io.ReadAll(p.Stderr()); err != nil || len(rest) != 0 {
		t.Errorf("%q %v", rest, err)
	}
	if exit, err := p.Wait(ctx); err != nil || exit.Code != 0 {
		t.Errorf("%+v %v", exit, err)
	}
	wantCode(t, p.Signal(ctx, 15), sandbox.CodeNotFound)
}

// An unread stream does not block the other stream or signals.
func TestStreamsAreIndependent(t *testing.T) {
	s, ctx := create(t, client(t), "one"), t.Context()
	p, err := s.Exec(ctx, sandbox.Command{Shell: "yes 1>&2 & sleep 0.01; echo out; wait"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	line := make([]byte, 4)
	if _, err := io.ReadFull(p.Stdout(), line); err != nil || string(line) != "out\n" {
		t.Fatalf("%q %v", line, err)
	}
	if err := p.Signal(ctx, 9); err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(ctx); err != nil || exit.Signal != 9 {
		t.Errorf("%+v %v", exit, err)
	}
}

func TestCloseKillsForeground(t *testing.T) {
	s, ctx := create(t, client(t), "one"), t.Context()
	p, err := s.Exec(ctx, sandbox.Command{Args: []string{"sleep", "600"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	waitIdle(t, s)
}

// waitIdle waits until no command runs. The deadline of the test bounds it.
func waitIdle(t *testing.T, s *atoll.Sandbox) {
	t.Helper()
	for busy := true; busy; {
		all, err := s.Processes(t.Context())
		if err != nil || len(all) == 0 {
			t.Fatalf("%+v %v", all, err)
		}
		busy = false
		for _, p := range all {
			busy = busy || p.Running
		}
		time.Sleep(time.Millisecond)
	}
}

func TestBackground(t *testing.T) {
	s, ctx := create(t, client(t), "one"), t.Context()
	p, err := s.Exec(ctx, sandbox.Command{Shell: "echo first; read x; echo $x", Stdin: true, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	id := p.Info().ID
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := s.Reconnect(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := io.WriteString(again.Stdin(), "second\n"); err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(again.Stdout()); err != nil || string(out) != "first\nsecond\n" {
		t.Errorf("%q %v", out, err)
	}
	logs, err := s.Logs(ctx, id, atoll.LogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	var text []byte
	for {
		chunk, err := logs.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, chunk.Data...)
	}
	if string(text) != "first\nsecond\n" {
		t.Errorf("%q", text)
	}
	_, err = s.Logs(ctx, "nope", atoll.LogOptions{})
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = s.Reconnect(ctx, "nope")
	wantCode(t, err, sandbox.CodeNotFound)
}

func TestTerminal(t *testing.T) {
	m := daemontest.New(t)
	m.Host = true
	s, ctx := create(t, daemontest.Client(t, m.Start(t, nil)), "one"), t.Context()
	defer s.Destroy(context.WithoutCancel(ctx))
	p, err := s.Exec(ctx, sandbox.Command{Args: []string{"cat"}, Stdin: true, TTY: &sandbox.WindowSize{Cols: 80, Rows: 24}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Resize(ctx, sandbox.WindowSize{Cols: 100, Rows: 30}); err != nil {
		t.Error(err)
	}
	wantCode(t, p.Resize(ctx, sandbox.WindowSize{Cols: 60000}), sandbox.CodeInvalid)
	if _, err := io.WriteString(p.Stdin(), "hello\n"); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdin().Close(); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Stdout())
	if err != nil || !strings.Contains(string(out), "hello") {
		t.Errorf("%q %v", out, err)
	}
}

func TestRunOutput(t *testing.T) {
	s, ctx := create(t, client(t), "one"), t.Context()
	res, err := s.Run(ctx, sandbox.Command{Args: []string{"cat"}}, atoll.RunOptions{Input: []byte("a\xff\x00b")})
	if err != nil || string(res.Stdout) != "a\xff\x00b" {
		t.Errorf("%q %v", res.Stdout, err)
	}
	res, err = s.Run(ctx, sandbox.Command{Shell: "echo 12345678"}, atoll.RunOptions{OutputLimit: 4})
	if err != nil || string(res.Stdout) != "1234" || !res.Truncated {
		t.Errorf("%q %v %v", res.Stdout, res.Truncated, err)
	}
	res, err = s.Run(ctx, sandbox.Command{Args: []string{"echo", "-n", "x\xffy", "z\n"}}, atoll.RunOptions{})
	if err != nil || string(res.Stdout) != "x\xffy z\n" {
		t.Errorf("%q %v", res.Stdout, err)
	}
	_, err = s.Run(ctx, sandbox.Command{Shell: "x", Stdin: true}, atoll.RunOptions{})
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = s.Run(ctx, sandbox.Command{}, atoll.RunOptions{})
	wantCode(t, err, sandbox.CodeInvalid)
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = s.Run(short, sandbox.Command{Args: []string{"sleep", "600"}}, atoll.RunOptions{})
	wantCode(t, err, sandbox.CodeTimeout)
	waitIdle(t, s) // the command ends with the request
	res, err = s.Run(ctx, sandbox.Command{Args: []string{"sleep", "600"}, Timeout: 20 * time.Millisecond}, atoll.RunOptions{})
	if err != nil || res.Exit.Reason != sandbox.ReasonTimeout {
		t.Errorf("%+v %v", res, err)
	}
}

func TestFiles(t *testing.T) {
	f, ctx := create(t, client(t), "one").Files(), t.Context()
	info, err := f.Write(ctx, "/a/b.txt", strings.NewReader("0123456789"), atoll.WriteOptions{Mode: 0o640})
	if err != nil || info.Size != 10 || info.Mode != 0o640 {
		t.Fatalf("%+v %v", info, err)
	}
	for _, tt := range []struct {
		opts atoll.ReadOptions
		want string
	}{
		{atoll.ReadOptions{}, "0123456789"},
		{atoll.ReadOptions{Offset: 3}, "3456789"},
		{atoll.ReadOptions{Offset: 3, Length: 2}, "34"},
		{atoll.ReadOptions{Length: 100}, "0123456789"},
	} {
		r, err := f.Read(ctx, "/a/b.txt", tt.opts)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		_ = r.Close()
		if err != nil || string(got) != tt.want {
			t.Errorf("%+v: %q %v", tt.opts, got, err)
		}
	}
	if err := f.Mkdir(ctx, "/a/d", atoll.MkdirOptions{}); err != nil {
		t.Error(err)
	}
	wantCode(t, f.Mkdir(ctx, "/a/d", atoll.MkdirOptions{}), sandbox.CodeAlreadyExists)
	if err := f.Move(ctx, "/a/b.txt", "/a/d/c.txt", false); err != nil {
		t.Error(err)
	}
	var names []string
	for info, err := range f.List(ctx, "/a", -1) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, info.Path)
	}
	if strings.Join(names, " ") != "d d/c.txt" {
		t.Errorf("%q", names)
	}
	if info, err := f.Stat(ctx, "/a/d"); err != nil || info.Type != sandbox.TypeDir {
		t.Errorf("%+v %v", info, err)
	}
	wantCode(t, f.Remove(ctx, "/a", false), sandbox.CodeConflict)
	if err := f.Remove(ctx, "/a", true); err != nil {
		t.Error(err)
	}
	_, err = f.Stat(ctx, "/a")
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = f.Read(ctx, "/nope", atoll.ReadOptions{})
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = f.Read(ctx, "relative", atoll.ReadOptions{})
	wantCode(t, err, sandbox.CodeInvalid)
	for _, err := range f.List(ctx, "/nope", 0) {
		wantCode(t, err, sandbox.CodeNotFound)
	}
}

var errReader = errors.New("the disk fell off")

// If the source fails, no part of the file is left behind.
func TestWriteIsWhole(t *testing.T) {
	f, ctx := create(t, client(t), "one").Files(), t.Context()
	broken := io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<16)), iotestErr{})
	if _, err := f.Write(ctx, "/x", broken, atoll.WriteOptions{}); !errors.Is(err, errReader) {
		t.Errorf("got %v", err)
	}
	_, err := f.Stat(ctx, "/x")
	wantCode(t, err, sandbox.CodeNotFound)
}

type iotestErr struct{}

func (iotestErr) Read([]byte) (int, error) { return 0, errReader }

func TestArchive(t *testing.T) {
	f, ctx := create(t, client(t), "one").Files(), t.Context()
	var in bytes.Buffer
	w := tar.NewWriter(&in)
	if err := w.WriteHeader(&tar.Header{Name: "x/y.txt", Mode: 0o600, Size: 2, Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write([]byte("hi"))
	_ = w.Close()
	if err := f.Import(ctx, "/in", &in, "0:0"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := f.Export(ctx, "/in/x", &out); err != nil {
		t.Fatal(err)
	}
	found := false
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		found = found || h.Name == "x/y.txt"
	}
	if !found {
		t.Error("the file did not come back")
	}
	wantCode(t, f.Export(ctx, "/nope", io.Discard), sandbox.CodeNotFound)
	wantCode(t, f.Import(ctx, "/in", strings.NewReader("this is no archive, but it is long enough to look at"), ""), sandbox.CodeInvalid)
}

func TestWatch(t *testing.T) {
	f := create(t, client(t), "one").Files()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := f.Mkdir(ctx, "/w", atoll.MkdirOptions{}); err != nil {
		t.Fatal(err)
	}
	changes, err := f.Watch(ctx, "/w", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(ctx, "/w/new", strings.NewReader("x"), atoll.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	for e, err := range changes {
		if err != nil {
			t.Fatal(err)
		}
		if e.Path == "new" {
			cancel()
			break
		}
	}
}

func TestEvents(t *testing.T) {
	c := client(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := create(t, c, "one")
	const secret = "hunter2-canary"
	if _, err := s.Run(ctx, sandbox.Command{Args: []string{"echo", secret}, Env: map[string]string{"S": secret}}, atoll.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	var types []string
	var last int64
	for e, err := range c.Events(ctx, sandbox.EventQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Seq != last+1 {
			t.Errorf("%d after %d", e.Seq, last)
		}
		last = e.Seq
		types = append(types, e.Type)
		if strings.Contains(strings.Join(e.Args, " ")+e.Subject, secret) {
			t.Errorf("an argument is in the log: %+v", e)
		}
	}
	if got := strings.Join(types, " "); !strings.Contains(got, "sandbox.created") || !strings.Contains(got, "exec.started") {
		t.Errorf("%s", got)
	}
	go func() { _ = s.Destroy(ctx) }()
	for e, err := range c.FollowEvents(ctx, sandbox.EventQuery{After: last}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "sandbox.destroyed" {
			break
		}
	}
	report, err := c.Admin().VerifyAudit(ctx)
	if err != nil || !report.Sound || report.Records == 0 {
		t.Errorf("%+v %v", report, err)
	}
}

func TestStop(t *testing.T) {
	c, ctx := client(t), t.Context()
	s := create(t, c, "one")
	p, err := s.Exec(ctx, sandbox.Command{Args: []string{"sleep", "600"}, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Close()
	ended := make(chan sandbox.Exit, 1)
	go func() {
		exit, _ := s.Wait(context.Background())
		ended <- exit
	}()
	if info, err := s.Stop(ctx, 10*time.Second); err != nil || info.State != sandbox.Stopped {
		t.Fatalf("%+v %v", info, err)
	}
	if exit := <-ended; exit.Reason != sandbox.ReasonKilled {
		t.Errorf("%+v", exit)
	}
	if info, err := s.Start(ctx); err != nil || info.State != sandbox.Running || info.ID != s.ID() {
		t.Errorf("%+v %v", info, err)
	}
}

func TestUnavailable(t *testing.T) {
	c, err := atoll.New(atoll.Options{Host: "unix://" + t.TempDir() + "/none.sock"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Create(t.Context(), sandbox.Spec{}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeUnavailable)
	for _, path := range []string{"/a#b/atoll.sock", "/a?b", "/100%/atoll.sock"} { // a path is no URL, as with docker
		c, err := atoll.New(atoll.Options{Host: "unix://" + path})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if err := c.Ping(t.Context()); sandbox.CodeOf(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), path) {
			t.Errorf("%s is not the socket that was dialed: %v", path, err)
		}
		c.Close()
	}
	for _, host := range []string{"unix://relative", "ftp://x", "https://", "https://user:secret@x", "https://x?y", "://"} {
		_, err := atoll.New(atoll.Options{Host: host})
		wantCode(t, err, sandbox.CodeInvalid)
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error contains the password: %v", err)
		}
	}
}
