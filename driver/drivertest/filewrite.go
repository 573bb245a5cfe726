package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

var fileWriteCases = []testCase{
	{"files/write", capFiles, func(t *caseT) {
		b := t.sandbox()
		info := b.write("f", "hello\n")
		if info.Path != b.path("f") || info.Size != 6 || info.Type != sandbox.TypeFile || info.Mode != 0o644 {
			t.Errorf("Write returned %+v", info)
		}
		t.want(b.argv("cat", b.path("f")), "hello\n")
		b.mustSh("echo changed >f")
		if got := b.read("f"); got != "changed\n" {
			t.Errorf("after a change by a command: %q", got)
		}
	}},
	{"files/write-empty", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.write("f", "")
		if got := b.read("f"); got != "" || b.stat("f").Size != 0 {
			t.Errorf("an empty file: %q", got)
		}
		b.write("f", "full")
		b.write("f", "")
		if got := b.read("f"); got != "" {
			t.Errorf("emptied: %q", got)
		}
	}},
	{"files/write-parents", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.write("a/b/c/f", "deep")
		if got := b.stat("a/b"); got.Type != sandbox.TypeDir || got.Mode != 0o755 {
			t.Errorf("a made parent: %+v", got)
		}
		_, err := b.files().Write(t.ctx, b.path("x/f"), strings.NewReader("x"), driver.WriteOptions{NoParents: true})
		t.wantCode("Write without parents", err, sandbox.CodeNotFound)
		if b.exists("x") {
			t.Errorf("the parent was made all the same")
		}
		_, err = b.files().Write(t.ctx, b.path("a/b/c/f/below"), strings.NewReader("x"), driver.WriteOptions{})
		t.wantCode("Write below a file", err, sandbox.CodeInvalid, sandbox.CodeNotFound, sandbox.CodeConflict)
	}},
	{"files/write-replaces", capFiles, func(t *caseT) {
		b := t.sandbox()
		old := pattern(size(t.suite, 4<<20, 1<<20))
		b.write("f", string(old))
		before := b.stat("f")
		r, _, err := b.files().Read(t.ctx, b.path("f"), driver.ReadOptions{})
		t.ok("Read", err)
		defer r.Close()
		head := make([]byte, 100)
		_, err = io.ReadFull(r, head)
		t.ok("reading", err)
		b.write("f", "new")
		rest, err := readAll(r)
		t.ok("reading on", err)
		t.sameBytes("what a reader sees that began before", append(head, rest...), old)
		after := b.stat("f")
		if before.Identity != 0 && before.Identity == after.Identity {
			t.Errorf("the file was changed in place instead of being replaced")
		}
		if got := b.read("f"); got != "new" {
			t.Errorf("afterwards: %q", clip(got))
		}
	}},
	{"files/write-reader-fails", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.write("d/f", "old")
		for _, n := range []int{0, 10, 3 << 20} {
			_, err := b.files().Write(t.ctx, b.path("d/f"), brokenReader(n), driver.WriteOptions{})
			if !errors.Is(err, errReader) {
				t.Errorf("after %d bytes: error %v, want that of the reader", n, err)
			}
			_, err = b.files().Write(t.ctx, b.path("d/new"), brokenReader(n), driver.WriteOptions{})
			if !errors.Is(err, errReader) {
				t.Errorf("a new file, after %d bytes: error %v, want that of the reader", n, err)
			}
		}
		if got := b.read("d/f"); got != "old" {
			t.Errorf("the file is now %s", clip(got))
		}
		if got := b.list("d", 1); len(got) != 1 {
			t.Errorf("something is left: %q", got)
		}
	}},
	{"files/write-canceled", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.write("d/f", "old")
		ctx, cancel := context.WithCancel(t.ctx)
		_, err := b.files().Write(ctx, b.path("d/f"), &cancelingReader{cancel: cancel}, driver.WriteOptions{})
		t.wantCode("Write, canceled on the way", err, sandbox.CodeCanceled)
		if got := b.read("d/f"); got != "old" {
			t.Errorf("the file is now %s", clip(got))
		}
		t.eventually("the removal of what a canceled Write left", func() bool { return len(b.list("d", 1)) == 1 })
	}},
	{"files/write-no-replace", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.write("f", "old")
		_, err := b.files().Write(t.ctx, b.path("f"), strings.NewReader("new"), driver.WriteOptions{NoReplace: true})
		t.wantCode("Write over an existing file", err, sandbox.CodeAlreadyExists)
		if got := b.read("f"); got != "old" {
			t.Errorf("the file is now %q", got)
		}
		_, err = b.files().Write(t.ctx, b.path("g"), strings.NewReader("new"), driver.WriteOptions{NoReplace: true})
		t.ok("Write of a new file", err)
		if got := b.list("", 1); len(got) != 2 {
			t.Errorf("something is left: %q", got)
		}
	}},
	{"files/write-mode", capFiles, func(t *caseT) {
		b := t.sandbox()
		for _, mode := range []uint32{0o600, 0o755, 0o444, 0o777, 0o4755} {
			name := fmt.Sprintf("%o", mode)
			info, err := b.files().Write(t.ctx, b.path(name), strings.NewReader("x"), driver.WriteOptions{Mode: mode})
			t.ok("Write", err)
			if info.Mode != mode || b.stat(name).Mode != mode {
				t.Errorf("mode %o, want %o", info.Mode, mode)
			}
		}
		b.write("755", "again")
		if got := b.stat("755").Mode; got != 0o755 {
			t.Errorf("replacing did not keep the mode: %o", got)
		}
		b.mustSh("chmod 705 600")
		b.write("600", "again")
		if got := b.stat("600").Mode; got != 0o705 {
			t.Errorf("replacing did not keep the mode: %o", got)
		}
	}},
	{"files/write-runs", capFiles, func(t *caseT) {
		b := t.sandbox()
		_, err := b.files().Write(t.ctx, b.path("prog"), strings.NewReader("#!/bin/sh\necho ran\n"), driver.WriteOptions{Mode: 0o755})
		t.ok("Write", err)
		t.want(b.argv(b.path("prog")), "ran\n")
	}},
	{"files/write-owner", capUsers, func(t *caseT) {
		if !t.declared(capFiles) {
			t.Logf("the provider does not declare %s", capFiles)
			return
		}
		b := t.sandbox()
		write := func(name, owner string) sandbox.FileInfo {
			info, err := b.files().Write(t.ctx, b.path(name), strings.NewReader("x"), driver.WriteOptions{Owner: owner})
			t.ok("Write", err)
			return info
		}
		if info := write("d/f", "1234:2345"); info.UID != 1234 || info.GID != 2345 {
			t.Errorf("owner %d:%d, want 1234:2345", info.UID, info.GID)
		}
		if d := b.stat("d"); d.UID != 1234 || d.GID != 2345 {
			t.Errorf("owner of a made parent %d:%d, want 1234:2345", d.UID, d.GID)
		}
		if info := write("d/f", ""); info.UID != 1234 || info.GID != 2345 {
			t.Errorf("replacing did not keep the owner: %d:%d", info.UID, info.GID)
		}
		_, err := b.files().Write(t.ctx, b.path("g"), strings.NewReader("x"), driver.WriteOptions{Owner: "no-such-user"})
		t.wantCode("Write for an unknown owner", err, sandbox.CodeInvalid, sandbox.CodeNotFound)
		t.ok("Mkdir", b.files().Mkdir(t.ctx, b.path("e"), driver.MkdirOptions{Owner: "1234"}))
		if d := b.stat("e"); d.UID != 1234 {
			t.Errorf("owner of a made directory %d, want 1234", d.UID)
		}
	}},
	{"files/round-trip", capFiles, func(t *caseT) {
		b := t.sandbox()
		want := pattern(size(t.suite, 64<<20, 2<<20))
		info, err := b.files().Write(t.ctx, b.path("f"), bytes.NewReader(want), driver.WriteOptions{})
		t.ok("Write", err)
		if info.Size != int64(len(want)) {
			t.Errorf("size %d, want %d", info.Size, len(want))
		}
		t.sameBytes("what came back", []byte(b.read("f")), want)
	}},
	{"files/write-small-reads", capFiles, func(t *caseT) {
		b := t.sandbox()
		want := pattern(10000)
		_, err := b.files().Write(t.ctx, b.path("f"), &dribble{want}, driver.WriteOptions{})
		t.ok("Write", err)
		t.sameBytes("written in small pieces", []byte(b.read("f")), want)
	}},
	{"files/concurrent-writers", capFiles, func(t *caseT) {
		b := t.sandbox()
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				content := strings.Repeat(string(rune('a'+i)), 300<<10)
				_, err := b.files().Write(t.ctx, b.path("f"), strings.NewReader(content), driver.WriteOptions{})
				if err != nil {
					t.Errorf("writer %d: %v", i, t.vet(err))
				}
			})
		}
		wg.Wait()
		got := b.read("f")
		if len(got) != 300<<10 || strings.Count(got, got[:1]) != len(got) {
			t.Errorf("the file is a mixture: %s", clip(got))
		}
		if got := b.list("", 1); len(got) != 1 {
			t.Errorf("something is left: %q", got)
		}
	}},
	{"files/concurrent-reads", capFiles, func(t *caseT) {
		b := t.sandbox()
		want := string(pattern(200 << 10))
		b.write("f", want)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				r, _, err := b.files().Read(t.ctx, b.path("f"), driver.ReadOptions{})
				if err != nil {
					t.Errorf("Read: %v", t.vet(err))
					return
				}
				defer r.Close()
				if data, err := readAll(r); err != nil || string(data) != want {
					t.Errorf("a concurrent reader: %d bytes, %v", len(data), err)
				}
			})
		}
		wg.Wait()
	}},
}

// cancelingReader cancels the call that reads it. It has no end.
type cancelingReader struct {
	n      int
	cancel func()
}

func (c *cancelingReader) Read(p []byte) (int, error) {
	if c.n++; c.n == 3 {
		c.cancel()
	}
	if c.n > 1<<20 {
		return 0, errReader
	}
	return len(p), nil
}

// dribble returns a few bytes per Read.
type dribble struct{ rest []byte }

func (d *dribble) Read(p []byte) (int, error) {
	if len(d.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, d.rest[:min(7, len(d.rest))])
	d.rest = d.rest[n:]
	return n, nil
}

var fileTreeCases = []testCase{
	{"files/mkdir", capFiles, func(t *caseT) {
		b := t.sandbox()
		fs := b.files()
		t.ok("Mkdir", fs.Mkdir(t.ctx, b.path("d"), driver.MkdirOptions{}))
		if d := b.stat("d"); d.Type != sandbox.TypeDir || d.Mode != 0o755 {
			t.Errorf("made %+v", d)
		}
		t.wantCode("Mkdir of what exists", fs.Mkdir(t.ctx, b.path("d"), driver.MkdirOptions{}), sandbox.CodeAlreadyExists)
		t.ok("Mkdir with parents of what exists", fs.Mkdir(t.ctx, b.path("d"), driver.MkdirOptions{Parents: true}))
		t.wantCode("Mkdir without parents", fs.Mkdir(t.ctx, b.path("x/y"), driver.MkdirOptions{}), sandbox.CodeNotFound)
		t.ok("Mkdir with parents", fs.Mkdir(t.ctx, b.path("x/y/z"), driver.MkdirOptions{Parents: true, Mode: 0o700}))
		if got := b.stat("x/y/z").Mode; got != 0o700 {
			t.Errorf("mode %o, want 700", got)
		}
		b.write("f", "x")
		t.wantCode("Mkdir over a file", fs.Mkdir(t.ctx, b.path("f"), driver.MkdirOptions{Parents: true}),
			sandbox.CodeAlreadyExists, sandbox.CodeInvalid)
		t.wantCode("Mkdir below a file", fs.Mkdir(t.ctx, b.path("f/d"), driver.MkdirOptions{Parents: true}),
			sandbox.CodeInvalid, sandbox.CodeNotFound, sandbox.CodeConflict, sandbox.CodeAlreadyExists)
		t.want(b.argv("cat", b.path("f")), "x")
	}},
	{"files/remove", capFiles, func(t *caseT) {
		b := t.sandbox()
		fs := b.files()
		b.mustSh("mkdir -p full/deep empty; echo x >full/f; echo x >full/deep/g; echo x >f; ln -s full link; mkfifo fifo")
		t.wantCode("Remove of a directory that is not empty", fs.Remove(t.ctx, b.path("full"), false), sandbox.CodeConflict)
		for _, name := range []string{"f", "empty", "link", "fifo"} {
			t.ok("Remove "+name, fs.Remove(t.ctx, b.path(name), false))
			if b.exists(name) {
				t.Errorf("%s is still there", name)
			}
		}
		if got := b.read("full/f"); got != "x\n" {
			t.Errorf("removing a link removed what it led to")
		}
		t.ok("Remove, recursive", fs.Remove(t.ctx, b.path("full"), true))
		if b.exists("full") {
			t.Errorf("the tree is still there")
		}
		t.wantCode("Remove of the root", fs.Remove(t.ctx, "/", true), sandbox.CodeInvalid)
		t.wantCode("Remove of the root", fs.Remove(t.ctx, "/", false), sandbox.CodeInvalid)
		t.want(b.argv("echo", "alive"), "alive\n")
	}},
	{"files/remove-does-not-follow", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("mkdir keep tree; echo x >keep/f; ln -s ../keep tree/link; ln -s ../keep/f tree/file")
		t.ok("Remove", b.files().Remove(t.ctx, b.path("tree"), true))
		if got := b.read("keep/f"); got != "x\n" {
			t.Errorf("the removal followed a link")
		}
	}},
	{"files/remove-deep", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.mustSh(`i=0; while [ $i -lt 300 ]; do mkdir x && cd x; i=$((i+1)); done`)
		t.ok("Remove", b.files().Remove(t.ctx, b.path("x"), true))
	}},
	{"files/move", capFiles, func(t *caseT) {
		b := t.sandbox()
		fs := b.files()
		b.mustSh("mkdir -p d/e; echo f >f; echo g >g; echo h >d/h; ln -s f link")
		t.ok("Move", fs.Move(t.ctx, b.path("f"), b.path("f2"), false))
		t.wantCode("Move over a file", fs.Move(t.ctx, b.path("f2"), b.path("g"), false), sandbox.CodeAlreadyExists)
		if b.read("f2") != "f\n" || b.read("g") != "g\n" {
			t.Errorf("a refused Move changed something")
		}
		t.ok("Move, overwriting", fs.Move(t.ctx, b.path("f2"), b.path("g"), true))
		if b.exists("f2") || b.read("g") != "f\n" {
			t.Errorf("Move did not overwrite")
		}
		t.ok("Move of a directory", fs.Move(t.ctx, b.path("d"), b.path("d2"), false))
		if b.read("d2/h") != "h\n" || b.exists("d") {
			t.Errorf("Move of a directory lost something")
		}
		b.mustSh("mkdir target")
		t.wantCode("Move over a directory", fs.Move(t.ctx, b.path("g"), b.path("target"), true), sandbox.CodeAlreadyExists)
		t.wantCode("Move of a directory over one", fs.Move(t.ctx, b.path("d2"), b.path("target"), true), sandbox.CodeAlreadyExists)
		t.ok("Move of a link", fs.Move(t.ctx, b.path("link"), b.path("link2"), false))
		if got := b.stat("link2"); got.Type != sandbox.TypeSymlink || got.Target != "f" {
			t.Errorf("the moved link: %+v", got)
		}
		t.wantCode("Move into itself", fs.Move(t.ctx, b.path("d2"), b.path("d2/e/inside"), false), sandbox.CodeInvalid)
		t.wantCode("Move to a missing directory", fs.Move(t.ctx, b.path("g"), b.path("missing/g"), false), sandbox.CodeNotFound)
	}},
	{"files/write-through-link", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("mkdir real; ln -s real linkdir")
		b.write("linkdir/f", "through")
		if got := b.read("real/f"); got != "through" {
			t.Errorf("a link in the middle of a path: %q", got)
		}
	}},
}
