package code

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
)

const (
	settleTime = 200 * time.Millisecond // after a change, while others follow
	checkTime  = time.Minute            // between statuses although no change was reported
	// restTimes is how many times as long as a status takes nothing is polled.
	restTimes = 10
	pollTime  = 5 * time.Second // between statuses where no changes are reported
	// maxFailures is how often in a row git may fail, as it does while a repository
	// is being made or removed.
	maxFailures = 3
)

// statuses writes a status for each line of its input. Records end with NUL:
// first the directories of the repository, last the exit code of git, with what
// it said before if it failed.
var statuses = script(`while read -r _; do
	places=$(g rev-parse --show-toplevel --absolute-git-dir --git-common-dir 2>/dev/null)
	code=$?
	if [ $code = 0 ]; then
		printf '%s\0' "$places"
		g ` + strings.Join(statusArgs, " ") + ` 2>/dev/null
		code=$?
		[ $code = 0 ] || said=$(g status 2>&1 >/dev/null)
	else
		printf '\0'
		said=$(g rev-parse --show-toplevel 2>&1)
	fi
	[ $code = 0 ] || printf '` + badMark + ` %s\0' "$said"
	printf '` + endMark + ` %s\0' $code
done`)

const (
	badMark = "~" // no lines of a status begin like that
	endMark = "="
)

// look is what git says about a repository.
type look struct {
	coding.GitEvent
	places string            // its directories
	sum    [sha256.Size]byte // of its status
	code   int               // of git
	said   string
	err    error // why there is no status
}

// parseLook reads what statuses writes for one line of input. It keeps nothing of
// the files but their number.
func parseLook(t *tokens) (l look, err error) {
	sum := sha256.New()
	var head coding.GitStatus
	for first := true; ; first = false {
		line, ok := t.next()
		if !ok {
			return l, t.err
		}
		if first {
			l.places = line
			continue
		}
		if header, ok := strings.CutPrefix(line, "# "); ok {
			branchHeader(&head, header)
		} else if said, ok := strings.CutPrefix(line, badMark+" "); ok {
			l.said = said
		} else if code, ok := strings.CutPrefix(line, endMark+" "); ok {
			if l.code, err = strconv.Atoi(code); err != nil {
				return l, malformed("it ends with %q", code)
			}
			sum.Sum(l.sum[:0])
			l.IsRepo, l.Dirty = l.code == 0, l.Files > 0
			l.Head, l.Commit, l.Detached, l.Upstream, l.Ahead, l.Behind = head.Head, head.Commit, head.Detached, head.Upstream, head.Ahead, head.Behind
			return l, nil
		} else {
			f, err := statusLine(t, line)
			if err != nil {
				return l, err
			}
			l.Files++
			line += "\x00" + f.OldPath
		}
		_, _ = io.WriteString(sum, line+"\x00")
	}
}

// numbered are the states of watched directories.
type numbered struct {
	mu sync.Mutex
	of map[watchedDir]*state
}

type watchedDir struct {
	sandbox sandbox.ID
	dir     string
}

type state struct {
	watchers int
	sum      [sha256.Size]byte
	revision int64
}

func (n *numbered) enter(at watchedDir) (s *state, leave func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s = n.of[at]; s == nil {
		if n.of == nil {
			n.of = map[watchedDir]*state{}
		}
		s = &state{}
		n.of[at] = s
	}
	s.watchers++
	return s, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if s.watchers--; s.watchers == 0 {
			delete(n.of, at)
		}
	}
}

// revision returns the number of the state that was seen.
func (s *Service) revision(at *state, l look) int64 {
	s.watched.mu.Lock()
	defer s.watched.mu.Unlock()
	switch {
	case at.revision == 0:
		at.revision = s.numbers.Next()
	case at.sum != l.sum:
		at.revision++
	}
	at.sum = l.sum
	return at.revision
}

// watch watches a repository with one command that runs for all of it.
type watch struct {
	s     *Service
	r     *repo
	ctx   context.Context
	p     driver.Process
	out   *tokens
	said  chan []byte
	state *state
	poll  time.Duration

	now     look          // the last one
	took    time.Duration // the duration of the last look
	failed  int           // how often in a row git failed
	places  string        // whose files are watched, or are tried to be
	unwatch context.CancelFunc
	live    *atomic.Bool  // while the files are watched
	changed chan struct{} // holds a token after a change
}

// Watch yields the state of the repository that a directory is in, and then each
// state that differs from the one before, until ctx ends. What can be said at
// once is returned as an error. The caller calls the sequence once.
func (s *Service) Watch(ctx context.Context, ref, dir string) (iter.Seq2[coding.GitEvent, error], error) {
	ctx, cancel := context.WithCancel(ctx)
	var w *watch
	err := s.open(ctx, ref, dir, func(ctx context.Context, r *repo) (err error) {
		w, err = s.watch(ctx, r)
		return err
	})
	if err != nil {
		cancel()
		return nil, told(err)
	}
	return func(yield func(coding.GitEvent, error) bool) {
		defer cancel()
		w.run(yield)
	}, nil
}

// watch begins to watch a repository, until ctx ends.
func (s *Service) watch(ctx context.Context, r *repo) (*watch, error) {
	p, err := r.start(ctx, []string{"/bin/sh", "-c", statuses}, true, 0)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = p.Close() })
	w := &watch{
		s: s, r: r, ctx: ctx, p: p, out: newTokens(p.Stdout()), said: make(chan []byte, 1), poll: pollTime,
		unwatch: func() {}, live: new(atomic.Bool), changed: make(chan struct{}, 1),
	}
	go func() { w.said <- complaint(p) }()
	if err := w.look(); err != nil {
		return nil, err
	}
	if w.now.err != nil {
		return nil, w.now.err
	}
	var leave func()
	w.state, leave = s.watched.enter(watchedDir{r.id, r.dir})
	context.AfterFunc(ctx, leave)
	return w, nil
}

func (w *watch) run(yield func(coding.GitEvent, error) bool) {
	reason := coding.GitStart
	var shown look
	for first := true; ; first = false {
		if first || w.now.err == nil && w.now.sum != shown.sum {
			shown = w.now
			shown.Reason, shown.Revision = reason, w.s.revision(w.state, shown)
			if !yield(shown.GitEvent, nil) {
				return
			}
		}
		w.follow()
		var err error
		if reason, err = w.wait(); err == nil {
			err = w.look()
		}
		if w.failed > maxFailures {
			err = w.now.err
		}
		if err != nil {
			if w.ctx.Err() == nil {
				yield(coding.GitEvent{}, told(err))
			}
			return
		}
	}
}

// look reads the status now, or the reason for which it cannot. If nothing can be read any
// more, it returns an error.
func (w *watch) look() error {
	late := make(chan struct{})
	timer := time.AfterFunc(gitTimeout, func() {
		close(late)
		_ = w.p.Close()
	})
	defer timer.Stop()
	began := time.Now()
	_, _ = io.WriteString(w.p.Stdin(), "\n") // if it has ended, its output says why
	l, err := parseLook(w.out)
	if err != nil {
		return w.lost(late, err)
	}
	l.err = w.r.failure(l.code, l.said)
	if f := (*failed)(nil); errors.As(l.err, &f) && !unborn(f) {
		l.err = nil // there is no repository yet, or any more
	}
	if w.failed++; l.err == nil {
		w.failed = 0
	}
	w.now, w.took = l, time.Since(began)
	return nil
}

// lost returns why nothing can be read from the command any more.
func (w *watch) lost(late <-chan struct{}, err error) error {
	select {
	case <-late:
		return errLate
	default:
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	select { // it has ended
	case said := <-w.said:
		if bad := w.r.outcome(w.ctx, w.p, said); bad != nil {
			return bad
		}
	case <-w.ctx.Done():
	}
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: gitOp, Message: "git was ended"}
}

// wait waits until the status should be read again.
func (w *watch) wait() (coding.GitReason, error) {
	every := w.poll
	if w.live.Load() && w.failed == 0 {
		every = checkTime
	}
	poll := time.NewTimer(max(every, restTimes*w.took))
	defer poll.Stop()
	select {
	case <-w.ctx.Done():
		return "", w.ctx.Err()
	case <-poll.C:
		return coding.GitPoll, nil
	case <-w.changed:
	}
	settle := time.NewTimer(max(settleTime, w.took)) // git has at most half of the time
	defer settle.Stop()
	select {
	case <-w.ctx.Done():
		return "", w.ctx.Err()
	case <-settle.C:
	}
	select {
	case <-w.changed:
	default:
	}
	return coding.GitWatch, nil
}

// follow watches the files of the repository. Where that is not possible, its
// status is polled.
func (w *watch) follow() {
	if w.now.places == w.places || w.now.err != nil {
		return
	}
	w.unwatch()
	w.places, w.live = w.now.places, new(atomic.Bool)
	files, ok := w.r.sandbox.Files().(driver.Watcher)
	dirs := directories(w.places)
	if !ok || len(dirs) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(w.ctx)
	w.unwatch = cancel
	var all []<-chan sandbox.FileEvent
	for _, dir := range dirs {
		events, err := files.Watch(ctx, dir, true)
		if err != nil {
			cancel()
			return
		}
		all = append(all, events)
	}
	w.live.Store(true)
	for _, events := range all {
		go w.listen(events, w.live)
	}
	w.wake() // for what changed before
}

func (w *watch) listen(events <-chan sandbox.FileEvent, live *atomic.Bool) {
	for range events {
		w.wake()
	}
	live.Store(false) // from now on it is polled
	w.wake()
}

func (w *watch) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// directories returns the directories of a repository, none of which is below
// another: of its working tree, and of a git directory elsewhere. They are from
// the sandbox. The root of all is none, as it has the kernel's files too.
func directories(places string) (dirs []string) {
	for _, dir := range strings.Split(places, "\n") {
		dir = path.Clean(dir)
		below := slices.ContainsFunc(dirs, func(above string) bool { return dir == above || strings.HasPrefix(dir, above+"/") })
		switch {
		case dir == "/":
			return nil
		case path.IsAbs(dir) && !below:
			dirs = append(dirs, dir)
		}
	}
	return dirs
}
