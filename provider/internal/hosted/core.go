package hosted

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
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

// Sandbox is the service's description of a sandbox.
type Sandbox struct {
	ID      string // the service's ID
	Sandbox sandbox.ID
	Status  string        // in the service's words
	State   sandbox.State // what the status means; Lost: unknown
	Why     string        // why it has failed or is lost, if the service says so
	// Removable: it is lost, and can be removed all the same, as one that has failed.
	Removable bool
	Created   time.Time
	Ends      time.Time         // the end of its lifetime, if the service reports it
	Labels    map[string]string // nil: the service keeps none
	// Metadata is what the service keeps for a sandbox, if it is marked by that: see
	// Marked.
	Metadata map[string]string
	// Scope names the directory that created the sandbox, or that owns it if the
	// service is a Claimer. Empty: it is not ours.
	Scope string
	// Access is what Core.OpenInside needs and only the service knows. Answers without
	// it have nil.
	Access any
}

// ErrNone means that the service itself reports that the sandbox or the
// snapshot does not exist.
var ErrNone = errors.New("the service has no such sandbox")

// Service is a driver's access to its service. The methods may be called
// concurrently. They return ErrNone or *sandbox.Error.
type Service interface {
	// Get returns the sandbox that has the ID sb at the service.
	Get(ctx context.Context, id sandbox.ID, sb string) (Sandbox, error)
	// List returns the sandboxes with a scope and an ID; "" means any. It may
	// return others too.
	List(ctx context.Context, scope string, id sandbox.ID) ([]Sandbox, error)
	// End ends this sandbox, and not a later one with its name.
	End(ctx context.Context, id sandbox.ID, sb string) error
	// Credential identifies the present credential or its source. It makes no
	// network call.
	Credential() Credential
}

// Finder is implemented by a Service that finds a sandbox without a list. The
// list is still asked before a sandbox counts as gone.
type Finder interface {
	Find(ctx context.Context, scope string, id sandbox.ID) (Sandbox, error)
}

// Clearer is implemented by a Service whose sandboxes may have other resources.
type Clearer interface {
	// Clear removes the other resources of a sandbox that has ended, if its record
	// has More. If a sandbox still uses them, the error is CodeConflict, returned
	// at once with once, else after retries.
	Clear(ctx context.Context, id sandbox.ID, once bool) error
}

// Accounter is implemented by a Service that names its accounts.
type Accounter interface {
	// Account returns the service's name of the present credential's account.
	Account(ctx context.Context) (string, error)
}

// Credential identifies an account. It may contain the secret.
type Credential struct {
	// Name distinguishes credentials or their sources.
	Name string
	// Key is the secret if it is constant. It identifies the account in every
	// directory.
	Key string
}

// Claimer is implemented by a Service that stores the owner of a sandbox. Its Get
// and List set Scope and Metadata.
type Claimer interface {
	// Claim replaces the metadata of a sandbox. Only the scope is another one.
	Claim(ctx context.Context, b Sandbox, metadata map[string]string) error
}

// Core is the common part of the providers of hosted services. Its methods may
// be called concurrently.
type Core struct {
	Records
	Name    string // name of the provider
	Hint    string // hint for a sandbox of another account
	Service Service
	API     *rest.Client
	Kit     guestkit.Kit
	Expires bool // the service does not end lifetimes in time: see Expiry
	// OpenInside gives access to the inside of a sandbox. It makes no network call.
	OpenInside func(Sandbox) Inside
	// Partial: lists lack the Access of sandboxes.
	Partial bool
	// Extend adds a driver's own calls to an instance. Nil: there are none.
	Extend func(*Instance) Made
	// Marks: the owner of a sandbox is written inside it: see OwnerMark.
	Marks bool
	// Resting lists the statuses that change only on request.
	Resting []string
	// Reboots: a sandbox that sleeps loses its processes.
	Reboots bool

	Work  sync.WaitGroup  // continues after callers gave up
	Open  context.Context // ends with Close
	Conns sync.WaitGroup  // connections, which end when Open is canceled

	expiry Expiry
	keeper *Keeper // nil: the service keeps no snapshots
	close  context.CancelFunc
}

var (
	_ driver.Binder       = (*Core)(nil)
	_ driver.FormerBinder = (*Core)(nil)
	_ driver.Adopter      = (*Core)(nil)
	_ driver.StateTeller  = (*Core)(nil)
	_ driver.Instance     = (*Instance)(nil)
	_ driver.Meter        = (*Instance)(nil)
	_ driver.Resumer      = (*Instance)(nil)
)

// Start opens a core with its fields set. It makes no network call. It removes
// old records of ended sandboxes. executable is the guest if none is embedded.
func (c *Core) Start(executable string) error {
	c.Open, c.close = context.WithCancel(context.Background())
	c.Kit.Guest = func(arch string) (*program.Program, error) { return program.For(arch, executable) }
	c.expiry.Sandboxes, c.expiry.Erase = c.Records, c.Erase
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

// Close implements driver.Provider. It waits for requests that continue after
// their callers gave up, and closes all connections.
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

// Binding implements driver.Binder. It makes no network call: a fingerprint of
// the key identifies the account. Without a key, or with one that may change,
// the account is identified only within this directory.
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

// Ours returns a function that reports whether a binding is the present one, by
// its present name or by its former one.
func (c *Core) Ours(ctx context.Context) (func(binding string) bool, error) {
	now, err1 := c.Binding(ctx)
	former, err2 := c.local(ctx)
	return func(b string) bool { return b == now || b == former }, errors.Join(err1, err2)
}

// ProtocolError returns the error of a service that behaves incorrectly.
func (c *Core) ProtocolError(message string) error { return c.API.ProtocolError(message) }

// owned returns the error for a sandbox that belongs to another directory.
func (c *Core) owned(b Sandbox) error {
	if b.Scope == "" {
		return nil
	}
	scope, err := c.ScopeOf(b.Sandbox)
	if err == nil && b.Scope != scope {
		err = driver.Elsewhere(b.Sandbox)
	}
	return err
}

// Usable returns an error if the sandbox cannot be used because of its status
// or because another directory owns it.
func (c *Core) Usable(b Sandbox) error {
	if b.State == sandbox.Gone {
		return guestkit.Gone(b.Sandbox)
	}
	if err := c.owned(b); err != nil {
		return err
	}
	switch b.State {
	case sandbox.Failed:
		return &sandbox.Error{
			Code: sandbox.CodeConflict, Subject: string(b.Sandbox), Message: b.failed(), Hint: "remove it, and restore a snapshot if there is one",
		}
	case sandbox.Lost:
		if b.Why != "" {
			return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(b.Sandbox), Message: "the sandbox cannot be used: " + b.Why}
		}
		return c.ProtocolError(fmt.Sprintf("the service says that the sandbox is %q, which this Atoll does not know", b.Status))
	}
	return nil
}

// failed says that a sandbox has failed, and why.
func (s Sandbox) failed() string {
	const text = "the service says that the sandbox has failed"
	if s.Why == "" {
		return text
	}
	return text + ": " + s.Why
}

// list returns the service's sandboxes with a scope and an ID; "" means any.
func (c *Core) list(ctx context.Context, scope string, id sandbox.ID) (ours []Sandbox, err error) {
	all, err := c.Service.List(ctx, scope, id)
	for _, b := range all {
		if b.Scope != "" && (scope == "" || b.Scope == scope) && (id == "" || b.Sandbox == id) && b.State != sandbox.Gone {
			ours = append(ours, b)
		}
	}
	return ours, err
}

// look finds the sandbox with a scope and an ID. It returns ErrNone if the
// service does not list it.
func (c *Core) look(ctx context.Context, scope string, id sandbox.ID) (Sandbox, error) {
	if f, ok := c.Service.(Finder); ok {
		if b, err := f.Find(ctx, scope, id); !errors.Is(err, ErrNone) {
			return b, err
		}
	}
	all, err := c.list(ctx, scope, id)
	if err == nil && len(all) == 0 {
		err = ErrNone
	}
	if err != nil {
		return Sandbox{}, err
	}
	return all[0], nil
}

// account returns the service's name of the present account, or "".
func (c *Core) account(ctx context.Context) (string, error) {
	if a, ok := c.Service.(Accounter); ok {
		return a.Account(ctx)
	}
	return "", nil
}

// Find asks the service for one of our sandboxes. It returns CodeGone if the
// service has accepted the credential and does not have the sandbox.
func (c *Core) Find(ctx context.Context, id sandbox.ID) (Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return Sandbox{}, err
	}
	scope, err := c.ScopeOf(id)
	if err != nil {
		return Sandbox{}, err
	}
	b, err := c.look(ctx, scope, id)
	if !errors.Is(err, ErrNone) {
		return b, err
	}
	ours, err := c.Ours(ctx)
	if err != nil {
		return Sandbox{}, err
	}
	account, err := c.account(ctx)
	if err != nil {
		return Sandbox{}, err
	}
	return Sandbox{}, c.Absent(id, ours, account, c.Hint)
}

// known is Find, but distinguishes a sandbox that is gone from one that belongs
// to another directory.
func (c *Core) known(ctx context.Context, id sandbox.ID) (Sandbox, error) {
	b, err := c.Find(ctx, id)
	if err == nil && c.Of(id, b.ID).AdoptedElsewhere {
		return Sandbox{}, driver.Elsewhere(id)
	}
	if sandbox.CodeOf(err) != sandbox.CodeGone {
		return b, err
	}
	others, lookErr := c.list(ctx, "", id)
	switch {
	case lookErr != nil:
		return Sandbox{}, lookErr
	case len(others) > 0:
		return Sandbox{}, driver.Elsewhere(id)
	}
	return b, err
}

// Attach implements driver.Provider. A sandbox that sleeps continues to sleep.
func (c *Core) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	b, err := c.Present(ctx, id)
	if err == nil && c.Partial {
		if b, err = c.Service.Get(ctx, id, b.ID); errors.Is(err, ErrNone) {
			err = guestkit.Gone(id)
		}
	}
	if err != nil {
		return nil, err
	}
	return c.instance(id, b), nil
}

// Living returns one of our sandboxes that can be used, and starts to watch the
// end of its lifetime.
func (c *Core) Living(ctx context.Context, id sandbox.ID) (Sandbox, error) {
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
	b, err := c.Present(ctx, id)
	if err != nil {
		return "", err
	}
	return b.State, nil
}

// Present is Living, and also returns a sandbox that has failed, or that is lost and
// Removable: it is still there, and can be removed.
func (c *Core) Present(ctx context.Context, id sandbox.ID) (Sandbox, error) {
	b, err := c.Living(ctx, id)
	if err != nil && (b.State == sandbox.Failed || b.Removable) && c.owned(b) == nil {
		return b, nil
	}
	return b, err
}

// List implements driver.Provider. It removes what earlier attempts to create a
// sandbox left behind.
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
				f.Exit = &sandbox.Exit{Code: -1, Reason: sandbox.ReasonCrashed, Detail: b.failed()}
			}
			if !yield(f, nil) {
				return
			}
		}
	}
}

// living lists the existing sandboxes, without those that were never returned
// to a caller.
func (c *Core) living(ctx context.Context) (living []Sandbox, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	scope, err := c.Scope()
	if err != nil {
		return nil, err
	}
	all, err := c.list(ctx, scope, "")
	if err == nil {
		all, err = c.adopted(ctx, all)
	}
	if err != nil {
		return nil, err
	}
	there := map[sandbox.ID]Sandbox{}
	for _, b := range all {
		if sandbox.ValidateName(string(b.Sandbox)) == nil {
			there[b.Sandbox] = b
		}
	}
	if err := c.tidy(ctx, there); err != nil {
		return nil, err
	}
	for _, b := range all {
		if now, ok := there[b.Sandbox]; ok && now.ID == b.ID && !c.Of(b.Sandbox, b.ID).AdoptedElsewhere {
			living = append(living, b)
		}
	}
	return living, nil
}

// tidy ends sandboxes whose creation was not completed, because the service did
// not answer or the process ended, and removes them from the list. It also
// removes the other resources of sandboxes that ended by themselves. What is still
// being created, or removed after that failed, is only removed from the list.
func (c *Core) tidy(ctx context.Context, there map[sandbox.ID]Sandbox) error {
	ours, err := c.Ours(ctx)
	if err != nil {
		return err
	}
	for _, name := range c.IDs() {
		id := sandbox.ID(name)
		_, appeared := there[id]
		r, ok := c.Get(name)
		if !ok || !ours(r.Binding) || !r.unfinished(appeared) {
			continue
		}
		once, cancel := context.WithCancel(ctx)
		cancel() // a single attempt
		l, err := c.Lock(once, name)
		if err != nil { // it is being created or removed, perhaps after its caller gave up
			if r.ServiceID == "" {
				delete(there, id) // it was not returned to a caller
			}
			continue
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

// unfinished reports whether work is left for a sandbox that exists or not.
func (r Record) unfinished(there bool) bool {
	if r.ServiceID == "" {
		return there || r.More || time.Since(r.Asked) > kept
	}
	return !there && r.More
}

// finish completes or undoes the creation of a sandbox, or cleans up after one
// that ended by itself. gone means that there is no such sandbox.
func (c *Core) finish(ctx context.Context, l *Locked, id sandbox.ID) (gone bool, err error) {
	r := l.Read()
	b, err := c.Find(ctx, id)
	switch {
	case err == nil && r.ServiceID != "":
		return false, nil // it exists after all
	case err == nil:
		if err := c.Erase(ctx, id, b.ID); err != nil {
			return false, err
		}
		return true, l.Remove()
	case sandbox.CodeOf(err) != sandbox.CodeGone:
		return false, err
	}
	if r.More {
		switch err := c.clear(ctx, id, true); {
		case err == nil:
			r.More = false
		case sandbox.CodeOf(err) != sandbox.CodeConflict: // a sandbox exists that is not listed yet
			return false, err
		}
	}
	if r.ServiceID == "" && !r.More && time.Since(r.Asked) > kept {
		return true, l.Remove()
	}
	return true, l.Write(r) // it may still appear
}

// Erase ends a sandbox and removes its other resources. An unknown sandbox
// counts as gone only if the service does not list it either.
func (c *Core) Erase(ctx context.Context, id sandbox.ID, sb string) error {
	err := c.Service.End(ctx, id, sb)
	if errors.Is(err, ErrNone) {
		var b Sandbox
		switch b, err = c.Find(ctx, id); {
		case err == nil && b.ID == sb:
			err = c.ProtocolError("the service lists the sandbox and says that it does not know it")
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
	return c.clear(ctx, id, false)
}

func (c *Core) clear(ctx context.Context, id sandbox.ID, once bool) error {
	if s, ok := c.Service.(Clearer); ok {
		return s.Clear(ctx, id, once)
	}
	return nil
}

// Poll calls f with increasing delays until it is done or fails, for at most
// two minutes; then it returns late().
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

// Ended asks for the end of a sandbox until look returns ErrNone. It asks again
// after a conflict, and if the service did not answer.
func Ended(ctx context.Context, look, ask, late func() error) error {
	if err := look(); err != nil {
		return err
	}
	return Poll(ctx, func() (bool, error) {
		err := ask()
		if code := sandbox.CodeOf(err); err != nil && code != sandbox.CodeConflict && code != sandbox.CodeUnavailable {
			return false, err
		}
		err = look()
		if errors.Is(err, ErrNone) {
			return true, nil
		}
		return false, err
	}, late)
}

const (
	// settling limits waiting for a status to change.
	settling = 2 * time.Minute
	fastPoll = 50 * time.Millisecond
	slowPoll = time.Second
)

// Settled waits until a sandbox has one of the statuses in Resting.
func (c *Core) Settled(ctx context.Context, id sandbox.ID, sb string) (b Sandbox, err error) {
	err = Poll(ctx, func() (bool, error) {
		if b, err = c.Service.Get(ctx, id, sb); err == nil {
			err = c.Usable(b)
		}
		return err == nil && slices.Contains(c.Resting, b.Status), err
	}, func() error { return c.ProtocolError("the sandbox is still " + b.Status) })
	return b, err
}

// moves is the number of attempts of Move without an answer.
const moves = 5

// Move calls f with the settled sandbox until f is done or fails. After a
// conflict, or if the service did not answer, the present status decides:
// another client may have been faster, or the answer was lost.
func (c *Core) Move(ctx context.Context, id sandbox.ID, sb string, f func(now Sandbox) (done bool, err error)) error {
	start := time.Now()
	for n, wait := 1, fastPoll; ; n, wait = n+1, min(2*wait, slowPoll) {
		now, err := c.Settled(ctx, id, sb)
		if err != nil {
			return err
		}
		done, err := f(now)
		switch code := sandbox.CodeOf(err); {
		case done:
			return nil
		case err == nil || code == sandbox.CodeConflict:
			if time.Since(start) > settling {
				return cmp.Or(err, c.ProtocolError("the sandbox is still "+now.Status))
			}
		case code != sandbox.CodeUnavailable || n >= moves:
			return err
		}
		if err := rest.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}
