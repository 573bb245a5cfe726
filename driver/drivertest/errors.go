package drivertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

var knownCodes = []sandbox.Code{
	sandbox.CodeInvalid, sandbox.CodeNotFound, sandbox.CodeGone, sandbox.CodeAlreadyExists, sandbox.CodeConflict,
	sandbox.CodeUnavailable, sandbox.CodeUnauthorized, sandbox.CodeDenied, sandbox.CodeExhausted, sandbox.CodeTimeout,
	sandbox.CodeCanceled, sandbox.CodeUnsupported, sandbox.CodeStale, sandbox.CodeInternal,
}

// vet checks every error of a driver: its code is a known one and its text
// contains no secret. It returns err.
func (t *caseT) vet(err error) error {
	if err == nil {
		return nil
	}
	if code := t.provider.ErrorCode(err); !slices.Contains(knownCodes, code) {
		t.Errorf("ErrorCode(%q) is %q, which is not a known code", err, code)
	}
	if strings.Contains(err.Error(), t.canary) {
		t.Errorf("an error's text holds a secret: %s", strings.ReplaceAll(err.Error(), t.canary, "CANARY"))
	}
	return err
}

// wantCode checks that err is classified as one of the codes.
func (t *caseT) wantCode(what string, err error, want ...sandbox.Code) {
	if err == nil {
		t.Errorf("%s: no error, want %v", what, want)
		return
	}
	_ = t.vet(err)
	if got := t.provider.ErrorCode(err); !slices.Contains(want, got) {
		t.Errorf("%s: code %q, want %v; error: %v", what, got, want, err)
	}
}

// ok ends the case if err is not nil.
func (t *caseT) ok(what string, err error) {
	if err != nil {
		t.Fatalf("%s: %v (code %q)", what, t.vet(err), t.provider.ErrorCode(err))
	}
}

var errorCases = []testCase{
	{"errors/unknown", "", func(t *caseT) {
		if code := t.provider.ErrorCode(errors.New("an error of another package")); code != "" && code != sandbox.CodeInternal {
			t.Errorf("a foreign error has code %q, want none", code)
		}
		if code := t.provider.ErrorCode(nil); code != "" {
			t.Errorf("no error has code %q", code)
		}
	}},
	{"errors/canceled", "", func(t *caseT) {
		b := t.sandbox()
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		_, err := b.inst.Exec(ctx, &sandbox.Command{Args: []string{"true"}})
		t.wantCode("Exec with a canceled context", err, sandbox.CodeCanceled)
		_, err = b.inst.Wait(ctx)
		t.wantCode("Wait with a canceled context", err, sandbox.CodeCanceled)
		_, err = t.provider.Attach(ctx, b.inst.ID())
		if err != nil {
			t.wantCode("Attach with a canceled context", err, sandbox.CodeCanceled, sandbox.CodeUnsupported)
		}
		if fs, ok := driver.As[driver.FileSystem](b.inst); ok {
			_, err = fs.Write(ctx, b.path("f"), strings.NewReader("x"), driver.WriteOptions{})
			t.wantCode("Write with a canceled context", err, sandbox.CodeCanceled)
			_, err = fs.Stat(t.ctx, b.path("f"))
			t.wantCode("Stat of what a canceled Write was to make", err, sandbox.CodeNotFound)
		}
	}},
	{"errors/deadline", "", func(t *caseT) {
		b := t.sandbox()
		ctx, cancel := context.WithDeadline(t.ctx, time.Now().Add(-time.Second))
		defer cancel()
		_, err := b.inst.Exec(ctx, &sandbox.Command{Args: []string{"true"}})
		t.wantCode("Exec after its deadline", err, sandbox.CodeTimeout)
		_, err = b.inst.Wait(ctx)
		t.wantCode("Wait after its deadline", err, sandbox.CodeTimeout)
		_, err = t.provider.Create(ctx, t.spec())
		t.wantCode("Create after its deadline", err, sandbox.CodeTimeout)
	}},
	{"errors/wait-deadline", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"sleep", "1000"}})
		ctx, cancel := context.WithTimeout(t.ctx, 20*time.Millisecond)
		defer cancel()
		_, err := p.Wait(ctx)
		t.wantCode("Process.Wait at its deadline", err, sandbox.CodeTimeout)
	}},
}
