package sandbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox/bounds"
)

func TestValidateName(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "box-1": true, "b" + strings.Repeat("x", 62): true,
		"": false, "1box": false, "-box": false, "box-": false, "Box": false, "box_1": false, "bóx": false,
		"b" + strings.Repeat("x", 63): false, "box\n": false, "box\x00": false, "../x": false, "0-warm": false,
	} {
		if err := ValidateName(name); (err == nil) != ok {
			t.Errorf("ValidateName(%q) = %v", name, err)
		}
	}
}

func TestSpecValidate(t *testing.T) {
	mount := func(source, target string) []Mount { return []Mount{{Source: source, Target: target}} }
	labels := map[string]string{}
	for i := range bounds.MaxLabels + 1 {
		labels[fmt.Sprint("l", i)] = ""
	}
	for _, tc := range []struct {
		spec    Spec
		subject string // of the error; empty: none
	}{
		{Spec{}, ""},
		{Spec{Name: "ok", ID: "id", Workdir: "/w", User: "a:b", Env: map[string]string{"A": "x\ny=z"}, Mounts: mount("/a", "/b")}, ""},
		{Spec{Resources: Resources{CPUs: -1, Memory: -1, Disk: -1, PIDs: -1}}, ""},
		{Spec{Name: "No"}, "name"},
		{Spec{ID: "0-warm"}, "id"},
		{Spec{Image: "a\x00b"}, "image"},
		{Spec{Resources: Resources{CPUs: math.NaN()}}, "cpus"},
		{Spec{Resources: Resources{CPUs: math.Inf(1)}}, "cpus"},
		{Spec{Resources: Resources{CPUs: 0.001}}, "cpus"},
		{Spec{Resources: Resources{Memory: 1}}, "memory"},
		{Spec{Resources: Resources{Disk: 1}}, "disk"},
		{Spec{Resources: Resources{PIDs: 1}}, "pids"},
		{Spec{Resources: Resources{Memory: bounds.MaxMemory, Disk: bounds.MaxDisk, PIDs: bounds.MaxPIDs}}, ""},
		{Spec{Resources: Resources{Memory: math.MaxInt64}}, "memory"},
		{Spec{Resources: Resources{Disk: math.MaxInt64}}, "disk"},
		{Spec{Resources: Resources{PIDs: math.MaxInt64}}, "pids"},
		{Spec{Env: map[string]string{"A=B": ""}}, "env"},
		{Spec{Env: map[string]string{"": ""}}, "env"},
		{Spec{Env: map[string]string{"A": "x\x00"}}, "env"},
		{Spec{Workdir: "w"}, "workdir"},
		{Spec{User: "a b"}, "user"},
		{Spec{User: ":g"}, "user"},
		{Spec{User: "a:b:c"}, "user"},
		{Spec{Hostname: "a/b"}, "hostname"},
		{Spec{Mounts: mount("a", "/b")}, "mounts"},
		{Spec{Mounts: mount("/a", "/")}, "mounts"},
		{Spec{Mounts: mount("/a", "/proc/x")}, "mounts"},
		{Spec{Mounts: mount("/a", "/x/../dev")}, "mounts"},
		{Spec{Mounts: append(mount("/a", "/b"), Mount{Source: "/c", Target: "/b/"})}, "mounts"},
		{Spec{Lifetime: Lifetime{Timeout: -time.Second}}, "lifetime"},
		{Spec{Lifetime: Lifetime{Idle: -time.Second}}, "lifetime"},
		{Spec{Lifetime: Lifetime{Idle: time.Second, IdleAction: "explode"}}, "lifetime"},
		{Spec{Lifetime: Lifetime{Idle: time.Second, IdleAction: IdleSleep}}, ""},
		{Spec{Labels: map[string]string{"a=b": ""}}, "labels"},
		{Spec{Labels: map[string]string{"a": "\x1b[0m"}}, "labels"},
		{Spec{Labels: labels}, "labels"},
	} {
		checkInvalid(t, tc.spec.Validate(), tc.subject)
	}
}

func TestCommandValidate(t *testing.T) {
	for _, tc := range []struct {
		cmd     Command
		subject string
	}{
		{Command{Args: []string{"a", "", "\xff\n'"}}, ""},
		{Command{Shell: "echo"}, ""},
		{Command{}, "args"},
		{Command{Args: []string{"a"}, Shell: "b"}, "args"},
		{Command{Args: []string{""}}, "args"},
		{Command{Args: []string{"a\x00"}}, "args"},
		{Command{Shell: "a\x00"}, "shell"},
		{Command{Args: []string{strings.Repeat("x", bounds.MaxArgsBytes)}}, "args"},
		{Command{Args: []string{"a"}, Dir: "rel"}, "dir"},
		{Command{Args: []string{"a"}, Timeout: -1}, "timeout"},
		{Command{Args: []string{"a"}, TTY: &WindowSize{Cols: 5000}}, "tty"},
		{Command{Args: []string{"a"}, User: "x\ny"}, "user"},
	} {
		checkInvalid(t, tc.cmd.Validate(), tc.subject)
	}
}

func checkInvalid(t *testing.T, err error, subject string) {
	t.Helper()
	if subject == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	var e *Error
	if !errors.As(err, &e) || e.Code != CodeInvalid || e.Subject != subject {
		t.Errorf("got %v, want invalid %s", err, subject)
	}
}

// TestEnvErrorsHideValues uses a canary, because the value of a variable may be
// a secret.
func TestEnvErrorsHideValues(t *testing.T) {
	spec := Spec{Env: map[string]string{"TOKEN": "canary\x00"}}
	if err := spec.Validate(); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("the error shows a value: %v", err)
	}
}

func TestErrors(t *testing.T) {
	cause := errors.New("cause")
	err := fmt.Errorf("outer: %w", &Error{Code: CodeGone, Op: "exec", Subject: "box", Cause: cause})
	if !errors.Is(err, &Error{Code: CodeGone}) || errors.Is(err, &Error{Code: CodeNotFound}) || !errors.Is(err, cause) {
		t.Error("the code or the cause is not found in the chain")
	}
	if got := (&Error{Code: CodeNotFound, Op: "exec", Subject: "box", Cause: cause}).Error(); got != "exec: box: not found" {
		t.Errorf("Error() = %q", got)
	}
	for _, tc := range []struct {
		err  error
		want Code
	}{
		{nil, ""},
		{err, CodeGone},
		{context.Canceled, CodeCanceled},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), CodeTimeout},
		{cause, CodeInternal},
	} {
		if got := CodeOf(tc.err); got != tc.want {
			t.Errorf("CodeOf(%v) = %q, want %q", tc.err, got, tc.want)
		}
	}
}

func FuzzValidateName(f *testing.F) {
	f.Add("box-1")
	f.Fuzz(func(t *testing.T, s string) {
		if ValidateName(s) == nil && strings.ContainsAny(s, "/.\x00 \n") {
			t.Errorf("%q is a name", s)
		}
	})
}
