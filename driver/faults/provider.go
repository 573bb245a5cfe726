// Package faults injects faults into providers and connections, to test
// programs against the ways in which services fail: they are slow, they return
// errors, they act but lose the response, they act twice, and they return
// misleading errors.
//
// [Provider] wraps a driver.Provider. [Proxy] forwards connections from a
// client to a server. Both may be used concurrently, and change nothing until a
// fault is added.
package faults

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// Op is a call of a provider or an instance.
type Op string

// The calls into which faults can be injected.
const (
	Any     Op = ""
	Probe   Op = "probe"
	Create  Op = "create"
	Attach  Op = "attach"
	List    Op = "list"
	Exec    Op = "exec"
	Wait    Op = "wait"
	Destroy Op = "destroy"
)

// Fault is a fault of a call. The zero value has no effect.
type Fault struct {
	Op    Op            // which call; Any: every one
	Skip  int           // number of calls to let pass first
	Times int           // number of calls to break after that; 0: all
	Delay time.Duration // wait before acting, or until the context ends

	// Err is returned. Without Act, the call does nothing else. With Act, the call
	// is carried out and its result is lost.
	Err error
	Act bool
	// Twice carries the call out twice and returns the second result.
	Twice bool
	// ID makes an attached instance claim to be another one.
	ID sandbox.ID
}

// Error is an error with a code, as a driver would classify it. The text is
// what a service might return, and may contradict the code.
type Error struct {
	Code sandbox.Code
	Text string
}

// Error implements error.
func (e *Error) Error() string { return e.Text }

// Lies are errors whose text contradicts their code. None of them is evidence
// that a sandbox is gone.
func Lies() []error {
	return []error{
		&Error{sandbox.CodeUnavailable, "getaddrinfo ENOTFOUND api.example.com: sandbox not found"},
		&Error{sandbox.CodeUnavailable, "500 internal server error: sandbox does not exist"},
		&Error{sandbox.CodeUnauthorized, "API token not found"},
		&Error{sandbox.CodeNotFound, "image tag does not exist"},
		&Error{sandbox.CodeTimeout, "deadline exceeded while the sandbox was gone"},
	}
}

// Gone is an error with a code that says that a sandbox does not exist.
func Gone(text string) error { return &Error{sandbox.CodeGone, text} }

// Injector holds the faults of a provider. The zero value is ready to use.
type Injector struct {
	mu     sync.Mutex
	faults []*state
	calls  map[Op]int
}

type state struct {
	Fault
	seen int
}

// Add adds a fault. If several match a call, the one that was added first
// applies.
func (i *Injector) Add(f Fault) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.faults = append(i.faults, &state{Fault: f})
}

// Clear removes all faults.
func (i *Injector) Clear() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.faults = nil
}

// Calls returns how often a call was made, broken or not.
func (i *Injector) Calls(op Op) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.calls[op]
}

// next returns the fault of this call.
func (i *Injector) next(op Op) Fault {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.calls == nil {
		i.calls = map[Op]int{}
	}
	i.calls[op]++
	for _, f := range i.faults {
		if f.Op != Any && f.Op != op {
			continue
		}
		f.seen++
		if f.seen > f.Skip && (f.Times == 0 || f.seen <= f.Skip+f.Times) {
			return f.Fault
		}
	}
	return Fault{}
}

// do carries out a call with its fault. undo releases a result that is not
// returned to the caller, if necessary.
func do[T any](ctx context.Context, i *Injector, op Op, act func() (T, error)) (T, Fault, error) {
	var none T
	f := i.next(op)
	if f.Delay > 0 {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return none, f, ctx.Err()
		}
	}
	if f.Err != nil && !f.Act {
		return none, f, f.Err
	}
	got, err := act()
	if f.Twice {
		got, err = act()
	}
	if f.Err != nil {
		return none, f, errors.Join(f.Err, err)
	}
	return got, f, err
}

// Provider returns p with the faults of i. Optional interfaces of p and of its
// instances are found with driver.As and are not broken.
func Provider(p driver.Provider, i *Injector) driver.Provider { return &provider{p, i} }

type provider struct {
	driver.Provider
	faults *Injector
}

// Unwrap implements driver.Unwrapper.
func (p *provider) Unwrap() any { return p.Provider }

func (p *provider) Probe(ctx context.Context) (driver.Facts, error) {
	facts, _, err := do(ctx, p.faults, Probe, func() (driver.Facts, error) { return p.Provider.Probe(ctx) })
	return facts, err
}

func (p *provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	inst, f, err := do(ctx, p.faults, Create, func() (driver.Instance, error) { return p.Provider.Create(ctx, spec) })
	return p.wrap(inst, f, err)
}

func (p *provider) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	inst, f, err := do(ctx, p.faults, Attach, func() (driver.Instance, error) { return p.Provider.Attach(ctx, id) })
	return p.wrap(inst, f, err)
}

func (p *provider) wrap(inst driver.Instance, f Fault, err error) (driver.Instance, error) {
	if err != nil {
		return nil, err
	}
	return &instance{inst, p.faults, f.ID}, nil
}

func (p *provider) List(ctx context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		seq, _, err := do(ctx, p.faults, List, func() (iter.Seq2[driver.Found, error], error) { return p.Provider.List(ctx), nil })
		if err != nil {
			yield(driver.Found{}, err)
			return
		}
		seq(yield)
	}
}

// ErrorCode implements driver.Provider.
func (p *provider) ErrorCode(err error) sandbox.Code {
	var own *Error
	if errors.As(err, &own) {
		return own.Code
	}
	return p.Provider.ErrorCode(err)
}

type instance struct {
	driver.Instance
	faults *Injector
	id     sandbox.ID // id that it claims to have; empty: its own
}

// Unwrap implements driver.Unwrapper.
func (i *instance) Unwrap() any { return i.Instance }

func (i *instance) ID() sandbox.ID {
	if i.id != "" {
		return i.id
	}
	return i.Instance.ID()
}

func (i *instance) Exec(ctx context.Context, cmd *sandbox.Command) (driver.Process, error) {
	var first driver.Process
	proc, f, err := do(ctx, i.faults, Exec, func() (driver.Process, error) {
		if first != nil { // the first result of a call that is carried out twice
			if err := first.Close(); err != nil {
				return nil, err
			}
		}
		var err error
		first, err = i.Instance.Exec(ctx, cmd)
		return first, err
	})
	if f.Act && err != nil && first != nil {
		err = errors.Join(err, first.Close())
	}
	return proc, err
}

func (i *instance) Wait(ctx context.Context) (sandbox.Exit, error) {
	exit, _, err := do(ctx, i.faults, Wait, func() (sandbox.Exit, error) { return i.Instance.Wait(ctx) })
	return exit, err
}

func (i *instance) Destroy(ctx context.Context) error {
	_, _, err := do(ctx, i.faults, Destroy, func() (struct{}, error) { return struct{}{}, i.Instance.Destroy(ctx) })
	return err
}

// String makes test failures readable.
func (f Fault) String() string {
	return fmt.Sprintf("%s skip=%d times=%d delay=%v err=%v act=%v twice=%v id=%s", f.Op, f.Skip, f.Times, f.Delay, f.Err, f.Act, f.Twice, f.ID)
}
