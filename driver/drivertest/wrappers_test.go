package drivertest

import (
	"context"
	"io"
	"iter"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// The wrappers below let a test replace one method of a correct provider.

// factsProvider changes the facts of Probe.
type factsProvider struct {
	passProvider
	change func(*driver.Facts)
}

func (p factsProvider) Probe(ctx context.Context) (driver.Facts, error) {
	f, err := p.Provider.Probe(ctx)
	p.change(&f)
	return f, err
}

// instanceProvider wraps every instance.
type instanceProvider struct {
	passProvider
	wrap func(driver.Instance) driver.Instance
}

func (p instanceProvider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	inst, err := p.Provider.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return p.wrap(inst), nil
}

func (p instanceProvider) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	inst, err := p.Provider.Attach(ctx, id)
	if err != nil {
		return nil, err
	}
	return p.wrap(inst), nil
}

// createProvider replaces Create.
type createProvider struct {
	passProvider
	create func(ctx context.Context, spec *sandbox.Spec, next driver.Provider) (driver.Instance, error)
}

func (p createProvider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	return p.create(ctx, spec, p.Provider)
}

// attachProvider replaces Attach.
type attachProvider struct {
	passProvider
	attach func(ctx context.Context, id sandbox.ID, next driver.Provider) (driver.Instance, error)
}

func (p attachProvider) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	return p.attach(ctx, id, p.Provider)
}

// listProvider changes the results of List.
type listProvider struct {
	passProvider
	change func(*driver.Found)
}

func (p listProvider) List(ctx context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		for f, err := range p.Provider.List(ctx) {
			p.change(&f)
			if !yield(f, err) {
				return
			}
		}
	}
}

// codeProvider changes the classification of errors.
type codeProvider struct {
	passProvider
	change func(sandbox.Code) sandbox.Code
}

func (p codeProvider) ErrorCode(err error) sandbox.Code { return p.change(p.Provider.ErrorCode(err)) }

// closeProvider replaces Close.
type closeProvider struct {
	passProvider
	close func(next driver.Provider) error
}

func (p closeProvider) Close() error { return p.close(p.Provider) }

// execInstance replaces Exec.
type execInstance struct {
	driver.Instance
	exec func(ctx context.Context, cmd *sandbox.Command, next driver.Instance) (driver.Process, error)
}

func (i execInstance) Unwrap() any { return i.Instance }

func (i execInstance) Exec(ctx context.Context, cmd *sandbox.Command) (driver.Process, error) {
	return i.exec(ctx, cmd, i.Instance)
}

// endInstance replaces Wait and Destroy, if set.
type endInstance struct {
	driver.Instance
	wait    func(ctx context.Context, next driver.Instance) (sandbox.Exit, error)
	destroy func(ctx context.Context, next driver.Instance) error
}

func (i endInstance) Unwrap() any { return i.Instance }

func (i endInstance) Wait(ctx context.Context) (sandbox.Exit, error) {
	if i.wait != nil {
		return i.wait(ctx, i.Instance)
	}
	return i.Instance.Wait(ctx)
}

func (i endInstance) Destroy(ctx context.Context) error {
	if i.destroy != nil {
		return i.destroy(ctx, i.Instance)
	}
	return i.Instance.Destroy(ctx)
}

// hookedProcess replaces the methods of a process that are set.
type hookedProcess struct {
	driver.Process
	stdin  io.WriteCloser
	stdout io.Reader
	stderr io.Reader
	info   func(sandbox.ProcessInfo) sandbox.ProcessInfo
	signal func(ctx context.Context, sig int) error
	resize func() error
	wait   func(sandbox.Exit, error) (sandbox.Exit, error)
	close  func() error
}

func (p hookedProcess) Stdin() io.WriteCloser {
	if p.stdin != nil {
		return p.stdin
	}
	return p.Process.Stdin()
}

func (p hookedProcess) Stdout() io.Reader {
	if p.stdout != nil {
		return p.stdout
	}
	return p.Process.Stdout()
}

func (p hookedProcess) Stderr() io.Reader {
	if p.stderr != nil {
		return p.stderr
	}
	return p.Process.Stderr()
}

func (p hookedProcess) Info() sandbox.ProcessInfo {
	if p.info != nil {
		return p.info(p.Process.Info())
	}
	return p.Process.Info()
}

func (p hookedProcess) Signal(ctx context.Context, sig int) error {
	if p.signal != nil {
		return p.signal(ctx, sig)
	}
	return p.Process.Signal(ctx, sig)
}

func (p hookedProcess) Resize(ctx context.Context, size sandbox.WindowSize) error {
	if p.resize != nil {
		return p.resize()
	}
	return p.Process.Resize(ctx, size)
}

func (p hookedProcess) Wait(ctx context.Context) (sandbox.Exit, error) {
	if p.wait != nil {
		return p.wait(p.Process.Wait(ctx))
	}
	return p.Process.Wait(ctx)
}

func (p hookedProcess) Close() error {
	if p.close != nil {
		return p.close()
	}
	return p.Process.Close()
}

// filesInstance wraps the file system. Methods that a test does not override
// are those of the wrapped one.
type filesInstance struct {
	driver.Instance
	driver.FileSystem
}

func (i filesInstance) Unwrap() any { return i.Instance }

// withFiles replaces every instance's file system by the result of wrap.
func withFiles(wrap func(driver.FileSystem) driver.FileSystem) func(driver.Provider) driver.Provider {
	return withInstance(func(inst driver.Instance) driver.Instance {
		fs, _ := driver.As[driver.FileSystem](inst)
		return filesInstance{inst, wrap(fs)}
	})
}

func withInstance(wrap func(driver.Instance) driver.Instance) func(driver.Provider) driver.Provider {
	return func(p driver.Provider) driver.Provider { return instanceProvider{passProvider{p}, wrap} }
}

func withExec(exec func(ctx context.Context, cmd *sandbox.Command, next driver.Instance) (driver.Process, error)) func(driver.Provider) driver.Provider {
	return withInstance(func(inst driver.Instance) driver.Instance { return execInstance{inst, exec} })
}

// withCommand changes commands before they are executed.
func withCommand(change func(*sandbox.Command)) func(driver.Provider) driver.Provider {
	return withExec(func(ctx context.Context, cmd *sandbox.Command, next driver.Instance) (driver.Process, error) {
		own := *cmd
		change(&own)
		return next.Exec(ctx, &own)
	})
}

// withProcess changes processes.
func withProcess(hook func(cmd *sandbox.Command, p driver.Process) hookedProcess) func(driver.Provider) driver.Provider {
	return withExec(func(ctx context.Context, cmd *sandbox.Command, next driver.Instance) (driver.Process, error) {
		p, err := next.Exec(ctx, cmd)
		if err != nil {
			return nil, err
		}
		return hook(cmd, p), nil
	})
}

func withFacts(change func(*driver.Facts)) func(driver.Provider) driver.Provider {
	return func(p driver.Provider) driver.Provider { return factsProvider{passProvider{p}, change} }
}

func withEnd(wait func(context.Context, driver.Instance) (sandbox.Exit, error), destroy func(context.Context, driver.Instance) error) func(driver.Provider) driver.Provider {
	return withInstance(func(inst driver.Instance) driver.Instance { return endInstance{inst, wait, destroy} })
}
