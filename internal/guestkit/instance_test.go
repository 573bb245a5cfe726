package guestkit

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/sandbox"
)

// ends is a machine whose programs end as the test specifies.
type ends struct {
	mu       sync.Mutex
	exits    []*Exit // of the programs that are started, in their order
	argv     [][]string
	uploaded []string
	status   func() (Status, error)
}

func (e *ends) Start(_ context.Context, argv, _ []string) (Program, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := newPipeProgram()
	p.end = e.exits[min(len(e.argv), len(e.exits)-1)]
	close(p.output)
	e.argv = append(e.argv, argv)
	return p, nil
}

func (e *ends) Upload(_ context.Context, path string, _ *program.Program) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.uploaded = append(e.uploaded, path)
	return nil
}

func (e *ends) Status(context.Context) (Status, error) { return e.status() }
func (e *ends) Answers(context.Context) bool           { return true }
func (e *ends) Cause(at time.Time) sandbox.Exit {
	if time.Now().Before(at) {
		return Killed
	}
	return Expired
}

// oneArch is a kit with a guest for one architecture only.
func oneArch(t *testing.T, arch string) *Kit {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := program.File(self)
	if err != nil {
		t.Fatal(err)
	}
	return &Kit{Guest: func(want string) (*program.Program, error) {
		if want != arch {
			return nil, &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "none"}
		}
		return p, nil
	}}
}

// The guest is uploaded where it is missing, and only the right one.
func TestDial(t *testing.T) {
	missing := func(machine string) *Exit {
		return &Exit{Code: exitMissing, Status: "exit status 77", Stderr: []byte(machine + "\n")}
	}
	broken := &Exit{Code: 1, Status: "exit status 1", Stderr: []byte("no such luck")}
	for name, test := range map[string]struct {
		exits   []*Exit
		uploads int
		want    sandbox.Code
	}{
		"missing":                  {[]*Exit{missing("x86_64"), broken}, 1, sandbox.CodeUnavailable},
		"missing again":            {[]*Exit{missing("x86_64")}, 1, sandbox.CodeUnavailable},
		"broken":                   {[]*Exit{broken}, 0, sandbox.CodeUnavailable},
		"another architecture":     {[]*Exit{missing("aarch64")}, 0, sandbox.CodeUnsupported},
		"an unknown architecture":  {[]*Exit{{Code: exitForeign, Stderr: []byte("riscv64\n")}}, 0, sandbox.CodeUnsupported},
		"a machine that says junk": {[]*Exit{missing(strings.Repeat("\xff", 1<<16))}, 0, sandbox.CodeUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			m := &ends{exits: test.exits}
			_, err := oneArch(t, "amd64").Dial(t.Context(), m, guest.Options{})
			if sandbox.CodeOf(err) != test.want || len(err.Error()) > 2*maxText {
				t.Errorf("%v, want code %q", err, test.want)
			}
			if len(m.uploaded) != test.uploads {
				t.Errorf("%d uploads, want %d", len(m.uploaded), test.uploads)
			}
			for _, path := range m.uploaded {
				if !strings.HasPrefix(path, guest.NestedPrefix) || !slices.Contains(m.argv[0], path) || !slices.Contains(m.argv[1], "fresh") {
					t.Errorf("uploaded to %s, started with %q", path, m.argv)
				}
			}
		})
	}
}

// Errors of calls on a sandbox follow the status that its service reports.
func TestInstance(t *testing.T) {
	unreachable := &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "no route"}
	for name, test := range map[string]struct {
		status Status
		err    error
		want   sandbox.Code
	}{
		"running":     {Status{State: sandbox.Running}, nil, sandbox.CodeUnavailable},
		"paused":      {Status{State: sandbox.Paused}, nil, sandbox.CodeConflict},
		"gone":        {Status{}, Gone("sb-kit"), sandbox.CodeGone},
		"unreachable": {Status{}, unreachable, sandbox.CodeUnavailable},
		"another key": {Status{}, &sandbox.Error{Code: sandbox.CodeUnauthorized}, sandbox.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			m := &ends{exits: []*Exit{{Code: 1}}, status: func() (Status, error) { return test.status, test.err }}
			in := oneArch(t, "amd64").Instance("sb-kit", m, time.Time{})
			for what, err := range map[string]error{
				"Exec": second(in.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}})),
				"Stat": second(in.Stat(t.Context(), "/")),
				"Kill": in.Kill(t.Context(), "p1", 9),
			} {
				if got := sandbox.CodeOf(err); got != test.want {
					t.Errorf("%s: %v, want code %q", what, err, test.want)
				}
			}
		})
	}
}

// A call whose connection is lost says why, if the service does.
func TestLost(t *testing.T) {
	for state, want := range map[sandbox.State]sandbox.Code{sandbox.Running: "", sandbox.Paused: sandbox.CodeConflict, sandbox.Gone: sandbox.CodeGone} {
		t.Run(string(state), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in := (&Kit{}).Instance("sb-kit", &ends{status: func() (Status, error) {
					if state == sandbox.Gone {
						return Status{}, Gone("sb-kit")
					}
					return Status{State: state}, nil
				}}, time.Time{})
				if err := in.lost(); sandbox.CodeOf(err) != want || want == "" && err != nil {
					t.Errorf("%v, want code %q", err, want)
				}
			})
		})
	}
}

func second[T any](_ T, err error) error { return err }

// Wait finds out how a sandbox ended.
func TestWait(t *testing.T) {
	for name, test := range map[string]struct {
		life time.Duration
		do   func(in *Instance)
		want sandbox.Reason
	}{
		"lifetime":    {time.Minute, func(*Instance) {}, sandbox.ReasonLifetime},
		"elsewhere":   {time.Hour, func(*Instance) {}, sandbox.ReasonKilled},
		"destroyed":   {time.Minute, func(in *Instance) { in.SetDying(true) }, sandbox.ReasonKilled},
		"extended":    {time.Minute, func(in *Instance) { in.SetEnds(time.Now().Add(time.Hour)) }, sandbox.ReasonKilled},
		"finished":    {time.Hour, func(in *Instance) { in.Finish(Expired) }, sandbox.ReasonLifetime},
		"no lifetime": {0, func(in *Instance) { in.SetDying(true) }, sandbox.ReasonKilled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var at time.Time
				if test.life > 0 {
					at = start.Add(test.life)
				}
				in := (&Kit{}).Instance("sb-kit", &ends{status: func() (Status, error) {
					if time.Since(start) < 2*time.Minute {
						return Status{State: sandbox.Running}, nil
					}
					return Status{}, Gone("sb-kit")
				}}, at)
				test.do(in)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, ended := in.Ended(); !ended {
					if _, err := in.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("Wait for what runs: %v", err)
					}
				}
				exit, err := in.Wait(t.Context())
				if err != nil || exit.Reason != test.want {
					t.Errorf("%+v, %v; want %s", exit, err, test.want)
				}
				if _, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}}); sandbox.CodeOf(err) != sandbox.CodeGone {
					t.Errorf("Exec after the end: %v, want gone", err)
				}
			})
		})
	}
}

// A service may still list a sandbox that is being destroyed although nothing
// inside answers any more.
func TestCallWhileDestroying(t *testing.T) {
	asked := 0
	in := oneArch(t, "amd64").Instance("sb-kit", &ends{exits: []*Exit{{Code: 1}}, status: func() (Status, error) {
		if asked++; asked < 4 {
			return Status{State: sandbox.Running}, nil
		}
		return Status{}, Gone("sb-kit")
	}}, time.Time{})
	in.SetDying(true)
	if _, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}}); sandbox.CodeOf(err) != sandbox.CodeGone {
		t.Errorf("%v, want gone", err)
	}
}
