package drivertest

import (
	"archive/tar"
	"context"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// These cases compare a sandbox before and after it was stopped, saved and
// restored: its contents, its metadata, and the calls that were in progress.

// heirlooms returns an archive with every kind of file, owner and attribute
// that an archive can contain.
func (t *caseT) heirlooms() []byte {
	then := time.Unix(1_234_567_890, 0)
	owned := func(m member, uid, gid int, mode int64) member {
		m.Mode, m.ModTime = mode, then
		if t.declared(capUsers) {
			m.Uid, m.Gid = uid, gid
		}
		return m
	}
	directory := func(name string) member { return member{tar.Header{Typeflag: tar.TypeDir, Name: name}, ""} }
	marked := owned(file("d/marked", "with attributes"), 7, 8, 0o644)
	marked.PAXRecords = map[string]string{"SCHILY.xattr.user.colour": "gr\u00fcn\n=", "SCHILY.xattr.user.long": strings.Repeat("x", 4000)}
	return t.tarball(
		owned(directory("d"), 1234, 2345, 0o2750),
		owned(file("d/secret", "of somebody"), 1234, 2345, 0o400),
		owned(file("d/tool", "#!/bin/sh\n"), 0, 0, 0o4755),
		marked,
		owned(directory("d/drop"), 3, 4, 0o1777),
		owned(directory("d/closed"), 5, 6, 0),
		link(tar.TypeSymlink, "d/soft", "../elsewhere"),
		link(tar.TypeLink, "d/hard", "d/secret"),
		owned(member{tar.Header{Typeflag: tar.TypeFifo, Name: "d/pipe"}, ""}, 9, 9, 0o620),
		owned(file("d/empty", ""), 0, 0, 0o644),
	)
}

// inventory describes a tree by exporting it.
func (sb *testSandbox) inventory(p string) []string {
	var all []string
	for _, m := range sb.export(p, driver.ExportOptions{}) {
		var attrs []string
		for name, value := range m.PAXRecords {
			if strings.HasPrefix(name, "SCHILY.xattr.") {
				attrs = append(attrs, name+"="+strconv.Quote(value))
			}
		}
		slices.Sort(attrs)
		when := m.ModTime.Round(time.Second).Unix() // a snapshot of files needs no finer times
		if m.Typeflag == tar.TypeLink || m.Typeflag == tar.TypeSymlink {
			when = 0 // the time of a link does not matter
		}
		if strings.TrimSuffix(m.Name, "/") == path.Base(p) {
			when = 0 // the tree was made just now, and formats round or cut fractions of a second
		}
		all = append(all, strings.Join(append([]string{
			string(m.Typeflag), strings.TrimSuffix(m.Name, "/"), m.Linkname, strconv.FormatInt(m.Mode&0o7777, 8),
			strconv.Itoa(m.Uid) + ":" + strconv.Itoa(m.Gid), strconv.FormatInt(when, 10), m.data,
		}, attrs...), " "))
	}
	slices.Sort(all)
	return all
}

// exactly checks that a copy has the same tree as its source.
func (t *caseT) exactly(opts driver.SnapshotOptions) {
	if !t.declared(capArchive) {
		return
	}
	b := t.fresh()
	tree := b.path("heirlooms")
	t.ok("Import", b.importTo(tree, t.heirlooms()))
	want := b.inventory(tree)
	if len(want) < 10 {
		t.Fatalf("the source contains only %q", want)
	}
	twin, _ := t.restore(b.snapshot(opts))
	got := twin.inventory(tree)
	if _, drops := driver.As[driver.AttributeDropper](t.provider); drops {
		for _, lines := range [][]string{want, got} {
			for i, line := range lines {
				lines[i], _, _ = strings.Cut(line, " SCHILY.xattr.")
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the copy has\n%s\nand not\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

var travelCases = []testCase{
	{"pause/in-flight", capPause, func(t *caseT) {
		b := t.fresh()
		p := b.start(sandbox.Command{Args: []string{"sh", "-c", counter}, Stdin: true})
		out := b.readLines(p.Stdout())
		b.count(p, out, "a", 1)
		t.ok("Pause", b.pause())
		ctx, cancel := context.WithTimeout(t.ctx, pauseProbe)
		_, err := p.Wait(ctx)
		cancel()
		t.wantCode("Wait for a command of a paused sandbox, until its context ends", err, sandbox.CodeTimeout, sandbox.CodeCanceled)
		t.ok("Resume", b.resume())
		b.count(p, out, "b", 2)
		t.ok("CloseStdin", p.Stdin().Close())
		t.wantExit(b.wait(p), 0, 0, sandbox.ReasonExited)
	}},
	{"pause/timer", capPause, func(t *caseT) {
		b := t.fresh()
		p := b.start(sandbox.Command{Args: []string{"sh", "-c", "echo set; sleep 1; echo rang"}})
		out := b.readLines(p.Stdout())
		out.await("set")
		t.ok("Pause", b.pause())
		t.ok("Resume", b.resume())
		out.await("rang")
		t.wantExit(b.wait(p), 0, 0, sandbox.ReasonExited)
	}},
	{"pause/deadline", capPause, func(t *caseT) {
		if !t.declared(capDeadline) {
			return
		}
		b := t.fresh()
		t.ok("Pause", b.pause())
		d, _ := driver.As[driver.DeadlineSetter](b.inst)
		t.ok("SetDeadline", d.SetDeadline(t.ctx, time.Now().Add(-time.Second)))
		exit, err := b.inst.Wait(t.ctx)
		t.ok("Wait for a paused sandbox whose time is over", err)
		if exit.Reason != sandbox.ReasonLifetime {
			t.Errorf("a paused sandbox past its lifetime ended as %+v", exit)
		}
	}},
	{"snapshot/exact", capSnapshot, func(t *caseT) { t.exactly(driver.SnapshotOptions{}) }},
	{"snapshot/in-flight", capSnapshot, func(t *caseT) {
		b := t.fresh()
		p := b.start(sandbox.Command{Args: []string{"sh", "-c", counter}, Stdin: true})
		out := b.readLines(p.Stdout())
		b.count(p, out, "a", 1)
		b.snapshot(driver.SnapshotOptions{Memory: t.declared(capMemory), Stop: true})
		exit, err := p.Wait(t.ctx)
		switch {
		case err != nil:
			t.wantCode("Wait for a command of a sandbox that was stopped", err, sandbox.CodeGone, sandbox.CodeUnavailable)
		case exit.Reason == sandbox.ReasonExited:
			t.Errorf("a command that was cut off ended as %+v", exit)
		}
		_, err = b.inst.Exec(t.ctx, &sandbox.Command{Args: []string{"true"}})
		t.wantCode("Exec in a sandbox that was stopped", err, sandbox.CodeGone, sandbox.CodeConflict)
	}},
	{"snapshot/size", capSnapshot, func(t *caseT) {
		b := t.fresh()
		b.mustSh("dd if=/dev/zero of=big bs=65536 count=4 2>/dev/null")
		s := b.fullSnapshot(driver.SnapshotOptions{Memory: t.declared(capMemory)})
		if t.h.SnapshotFiles == nil {
			return
		}
		dir, size := t.h.SnapshotFiles(s.Ref), int64(0)
		for _, name := range t.partsOf(dir) {
			info, err := os.Stat(filepath.Join(dir, name))
			t.ok("Stat", err)
			size += info.Size()
		}
		if s.Size != size {
			t.Errorf("Snapshot says that it wrote %d bytes, and there are %d", s.Size, size)
		}
	}},
	{"snapshot/fails", capSnapshot, func(t *caseT) {
		b := t.fresh()
		p := b.start(sandbox.Command{Args: []string{"sh", "-c", counter}, Stdin: true})
		out := b.readLines(p.Stdout())
		b.count(p, out, "a", 1)
		canceled, cancel := context.WithCancel(t.ctx)
		cancel()
		for _, stop := range []bool{false, true} {
			opts := driver.SnapshotOptions{ID: "not/an/id", Memory: t.declared(capMemory), Stop: stop}
			_, err := b.trySnapshot(opts)
			t.wantCode("Snapshot with an unusable ID", err, sandbox.CodeInvalid)
			opts.ID = newSnapshotID()
			s, _ := driver.As[driver.Snapshotter](b.inst)
			_, err = s.Snapshot(canceled, opts)
			t.wantCode("Snapshot with a canceled context", err, sandbox.CodeCanceled)
			_, err = t.keeper().FindSnapshot(t.ctx, opts.ID)
			t.wantCode("FindSnapshot of one that failed", err, sandbox.CodeNotFound)
		}
		b.count(p, out, "b", 2)
		if f, ok := t.find(t.provider, b.inst.ID()); !ok || f.State != sandbox.Running {
			t.Errorf("after snapshots that failed, a sandbox is listed as %+v, %v", f, ok)
		}
	}},
	{"restore/hostname", capSnapshot, func(t *caseT) {
		b := t.fresh(func(s *sandbox.Spec) { s.Hostname = "source" })
		source := b.argv("hostname")
		if source.exit.Code != 0 || source.stdout != "source\n" {
			t.Logf("the provider gives sandboxes no names of their own: %v", source)
			return
		}
		ref := b.snapshot(driver.SnapshotOptions{Memory: t.declared(capMemory)})
		twin, _ := t.restore(ref, func(s *sandbox.Spec) { s.Hostname = "twin" })
		t.want(twin.argv("hostname"), "twin\n")
		t.want(b.argv("hostname"), "source\n")
	}},
	{"fork/exact", capMemory, func(t *caseT) { t.exactly(driver.SnapshotOptions{Memory: true}) }},
	{"fork/at-once", capMemory, forkAtOnce},
	{"fork/transient", capMemory, func(t *caseT) {
		b := t.fresh()
		p := b.start(sandbox.Command{Args: []string{"sh", "-c", counter}, Stdin: true, Background: true})
		out := b.readLines(p.Stdout())
		b.count(p, out, "a", 1)
		twin, how := t.restore(b.snapshot(driver.SnapshotOptions{Memory: true, Transient: true}))
		if !how.Memory {
			t.Fatalf("the memory is not restored: %s", how.Why)
		}
		again := twin.reconnect(p.Info().ID)
		answers := twin.readLines(again.Stdout())
		answers.await("a 1")
		twin.count(again, answers, "b", 2)
	}},
	{"fork/timer", capMemory, func(t *caseT) {
		b := t.fresh()
		p := b.start(sandbox.Command{Args: []string{"sh", "-c", "echo set; sleep 2; echo rang"}, Background: true})
		b.readLines(p.Stdout()).await("set")
		ref := b.snapshot(driver.SnapshotOptions{Memory: true})
		twin, _ := t.restore(ref)
		again := twin.reconnect(p.Info().ID)
		twin.readLines(again.Stdout()).await("rang")
		t.wantExit(twin.wait(again), 0, 0, sandbox.ReasonExited)
	}},
	{"fork/clock", capMemory, func(t *caseT) {
		// The sandbox's clock must lie between two readings of ours, with the
		// tolerance measured before.
		shows := func(b *testSandbox) (early, late bool) {
			before := time.Now().Unix()
			said, err := strconv.ParseInt(strings.TrimSpace(b.mustSh("date +%s")), 10, 64)
			t.ok("reading the clock", err)
			return said < before-1, said > time.Now().Unix()+1
		}
		b := t.fresh()
		if early, late := shows(b); early || late {
			t.Logf("the sandbox's clock is another one than ours")
			return
		}
		ref := b.snapshot(driver.SnapshotOptions{Memory: true})
		for range 2 {
			b.mustSh("sleep 1") // time passes before the copies exist
			twin, _ := t.restore(ref)
			if early, late := shows(twin); early || late {
				t.Errorf("the clock of a copy is slow (%v) or fast (%v)", early, late)
			}
		}
	}},
	{"fork/listener", capMemory, func(t *caseT) {
		if !t.declared(capPorts) {
			return
		}
		b := t.fresh()
		args := b.h.Echo
		if args == nil {
			args = b.python(echoServer)
		}
		p := b.start(sandbox.Command{Args: args, Background: true})
		port, err := strconv.ParseUint(b.readLines(p.Stdout()).next(), 10, 16)
		t.ok("reading the server's port", err)
		ref := b.snapshot(driver.SnapshotOptions{Memory: true})
		one, _ := t.restore(ref)
		two, _ := t.restore(ref)
		for _, who := range []*testSandbox{b, one, two} {
			got, err := roundTrip(t.ctx, who.dial(uint16(port)), []byte("hello"))
			t.ok("talking to a server that listened before", err)
			t.sameBytes("what came back", got, []byte("hello"))
		}
	}},
	{"fork/descendants", capMemory, func(t *caseT) {
		b := t.fresh()
		script := `sh -c 'while sleep 1; do :; done' & echo $$ $!; wait`
		p := b.start(sandbox.Command{Args: []string{"sh", "-c", script}, Background: true})
		pids := strings.Fields(b.readLines(p.Stdout()).next())
		twin, _ := t.restore(b.snapshot(driver.SnapshotOptions{Memory: true}))
		for _, pid := range pids {
			if !twin.alive(pid) {
				t.Errorf("process %s is not in the copy", pid)
			}
		}
		// They belong to the copy: ending one does not end it in the source.
		twin.kill(p.Info().ID)
		t.eventually("the end of a process in the copy", func() bool { return !twin.alive(pids[0]) })
		if !b.alive(pids[0]) || !b.alive(pids[1]) {
			t.Errorf("a process that ended in the copy ended in the source")
		}
	}},
}

// forkAtOnce makes copies concurrently; each must work independently.
func forkAtOnce(t *caseT) {
	b := t.fresh()
	p := b.start(sandbox.Command{Args: []string{"sh", "-c", counter}, Stdin: true, Background: true})
	out := b.readLines(p.Stdout())
	b.count(p, out, "a", 1)
	ref := b.snapshot(driver.SnapshotOptions{Memory: true})
	specs := []*sandbox.Spec{t.spec(), t.spec(), t.spec()}
	copies, errs := make([]driver.Instance, len(specs)), make([]error, len(specs))
	var all sync.WaitGroup
	for i, spec := range specs {
		all.Go(func() { copies[i], _, errs[i] = t.tryRestore(spec, ref) })
	}
	all.Wait()
	for i, inst := range copies {
		if errs[i] != nil {
			t.Errorf("concurrent Restore: %v", t.vet(errs[i]))
			continue
		}
		t.Cleanup(func(ctx context.Context) { t.ok("Destroy", inst.Destroy(ctx)) })
		twin := t.attach(inst)
		again := twin.reconnect(p.Info().ID)
		answers := twin.readLines(again.Stdout())
		answers.await("a 1")
		for n := range i + 1 {
			twin.count(again, answers, "copy", 2+n)
		}
	}
	b.count(p, out, "b", 2)
}
