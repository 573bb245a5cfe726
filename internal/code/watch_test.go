package code

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
)

// toldSandbox is a Sandbox whose changes of files come from the test.
type toldSandbox struct {
	local
	watched chan string // a directory that is watched from now on
	changes chan sandbox.FileEvent
}

var _ driver.Watcher = (*toldSandbox)(nil)

func (s *toldSandbox) Files() Files { return s }

func (s *toldSandbox) Watch(ctx context.Context, p string, recursive bool) (<-chan sandbox.FileEvent, error) {
	if !recursive {
		return nil, errors.New("is not recursive")
	}
	s.watched <- p
	out := make(chan sandbox.FileEvent)
	go func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case e, more := <-s.changes:
				if !more {
					return
				}
				select {
				case out <- e:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out, nil
}

// states are those of a watched repository.
type states struct {
	*testing.T
	next func() (coding.GitEvent, error, bool)
	last coding.GitEvent
}

func watching(t *testing.T, s *Service, r *repo, poll time.Duration) *states {
	t.Helper()
	w, err := s.watch(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	w.poll = poll
	next, stop := iter.Pull2(iter.Seq2[coding.GitEvent, error](w.run))
	t.Cleanup(stop)
	out := &states{T: t, next: next}
	out.last = out.one()
	if out.last.Reason != coding.GitStart {
		t.Errorf("the first state is of %q", out.last.Reason)
	}
	return out
}

func (s *states) one() coding.GitEvent {
	s.Helper()
	e, err, more := s.next()
	if err != nil || !more {
		s.Fatalf("no state came: %v", err)
	}
	return e
}

// until returns the first state that fits. A command may have several on its way.
func (s *states) until(reason coding.GitReason, fits func(coding.GitEvent) bool) coding.GitEvent {
	s.Helper()
	for {
		e := s.one()
		if e.Revision != s.last.Revision+1 || e.Reason != reason {
			s.Errorf("%+v follows %+v", e, s.last)
		}
		if s.last = e; fits(e) {
			return e
		}
	}
}

// RB-87: an event for each change of the status, and for nothing else, where
// changes of files are not reported.
func TestStatesOfAPolledRepository(t *testing.T) {
	t.Parallel()
	r := repository(t, "echo .ignored >.git/info/exclude")
	s := watching(t, New(Config{}), r, time.Millisecond)
	if e := s.last; !e.IsRepo || e.Head != "main" || e.Commit != "" || e.Dirty || e.Files != 0 || e.Revision == 0 {
		t.Errorf("an empty repository: %+v", e)
	}
	put(t, filepath.Join(r.dir, "a b\nc"), "one")
	if e := s.until(coding.GitPoll, func(coding.GitEvent) bool { return true }); !e.Dirty || e.Files != 1 {
		t.Errorf("a new file: %+v", e)
	}
	put(t, filepath.Join(r.dir, "a b\nc"), "two") // no change of the status
	put(t, filepath.Join(r.dir, ".ignored"), "x")
	inside(t, r.dir, "git add . && git commit -qm first")
	e := s.until(coding.GitPoll, func(e coding.GitEvent) bool { return e.Commit != "" && !e.Dirty })
	inside(t, r.dir, "git checkout -q -b other")
	if f := s.until(coding.GitPoll, func(e coding.GitEvent) bool { return e.Head == "other" }); f.Commit != e.Commit {
		t.Errorf("another branch: %+v", f)
	}
	inside(t, r.dir, "git checkout -q --detach && git branch -q -D other && git checkout -q main && git branch up && git branch -q -u up && git commit -q --allow-empty -m second")
	if f := s.until(coding.GitPoll, func(e coding.GitEvent) bool { return e.Ahead == 1 }); f.Upstream != "up" || f.Commit == e.Commit {
		t.Errorf("ahead of upstream: %+v", f)
	}
	inside(t, r.dir, "rm -rf .git")
	if e := s.until(coding.GitPoll, func(e coding.GitEvent) bool { return !e.IsRepo }); e.Head != "" || e.Commit != "" || e.Dirty || e.Files != 0 {
		t.Errorf("no repository: %+v", e)
	}
	inside(t, r.dir, "git init -q -b again .")
	s.until(coding.GitPoll, func(e coding.GitEvent) bool { return e.IsRepo && e.Head == "again" && e.Files == 2 })
	inside(t, r.dir, "echo '[' >.git/config")
	if _, err, more := s.next(); !more || sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("a broken repository: %v", err)
	}
}

// RB-87: the files of the working tree are watched, and the git directories
// elsewhere.
func TestStatesOfAWatchedRepository(t *testing.T) {
	t.Parallel()
	main := repository(t, "git commit -q --allow-empty -m first")
	tree := filepath.Join(t.TempDir(), "tree")
	inside(t, main.dir, "git worktree add -q '"+tree+"' -b side")
	sb := &toldSandbox{watched: make(chan string, 8), changes: make(chan sandbox.FileEvent)}
	service := New(Config{})
	s := watching(t, service, &repo{sandbox: sb, id: "1", dir: tree}, time.Hour)
	change := func() { sb.changes <- sandbox.FileEvent{Op: sandbox.OpCreate, Path: "x"} }
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.until(coding.GitWatch, func(e coding.GitEvent) bool { return e.Files == 1 })
	}()
	watched := []string{<-sb.watched, <-sb.watched, <-sb.watched}
	if want := []string{resolved(t, tree), resolved(t, main.dir) + "/.git/worktrees/tree", resolved(t, main.dir) + "/.git"}; !slices.Equal(watched, want) {
		t.Errorf("watched: %q, want %q", watched, want)
	}
	put(t, filepath.Join(tree, "x"), "")
	change()
	<-done

	// A second watch has the same number for the same state.
	t2 := watching(t, service, &repo{sandbox: &local{}, id: "1", dir: tree}, time.Hour)
	if t2.last.Revision != s.last.Revision {
		t.Errorf("revisions of the same state: %d and %d", t2.last.Revision, s.last.Revision)
	}
	other := watching(t, service, &repo{sandbox: &local{}, id: "2", dir: tree}, time.Hour)
	if other.last.Revision <= s.last.Revision {
		t.Errorf("a revision of another sandbox is %d after %d", other.last.Revision, s.last.Revision)
	}

	// What watches the files ends, so the status is polled.
	put(t, filepath.Join(tree, "y"), "")
	close(sb.changes)
	s.until(coding.GitWatch, func(e coding.GitEvent) bool { return e.Files == 2 })
}

func resolved(t *testing.T, p string) string {
	t.Helper()
	out, err := filepath.EvalSymlinks(p)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWatchedDirectories(t *testing.T) {
	for places, want := range map[string][]string{
		"":                                 nil,
		"/r\n/r/.git\n.git":                {"/r"},
		"/r\n/r/.git\n/r/.git":             {"/r"},
		"/w\n/r/.git/worktrees/w\n/r/.git": {"/w", "/r/.git/worktrees/w", "/r/.git"},
		"/\n/.git\n.git":                   nil,
		"/r\n/":                            nil,
		"no\n../path":                      nil,
		"/r/../..\n/x":                     nil,
	} {
		if got := directories(places); !slices.Equal(got, want) {
			t.Errorf("directories(%q) = %q, want %q", places, got, want)
		}
	}
}

// A repository names programs that git would run, and has many files (RB-87).
func TestWatchesOfHostileRepositories(t *testing.T) {
	t.Parallel()
	r := repository(t, `git config core.fsmonitor "touch $PWD/ran"
mkdir hooks && printf '#!/bin/sh\ntouch '"$PWD"'/ran\n' >hooks/post-index-change && chmod +x hooks/* && git config core.hooksPath "$PWD/hooks"
mkdir many && cd many && seq 20000 | xargs touch`)
	e := watching(t, New(Config{}), r, time.Hour).last
	if e.Files != 20001 { // and the hook, but not what it would make
		t.Errorf("%d files, want 20001", e.Files)
	}
}

func TestWatchesThatCannotBegin(t *testing.T) {
	t.Parallel()
	need.Program(t, "git")
	bare := t.TempDir()
	inside(t, bare, "git init -q --bare .")
	broken := t.TempDir()
	inside(t, broken, "git init -q . && echo '[' >.git/config")
	for name, dir := range map[string]string{"bare": bare, "broken": broken} {
		if _, err := New(Config{}).watch(t.Context(), &repo{sandbox: &local{}, dir: dir}); sandbox.CodeOf(told(err)) != sandbox.CodeConflict || !strings.Contains(err.Error(), "git failed: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A client that does not read holds up neither the sandbox that reports changes nor
// the end of the watch, which leaves no command and no state.
func TestWatchesOfClientsThatDoNotRead(t *testing.T) {
	t.Parallel()
	r := repository(t, "git commit -q --allow-empty -m first")
	sb := &toldSandbox{watched: make(chan string, 8), changes: make(chan sandbox.FileEvent)}
	service := New(Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := service.watch(ctx, &repo{sandbox: sb, id: "1", dir: r.dir})
	if err != nil {
		t.Fatal(err)
	}
	got, reads, ended := make(chan coding.GitEvent), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		w.run(func(e coding.GitEvent, err error) bool {
			if err != nil {
				return false
			}
			select {
			case got <- e: // it is on its way to the client
			case <-ctx.Done():
			}
			select {
			case <-reads:
			case <-ctx.Done():
			}
			return ctx.Err() == nil
		})
	}()
	<-got
	reads <- struct{}{} // the files are watched from now on
	<-sb.watched
	put(t, filepath.Join(r.dir, "x"), "")
	sb.changes <- sandbox.FileEvent{Op: sandbox.OpCreate, Path: "x"}
	<-got
	for range 10_000 { // more than fit anywhere
		sb.changes <- sandbox.FileEvent{Op: sandbox.OpWrite, Path: "x"}
	}
	cancel()
	<-ended
	<-w.said // its command has ended
	for service.watches() > 0 {
		time.Sleep(time.Millisecond)
	}
}

func (s *Service) watches() int {
	s.watched.mu.Lock()
	defer s.watched.mu.Unlock()
	return len(s.watched.of)
}

// A command of the sandbox that ends, or that says nonsense, ends the watch.
func TestWatchesThatBreakOff(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{"ended": "exit 0", "malformed": `printf 'x\0y\0'; sleep 1000`, "not from here": `printf '\0= x\0'; sleep 1000`} {
		sb := &scripted{script: script}
		if _, err := New(Config{}).watch(t.Context(), &repo{sandbox: sb, dir: t.TempDir()}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// scripted runs something else than it is asked for.
type scripted struct {
	local
	script string
}

func (s *scripted) Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error) {
	cmd.Args = []string{"/bin/sh", "-c", s.script}
	return s.local.Exec(ctx, cmd)
}

func FuzzLook(f *testing.F) {
	f.Add([]byte("/r\n/r/.git\n.git\x00# branch.oid a\x00# branch.head main\x002 R. N... 100644 100644 100644 a b R100 to\x00= 0\x00? x\x00= 0\x00"))
	f.Add([]byte("\x00~ fatal: not a git repository\x00= 128\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		in := newTokens(bytes.NewReader(data))
		if l, err := parseLook(in); err == nil && (l.IsRepo != (l.code == 0) || l.Dirty != (l.Files > 0)) {
			t.Errorf("%+v", l)
		}
	})
}
