package guestkit

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// Instance is a sandbox of a service. A guest inside runs commands and accesses
// files. A driver embeds it and adds Destroy. Its methods may be called
// concurrently.
type Instance struct {
	Calls
	id      sandbox.ID
	dial    func(context.Context, guest.Options) (*guest.Client, error)
	runner  Runner // nil: programs cannot be run without the guest
	service Service

	ended   chan struct{} // closed when its end is known; exit is set before
	joining chan struct{} // held by who connects with the guest

	mu     sync.Mutex
	client *guest.Client // nil until it is needed
	ends   time.Time     // as far as this process knows
	exit   sandbox.Exit
	dying  bool // it is being destroyed
}

var (
	_ driver.FileSystem     = (*Instance)(nil)
	_ driver.Archiver       = (*Instance)(nil)
	_ driver.Watcher        = (*Instance)(nil)
	_ driver.Overwriter     = (*Instance)(nil)
	_ driver.Describer      = (*Instance)(nil)
	_ driver.ProcessManager = (*Instance)(nil)
	_ driver.Rejoiner       = (*Instance)(nil)
	_ driver.Dialer         = (*Instance)(nil)
)

// Instance makes an instance of a machine with a deadline; zero means that it
// is not known. It makes no network call.
func (k *Kit) Instance(id sandbox.ID, m Machine, ends time.Time) *Instance {
	in := Connected(id, func(ctx context.Context, opts guest.Options) (*guest.Client, error) { return k.Dial(ctx, m, opts) }, m, ends)
	in.runner = m
	return in
}

// Connected makes an instance of a sandbox whose guest is reached with dial.
func Connected(id sandbox.ID, dial func(context.Context, guest.Options) (*guest.Client, error), s Service, ends time.Time) *Instance {
	in := &Instance{id: id, dial: dial, service: s, ends: ends, ended: make(chan struct{}), joining: make(chan struct{}, 1)}
	in.Use = func(ctx context.Context, _ bool, f func(context.Context, *guest.Client) error) error {
		c, err := in.Reach(ctx)
		if err != nil {
			return err
		}
		return f(ctx, c)
	}
	return in
}

// ID implements driver.Instance.
func (in *Instance) ID() sandbox.ID { return in.id }

// How a sandbox ends.
var (
	Killed = sandbox.Exit{
		Code: 128 + int(syscall.SIGKILL), Signal: int(syscall.SIGKILL), Reason: sandbox.ReasonKilled, Detail: "the sandbox was destroyed",
	}
	Expired = sandbox.Exit{
		Code: 128 + int(syscall.SIGKILL), Signal: int(syscall.SIGKILL), Reason: sandbox.ReasonLifetime,
		Detail: "the sandbox reached the end of its lifetime",
	}
)

// Gone is the error of calls on a sandbox that does not exist any more.
func Gone(id sandbox.ID) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeGone, Subject: string(id), Message: "the sandbox does not exist"}
}

// Finish notes that the sandbox has ended. The first reason counts.
func (in *Instance) Finish(exit sandbox.Exit) {
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

// Ended returns how the sandbox ended, if that is known.
func (in *Instance) Ended() (sandbox.Exit, bool) {
	select {
	case <-in.ended:
		return in.exit, true
	default:
		return sandbox.Exit{}, false
	}
}

// SetDying records that this process begins to destroy the sandbox, or has
// failed to.
func (in *Instance) SetDying(dying bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.dying = dying
}

// SetEnds says when the lifetime ends.
func (in *Instance) SetEnds(at time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ends = at
}

// Disconnect drops the connection with the guest, which did not outlive a pause.
// The next call makes another.
func (in *Instance) Disconnect() {
	in.mu.Lock()
	client := in.client
	in.client = nil
	in.mu.Unlock()
	if client != nil {
		client.Close()
	}
}

// Reach returns a connection to the guest, which it makes if necessary.
func (in *Instance) Reach(ctx context.Context) (*guest.Client, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if _, ended := in.Ended(); ended {
		return nil, Gone(in.id)
	}
	if c := in.connected(); c != nil {
		return c, nil
	}
	select {
	case in.joining <- struct{}{}:
		defer func() { <-in.joining }()
	case <-in.ended:
		return nil, Gone(in.id)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c := in.connected(); c != nil {
		return c, nil // another caller was faster
	}
	client, err := in.dial(ctx, guest.Options{Ended: in.fate, Lost: in.lost, Overdue: in.overdue})
	if err != nil {
		return nil, in.unreached(ctx, err)
	}
	in.mu.Lock()
	in.client = client
	in.mu.Unlock()
	if _, ended := in.Ended(); ended {
		client.Close()
		return nil, Gone(in.id)
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

// unreached explains why the guest cannot be reached. While the sandbox is being
// destroyed, the service may still list it although nothing inside answers.
func (in *Instance) unreached(ctx context.Context, err error) error {
	err = in.Explain(ctx, err)
	in.mu.Lock()
	dying := in.dying
	in.mu.Unlock()
	if !dying || sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		return err
	}
	if _, ended := in.await(ctx); ended {
		return Gone(in.id)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Explain replaces "it does not answer" with the state of the sandbox as the
// service reports it.
func (in *Instance) Explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	switch s, ended, asked := in.Ask(ctx); {
	case ended:
		return Gone(in.id)
	case asked == nil && s.State == sandbox.Paused:
		return in.asleep(err)
	}
	return err
}

// asleep is the error of calls on a sandbox that its service has paused.
func (in *Instance) asleep(cause error) error {
	return &sandbox.Error{
		Code: sandbox.CodeConflict, Subject: string(in.id), Message: "the service has paused the sandbox", Hint: "resume it with: atoll resume", Cause: cause,
	}
}

// Ask asks the service about the sandbox, and notes if it has ended.
func (in *Instance) Ask(ctx context.Context) (s Status, ended bool, err error) {
	if _, ended := in.Ended(); ended {
		return s, true, nil
	}
	s, err = in.service.Status(ctx)
	switch {
	case err == nil:
		if !s.Ends.IsZero() {
			in.SetEnds(s.Ends)
		}
		return s, false, nil
	case sandbox.CodeOf(err) != sandbox.CodeGone:
		return s, false, err
	}
	in.mu.Lock()
	ends, dying := in.ends, in.dying
	in.mu.Unlock()
	exit := Killed
	if !dying {
		exit = in.service.Cause(ends)
	}
	in.Finish(exit)
	return s, true, nil
}

// Sleeps asks the service whether the sandbox is paused. A sandbox that has
// ended is CodeGone.
func (in *Instance) Sleeps(ctx context.Context) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s, ended, err := in.Ask(ctx)
	if ended {
		return false, Gone(in.id)
	}
	return err == nil && s.State == sandbox.Paused, err
}

const (
	// Slack is by how much clocks may differ, and how late a lifetime may end.
	Slack = 2 * time.Second
	// enough signs of life say that a sandbox runs.
	enough = 4
	// patience is how long the service may take to say what became of a sandbox.
	patience = 15 * time.Second
	// poll is the interval at which Wait asks the service about the sandbox.
	poll = 5 * time.Second
)

// fate waits a little for the end that a lost connection announces, if the
// sandbox does not run on. The processes of one that ends are gone before the
// service says so.
func (in *Instance) fate(ctx context.Context) (sandbox.Exit, bool) {
	if _, ended := in.await(context.WithoutCancel(ctx)); !ended {
		return sandbox.Exit{}, false
	}
	return in.Ended()
}

// await is like fate. It returns the last state that the service reported.
func (in *Instance) await(ctx context.Context) (last sandbox.State, ended bool) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	signs := 0 // of life
	for wait := 10 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, time.Second) {
		s, ended, err := in.Ask(ctx)
		if ended {
			return sandbox.Gone, true
		}
		if err == nil {
			last = s.State
		}
		in.mu.Lock()
		ending := in.dying || !in.ends.IsZero() && time.Until(in.ends) < Slack
		in.mu.Unlock()
		if err == nil && (s.State == sandbox.Paused || in.service.Answers(ctx)) {
			signs++
		}
		if signs >= enough && !ending {
			return last, false
		}
		select {
		case <-in.ended:
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	_, ended = in.Ended()
	return last, ended
}

// lost is the error of calls whose connection was lost because the sandbox ended
// or was paused, or nil.
func (in *Instance) lost() error {
	switch last, ended := in.await(context.Background()); {
	case ended:
		return Gone(in.id)
	case last == sandbox.Paused:
		return in.asleep(nil)
	}
	return nil
}

// Wait implements driver.Instance.
func (in *Instance) Wait(ctx context.Context) (sandbox.Exit, error) {
	for {
		if exit, ended := in.Ended(); ended {
			return exit, nil
		}
		if err := ctx.Err(); err != nil {
			return sandbox.Exit{}, err
		}
		_, ended, err := in.Ask(ctx)
		if ended {
			continue
		}
		if code := sandbox.CodeOf(err); err != nil && code != sandbox.CodeUnavailable && code != sandbox.CodeExhausted && ctx.Err() == nil {
			return sandbox.Exit{}, err // the key is not taken any more, perhaps
		}
		in.rest(ctx)
	}
}

// rest waits until it is worth asking again: when time is over, when the
// connection is lost, or after a while.
func (in *Instance) rest(ctx context.Context) {
	in.mu.Lock()
	wait, client := poll, in.client
	if left := time.Until(in.ends) + 50*time.Millisecond; !in.ends.IsZero() && left < wait {
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
