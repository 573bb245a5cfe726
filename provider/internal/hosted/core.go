package hosted

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/identity"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// Box is a sandbox as its service describes it.
type Box struct {
	ID      string // the service's
	Sandbox sandbox.ID
	Status  string        // in the service's words
	State   sandbox.State // what the status means; Lost: nobody knows
	Created time.Time
	Labels  map[string]string // nil: the service keeps none
	// Scope is the directory that the sandbox belongs to, if the service can be
	// told of another one. Empty: the one that has a record of it.
	Scope string
}

// ErrNone is the service's own word that there is no such sandbox.
var ErrNone = errors.New("the service has no such sandbox")

// Service is what a driver asks its service about sandboxes. The methods may be
// called concurrently. They return ErrNone, or *sandbox.Error.
type Service interface {
	// Get asks for a sandbox whose id with the service is known.
	Get(ctx context.Context, id sandbox.ID, box string) (Box, error)
	// Find looks for the sandbox with our ID, also among those that are listed.
	Find(ctx context.Context, scope string, id sandbox.ID) (Box, error)
	// List returns the sandboxes that were made with a scope.
	List(ctx context.Context, scope string) ([]Box, error)
	// End ends a sandbox, and no other that has its name by now.
	End(ctx context.Context, id sandbox.ID, box string) error
	// Clear removes what a sandbox that has ended had besides, if its record says
	// that there is More. If a sandbox still uses it, that is CodeConflict: at once
	// if it is tried only once, and otherwise after a while.
	Clear(ctx context.Context, id sandbox.ID, once bool) error
	// Account returns the account of the present credential in the service's
	// words, or nothing if the service does not tell.
	Account(ctx context.Context) (string, error)
	// Credential names the present credential, or where it comes from, without
	// asking anybody.
	Credential() Credential
	// Scopes returns the scopes with which the account has sandboxes with an ID.
	Scopes(ctx context.Context, id sandbox.ID) ([]string, error)
}

// Credential is what an account is known by. It can hold the secret.
type Credential struct {
	// Name tells one credential from another, or says where they come from.
	Name string
	// Key is the secret itself, if it is always the same one. It names the account
	// for everybody.
	Key string
}

// Claimer is implemented by a Service that can be told whom a sandbox belongs to.
// Its boxes have a Scope.
type Claimer interface {
	// Claim makes a sandbox belong to a scope.
	Claim(ctx context.Context, id sandbox.ID, box, scope string) error
}

// Core is what a provider of a hosted service is made of. Its methods may be
// called concurrently.
type Core struct {
	Boxes
	Name    string // the provider's
	Hint    string // what to do about a sandbox of another account
	Service Service
	API     *rest.Client
	Kit     guestkit.Kit
	Expires bool // the service does not end lifetimes in time: see Expiry
	More    bool // sandboxes may have more than themselves: see Record

	Work  sync.WaitGroup  // what goes on after its caller gave up
	Open  context.Context // ends with Close
	Conns sync.WaitGroup  // connections, which end with Open

	expiry Expiry
	close  context.CancelFunc
}

// Start opens a core whose fields are set. It asks nobody, but forgets what was
// kept of sandboxes that ended long ago. executable is the guest where none is
// embedded.
func (c *Core) Start(executable string) error {
	c.Open, c.close = context.WithCancel(context.Background())
	c.Kit.Guest = func(arch string) (*program.Program, error) { return program.For(arch, executable) }
	c.expiry.Boxes, c.expiry.Erase = c.Boxes, c.Erase
	if len(c.IDs()) == 0 {
		return nil
	}
	ours, err := c.Ours(c.Open)
	if err != nil {
		return err
	}
	c.Forget(ours)
	if c.Expires {
		c.expiry.WatchAll(ours)
	}
	return nil
}

// Close implements driver.Provider. It waits for what went on after its caller
// gave up, and ends all connections.
func (c *Core) Close() error {
	c.expiry.Close()
	c.Work.Wait()
	c.close()
	c.Conns.Wait()
	c.API.HTTP.CloseIdleConnections()
	return nil
}

// ErrorCode implements driver.Provider.
func (*Core) ErrorCode(err error) sandbox.Code { return guest.ErrorCode(err) }

// Binding implements driver.Binder. It asks nobody: the account is known by a
// fingerprint of its key. Without a key, or with one that may change, it is known
// to this directory alone.
func (c *Core) Binding(ctx context.Context) (string, error) {
	if key := c.Service.Credential().Key; key != "" {
		return identity.Account(c.API.Base, key), ctx.Err()
	}
	return c.local(ctx)
}

func (c *Core) local(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	scope, err := c.Scope()
	return identity.Local(c.API.Base, scope, c.Service.Credential().Name), err
}

// FormerBindings implements driver.FormerBinder.
func (c *Core) FormerBindings(ctx context.Context) ([]string, error) {
	former, err := c.local(ctx)
	return []string{former}, err
}

// Ours returns what reports whether a binding is the present one, under its
// present name or its former one.
func (c *Core) Ours(ctx context.Context) (func(binding string) bool, error) {
	now, err1 := c.Binding(ctx)
	former, err2 := c.local(ctx)
	return func(b string) bool { return b == now || b == former }, errors.Join(err1, err2)
}

// Strange is the error of a service that does not do what it should.
func (c *Core) Strange(message string) error { return c.API.Strange(message) }

// owned is the error of a sandbox that belongs to another directory.
func (c *Core) owned(b Box) error {
	if b.Scope == "" {
		return nil
	}
	scope, err := c.ScopeOf(b.Sandbox)
	if err == nil && b.Scope != scope {
		err = driver.Elsewhere(b.Sandbox)
	}
	return err
}

// Usable is the error of a sandbox that nothing can be done with, because of its
// status or because another directory has it.
func (c *Core) Usable(b Box) error {
	if b.State == sandbox.Gone {
		return guestkit.Gone(b.Sandbox)
	}
	if err := c.owned(b); err != nil {
		return err
	}
	switch b.State {
	case sandbox.Failed:
		return &sandbox.Error{
			Code: sandbox.CodeConflict, Subject: string(b.Sandbox), Message: "the service says that the sandbox has failed", Hint: "remove it, and restore a snapshot if there is one",
		}
	case sandbox.Lost:
		return c.Strange(fmt.Sprintf("the service says that the sandbox is %q, which this Atoll does not know", b.Status))
	}
	return nil
}

// Find asks the service for a sandbox of ours. That it has none is CodeGone, and
// evidence: it has taken the credential.
func (c *Core) Find(ctx context.Context, id sandbox.ID) (Box, error) {
	if err := ctx.Err(); err != nil {
		return Box{}, err
	}
	scope, err := c.ScopeOf(id)
	if err != nil {
		return Box{}, err
	}
	b, err := c.Service.Find(ctx, scope, id)
	if !errors.Is(err, ErrNone) {
		return b, err
	}
	ours, err := c.Ours(ctx)
	if err != nil {
		return Box{}, err
	}
	account, err := c.Service.Account(ctx)
	if err != nil {
		return Box{}, err
	}
	return Box{}, c.Absent(id, ours, account, c.Hint)
}

// known is Find, and tells a sandbox that is gone from one that belongs to
// another directory.
func (c *Core) known(ctx context.Context, id sandbox.ID) (Box, error) {
	b, err := c.Find(ctx, id)
	if sandbox.CodeOf(err) != sandbox.CodeGone {
		return b, err
	}
	scopes, lookErr := c.Service.Scopes(ctx, id)
	switch {
	case lookErr != nil:
		return Box{}, lookErr
	case len(scopes) > 0:
		return Box{}, driver.Elsewhere(id)
	}
	return b, err
}

// Living returns a sandbox of ours that something can be done with, and sees to
// it that its lifetime ends in time.
func (c *Core) Living(ctx context.Context, id sandbox.ID) (Box, error) {
	b, err := c.known(ctx, id)
	if err == nil {
		err = c.Usable(b)
	}
	if err == nil && c.Expires {
		c.expiry.Watch(id, c.Of(id, b.ID).Ends)
	}
	return b, err
}

// State implements driver.StateTeller: services and their other clients pause and
// resume sandboxes, too.
func (c *Core) State(ctx context.Context, id sandbox.ID) (sandbox.State, error) {
	b, err := c.Living(ctx, id)
	if err != nil {
		return "", err
	}
	return b.State, nil
}

// List implements driver.Provider. It removes what earlier attempts to make a
// sandbox have left.
func (c *Core) List(ctx context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		all, err := c.living(ctx)
		if err != nil {
			yield(driver.Found{}, err)
			return
		}
		for _, b := range all {
			f := driver.Found{ID: b.Sandbox, State: b.State, Created: b.Created, Labels: map[string]string{}, Engine: c.Name}
			if maps.Copy(f.Labels, b.Labels); b.Labels == nil {
				maps.Copy(f.Labels, c.Of(b.Sandbox, b.ID).Labels)
			}
			if b.State == sandbox.Failed {
				f.Exit = &sandbox.Exit{Code: -1, Reason: sandbox.ReasonCrashed, Detail: "the service says that the sandbox has failed"}
			}
			if !yield(f, nil) {
				return
			}
		}
	}
}

// living lists the sandboxes that there are, without those that nobody was given.
func (c *Core) living(ctx context.Context) (living []Box, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	scope, err := c.Scope()
	if err != nil {
		return nil, err
	}
	all, err := c.Service.List(ctx, scope)
	if err == nil {
		all, err = c.adopted(ctx, all)
	}
	if err != nil {
		return nil, err
	}
	there := map[sandbox.ID]Box{}
	for _, b := range all {
		if b.State != sandbox.Gone && sandbox.ValidateName(string(b.Sandbox)) == nil {
			there[b.Sandbox] = b
		}
	}
	if err := c.tidy(ctx, there); err != nil {
		return nil, err
	}
	for _, b := range all {
		if now, ok := there[b.Sandbox]; ok && now.ID == b.ID {
			living = append(living, b)
		}
	}
	return living, nil
}

// tidy ends what appears of sandboxes whose making was not finished, because the
// service did not answer or the process ended, and takes it off the list. It also
// removes what others had besides that have ended by themselves.
func (c *Core) tidy(ctx context.Context, there map[sandbox.ID]Box) error {
	ours, err := c.Ours(ctx)
	if err != nil {
		return err
	}
	for _, name := range c.IDs() {
		id := sandbox.ID(name)
		_, appeared := there[id]
		if r, ok := c.Get(name); !ok || !ours(r.Binding) || !r.unfinished(appeared) {
			continue
		}
		once, cancel := context.WithCancel(ctx)
		cancel() // one try
		l, err := c.Lock(once, name)
		if err != nil {
			continue // it is being made, or removed
		}
		gone, err := c.finish(ctx, l, id)
		l.Unlock()
		if err != nil {
			return err
		}
		if gone {
			delete(there, id)
		}
	}
	return nil
}

// unfinished reports whether there is something to do about a sandbox that is
// there, or is not.
func (r Record) unfinished(there bool) bool {
	if r.Box == "" {
		return there || r.More || time.Since(r.Asked) > kept
	}
	return !there && r.More
}

// finish does what is left to do about a sandbox whose making was not finished,
// or that has ended by itself. gone says that there is no such sandbox.
func (c *Core) finish(ctx context.Context, l *Locked, id sandbox.ID) (gone bool, err error) {
	r := l.Read()
	b, err := c.Find(ctx, id)
	switch {
	case err == nil && r.Box != "":
		return false, nil // it is there after all
	case err == nil:
		if err := c.Erase(ctx, id, b.ID); err != nil {
			return false, err
		}
		return true, l.Remove()
	case sandbox.CodeOf(err) != sandbox.CodeGone:
		return false, err
	}
	if r.More {
		switch err := c.Service.Clear(ctx, id, true); {
		case err == nil:
			r.More = false
		case sandbox.CodeOf(err) != sandbox.CodeConflict: // there is one that is not listed yet
			return false, err
		}
	}
	if r.Box == "" && !r.More && time.Since(r.Asked) > kept {
		return true, l.Remove()
	}
	return true, l.Write(r) // it may appear yet
}

// Erase ends a sandbox, and removes what it has besides. That the service does
// not know it counts only if it does not list it either.
func (c *Core) Erase(ctx context.Context, id sandbox.ID, box string) error {
	err := c.Service.End(ctx, id, box)
	if errors.Is(err, ErrNone) {
		var b Box
		switch b, err = c.Find(ctx, id); {
		case err == nil && b.ID == box:
			err = c.Strange("the service lists the sandbox and says that it does not know it")
		case sandbox.CodeOf(err) == sandbox.CodeGone:
			err = nil
		}
	}
	if err != nil {
		return err
	}
	if r, _ := c.Get(string(id)); !r.More {
		return nil
	}
	return c.Service.Clear(ctx, id, false)
}

// Poll calls f, ever less often, until it is done or fails, and for two minutes
// at most: late is the error then.
func Poll(ctx context.Context, f func() (done bool, err error), late func() error) error {
	start := time.Now()
	for wait := fastPoll; ; wait = min(2*wait, slowPoll) {
		if done, err := f(); done || err != nil {
			return err
		}
		if time.Since(start) > settling {
			return late()
		}
		if err := rest.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

const (
	// settling is how long a status may take to change.
	settling = 2 * time.Minute
	fastPoll = 50 * time.Millisecond
	slowPoll = time.Second
)

// Settled waits until a status of a sandbox does not change by itself.
func (c *Core) Settled(ctx context.Context, id sandbox.ID, box string, rests func(Box) bool) (b Box, err error) {
	err = Poll(ctx, func() (bool, error) {
		if b, err = c.Service.Get(ctx, id, box); err == nil {
			err = c.Usable(b)
		}
		return err == nil && rests(b), err
	}, func() error { return c.Strange("the sandbox is still " + b.Status) })
	return b, err
}
