package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// goBuild builds a package with other link flags and additional flags. It is
// slow, so tests that need it do not run in short mode.
func goBuild(t *testing.T, out, pkg, link string, flags ...string) {
	t.Helper()
	args := append([]string{"build", "-buildvcs=false", "-ldflags=-s -w " + link, "-o", out}, flags...)
	build := exec.Command("go", append(args, pkg)...)
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// fullOnly skips a test that builds the program again in short mode.
func fullOnly(t *testing.T) {
	t.Helper()
	need.Full(t, "it builds the program again")
}

// otherGuest builds a different guest and returns the flag that embeds it
// instead of this tree's.
func otherGuest(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	goBuild(t, filepath.Join(dir, "guest"), "../atoll-guest", "-buildid=next")
	content, err := os.ReadFile(filepath.Join(dir, "guest"))
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	embedded, err := filepath.Abs("../../internal/guest/program/built/linux-" + runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		embedded + ".gz":     file("gz", packed.Bytes()),
		embedded + ".sha256": file("sha256", []byte(hex.EncodeToString(sum[:]))),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return "-overlay=" + file("overlay.json", overlay)
}

// replace kills the daemon and starts one of another build. New kernels are of
// that build, too.
func (s *soaker) replace(t *testing.T, bin string) {
	t.Helper()
	s.kill()
	s.bin, s.env = bin, append(s.env, "ATOLL_KERNEL="+bin)
	s.start(t)
}

// counter starts a process whose progress is visible.
const counter = "n=0; while :; do n=$((n+1)); echo $n >/root/n; sleep 0.05; done"

// counts fails unless the counter of a sandbox continues.
func counts(t *testing.T, sb *atoll.Sandbox) {
	t.Helper()
	const wait = "a=$(cat /root/n); for i in $(seq 100); do [ \"$(cat /root/n)\" = \"$a\" ] || exec echo goes on; sleep 0.1; done"
	if got := run(t, sb, wait); got != "goes on" {
		t.Errorf("%s: its processes do not continue (%q): %s", sb.Name(), got, sb.Info().Reason)
	}
}

// counting creates a sandbox with a counter.
func counting(t *testing.T, s *soaker, name string) *atoll.Sandbox {
	t.Helper()
	sb := s.sandbox(t, name)
	p, err := sb.Exec(t.Context(), sandbox.Command{Shell: counter, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	run(t, sb, "until [ -s /root/n ]; do sleep 0.05; done")
	return sb
}

// TestMemoryOutlivesUpgrade checks that memory saved by one build continues
// under another build with another guest, and the other way round.
func TestMemoryOutlivesUpgrade(t *testing.T) {
	fullOnly(t)
	next := filepath.Join(built.dir, "atoll-next-guest")
	goBuild(t, next, ".", "", "-tags=next", otherGuest(t))
	s := newSoaker(t)
	first := s.bin
	asleep, awake := counting(t, s, "asleep"), counting(t, s, "awake")
	if _, err := awake.Snapshot(t.Context(), durable.SnapshotRequest{Name: "saved", Memory: true}); err != nil {
		t.Fatal(err)
	}
	for _, bin := range []string{next, first} {
		if _, err := asleep.Pause(t.Context(), sandbox.PauseDisk); err != nil {
			t.Fatal(err)
		}
		s.replace(t, bin)
		if info, err := asleep.Resume(t.Context()); err != nil || info.Reason != "" {
			t.Fatalf("resuming: %q, %v", info.Reason, err)
		}
		counts(t, asleep)
		made, err := s.client.Create(t.Context(), sandbox.Spec{Snapshot: "saved"}, atoll.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		counts(t, made)
		copies, err := awake.Fork(t.Context(), durable.ForkRequest{Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		counts(t, copies[0])
		awake = counting(t, s, "") // with the kernel and the guest of this build
	}
}

// TestEngineChanges checks that if the memory of a sandbox cannot be restored,
// operations that would lose it are refused, and lost memory is reported.
func TestEngineChanges(t *testing.T) {
	fullOnly(t)
	next := filepath.Join(built.dir, "atoll-next-engine")
	goBuild(t, next, ".", "-X github.com/atoll-run/atoll/provider/gvisor/kernel.StateFormat=next")
	s := newSoaker(t)
	asleep, awake := counting(t, s, "asleep"), counting(t, s, "awake")
	expiring, err := s.client.Create(t.Context(), sandbox.Spec{Name: "expiring", Lifetime: sandbox.Lifetime{Timeout: time.Hour, TimeoutAction: sandbox.IdleSleep}}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := awake.Snapshot(t.Context(), durable.SnapshotRequest{Name: "saved", Memory: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := asleep.Pause(t.Context(), sandbox.PauseDisk); err != nil {
		t.Fatal(err)
	}
	s.replace(t, next)

	for what, do := range map[string]func() error{
		"fork": func() error { _, err := awake.Fork(t.Context(), durable.ForkRequest{Count: 2}); return err },
		"snapshot create --memory": func() error {
			_, err := awake.Snapshot(t.Context(), durable.SnapshotRequest{Name: "lost", Memory: true})
			return err
		},
		"pause --to-disk": func() error { _, err := awake.Pause(t.Context(), sandbox.PauseDisk); return err },
	} {
		if err := do(); sandbox.CodeOf(err) != sandbox.CodeUnsupported || !strings.Contains(err.Error(), "memory") {
			t.Errorf("%s: got %v, want unsupported, for its memory", what, err)
		}
		counts(t, awake)
	}
	all := 0
	for _, err := range s.client.List(t.Context(), atoll.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		all++
	}
	if all != 3 {
		t.Errorf("there are %d sandboxes, want 3", all)
	}
	if _, err := awake.Snapshot(t.Context(), durable.SnapshotRequest{Name: "files"}); err != nil {
		t.Errorf("saving its files: %v", err)
	}
	doctor := exec.Command(s.bin, "doctor")
	doctor.Env = s.env
	if text, err := doctor.Output(); err != nil || !strings.Contains(string(text), "2 hold memory of another engine and would start from their files only: asleep, saved") {
		t.Errorf("doctor says\n%s\n%v, want that the memory of both would be lost", text, err)
	}
	const says = "it started from its files: its memory was written by engine"
	copies, err := asleep.Fork(t.Context(), durable.ForkRequest{Count: 1})
	if err != nil || !strings.Contains(copies[0].Info().Reason, says) {
		t.Errorf("copying what is on disk: %v (%v), want that %s", copies, err, says)
	}
	made, err := s.client.Create(t.Context(), sandbox.Spec{Snapshot: "saved"}, atoll.CreateOptions{})
	if err != nil || !strings.Contains(made.Info().Reason, says) {
		t.Errorf("making one of the snapshot: %v, want that %s", err, says)
	}
	if info, err := asleep.Resume(t.Context()); err != nil || !strings.Contains(info.Reason, says) {
		t.Errorf("resuming: %q, %v, want that %s", info.Reason, err, says)
	}
	run(t, expiring, "echo >/dev/shm/kept")
	soon := time.Second
	if _, err := expiring.Update(t.Context(), sandbox.Change{Lifetime: sandbox.LifetimeChange{Timeout: &soon}}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		got, err := s.client.Get(t.Context(), expiring.Name())
		if err != nil {
			t.Fatal(err)
		}
		if info := got.Info(); info.State == sandbox.Paused && info.Pause == sandbox.PauseMemory {
			break
		} else if time.Now().After(end) {
			t.Fatalf("after its time it is %s %s, want paused in memory", info.State, info.Pause)
		}
	}
	if _, err := expiring.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, expiring, "test -e /dev/shm/kept")
}
