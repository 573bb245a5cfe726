package store_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

// The test binary executes itself for steps that need another process.
const childEnv = "ATOLL_STORE_TEST_CHILD"

func TestMain(m *testing.M) {
	if child := os.Getenv(childEnv); child != "" {
		what, arg, _ := strings.Cut(child, ":")
		if err := map[string]func(string) error{"write": writeForEver, "full": fillDisk}[what](arg); err != nil {
			fmt.Fprintln(os.Stderr, err, sandboxCause(err))
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(storetest.Main(m))
}

func sandboxCause(err error) error {
	var e *sandbox.Error
	if errors.As(err, &e) {
		return e.Cause
	}
	return nil
}

func child(what string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+what)
	cmd.Stderr = os.Stderr
	return cmd
}

// labelled is a sandbox that takes several rows.
func labelled(name string) store.Sandbox {
	b := testSandbox(name)
	b.Labels = map[string]string{"one": "1", "two": "2"}
	return b
}

// writeForEver creates sandboxes and reports each one.
func writeForEver(path string) error {
	s, err := store.Open(context.Background(), path, store.Options{})
	if err != nil {
		return err
	}
	run := fmt.Sprintf("r%d", os.Getpid())
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			for i := 0; ; i++ {
				b := labelled(fmt.Sprintf("%s-%d-%d", run, w, i))
				if _, _, err := create(s, "acme", b, store.Create{IdempotencyKey: b.Name}); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				fmt.Println(b.ID)
			}
		})
	}
	wg.Wait()
	return nil
}

// TestKilledWriter repeatedly kills a writing process. All reported writes are
// stored, and none is incomplete.
func TestKilledWriter(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "atoll.db")
	acknowledged := map[sandbox.ID]bool{}
	for round := range 20 {
		s, err := store.Open(ctx, path, store.Options{})
		ok(t, err)
		tenants(t, s, "acme")
		ok(t, s.Close())
		cmd := child("write:" + path)
		out, err := cmd.StdoutPipe()
		ok(t, err)
		ok(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for n := 1 + rand.IntN(40); n > 0 && lines.Scan(); n-- {
			acknowledged[sandbox.ID(lines.Text())] = true
		}
		ok(t, cmd.Process.Kill())
		for lines.Scan() { // reported before it was killed
			acknowledged[sandbox.ID(lines.Text())] = true
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("round %d: the writer ended by itself: %v", round, err)
		}
		checkWhole(t, path, acknowledged)
	}
	if len(acknowledged) < 40 {
		t.Errorf("only %d were written", len(acknowledged))
	}
}

func checkWhole(t *testing.T, path string, acknowledged map[sandbox.ID]bool) {
	t.Helper()
	s, err := store.Open(context.Background(), path, store.Options{})
	ok(t, err)
	defer func() { ok(t, s.Close()) }()
	if answer, err := s.Check(context.Background()); err != nil || answer != "ok" {
		t.Fatalf("the file is not whole: %s, %v", answer, err)
	}
	there := map[sandbox.ID]bool{}
	all := listAll(t, s, "acme", store.Filter{}, 1000)
	for _, id := range all {
		there[id] = true
	}
	for id := range acknowledged {
		if !there[id] {
			t.Errorf("%s was acknowledged and is lost", id)
		}
	}
	if whole := listAll(t, s, "acme", store.Filter{Labels: map[string]string{"one": "1", "two": "2"}}, 1000); len(whole) != len(all) {
		t.Errorf("%d of %d have their labels", len(whole), len(all))
	}
}

// TestDiskFull: a full disk returns its own error, nothing is partly written,
// and writes work again when there is space.
func TestDiskFull(t *testing.T) {
	ctx := context.Background()
	s := storetest.SQLite(t, store.Options{})
	tenants(t, s, "acme")
	ok(t, s.SetMaxPages(ctx, 120))
	made := fill(t, s)
	ok(t, s.SetMaxPages(ctx, 1_000_000))
	checkFilled(t, s, made)
}

// fill creates until the disk is full.
func fill(t interface {
	Helper()
	Fatalf(string, ...any)
}, s *store.Store,
) (made int) {
	t.Helper()
	for ; made < 10_000; made++ {
		b := labelled(fmt.Sprint("b", made))
		b.Labels["long"] = strings.Repeat("x", 200)
		if _, _, err := create(s, "acme", b, store.Create{IdempotencyKey: b.Name}); err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeExhausted {
				t.Fatalf("a full disk is told as %v (%v)", err, sandboxCause(err))
			}
			return made
		}
	}
	t.Fatalf("the disk was never full")
	return made
}

func checkFilled(t *testing.T, s *store.Store, made int) {
	t.Helper()
	if got := len(listAll(t, s, "acme", store.Filter{}, 1000)); got != made || made == 0 {
		t.Errorf("%d are there, %d were made", got, made)
	}
	if got := len(listAll(t, s, "acme", store.Filter{Labels: map[string]string{"two": "2"}}, 1000)); got != made {
		t.Errorf("%d have their labels, %d were made", got, made)
	}
	b := labelled(fmt.Sprint("b", made))
	_, replayed, err := create(s, "acme", b, store.Create{IdempotencyKey: b.Name})
	ok(t, err)
	if replayed {
		t.Error("the key of a create that failed is remembered")
	}
}

// TestDiskReallyFull does the same on a small file system, in another process
// with its own mounts.
func TestDiskReallyFull(t *testing.T) {
	cmd := child("full:" + t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.Output()
	if err != nil || string(out) != "full, and nothing lost\n" {
		t.Fatalf("%v: %s", err, out)
	}
}

type fatal struct{}

func (fatal) Helper() {}
func (fatal) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}

func fillDisk(dir string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=9728k"); err != nil {
		return err
	}
	ctx := context.Background()
	s, err := store.Open(ctx, filepath.Join(dir, "atoll.db"), store.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	if err := s.Update(ctx, func(tx *store.Tx) error { _, err := tx.Tenants().Ensure(ctx, "acme"); return err }); err != nil {
		return err
	}
	made := fill(fatal{}, s)
	reserved := store.WithReserve(ctx)
	for range 50 { // records of freed space can still be written
		if err := s.Update(reserved, func(tx *store.Tx) error {
			return tx.Tenants().Disable(reserved, "acme", false)
		}); err != nil {
			return fmt.Errorf("with the reserve: %w", err)
		}
	}
	if b := labelled("none"); !s.Full() {
		return errors.New("what was reserved is used, and the store does not say so")
	} else if _, _, err := create(s, "acme", b, store.Create{}); sandbox.CodeOf(err) != sandbox.CodeExhausted {
		return fmt.Errorf("a sandbox takes from the reserve: %w", err)
	}
	u, err := store.Read(ctx, s, func(tx *store.Tx) (int64, error) { u, err := tx.Tenants().Usage(ctx, "acme"); return u.Sandboxes, err })
	if err != nil {
		return err
	}
	if answer, err := s.Check(ctx); err != nil || answer != "ok" || u != int64(made) {
		return fmt.Errorf("%s, %w; %d are there, %d were made", answer, err, u, made)
	}
	fmt.Println("full, and nothing lost")
	return nil
}

// TestAppendOnly: the database itself refuses to change or remove an event.
func TestAppendOnly(t *testing.T) {
	ctx := context.Background()
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		s := open(store.Options{})
		tenants(t, s, "acme")
		ok(t, s.Update(ctx, func(tx *store.Tx) error {
			if _, err := tx.Events().LockHead(ctx, "acme"); err != nil {
				return err
			}
			return tx.Events().Append(ctx, "acme", []store.EventRow{{Seq: 1, Type: "attempted", Op: "x", Body: []byte("{}"), Hash: []byte("h")}})
		}))
		for _, st := range []string{"UPDATE events SET body = 'x'", "DELETE FROM events", "UPDATE events SET seq = 2 WHERE seq = 1"} {
			if err := s.Exec(ctx, st); err == nil || !strings.Contains(err.Error(), "append-only") {
				t.Errorf("%s: %v", st, err)
			}
		}
	})
}

func TestBackup(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s := storetest.SQLite(t, store.Options{})
	tenants(t, s, "acme")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	first := make(chan struct{})
	wg.Go(func() { // other work continues meanwhile
		for i := 0; ; i++ {
			if _, _, err := create(s, "acme", labelled(fmt.Sprint("b", i)), store.Create{}); err != nil {
				t.Error(err)
			}
			if i == 10 {
				close(first)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	<-first
	path := filepath.Join(dir, "odd 'name'?.db")
	ok(t, s.Backup(ctx, path))
	wantCode(t, s.Backup(ctx, path), sandbox.CodeAlreadyExists)
	wantCode(t, s.Backup(ctx, filepath.Join(dir, "missing", "b.db")), sandbox.CodeUnavailable)
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	wantCode(t, s.Backup(canceled, filepath.Join(dir, "canceled.db")), sandbox.CodeCanceled)
	close(stop)
	wg.Wait()
	entries, err := os.ReadDir(dir)
	ok(t, err)
	if len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	info, err := os.Stat(path)
	ok(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the backup has mode %v", info.Mode())
	}
	copied, err := store.Open(ctx, path, store.Options{})
	ok(t, err)
	defer func() { ok(t, copied.Close()) }()
	all := listAll(t, copied, "acme", store.Filter{}, 1000)
	whole := listAll(t, copied, "acme", store.Filter{Labels: map[string]string{"one": "1", "two": "2"}}, 1000)
	if len(all) < 11 || len(all) != len(whole) {
		t.Errorf("the backup has %d sandboxes, %d with their labels", len(all), len(whole))
	}
	tenants(t, s, "later") // the store still reads and writes
	if err := s.View(ctx, func(tx *store.Tx) error { return tx.Tenants().Disable(ctx, "later", true) }); err == nil {
		t.Error("after a backup, a view can write")
	}

	pg, err := store.Open(ctx, storetest.Postgres(t), store.Options{})
	ok(t, err)
	defer func() { ok(t, pg.Close()) }()
	err = pg.Backup(ctx, filepath.Join(dir, "pg"))
	wantCode(t, err, sandbox.CodeUnsupported)
	var e *sandbox.Error
	if !errors.As(err, &e) || !strings.Contains(e.Hint, "pg_dump") {
		t.Errorf("the refusal does not help: %+v", e)
	}
}
