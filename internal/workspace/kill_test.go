package workspace_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/workspace"
)

// mortal kills its own process, with SIGKILL, at a step of what it does. Each
// operation that changes something has two: before it, and after it.
type mortal struct {
	blob.Store
	left int
}

func (m *mortal) step() {
	if m.left--; m.left == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // it does not fail
		select {}
	}
}

func (m *mortal) Put(ctx context.Context, key string, r io.Reader, opts blob.PutOptions) error {
	m.step()
	err := m.Store.Put(ctx, key, io.MultiReader(r, &stepAtEnd{m: m}), opts)
	m.step()
	return err
}

// stepAtEnd dies when all is written and nothing is published.
type stepAtEnd struct{ m *mortal }

func (s *stepAtEnd) Read([]byte) (int, error) {
	s.m.step()
	return 0, io.EOF
}

func (m *mortal) Delete(ctx context.Context, key string) error {
	m.step()
	err := m.Store.Delete(ctx, key)
	m.step()
	return err
}

func (m *mortal) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	m.step()
	return m.Store.List(ctx, prefix)
}

// dieAtStep is the process that is killed. Exit code 0 says that it came to its
// end first.
func dieAtStep() {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	step, err := strconv.Atoi(os.Getenv("WORKSPACE_TEST_STEP"))
	fail(err)
	dir, err := blob.OpenDir(os.Getenv("WORKSPACE_TEST_BLOBS"))
	fail(err)
	ctx := context.Background()
	w, err := workspace.Open(ctx, &mortal{dir, step}, nil)
	fail(err)
	switch os.Getenv("WORKSPACE_TEST_DO") {
	case "persist":
		root, err := os.OpenRoot(os.Getenv("WORKSPACE_TEST_DIR"))
		fail(err)
		latest, err := w.Latest(ctx)
		fail(err)
		_, err = w.Persist(ctx, root, workspace.PersistOptions{Base: latest.Number, Cache: os.Getenv("WORKSPACE_TEST_CACHE")})
		fail(err)
	case "append":
		root, err := os.OpenRoot(os.Getenv("WORKSPACE_TEST_DIR"))
		fail(err)
		_, err = w.Append(ctx, root, "")
		fail(err)
	case "prune":
		_, err = w.Prune(ctx, workspace.Keep{Last: 1})
		fail(err)
	case "forget":
		latest, err := w.Latest(ctx)
		fail(err)
		_, err = w.Forget(ctx, func(v workspace.Version) bool { return v.Number == latest.Number })
		fail(err)
	}
	os.Exit(0)
}

// killedAt runs an operation in a process that dies at a step, and reports
// whether it came to its end instead.
func (f *fixture) killedAt(blobs, do string, step int) (survived bool) {
	f.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(),
		"WORKSPACE_TEST_STEP="+strconv.Itoa(step), "WORKSPACE_TEST_BLOBS="+blobs, "WORKSPACE_TEST_DO="+do,
		"WORKSPACE_TEST_DIR="+f.dir, "WORKSPACE_TEST_CACHE="+f.cache)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return true
	}
	if state := cmd.ProcessState.Sys().(syscall.WaitStatus); !state.Signaled() || state.Signal() != syscall.SIGKILL {
		f.Fatalf("step %d of %s: %v: %s", step, do, err, out)
	}
	return false
}

// Killed at every single step, persisting leaves the last good version or the
// new one, and pruning afterwards leaves nothing that does not belong there.
func TestKilled(t *testing.T) {
	for _, do := range []string{"persist", "append", "prune", "forget"} {
		t.Run(do, func(t *testing.T) {
			blobs := t.TempDir()
			store, err := blob.OpenDir(blobs)
			if err != nil {
				t.Fatal(err)
			}
			f := fixtureOn(t, store, nil)
			for step := 1; ; step++ {
				f.write("counter", fmt.Sprintf("before step %d", step))
				f.write(fmt.Sprintf("more%d", step%5), fmt.Sprint("content ", step))
				f.persist()
				before := describe(t, f.dir)
				if do == "persist" || do == "append" {
					f.write("counter", fmt.Sprintf("at step %d", step))
				}
				survived := f.killedAt(blobs, do, step)
				f.check(before, do, step)
				if survived {
					if step < 5 {
						t.Errorf("only %d steps were found", step-1)
					}
					return
				}
			}
		})
	}
}

// check looks at what a killed process left, and tidies up.
func (f *fixture) check(before []string, do string, step int) {
	f.Helper()
	w, err := workspace.Open(f.Context(), f.blobs, nil)
	if err != nil {
		f.Fatalf("step %d of %s: %v", step, do, err)
	}
	f.w = w
	if _, err := w.Verify(f.Context(), true); err != nil {
		f.Fatalf("step %d of %s: %v", step, do, err)
	}
	latest, err := w.Latest(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	f.base = latest.Number
	got := describe(f, f.restore(0))
	if now := describe(f, f.dir); fmt.Sprint(got) != fmt.Sprint(before) && fmt.Sprint(got) != fmt.Sprint(now) {
		f.Errorf("step %d of %s left neither the old state nor the new: %q", step, do, got)
	}
	if _, err := w.Prune(f.Context(), workspace.Keep{Last: 1}); err != nil {
		f.Fatal(err)
	}
	counts := map[string]int{}
	for info, err := range f.blobs.List(f.Context(), "") {
		if err != nil {
			f.Fatal(err)
		}
		counts[filepath.Dir(info.Key)]++
	}
	if counts["versions"] != 1 || len(counts) > 2+manyPacks {
		f.Errorf("step %d of %s: %v is left", step, do, counts)
	}
	if _, err := w.Verify(f.Context(), true); err != nil {
		f.Errorf("step %d of %s, after pruning: %v", step, do, err)
	}
}

// manyPacks is how many directories of packs may be left: small packs are put
// together only when there are several.
const manyPacks = 8
