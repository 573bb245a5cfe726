package e2b

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// Instance is a sandbox of the service, with a guest in it that does what is
// done inside.
type Instance struct {
	p      *Provider
	id     sandbox.ID
	inside *inside

	ended   chan struct{} // closed when it is known to have ended; exit is set before
	joining chan struct{} // held by who connects with the guest

	mu     sync.Mutex
	client *guest.Client // nil until it is needed
	ends   time.Time     // as far as this process knows
	exit   sandbox.Exit
	dying  bool // Destroy is under way
}

func (p *Provider) instance(id sandbox.ID, b box) *Instance {
	return &Instance{p: p, id: id, inside: p.api.inside(b), ended: make(chan struct{}), joining: make(chan struct{}, 1)}
}

// ID implements driver.Instance.
func (in *Instance) ID() sandbox.ID { return in.id }

// How a sandbox ends.
var (
	killed = sandbox.Exit{
		Code: 128 + int(syscall.SIGKILL), Signal: int(syscall.SIGKILL), Reason: sandbox.ReasonKilled, Detail: "the sandbox was destroyed",
	}
	expired = sandbox.Exit{
		Code: 128 + int(syscall.SIGKILL), Signal: int(syscall.SIGKILL), Reason: sandbox.ReasonLifetime,
		Detail: "the sandbox reached the end of its lifetime",
	}
)

// finish notes that the sandbox has ended. The first reason counts.
func (in *Instance) finish(exit sandbox.Exit) {
	in.mu.Lock()
	client := in.client
	select {
	case <-in.ended:
	default:
		in.exit = exit
		close(in.ended)
	}
	in.mu.Unlock()
	if client != nil {
		client.Close()
	}
}

func (in *Instance) hasEnded() (sandbox.Exit, bool) {
	select {
	case <-in.ended:
		return in.exit, true
	default:
		return sandbox.Exit{}, false
	}
}

// reach returns a connection to the guest, making one if there is none.
func (in *Instance) reach(ctx context.Context) (*guest.Client, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if _, ended := in.hasEnded(); ended {
		return nil, goneError(in.id)
	}
	if c := in.connected(); c != nil {
		return c, nil
	}
	select {
	case in.joining <- struct{}{}:
		defer func() { <-in.joining }()
	case <-in.ended:
		return nil, goneError(in.id)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c := in.connected(); c != nil {
		return c, nil // somebody was faster
	}
	client, err := in.p.join(ctx, in.inside, guest.Options{Ended: in.commandEnd, Lost: in.lost})
	if err != nil {
		return nil, in.explain(ctx, err)
	}
	in.mu.Lock()
	in.client = client
	in.mu.Unlock()
	if _, ended := in.hasEnded(); ended {
		client.Close()
		return nil, goneError(in.id)
	}
	return client, nil
}

func (in *Instance) connected() *guest.Client {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.client == nil {
		return nil
	}
	select {
	case <-in.client.Done():
		return nil
	default:
		return in.client
	}
}

// explain replaces "it does not answer" by what the service knows of the
// sandbox.
func (in *Instance) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	switch b, ended, asked := in.ask(ctx); {
	case ended:
		return goneError(in.id)
	case asked == nil && b.State == statePaused:
		return &sandbox.Error{
			Code: sandbox.CodeConflict, Subject: string(in.id), Message: "the service has paused the sandbox", Hint: "resume it with: atoll resume", Cause: err,
		}
	}
	return err
}

// ask asks the service about the sandbox, and notes if it has ended. Only the
// service's own word that it does not exist, and that this is not for the key,
// is evidence.
func (in *Instance) ask(ctx context.Context) (b box, ended bool, err error) {
	if _, ended := in.hasEnded(); ended {
		return b, true, nil
	}
	b, err = in.p.api.get(ctx, in.inside.id)
	if err == nil {
		in.mu.Lock()
		in.ends = b.Ends
		in.mu.Unlock()
		return b, false, nil
	}
	if sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return b, false, err
	}
	if other, err := in.p.find(ctx, in.id); err == nil && other.ID == in.inside.id {
		return other, false, nil
	} else if err != nil && sandbox.CodeOf(err) != sandbox.CodeGone {
		return b, false, err
	}
	in.finish(in.why())
	return b, true, nil
}

// slack is by how much clocks may differ, and how late a lifetime may end.
const slack = 2 * time.Second

// why finds out how a sandbox ended that does not exist any more. The service
// does not say: it was its lifetime if that was over and nobody here ended it.
func (in *Instance) why() sandbox.Exit {
	r, ok := in.p.state.recordOf(in.id, in.inside.id)
	in.mu.Lock()
	ends, dying := in.ends, in.dying
	in.mu.Unlock()
	if r.Ends.Before(ends) && !r.Ends.IsZero() || ends.IsZero() {
		ends = r.Ends
	}
	if !ok || dying || r.Doomed || time.Now().Before(ends.Add(-slack)) {
		return killed
	}
	return expired
}

// fate waits a little for the end that a lost connection announces, if the
// sandbox does not run on. The processes of one that ends are gone before the
// service says so.
func (in *Instance) fate(ctx context.Context) (sandbox.Exit, bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	signs := 0 // of life
	for wait := 10 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, time.Second) {
		b, ended, err := in.ask(ctx)
		if ended {
			return in.hasEnded()
		}
		in.mu.Lock()
		doomed := in.dying || time.Until(in.ends) < slack
		in.mu.Unlock()
		if err == nil && (b.State == statePaused || in.inside.healthy(ctx)) {
			signs++
		}
		if signs >= enough && !doomed {
			return sandbox.Exit{}, false
		}
		select {
		case <-in.ended:
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return in.hasEnded()
}

// enough signs of life say that a sandbox runs.
const enough = 4

// patience is how long the service may take to say what became of a sandbox.
const patience = 15 * time.Second

// commandEnd is how a command ended whose connection was lost.
func (in *Instance) commandEnd(ctx context.Context) (sandbox.Exit, bool) { return in.fate(ctx) }

// lost is the error of calls whose connection was lost.
func (in *Instance) lost() error {
	if _, ended := in.fate(context.Background()); ended {
		return goneError(in.id)
	}
	return nil
}

// poll is how often the service is asked whether a sandbox lives that somebody
// waits for.
const poll = 5 * time.Second

// Wait implements driver.Instance.
func (in *Instance) Wait(ctx context.Context) (sandbox.Exit, error) {
	for {
		if exit, ended := in.hasEnded(); ended {
			return exit, nil
		}
		if err := ctx.Err(); err != nil {
			return sandbox.Exit{}, err
		}
		_, ended, err := in.ask(ctx)
		if ended {
			continue
		}
		if code := sandbox.CodeOf(err); err != nil && code != sandbox.CodeUnavailable && code != sandbox.CodeExhausted && ctx.Err() == nil {
			return sandbox.Exit{}, err // the key is not taken any more, perhaps
		}
		in.pause(ctx)
	}
}

// pause waits until it is worth asking again: when time is over, when the
// connection is lost, or after a while.
func (in *Instance) pause(ctx context.Context) {
	in.mu.Lock()
	wait, client := poll, in.client
	if left := time.Until(in.ends) + 50*time.Millisecond; left < wait {
		wait = max(left, 100*time.Millisecond)
	}
	in.mu.Unlock()
	var lost <-chan struct{}
	if client != nil && in.connected() != nil {
		lost = client.Done()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-in.ended:
	case <-ctx.Done():
	case <-lost:
	case <-timer.C:
	}
}

// Destroy implements driver.Instance.
func (in *Instance) Destroy(ctx context.Context) error {
	if exit, ended := in.hasEnded(); ended && exit.Reason == sandbox.ReasonKilled {
		return nil
	}
	l, err := in.p.state.lock(ctx, in.id)
	if err != nil {
		return err
	}
	defer l.unlock()
	in.mu.Lock()
	in.dying = true
	in.mu.Unlock()
	r := l.read()
	if ours := r.Box == in.inside.id; ours {
		r.Doomed = true
		err = l.write(r)
	}
	if err == nil {
		err = in.p.api.kill(ctx, in.inside.id)
	}
	if err != nil {
		in.mu.Lock()
		in.dying = false
		in.mu.Unlock()
		return err
	}
	in.finish(killed)
	if r.Box == in.inside.id || r.Box == "" {
		return l.remove()
	}
	return nil
}

// SetDeadline implements driver.DeadlineSetter. The service knows whole seconds,
// and no sandbox without an end: never means the provider's longest.
func (in *Instance) SetDeadline(ctx context.Context, at time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, ended := in.hasEnded(); ended {
		return goneError(in.id)
	}
	life := in.p.opts.Lifetime
	if !at.IsZero() {
		life = time.Until(at)
	}
	l, err := in.p.state.lock(ctx, in.id)
	if err != nil {
		return err
	}
	defer l.unlock()
	ends := time.Now().Add(time.Duration(seconds(life)) * time.Second)
	err = in.p.api.setTimeout(ctx, in.inside.id, seconds(life))
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		_ = l.remove()
		return in.explain(ctx, err)
	}
	if err != nil {
		return err
	}
	in.mu.Lock()
	in.ends = ends
	in.mu.Unlock()
	if r := l.read(); r.Box == in.inside.id {
		r.Ends = ends
		return l.write(r)
	}
	binding, err := in.p.Binding(ctx)
	if err != nil {
		return err
	}
	return l.write(record{Box: in.inside.id, Ends: ends, Binding: binding})
}

// Usage implements driver.Meter. The service tells how busy the processors are,
// and not for how long they were.
func (in *Instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	if _, ended := in.hasEnded(); ended {
		return sandbox.Usage{}, goneError(in.id)
	}
	m, err := in.inside.metrics(ctx)
	if err != nil {
		return sandbox.Usage{}, in.explain(ctx, err)
	}
	return sandbox.Usage{CPU: -1, Memory: int64(m.MemUsed), Disk: int64(m.DiskUsed), PIDs: -1, Sampled: time.Unix(m.At, 0)}, nil
}
