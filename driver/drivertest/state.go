package drivertest

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

func (sb *testSandbox) pause() error {
	p, ok := driver.As[driver.Pauser](sb.inst)
	if !ok {
		sb.Fatalf("pause is declared, but the instance is no Pauser")
	}
	return p.Pause(sb.ctx)
}

func (sb *testSandbox) resume() error {
	p, _ := driver.As[driver.Pauser](sb.inst)
	return p.Resume(sb.ctx)
}

// snapshot takes a snapshot that is removed at the end of the case.
func (sb *testSandbox) snapshot(opts driver.SnapshotOptions) driver.SnapshotRef {
	return sb.fullSnapshot(opts).Ref
}

func (sb *testSandbox) fullSnapshot(opts driver.SnapshotOptions) driver.Snapshot {
	if opts.ID == "" {
		opts.ID = newSnapshotID()
	}
	resting := sb.snapshotsAtRest() && !opts.Stop
	opts.Stop = opts.Stop || resting
	s, err := sb.trySnapshot(opts)
	sb.ok("Snapshot", err)
	if kind := kindOf(opts); s.Ref.Kind != kind || s.Engine == "" || s.Size <= 0 {
		sb.Errorf("Snapshot describes a snapshot of kind %s as %+v", kind, s)
	}
	sb.removeLater(s.Ref)
	if resting {
		sb.succeed(s.Ref)
	}
	return s
}

// snapshotsAtRest reports whether the provider can take snapshots only of sandboxes at
// rest.
func (sb *testSandbox) snapshotsAtRest() bool {
	_, rests := driver.As[driver.RestingSnapshotter](sb.inst)
	return rests
}

// succeed continues a sandbox that a snapshot ended as a copy of itself.
func (sb *testSandbox) succeed(ref driver.SnapshotRef) {
	heir, _ := sb.restore(ref, func(s *sandbox.Spec) {
		if sb.spec != nil {
			id, name := s.ID, s.Name
			*s = *sb.spec
			s.ID, s.Name = id, name
		}
	})
	sb.inst = heir.inst
}

func kindOf(opts driver.SnapshotOptions) driver.SnapshotKind {
	if opts.Memory {
		return driver.SnapshotMemory
	}
	return driver.SnapshotFilesystem
}

func (sb *testSandbox) trySnapshot(opts driver.SnapshotOptions) (driver.Snapshot, error) {
	if opts.ID == "" {
		opts.ID = newSnapshotID()
	}
	s, ok := driver.As[driver.Snapshotter](sb.inst)
	if !ok {
		sb.Fatalf("snapshot is declared, but the instance is no Snapshotter")
	}
	return s.Snapshot(sb.ctx, opts)
}

// restore restores a sandbox and destroys it afterwards.
func (t *caseT) restore(ref driver.SnapshotRef, change ...func(*sandbox.Spec)) (*testSandbox, driver.Restored) {
	inst, how, err := t.tryRestore(t.spec(change...), ref)
	if err != nil {
		t.Fatalf("Restore: %v", t.vet(err))
	}
	t.Cleanup(func(ctx context.Context) {
		if err := inst.Destroy(ctx); err != nil {
			t.Errorf("Destroy: %v", t.vet(err))
		}
	})
	return t.attach(inst), how
}

func (t *caseT) tryRestore(spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	r, ok := driver.As[driver.Restorer](t.provider)
	if !ok {
		t.Fatalf("snapshot is declared, but the provider is no Restorer")
	}
	return r.Restore(t.ctx, spec, ref)
}

// refusesRestore checks that an incomplete snapshot cannot be restored.
func (t *caseT) refusesRestore(what string, ref driver.SnapshotRef, codes ...sandbox.Code) {
	spec := t.spec()
	inst, _, err := t.tryRestore(spec, ref)
	if err == nil {
		_ = inst.Destroy(t.ctx)
	}
	t.wantCode("Restore from "+what, err, codes...)
	t.notListed(t.provider, spec.ID)
}

// counter answers each line with the line and the number of lines.
const counter = `n=0; while read -r line; do n=$((n + 1)); echo "$line $n"; done`

// count sends a line to a counter and checks the answer.
func (sb *testSandbox) count(p driver.Process, out *lines, word string, want int) {
	sb.send(p, word+"\n")
	if got := out.next(); got != word+" "+strconv.Itoa(want) {
		sb.Errorf("it answers %q and not %q", got, word+" "+strconv.Itoa(want))
	}
}

// pauseProbe is how long to watch whether a call on a paused sandbox returns. A
// longer time would not change the result of a correct provider.
const pauseProbe = 150 * time.Millisecond

var pauseCases = []testCase{
	{"pause/continues", capPause, func(t *caseT) {
		b := t.fresh()
		p := b.start(sandbox.Command{Args: []string{"sh", "-c", counter}, Stdin: true})
		out := b.readLines(p.Stdout())
		b.count(p, out, "a", 1)
		for range 2 {
			t.ok("Pause", b.pause())
		}
		for range 2 {
			t.ok("Resume", b.resume())
		}
		b.count(p, out, "b", 2)
		t.ok("Pause", b.pause())
		t.ok("Resume", b.resume())
		b.count(p, out, "c", 3)
	}},
	{"pause/stands-still", capPause, func(t *caseT) {
		b := t.fresh()
		t.ok("Pause", b.pause())
		done := make(chan error, 1)
		go func() {
			p, err := b.inst.Exec(t.ctx, &sandbox.Command{Args: []string{"true"}})
			if err == nil {
				_, err = p.Wait(t.ctx)
				_ = p.Close()
			}
			done <- err
		}()
		select {
		case err := <-done:
			t.Errorf("a command ended in a paused sandbox: %v", t.vet(err))
		case <-time.After(pauseProbe):
		}
		t.ok("Resume", b.resume())
		select {
		case err := <-done:
			t.ok("a command that had to wait", err)
		case <-t.ctx.Done():
			t.Errorf("a command that waited for Resume never ends")
		}
	}},
	{"pause/canceled", capPause, func(t *caseT) {
		b := t.fresh()
		t.ok("Pause", b.pause())
		ctx, cancel := context.WithTimeout(t.ctx, pauseProbe)
		defer cancel()
		p, err := b.inst.Exec(ctx, &sandbox.Command{Args: []string{"true"}})
		if err == nil {
			_, err = p.Wait(ctx)
			_ = p.Close()
		}
		t.wantCode("a call on a paused sandbox whose context ends", err, sandbox.CodeTimeout, sandbox.CodeCanceled)
		t.ok("Resume", b.resume())
		t.want(b.argv("echo", "on"), "on\n")
	}},
	{"pause/listed", capPause, func(t *caseT) {
		b := t.fresh()
		t.ok("Pause", b.pause())
		if f, ok := t.find(t.provider, b.inst.ID()); !ok || f.State != sandbox.Paused {
			t.Errorf("a paused sandbox is listed as %+v, %v", f, ok)
		}
		t.ok("Resume", b.resume())
		if f, ok := t.find(t.provider, b.inst.ID()); !ok || f.State != sandbox.Running {
			t.Errorf("a resumed sandbox is listed as %+v, %v", f, ok)
		}
	}},
	{"pause/destroy", capPause, func(t *caseT) {
		b := t.fresh()
		t.ok("Pause", b.pause())
		t.ok("Destroy of a paused sandbox", b.inst.Destroy(t.ctx))
		t.notListed(t.provider, b.inst.ID())
		t.wantCode("Pause of a destroyed sandbox", b.pause(), sandbox.CodeGone)
		t.wantCode("Resume of a destroyed sandbox", b.resume(), sandbox.CodeGone)
	}},
	{"pause/elsewhere", capPause, func(t *caseT) {
		if !t.declared(capReattach) {
			return
		}
		b := t.fresh()
		t.ok("Pause", b.pause())
		inst, err := t.connect().Attach(t.ctx, b.inst.ID())
		t.ok("Attach to a paused sandbox", err)
		other := t.attach(inst)
		t.ok("Pause of what another process paused", other.pause())
		t.ok("Resume of what another process paused", other.resume())
		t.want(other.argv("echo", "there"), "there\n")
		t.want(b.argv("echo", "here"), "here\n")
		t.ok("Resume of what another process resumed", b.resume())
	}},
}

// treeScript creates files of all kinds, and lookScript describes them.
const (
	treeScript = `mkdir d d/e; echo one >d/e/f; chmod 640 d/e/f; ln -s e/f d/l; ln d/e/f d/h; mkdir d/gone; rm -r d/gone; printf '' >d/empty; echo x >"d/a b"`
	lookScript = `cat d/e/f d/l d/h "d/a b"; ls -l d/e/f | cut -c1-10; ls d; ls d/e; readlink d/l`
)

var snapshotCases = []testCase{
	{"snapshot/files", capSnapshot, func(t *caseT) {
		b := t.fresh()
		b.mustSh(treeScript)
		want := b.mustSh(lookScript)
		ref := b.snapshot(driver.SnapshotOptions{})
		b.mustSh("echo later >d/later")
		twin, how := t.restore(ref)
		if how.Memory || how.Why != "" {
			t.Errorf("files only are restored as %+v", how)
		}
		twin.dir = b.dir
		if got := twin.mustSh(lookScript); got != want {
			t.Errorf("the files are not the same: %s, want %s", clip(got), clip(want))
		}
	}},
	{"snapshot/goes-on", capSnapshot, func(t *caseT) {
		b := t.fresh()
		p := b.start(sandbox.Command{Args: []string{"sh", "-c", counter}, Stdin: true})
		out := b.readLines(p.Stdout())
		b.count(p, out, "a", 1)
		if b.snapshotsAtRest() {
			_, err := b.trySnapshot(driver.SnapshotOptions{})
			t.wantCode("Snapshot of what runs", err, sandbox.CodeConflict)
			b.count(p, out, "b", 2)
			return
		}
		for n := range 3 {
			b.snapshot(driver.SnapshotOptions{Memory: t.declared(capMemory)})
			b.count(p, out, "b", 2+n)
		}
	}},
	{"snapshot/stop", capSnapshot, func(t *caseT) {
		b := t.fresh()
		b.mustSh("echo kept >kept")
		ref := b.snapshot(driver.SnapshotOptions{Stop: true})
		exit, err := b.inst.Wait(t.ctx)
		t.ok("Wait after a snapshot that stops", err)
		if exit.Reason != sandbox.ReasonKilled {
			t.Errorf("a sandbox that a snapshot stopped ended as %+v", exit)
		}
		twin, _ := t.restore(ref)
		twin.dir = b.dir
		t.want(twin.sh("cat kept"), "kept\n")
	}},
	{"snapshot/paused", capSnapshot, func(t *caseT) {
		if !t.declared(capPause) {
			return
		}
		b := t.fresh()
		b.mustSh("echo kept >kept")
		t.ok("Pause", b.pause())
		ref := b.snapshot(driver.SnapshotOptions{Memory: t.declared(capMemory)})
		if f, ok := t.find(t.provider, b.inst.ID()); !ok || f.State != sandbox.Paused {
			t.Errorf("after its snapshot, a paused sandbox is listed as %+v, %v", f, ok)
		}
		twin, _ := t.restore(ref)
		twin.dir = b.dir
		t.want(twin.sh("cat kept"), "kept\n")
		t.ok("Resume", b.resume())
		t.want(b.sh("cat kept"), "kept\n")
	}},
	{"snapshot/destroyed", capSnapshot, func(t *caseT) {
		b := t.fresh()
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		_, err := b.trySnapshot(driver.SnapshotOptions{})
		t.wantCode("Snapshot of a destroyed sandbox", err, sandbox.CodeGone)
	}},
}

var restoreCases = []testCase{
	{"restore/independent", capSnapshot, func(t *caseT) {
		b := t.fresh()
		b.mustSh("echo source >who")
		ref := b.snapshot(driver.SnapshotOptions{})
		one, _ := t.restore(ref)
		two, _ := t.restore(ref)
		one.dir, two.dir = b.dir, b.dir
		one.mustSh("echo one >who")
		two.mustSh("echo two >who")
		t.want(b.sh("cat who"), "source\n")
		t.want(one.sh("cat who"), "one\n")
		t.want(two.sh("cat who"), "two\n")
	}},
	{"restore/identity", capSnapshot, func(t *caseT) {
		b := t.fresh(func(s *sandbox.Spec) { s.Env = map[string]string{"WHO": "source", "OLD": "old"} })
		ref := b.snapshot(driver.SnapshotOptions{Memory: t.declared(capMemory)})
		twin, _ := t.restore(ref, func(s *sandbox.Spec) { s.Env = map[string]string{"WHO": "twin"} })
		t.want(twin.argv("sh", "-c", "echo $WHO $OLD"), "twin\n")
		t.want(b.argv("sh", "-c", "echo $WHO $OLD"), "source old\n")
	}},
	{"restore/taken-name", capSnapshot, func(t *caseT) {
		b := t.fresh()
		ref := b.snapshot(driver.SnapshotOptions{})
		spec := t.spec()
		spec.ID = b.inst.ID()
		_, _, err := t.tryRestore(spec, ref)
		t.wantCode("Restore with the ID of a living sandbox", err, sandbox.CodeAlreadyExists)
		t.want(b.argv("echo", "alive"), "alive\n")
	}},
	{"restore/canceled", capSnapshot, func(t *caseT) {
		b := t.fresh()
		ref := b.snapshot(driver.SnapshotOptions{})
		spec := t.spec()
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		r, _ := driver.As[driver.Restorer](t.provider)
		_, _, err := r.Restore(ctx, spec, ref)
		t.wantCode("Restore with a canceled context", err, sandbox.CodeCanceled)
		t.notListed(t.provider, spec.ID)
	}},
	{"restore/damaged", capSnapshot, func(t *caseT) {
		if t.h.SnapshotFiles == nil {
			return
		}
		b := t.fresh()
		b.mustSh("echo content >file")
		ref := b.snapshot(driver.SnapshotOptions{Memory: t.declared(capMemory)})
		dir := t.h.SnapshotFiles(ref)
		for _, name := range t.partsOf(dir) {
			for what, damage := range damages {
				path := filepath.Join(dir, name)
				whole, err := os.ReadFile(path)
				if err != nil {
					t.Fatalf("%v", err)
				}
				if len(whole) == 0 {
					continue
				}
				t.ok("damaging the snapshot", damage(path, whole))
				t.refusesRestore("a snapshot with "+name+" "+what, ref, sandbox.CodeInvalid)
				_ = os.RemoveAll(path)
				t.ok("mending the snapshot", os.WriteFile(path, whole, 0o600))
			}
		}
		twin, _ := t.restore(ref)
		twin.dir = b.dir
		t.want(twin.sh("cat file"), "content\n")
	}},
}

// damages are ways to damage a file.
var damages = map[string]func(path string, whole []byte) error{
	"truncated": func(path string, whole []byte) error { return os.WriteFile(path, whole[:len(whole)/2], 0o600) },
	"removed":   func(path string, _ []byte) error { return os.Remove(path) },
	"altered": func(path string, whole []byte) error {
		bad := append([]byte(nil), whole...)
		bad[len(bad)/2] ^= 0x40
		return os.WriteFile(path, bad, 0o600)
	},
	"longer": func(path string, whole []byte) error {
		return os.WriteFile(path, append(append([]byte(nil), whole...), "more"...), 0o600)
	},
	"replaced by a link": func(path string, _ []byte) error {
		if err := os.Remove(path); err != nil {
			return err
		}
		return os.Symlink("/etc/hostname", path)
	},
	"replaced by a directory": func(path string, _ []byte) error {
		if err := os.Remove(path); err != nil {
			return err
		}
		return os.Mkdir(path, 0o700)
	},
}

// partsOf lists the files of a snapshot.
func (t *caseT) partsOf(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		t.Fatalf("the snapshot's directory holds %v, %v", entries, err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

var forkCases = []testCase{
	{"fork/processes", capMemory, func(t *caseT) {
		b := t.fresh()
		p := b.start(sandbox.Command{Args: []string{"sh", "-c", counter}, Stdin: true, Background: true})
		out := b.readLines(p.Stdout())
		b.count(p, out, "a", 1)
		b.count(p, out, "b", 2)
		ref := b.snapshot(driver.SnapshotOptions{Memory: true})
		for i := range 3 {
			twin, how := t.restore(ref)
			if !how.Memory {
				t.Fatalf("the memory is not restored: %s", how.Why)
			}
			again := twin.reconnect(p.Info().ID)
			if again.Info().PID != p.Info().PID {
				t.Errorf("process %d became %d", p.Info().PID, again.Info().PID)
			}
			answers := twin.readLines(again.Stdout())
			answers.await("b 2")
			for n := range i + 1 {
				twin.count(again, answers, "c", 3+n)
			}
		}
		b.count(p, out, "d", 3)
	}},
	{"fork/files-only", capMemory, func(t *caseT) {
		r, ok := driver.As[driver.FileRestorer](t.provider)
		if !ok {
			t.Fatalf("snapshots hold memory, and the provider is no driver.FileRestorer")
		}
		b := t.fresh()
		p := b.start(sandbox.Command{Args: []string{"sh", "-c", counter}, Stdin: true, Background: true})
		out := b.readLines(p.Stdout())
		b.count(p, out, "a", 1)
		b.mustSh("echo kept >kept")
		ref := b.snapshot(driver.SnapshotOptions{Memory: true})
		inst, err := r.RestoreFiles(t.ctx, t.spec(), ref)
		if err != nil {
			t.Fatalf("RestoreFiles: %v", t.vet(err))
		}
		t.Cleanup(func(ctx context.Context) { t.ok("Destroy", inst.Destroy(ctx)) })
		twin := t.attach(inst)
		twin.dir = b.dir
		m, _ := driver.As[driver.ProcessManager](inst)
		if all, err := m.Processes(t.ctx); err != nil || len(all) > 0 {
			t.Errorf("processes although no memory was restored: %+v, %v", all, t.vet(err))
		}
		t.want(twin.sh("cat kept"), "kept\n")
		b.count(p, out, "b", 2)
	}},
	{"fork/stopped", capMemory, func(t *caseT) {
		b := t.fresh()
		p := b.start(sandbox.Command{Args: []string{"sh", "-c", counter}, Stdin: true, Background: true})
		out := b.readLines(p.Stdout())
		b.count(p, out, "a", 1)
		ref := b.snapshot(driver.SnapshotOptions{Memory: true, Stop: true})
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		twin, _ := t.restore(ref)
		again := twin.reconnect(p.Info().ID)
		answers := twin.readLines(again.Stdout())
		answers.await("a 1")
		twin.count(again, answers, "b", 2)
	}},
	{"fork/of-a-fork", capMemory, func(t *caseT) {
		b := t.fresh()
		p := b.start(sandbox.Command{Args: []string{"sh", "-c", counter}, Stdin: true, Background: true})
		out := b.readLines(p.Stdout())
		b.count(p, out, "a", 1)
		for n := range 3 {
			b, _ = t.restore(b.snapshot(driver.SnapshotOptions{Memory: true}))
			again := b.reconnect(p.Info().ID)
			answers := b.readLines(again.Stdout())
			answers.await("a " + strconv.Itoa(1+n))
			b.count(again, answers, "a", 2+n)
		}
	}},
	{"fork/callers", capMemory, func(t *caseT) {
		b := t.fresh()
		p := b.start(sandbox.Command{Args: []string{"sh", "-c", counter}, Stdin: true})
		out := b.readLines(p.Stdout())
		b.count(p, out, "a", 1)
		twin, _ := t.restore(b.snapshot(driver.SnapshotOptions{Memory: true}))
		// The client that started it is not connected to the copy.
		t.eventually("the copy of a command in the foreground ends", func() bool {
			return !twin.alive(strconv.Itoa(p.Info().PID))
		})
		b.count(p, out, "b", 2)
	}},
	{"fork/random", capMemory, func(t *caseT) {
		b := t.fresh()
		ref := b.snapshot(driver.SnapshotOptions{Memory: true})
		seen := map[string]bool{}
		for range 3 {
			twin, _ := t.restore(ref)
			seen[strings.TrimSpace(twin.mustSh("head -c 16 /dev/urandom | od -An -tx1"))] = true
		}
		if len(seen) != 3 {
			t.Errorf("copies draw the same random bytes")
		}
	}},
}

// reconnect finds a background command in a copy of its sandbox.
func (sb *testSandbox) reconnect(id string) driver.Process {
	m, ok := driver.As[driver.ProcessManager](sb.inst)
	if !ok {
		sb.Fatalf("memory is declared without processes")
	}
	p, err := m.Reconnect(sb.ctx, id)
	if err != nil {
		sb.Fatalf("Reconnect in the copy: %v", sb.vet(err))
	}
	sb.Cleanup(func(context.Context) { _ = p.Close() })
	return p
}
