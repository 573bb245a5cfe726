package drivertest

import (
	"context"
	"fmt"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// watch watches a directory until the case ends.
type watch struct {
	*testSandbox
	events <-chan sandbox.FileEvent
	cancel func()
}

func (sb *testSandbox) watch(name string, recursive bool) *watch {
	w, ok := driver.As[driver.Watcher](sb.inst)
	if !ok {
		sb.Fatalf("watch is declared, but the instance is no Watcher")
	}
	ctx, cancel := context.WithCancel(sb.ctx)
	sb.Cleanup(func(context.Context) { cancel() })
	p := sb.dir
	if name != "" {
		p = sb.path(name)
	}
	events, err := w.Watch(ctx, p, recursive)
	sb.ok("Watch", err)
	return &watch{sb, events, cancel}
}

// next returns the next event.
func (w *watch) next() sandbox.FileEvent {
	select {
	case e, ok := <-w.events:
		if !ok {
			w.Fatalf("the watch ended where an event was expected")
		}
		if e.Op == sandbox.OpOverflow {
			w.Fatalf("an overflow although nothing was slow")
		}
		return e
	case <-w.ctx.Done():
		w.Fatalf("no event came")
	}
	return sandbox.FileEvent{}
}

// await skips events until one with op for the path. Other events of a change,
// such as a chmod after a write, differ between kernels.
func (w *watch) await(op sandbox.FileOp, path string) sandbox.FileEvent {
	for {
		if e := w.next(); e.Op == op && e.Path == path {
			return e
		}
	}
}

// closed waits for the end of the watch.
func (w *watch) closed() {
	for {
		select {
		case _, ok := <-w.events:
			if !ok {
				return
			}
		case <-w.caseT.ctx.Done():
			w.Fatalf("the channel is not closed")
		}
	}
}

var watchCases = []testCase{
	{"watch/changes", capWatch, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("echo x >old")
		w := b.watch("", false)
		b.mustSh("mkdir d")
		if e := w.await(sandbox.OpCreate, "d"); !e.Dir {
			t.Errorf("a directory's event does not say so: %+v", e)
		}
		b.mustSh("echo x >new")
		if e := w.await(sandbox.OpCreate, "new"); e.Dir {
			t.Errorf("a file's event says it is a directory: %+v", e)
		}
		b.mustSh("echo y >>old")
		w.await(sandbox.OpWrite, "old")
		b.mustSh("chmod 600 old")
		w.await(sandbox.OpChmod, "old")
		b.mustSh("mv new renamed")
		w.await(sandbox.OpRemove, "new")
		w.await(sandbox.OpCreate, "renamed")
		b.mustSh("rm old")
		w.await(sandbox.OpRemove, "old")
	}},
	{"watch/api-changes", capWatch, func(t *caseT) {
		b := t.sandbox()
		w := b.watch("", false)
		b.write("f", "x")
		w.await(sandbox.OpCreate, "f")
		t.ok("Move", b.files().Move(t.ctx, b.path("f"), b.path("g"), false))
		w.await(sandbox.OpRemove, "f")
		w.await(sandbox.OpCreate, "g")
		t.ok("Remove", b.files().Remove(t.ctx, b.path("g"), false))
		w.await(sandbox.OpRemove, "g")
	}},
	{"watch/not-recursive", capWatch, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("mkdir d")
		w := b.watch("", false)
		b.mustSh("echo x >d/below; echo x >mark")
		for e := w.next(); e.Path != "mark"; e = w.next() {
			if e.Path == "d/below" {
				t.Errorf("an event from below: %+v", e)
			}
		}
	}},
	{"watch/recursive", capWatch, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("mkdir -p a/b")
		w := b.watch("", true)
		b.mustSh("echo x >a/b/f")
		w.await(sandbox.OpCreate, "a/b/f")
		b.mustSh("mkdir a/new")
		w.await(sandbox.OpCreate, "a/new")
		b.mustSh("echo x >a/new/f")
		w.await(sandbox.OpCreate, "a/new/f")
		b.mustSh("mkdir -p x/y/z; echo x >x/y/z/f")
		w.await(sandbox.OpCreate, "x/y/z/f")
	}},
	{"watch/file", capWatch, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("echo x >f; echo x >other")
		w := b.watch("f", false)
		b.mustSh("echo y >>other; echo y >>f")
		if e := w.next(); e.Path != "." || e.Op != sandbox.OpWrite {
			t.Errorf("%+v, want a write of .", e)
		}
	}},
	{"watch/ends-with-context", capWatch, func(t *caseT) {
		b := t.sandbox()
		w := b.watch("", true)
		w.cancel()
		w.closed()
	}},
	{"watch/ends-with-removal", capWatch, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("mkdir d")
		w := b.watch("d", true)
		b.mustSh("rm -r d")
		w.closed()
	}},
	{"watch/ends-with-sandbox", capWatch, func(t *caseT) {
		b := t.fresh()
		w := b.watch("", false)
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		w.closed()
	}},
	{"watch/missing", capWatch, func(t *caseT) {
		b := t.sandbox()
		w, ok := driver.As[driver.Watcher](b.inst)
		if !ok {
			t.Fatalf("watch is declared, but the instance is no Watcher")
		}
		_, err := w.Watch(t.ctx, b.path("missing"), false)
		t.wantCode("Watch", err, sandbox.CodeNotFound)
	}},
	{"watch/slow-receiver", capWatch, func(t *caseT) {
		b := t.sandbox()
		w := b.watch("", false)
		n := size(t.suite, 5000, 500)
		b.mustSh(`i=0; while [ $i -lt $1 ]; do : >"f$i"; i=$((i+1)); done; : >last`, fmt.Sprint(n))
		seen := map[string]bool{}
		for {
			select {
			case e, ok := <-w.events:
				if !ok {
					t.Fatalf("a slow receiver lost its watch")
				}
				if e.Op == sandbox.OpOverflow {
					return // The receiver knows that it missed events.
				}
				if e.Op == sandbox.OpCreate {
					seen[e.Path] = true
				}
				if seen["last"] {
					if len(seen) != n+1 {
						t.Errorf("%d of %d events, and no overflow", len(seen), n+1)
					}
					return
				}
			case <-t.ctx.Done():
				t.Fatalf("neither all events nor an overflow came")
			}
		}
	}},
	{"watch/several", capWatch, func(t *caseT) {
		b := t.sandbox()
		one, two := b.watch("", false), b.watch("", true)
		b.mustSh("echo x >f")
		one.await(sandbox.OpCreate, "f")
		two.await(sandbox.OpCreate, "f")
		one.cancel()
		one.closed()
		b.mustSh("echo x >g")
		two.await(sandbox.OpCreate, "g")
	}},
}
