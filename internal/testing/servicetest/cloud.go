package servicetest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// Statuses are a service's words for the statuses of a sandbox.
type Statuses struct {
	Starting, Running, Stopping, Stopped, Failed, Deleted string
	// Made is that of one that was never started, if the service has such.
	Made string
}

// Sandbox is a sandbox as a service shows it.
type Sandbox struct {
	ID, Name, Owner string // the name is unique among the sandboxes of an owner
	Status          string
	Labels          map[string]string
	Created         time.Time
	Ends            time.Time // zero: never
	Request         any       // what the client asked for
	Mounts          []sandbox.Mount
	Memory          int64 // zero: 1 GiB
}

// CloudSandbox is a sandbox of a Cloud.
type CloudSandbox struct {
	sandbox Sandbox
	in      driver.Instance
	forced  string              // shown in place of the status
	frozen  *driver.SnapshotRef // its files, while it is stopped
	awake   context.Context     // ends when it is stopped or removed
	sleep   context.CancelFunc
	timer   Timer
	last    *transition
}

// transition is a change of a status, or a snapshot, that takes a while.
type transition struct {
	done chan struct{}
	err  error
}

// Cloud has the sandboxes of a fake service, which are sandboxes of a provider.
// Create it with NewCloud. Its methods may be called concurrently.
type Cloud struct {
	Faults
	// Pauses are the words of a service that pauses: see Pause.
	Pauses PauseWords
	// Memory: snapshots have the memory, too.
	Memory bool
	// Waits: requests are answered only when the status has changed.
	Waits bool
	// Work is what continues after a request was answered.
	Work sync.WaitGroup

	backing  driver.Provider
	statuses Statuses

	mu        sync.Mutex
	takes     time.Duration
	sandboxes []*CloudSandbox
	saved     []*Snapshot
	serial    int
}

// Snapshot is a saved sandbox.
type Snapshot struct {
	ID, Name, Owner string // the name is unique among the snapshots of an owner
	Request         any    // what the client asked for
	Sandbox         string // ID of the sandbox
	Ready           bool
	Size            int64
	Created         time.Time
	ref             driver.SnapshotRef
}

// Errors of a Cloud, which a service translates.
var (
	ErrTaken    = errors.New("a sandbox has this name")
	ErrMissing  = errors.New("there is no such sandbox")
	ErrConflict = errors.New("the status of the sandbox does not allow this")
)

// NewCloud returns a cloud without sandboxes.
func NewCloud(backing driver.Provider, words Statuses) *Cloud {
	return &Cloud{backing: backing, statuses: words}
}

// Transitions makes starting and stopping take a while. At first they take no
// longer than they need.
func (c *Cloud) Transitions(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takes = d
}

// Close destroys all sandboxes and waits for running work.
func (c *Cloud) Close(ctx context.Context) error {
	var errs []error
	for _, b := range c.all() {
		errs = append(errs, c.Remove(ctx, b))
	}
	c.Work.Wait()
	return errors.Join(errs...)
}

// slowly does something with a sandbox, and waits for it unless transitions take
// a while.
func (c *Cloud) slowly(b *CloudSandbox, f func() error) error {
	one := &transition{done: make(chan struct{})}
	c.mu.Lock()
	takes := c.takes
	b.last = one
	c.mu.Unlock()
	c.Work.Go(func() {
		defer close(one.done)
		time.Sleep(takes)
		one.err = f()
	})
	if takes > 0 && !c.Waits {
		return nil
	}
	<-one.done
	return one.err
}

// Wait waits for what was last begun with a sandbox.
func (c *Cloud) Wait(b *CloudSandbox) error {
	c.mu.Lock()
	one := b.last
	c.mu.Unlock()
	<-one.done
	return one.err
}

// add adds a sandbox with a status.
func (c *Cloud) add(sb Sandbox, status string) (*CloudSandbox, error) {
	sb.Status = status
	b := &CloudSandbox{sandbox: sb}
	c.mu.Lock()
	defer c.mu.Unlock()
	b.sandbox.Created = time.Now().UTC() // in the order of the list
	for _, other := range c.sandboxes {
		if other.sandbox.Owner == sb.Owner && other.sandbox.Name == sb.Name && other.sandbox.Status != c.statuses.Deleted {
			return nil, ErrTaken
		}
	}
	c.sandboxes = append(c.sandboxes, b)
	return b, nil
}

// Make makes a sandbox that is not started, or a stopped one with the files of
// another that is stopped.
func (c *Cloud) Make(sb Sandbox, from *CloudSandbox) (*CloudSandbox, error) {
	if from == nil {
		return c.add(sb, c.statuses.Made)
	}
	copied, err := c.duplicate(from)
	if err != nil {
		return nil, err
	}
	b, err := c.add(sb, c.statuses.Stopped)
	if err != nil {
		return nil, errors.Join(err, c.drop(copied.Ref))
	}
	c.mu.Lock()
	b.frozen = &copied.Ref
	c.mu.Unlock()
	return b, nil
}

// duplicate copies the files of a stopped sandbox.
func (c *Cloud) duplicate(b *CloudSandbox) (driver.Snapshot, error) {
	c.mu.Lock()
	frozen := b.frozen
	if b.sandbox.Status != c.statuses.Stopped {
		frozen = nil
	}
	c.mu.Unlock()
	if frozen == nil {
		return driver.Snapshot{}, ErrConflict
	}
	return c.copy(*frozen)
}

func (c *Cloud) copy(ref driver.SnapshotRef) (driver.Snapshot, error) {
	copier, ok := driver.As[driver.SnapshotCopier](c.backing)
	if !ok {
		return driver.Snapshot{}, errors.New("the fake cannot copy snapshots")
	}
	return copier.CopySnapshot(context.Background(), ref, "copied-"+NewID())
}

func (c *Cloud) drop(ref driver.SnapshotRef) error {
	if keeper, ok := driver.As[driver.SnapshotKeeper](c.backing); ok {
		return keeper.RemoveSnapshot(context.Background(), ref)
	}
	return nil
}

// Keep saves a stopped sandbox as a snapshot with a name.
func (c *Cloud) Keep(b *CloudSandbox, id, name string) (*Snapshot, error) {
	if _, err := c.Snapshot(b.sandbox.Owner, name); err == nil {
		return nil, ErrTaken
	}
	copied, err := c.duplicate(b)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{ID: id, Name: name, Owner: b.sandbox.Owner, Ready: true, Size: copied.Size, Created: time.Now().UTC(), ref: copied.Ref}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.saved = append(c.saved, s)
	return s, nil
}

// Revert gives a stopped sandbox the files of a snapshot.
func (c *Cloud) Revert(b *CloudSandbox, s *Snapshot) error {
	if c.Show(b).Status != c.statuses.Stopped {
		return ErrConflict
	}
	copied, err := c.copy(s.ref)
	if err != nil {
		return err
	}
	c.mu.Lock()
	was := b.frozen
	b.frozen = &copied.Ref
	c.mu.Unlock()
	return c.drop(*was)
}

// Create makes a sandbox, with the files of a snapshot if there is one.
func (c *Cloud) Create(sb Sandbox, from *Snapshot) (*CloudSandbox, error) {
	b, err := c.add(sb, c.statuses.Starting)
	if err != nil {
		return nil, err
	}
	if !sb.Ends.IsZero() {
		b.timer.Set(time.Until(sb.Ends), func() { _ = c.Remove(context.Background(), b) })
	}
	return b, c.slowly(b, func() error {
		var ref *driver.SnapshotRef
		if from != nil {
			ref = &from.ref
		}
		err := c.boot(context.Background(), b, ref)
		if err != nil {
			_ = c.move(b, c.statuses.Failed, c.statuses.Starting)
		}
		return err
	})
}

// boot starts a machine, with its own files or a snapshot's.
func (c *Cloud) boot(ctx context.Context, b *CloudSandbox, from *driver.SnapshotRef) (err error) {
	c.mu.Lock()
	c.serial++
	id := sandbox.ID("box-" + strconv.Itoa(c.serial) + "-" + b.sandbox.ID[:8])
	c.mu.Unlock()
	own := &sandbox.Spec{ID: id, Name: string(id), Image: "host", Mounts: b.sandbox.Mounts}
	own.Resources = sandbox.Resources{Memory: cmp.Or(b.sandbox.Memory, 1<<30), Disk: 1 << 30, PIDs: 1024}
	var in driver.Instance
	if from == nil {
		in, err = c.backing.Create(ctx, own)
	} else if restorer, ok := driver.As[driver.Restorer](c.backing); ok {
		in, _, err = restorer.Restore(ctx, own, *from)
	} else {
		err = errors.New("the fake has no snapshots")
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.sandbox.Status == c.statuses.Deleted { // meanwhile
		return in.Destroy(ctx)
	}
	b.in = in
	c.run(b)
	return nil
}

// run notes that a sandbox runs. The mutex is held.
func (c *Cloud) run(b *CloudSandbox) {
	b.sandbox.Status = c.statuses.Running
	b.awake, b.sleep = context.WithCancel(context.Background())
}

// move changes the status if it is one of several.
func (c *Cloud) move(b *CloudSandbox, to string, from ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.forced != "" || !slices.Contains(from, b.sandbox.Status) {
		return ErrConflict
	}
	b.sandbox.Status = to
	return nil
}

// Stop keeps the files of a sandbox, and nothing that runs.
func (c *Cloud) Stop(b *CloudSandbox) error {
	if err := c.move(b, c.statuses.Stopping, c.statuses.Running); err != nil {
		return err
	}
	return c.slowly(b, func() error {
		b.sleep()
		saver, ok := driver.As[driver.Snapshotter](b.in)
		if !ok {
			return errors.New("the fake cannot stop sandboxes")
		}
		saved, err := saver.Snapshot(context.Background(), driver.SnapshotOptions{ID: "stopped-" + b.sandbox.ID[:8] + "-" + strconv.FormatInt(time.Now().UnixNano(), 36), Stop: true})
		c.mu.Lock()
		defer c.mu.Unlock()
		if b.frozen, b.sandbox.Status = &saved.Ref, c.statuses.Stopped; err != nil {
			b.frozen, b.sandbox.Status = nil, c.statuses.Failed
		}
		return err
	})
}

// Start starts a stopped sandbox again, or one that was never started.
func (c *Cloud) Start(b *CloudSandbox) error {
	if err := c.move(b, c.statuses.Starting, c.statuses.Stopped, c.statuses.Made); err != nil {
		return err
	}
	return c.slowly(b, func() error {
		if err := c.boot(context.Background(), b, b.frozen); err != nil {
			return err
		}
		return c.thaw(context.Background(), b)
	})
}

// thaw removes what a stopped sandbox was kept in.
func (c *Cloud) thaw(ctx context.Context, b *CloudSandbox) error {
	c.mu.Lock()
	frozen := b.frozen
	b.frozen = nil
	c.mu.Unlock()
	if keeper, ok := driver.As[driver.SnapshotKeeper](c.backing); ok && frozen != nil {
		return keeper.RemoveSnapshot(ctx, *frozen)
	}
	return nil
}

// Delete is the request of a client to remove a sandbox. It is a conflict while
// the status changes.
func (c *Cloud) Delete(b *CloudSandbox) error {
	if slices.Contains([]string{c.statuses.Starting, c.statuses.Stopping, c.Pauses.Pausing, c.Pauses.Resuming}, c.Show(b).Status) {
		return ErrConflict
	}
	return c.Remove(context.Background(), b)
}

// Remove ends a sandbox. The service remembers it.
func (c *Cloud) Remove(ctx context.Context, b *CloudSandbox) error {
	c.mu.Lock()
	first := b.sandbox.Status != c.statuses.Deleted
	b.sandbox.Status = c.statuses.Deleted
	in, sleep := b.in, b.sleep
	c.mu.Unlock()
	b.timer.Set(0, nil)
	switch {
	case !first:
		return nil
	case in == nil:
		return c.thaw(ctx, b)
	}
	sleep()
	return errors.Join(in.Destroy(ctx), c.thaw(ctx, b))
}

// all returns the sandboxes that were not deleted.
func (c *Cloud) all() []*CloudSandbox {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.sandboxes), func(b *CloudSandbox) bool { return b.sandbox.Status == c.statuses.Deleted })
}

// Find finds a sandbox by its ID, also a deleted one, or by its name. Without an
// owner, it is one of any.
func (c *Cloud) Find(owner, name string) (*CloudSandbox, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range slices.Backward(c.sandboxes) {
		if (owner == "" || b.sandbox.Owner == owner) && (b.sandbox.ID == name || b.sandbox.Name == name && b.sandbox.Status != c.statuses.Deleted) {
			return b, nil
		}
	}
	return nil, ErrMissing
}

// List returns the sandboxes of an owner with some labels.
func (c *Cloud) List(owner string, labels map[string]string) (found []Sandbox) {
	for _, b := range c.all() {
		now := c.Show(b)
		fits := now.Owner == owner
		for k, v := range labels {
			fits = fits && now.Labels[k] == v
		}
		if fits {
			found = append(found, now)
		}
	}
	return found
}

// History returns the sandboxes of an owner, also those that were deleted.
func (c *Cloud) History(owner string) (found []Sandbox) {
	c.mu.Lock()
	all := slices.Clone(c.sandboxes)
	c.mu.Unlock()
	for _, b := range all {
		if now := c.Show(b); now.Owner == owner {
			found = append(found, now)
		}
	}
	return found
}

// Names returns the names of all sandboxes.
func (c *Cloud) Names() (names []string) {
	for _, b := range c.all() {
		names = append(names, b.sandbox.Name)
	}
	return names
}

// Show returns what the service shows of a sandbox.
func (c *Cloud) Show(b *CloudSandbox) Sandbox {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := b.sandbox
	now.Status, now.Labels = cmp.Or(b.forced, now.Status), maps.Clone(now.Labels)
	return now
}

// Change changes a sandbox.
func (c *Cloud) Change(b *CloudSandbox, f func(*Sandbox)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&b.sandbox)
}

// Force makes all sandboxes show a status in place of their own, and act by it.
// Empty ends that.
func (c *Cloud) Force(status string) {
	for _, b := range c.all() {
		c.mu.Lock()
		b.forced = status
		c.mu.Unlock()
	}
}

// Machine returns the machine of a sandbox that runs, and a context that ends
// when it is stopped or removed.
func (c *Cloud) Machine(b *CloudSandbox) (driver.Instance, context.Context, error) {
	if c.Show(b).Status != c.statuses.Running {
		return nil, nil, ErrConflict
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.in == nil {
		return nil, nil, ErrConflict
	}
	return b.in, b.awake, nil
}

// End ends a sandbox as the service does by itself.
func (c *Cloud) End(ctx context.Context, name string) error {
	for _, b := range c.all() {
		if b.sandbox.Name == name {
			return c.Remove(ctx, b)
		}
	}
	return nil
}

// StopAll stops all sandboxes, as another client does.
func (c *Cloud) StopAll() (err error) {
	for _, b := range c.all() {
		err = errors.Join(err, c.Stop(b))
	}
	return err
}

// Save saves a sandbox that runs as a snapshot, which has an ID and a name. With
// Memory it may also be paused.
func (c *Cloud) Save(b *CloudSandbox, as Snapshot) (*Snapshot, error) {
	if now := c.Show(b).Status; now != c.statuses.Running && (!c.Memory || now != c.Pauses.Paused) {
		return nil, ErrConflict
	}
	s := &as
	s.Owner, s.Sandbox, s.Created = b.sandbox.Owner, b.sandbox.ID, time.Now().UTC()
	c.mu.Lock()
	in := b.in
	taken := slices.ContainsFunc(c.saved, func(o *Snapshot) bool { return o.Owner == s.Owner && o.Name == s.Name })
	if !taken {
		c.saved = append(c.saved, s)
	}
	c.mu.Unlock()
	if taken {
		return nil, ErrTaken
	}
	return s, c.slowly(b, func() error {
		saver, ok := driver.As[driver.Snapshotter](in)
		if !ok {
			return errors.New("the fake cannot save sandboxes")
		}
		saved, err := saver.Snapshot(context.Background(), driver.SnapshotOptions{ID: "saved-" + NewID(), Memory: c.Memory})
		c.mu.Lock()
		defer c.mu.Unlock()
		if s.Ready, s.ref, s.Size = true, saved.Ref, saved.Size; err != nil {
			c.saved = slices.DeleteFunc(c.saved, func(o *Snapshot) bool { return o == s })
		}
		return err
	})
}

// Snapshots returns the snapshots of an owner; "" means all.
func (c *Cloud) Snapshots(owner string) (found []Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.saved {
		if owner == "" || s.Owner == owner {
			found = append(found, *s)
		}
	}
	return found
}

// Snapshot finds a snapshot by its ID or its name.
func (c *Cloud) Snapshot(owner, name string) (*Snapshot, error) {
	for _, s := range c.Snapshots(owner) {
		if s.ID == name || s.Name == name {
			return &s, nil
		}
	}
	return nil, ErrMissing
}

// Forget removes a snapshot, which must be ready.
func (c *Cloud) Forget(s *Snapshot) error {
	if !s.Ready {
		return ErrConflict
	}
	c.mu.Lock()
	c.saved = slices.DeleteFunc(c.saved, func(o *Snapshot) bool { return o.ID == s.ID })
	c.mu.Unlock()
	return c.drop(s.ref)
}
