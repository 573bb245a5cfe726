package gvisor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/server"
	"gvisor.dev/gvisor/pkg/prometheus"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/atoll-run/atoll/provider/gvisor/kernel"
	"github.com/atoll-run/atoll/sandbox"
)

// fakeKernel answers calls as the test wants. Each method may block.
type fakeKernel struct {
	status func() kernel.Status
	called func(method string)
	waits  func() error

	mu    sync.Mutex
	calls []string
}

func (k *fakeKernel) call(method string) {
	k.mu.Lock()
	k.calls = append(k.calls, method)
	k.mu.Unlock()
	if k.called != nil {
		k.called(method)
	}
}

// wantCalls checks which calls have arrived.
func (k *fakeKernel) wantCalls(t *testing.T, want ...string) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.Equal(k.calls, want) {
		t.Errorf("the kernel was called %q, want %q", k.calls, want)
	}
}

// The names of these types are part of the names of gVisor's calls.
type (
	containerManager struct{ k *fakeKernel }
	Metrics          struct{ k *fakeKernel }
)

func (m *containerManager) Pause(_, _ *struct{}) error  { m.k.call("pause"); return nil }
func (m *containerManager) Resume(_, _ *struct{}) error { m.k.call("resume"); return nil }

func (m *containerManager) ExecuteAsync(_ *control.ExecArgs, pid *int32) error {
	m.k.call("execute")
	*pid = 7
	return nil
}

func (m *containerManager) WaitPID(*boot.WaitPIDArgs, *uint32) error {
	m.k.call("wait")
	return m.k.waits()
}

func (m *containerManager) Signal(args *boot.SignalArgs, _ *struct{}) error {
	if args.PID == 7 && args.Signo == int32(unix.SIGKILL) {
		m.k.call("kill")
	}
	return nil
}

func (m *Metrics) Export(_ *control.MetricsExportOpts, out *control.MetricsExportData) error {
	m.k.mu.Lock() // each call has a goroutine of its own
	defer m.k.mu.Unlock()
	out.Snapshot = prometheus.NewSnapshot()
	if status := m.k.status(); status != kernel.StatusUnknown {
		out.Snapshot.Add(prometheus.NewIntData(&prometheus.Metric{Name: kernel.StatusMetric}, int64(status)))
	}
	return nil
}

// serveKernel serves a fake kernel to an instance in the given rest state.
func serveKernel(t *testing.T, rest string, k *fakeKernel) *Instance {
	t.Helper()
	b := stateDir{t.TempDir()}
	l, err := listenControl(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(l.Fd()))
	l.Close()
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.CreateFromFD(fd)
	if err != nil {
		t.Fatal(err)
	}
	s.Register(&containerManager{k})
	s.Register(&Metrics{k})
	if err := s.StartServing(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop(0) })
	if rest != awake {
		if err := b.setRest(rest); err != nil {
			t.Fatal(err)
		}
	}
	p := &Provider{opts: Options{Fault: func(string) error { return nil }}}
	return newInstance(p, b, &record{ID: "box"})
}

func wantRest(t *testing.T, in *Instance, want string) {
	t.Helper()
	if rest, err := in.stateDir.rest(); err != nil || rest != want {
		t.Errorf("the recorded state is %q, %v, want %q", rest, err, want)
	}
}

// TestUncertainState wakes a sandbox whose pause another process did not
// finish. The kernel is resumed only if it says that it is paused: it counts
// pauses, and does not survive one resume too many.
func TestUncertainState(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answers []kernel.Status
		rest    string
		calls   []string
	}{
		"paused":  {[]kernel.Status{kernel.StatusPaused}, awake, []string{"resume"}},
		"running": {[]kernel.Status{kernel.StatusRunning}, awake, nil},
		"saving":  {[]kernel.Status{kernel.StatusSaving, kernel.StatusSaving, kernel.StatusPaused}, awake, []string{"resume"}},
		"saved":   {[]kernel.Status{kernel.StatusSaving, kernel.StatusRunning}, awake, nil},
		"unknown": {[]kernel.Status{kernel.StatusUnknown}, pausing, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answers := tc.answers
			k := &fakeKernel{status: func() kernel.Status {
				next := answers[0]
				answers = answers[1:]
				return next
			}}
			in := serveKernel(t, pausing, k)
			if err := in.Resume(t.Context()); (err == nil) != (tc.rest == awake) {
				t.Errorf("Resume: %v", err)
			}
			wantRest(t, in, tc.rest)
			k.wantCalls(t, tc.calls...)
		})
	}
}

// TestAbandonedPause gives up on a pause that the kernel is still performing.
// The outcome is awaited and undone.
func TestAbandonedPause(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	k := &fakeKernel{status: func() kernel.Status { return kernel.StatusPaused }}
	k.called = func(string) { cancel() }
	in := serveKernel(t, awake, k)
	if err := in.Pause(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Pause: %v", err)
	}
	wantRest(t, in, awake)
	k.wantCalls(t, "pause", "resume")
}

// TestKernelHoldsTheLock gives up on a pause without waiting, as a process does
// that is killed. Others get the lock only when the kernel has performed it.
func TestKernelHoldsTheLock(t *testing.T) {
	t.Parallel()
	begun, release := make(chan struct{}), make(chan struct{})
	k := &fakeKernel{called: func(string) {
		close(begun)
		<-release
	}}
	in := serveKernel(t, awake, k)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	err := in.locked(t.Context(), func(context.Context, string) error { return in.changeRest(ctx, boot.ContMgrPause) })
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("the pause: %v", err)
	}
	expired, cancel2 := context.WithCancel(t.Context())
	cancel2()
	if lock, err := in.stateDir.lock(expired); err == nil {
		lock.Close()
		t.Error("the lock is free, although the kernel has not yet paused")
	}
	close(release)
	lock, err := in.stateDir.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
}

// TestHelperIsKilled gives up on a helper process inside, which could not be
// saved. It is killed, and its end awaited, before others get the lock.
func TestHelperIsKilled(t *testing.T) {
	t.Parallel()
	killed := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	k := &fakeKernel{
		called: func(method string) {
			switch method {
			case "wait":
				cancel()
			case "kill":
				close(killed)
			}
		},
		waits: func() error { <-killed; return nil },
	}
	in := serveKernel(t, awake, k)
	err := runInside(ctx, in.stateDir.dir, nil, &control.ExecArgs{ContainerID: "box"}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("runInside: %v", err)
	}
	k.wantCalls(t, "execute", "wait", "kill", "wait")
}

// TestFinishing: a call whose outcome must be known outlives its caller, but
// not for a sandbox that does not answer.
func TestFinishing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	late, end := finishing(ctx)
	cancel(context.Canceled)
	if late.Err() != nil {
		t.Errorf("it ends with its caller: %v", late.Err())
	}
	end()
	ctx, cancel = context.WithCancelCause(t.Context())
	late, end = finishing(ctx)
	defer end()
	cancel(errSilent)
	select {
	case <-late.Done():
	case <-time.After(killTime / 2):
		t.Error("it goes on although the sandbox does not answer")
	}
}

// TestDeafKernel makes more calls than may wait for a kernel that accepts none.
// Each fails and says so, and nothing is recorded. A kernel that is busy with a
// call is not deaf.
func TestDeafKernel(t *testing.T) {
	t.Parallel()
	b := stateDir{t.TempDir()}
	l, err := listenControl(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const most = 2
	if err := unix.Listen(int(l.Fd()), most); err != nil {
		t.Fatal(err)
	}
	in := newInstance(&Provider{opts: Options{Fault: func(string) error { return nil }}}, b, &record{ID: "box"})
	var all sync.WaitGroup
	for range most + 3 {
		all.Go(func() {
			err := in.call(t.Context(), func(conn *urpc.Client) error { return conn.Call(boot.ContMgrResume, nil, nil) })
			wantDeaf(t, err)
		})
	}
	wantDeaf(t, in.Pause(t.Context()))
	wantRest(t, in, awake)
	all.Wait()
}

func wantDeaf(t *testing.T, err error) {
	t.Helper()
	if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Code != sandbox.CodeUnavailable || e.Hint == "" || !strings.Contains(e.Message, "accepts no calls") {
		t.Errorf("a call fails with %v, want that the kernel accepts none, and a hint", err)
	}
}

func TestBusyKernelIsNotDeaf(t *testing.T) {
	t.Parallel()
	begun, release := make(chan struct{}), make(chan struct{})
	k := &fakeKernel{status: func() kernel.Status { return kernel.StatusRunning }, called: func(string) {
		close(begun)
		<-release
	}}
	in := serveKernel(t, awake, k)
	done := make(chan error, 1)
	go func() { done <- callKernel(t.Context(), in.stateDir.dir, boot.ContMgrPause, nil, nil) }()
	<-begun
	if in.deaf(t.Context()) {
		t.Error("a kernel that performs a call accepts no others")
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
