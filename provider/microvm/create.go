package microvm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/provider/internal/netfiles"
	"github.com/atoll-run/atoll/sandbox"
)

// Link is a sandbox's network card: one end of a connected SOCK_SEQPACKET socket,
// each of whose messages is one Ethernet frame.
type Link struct {
	File      *os.File // the provider closes it
	MTU       int      // bytes
	Addresses []netip.Prefix
	Gateways  []netip.Addr // the only neighbours; the card itself is the route
	DNS       netip.Addr
	CA        []byte // PEM, of the authority that programs inside should trust; empty: none
}

// Known is a sandbox's knowledge about its network.
type Known struct {
	Names map[string]uint16 // host names by the number of their address
	CA    []byte            // the certificate that they trust, DER
}

// Network connects sandboxes with what they may reach. Its methods are called
// concurrently.
type Network interface {
	// Connect creates the network card of a sandbox. former is the knowledge of
	// its snapshot, empty if it has none.
	Connect(ctx context.Context, spec *sandbox.Spec, former Known) (*Link, error)
	// Known returns the knowledge of a sandbox, empty if it has no network.
	Known(ctx context.Context, id sandbox.ID) (Known, error)
}

// createTimeout limits creating a sandbox, without fetching its image. Emulation
// takes many times as long.
func (p *Provider) createTimeout() time.Duration {
	if p.opts.Accel == AccelTCG {
		return 3 * time.Minute
	}
	return time.Minute
}

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.supported(spec); err != nil {
		return nil, err
	}
	p.sweepOnce()
	img, err := p.opts.Images.Get(ctx, p.image(spec.Image), image.GetOptions{})
	if err != nil {
		return nil, canceled(ctx, err)
	}
	in, err := (&creation{p: p, spec: spec, img: img}).make(ctx)
	if err != nil {
		return nil, canceled(ctx, err)
	}
	return in, nil
}

// canceled returns the error of a context that has ended, or else err.
func canceled(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (p *Provider) image(name string) string {
	if name == "" || name == "host" {
		return p.opts.Image
	}
	return name
}

// supported refuses what a machine cannot have.
func (p *Provider) supported(spec *sandbox.Spec) error {
	switch {
	case p.image(spec.Image) == "":
		e := unsupported("create", "image", "a virtual machine does not see the programs of this machine")
		e.Hint = "name an image, such as debian:12, or set ATOLL_MICROVM_IMAGE"
		return e
	case len(spec.Mounts) > 0:
		return unsupported("create", "mounts", "a virtual machine has no mounts of this machine; use a workspace")
	case spec.Network.Asked() && p.opts.Network == nil:
		return unsupported("create", "network", "sandboxes cannot be given a network here")
	}
	return nil
}

// creation is one sandbox that is being created. It notes what to undo.
type creation struct {
	p    *Provider
	spec *sandbox.Spec
	img  *image.Image
	from *saved // the snapshot to restore; nil: none

	wantMemory bool   // the machine should continue with the memory of the snapshot
	memory     bool   // it does
	why        string // why not

	stateDir stateDir
	rec      *record
	link     *Link
	layers   []*os.File
	disk     *os.File
}

// make creates the sandbox. After an error nothing is left.
func (m *creation) make(ctx context.Context) (_ *Instance, err error) {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, m.p.createTimeout())
	defer cancel()
	b, err := m.p.getBoot()
	if err != nil {
		return nil, err
	}
	qemu, err := m.p.qemuVersion(ctx)
	if err != nil {
		return nil, err
	}
	if m.layers, err = m.img.OpenLayers(); err != nil {
		return nil, err
	}
	defer m.closeFiles()
	res := withDefaults(m.spec.Resources)
	s := m.p.shapeOf(res)
	s.Boot, s.QEMU, s.Layers, s.Link, s.Digest = b.id, qemu, len(m.layers), m.spec.Network.Asked(), m.img.Digest
	m.rec = &record{
		ID: m.spec.ID, Created: time.Now().UTC(), Labels: maps.Clone(m.spec.Labels), Maker: processOf(os.Getpid()),
		Engine: m.p.engine(b, qemu), Image: m.spec.Image, Digest: m.img.Digest, Resources: m.spec.Resources, Shape: s,
	}
	if m.stateDir, err = m.p.newStateDir(m.rec); err != nil {
		return nil, err
	}
	m.decideMemory()
	in, err := m.start(ctx, b, res)
	if err == nil {
		err = caller.Err()
	}
	if err == nil {
		return in, nil
	}
	if in != nil {
		in.release()
	}
	if r, failed := m.stateDir.load(); failed == nil {
		m.rec = r
	}
	if left := m.p.end(m.stateDir, m.rec); left != nil {
		err = errors.Join(err, left)
	}
	return nil, err
}

func (m *creation) closeFiles() {
	for _, f := range m.layers {
		f.Close()
	}
	if m.disk != nil {
		m.disk.Close()
	}
	if m.link != nil {
		m.link.File.Close()
	}
}

func (m *creation) start(ctx context.Context, b *boot, res sandbox.Resources) (in *Instance, err error) {
	if err := m.prepareDisk(ctx, res.Disk); err != nil {
		return nil, err
	}
	l := &launch{stateDir: m.stateDir, boot: b, shape: m.rec.Shape, layers: m.layers, disk: m.disk, incoming: m.memory}
	l.config = &guest.Machine{Layers: len(m.layers), PIDs: res.PIDs, Memory: res.Memory, CPUs: res.CPUs}
	if err := m.connect(ctx, l); err != nil {
		return nil, err
	}
	machine, err := m.p.start(l)
	if err != nil {
		return nil, err
	}
	m.rec.Machine = machine.process
	if err := m.stateDir.save(m.rec); err != nil {
		return nil, err
	}
	if err := m.guards(); err != nil {
		return nil, err
	}
	if m.memory {
		if err := m.loadMemory(ctx); err != nil {
			return nil, machine.explain(fmt.Errorf("restoring the memory: %w", err))
		}
	}
	in = m.p.instance(m.rec)
	if m.memory {
		in.greeting = guest.DoorRestored
	}
	if err := m.greet(ctx, in, machine); err != nil {
		return in, err
	}
	if err := m.configure(ctx, in); err != nil {
		return in, err
	}
	m.rec.Ready = true
	if err := m.stateDir.save(m.rec); err != nil {
		return in, err
	}
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	m.p.instances[m.rec.ID] = in
	return in, nil
}

// greet waits until the guest answers, or the machine ends.
func (m *creation) greet(ctx context.Context, in *Instance, machine *running) error {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-machine.done:
			cancel()
		case <-waiting.Done():
		}
	}()
	_, err := in.Reach(waiting)
	if err == nil {
		return nil
	}
	select {
	case <-machine.done:
		err = errors.New("the virtual machine ended while it started")
	default:
		if ctx.Err() != nil {
			err = errors.New("the guest of the virtual machine does not answer")
		}
		if said := m.stateDir.console(ctx); said != "" {
			err = fmt.Errorf("%w; its console: %s", err, lastLines(said))
		}
	}
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "microvm.create", Subject: string(m.spec.ID), Message: machine.explain(err).Error()}
}

// decideMemory decides whether the machine can continue with the memory of the
// snapshot.
func (m *creation) decideMemory() {
	if !m.wantMemory {
		return
	}
	switch s := m.from; {
	case s.Engine != m.rec.Engine:
		m.why = "it was written by another engine, " + s.Engine
	case s.Shape != m.rec.Shape || s.Resources != m.rec.Resources:
		m.why = "the limits or the network of the sandbox are different"
	default:
		m.memory = true
	}
}

// loadMemory makes QEMU read the memory of the snapshot, and continues it.
func (m *creation) loadMemory(ctx context.Context) error {
	f, err := os.Open(filepath.Join(m.from.dir, snapMemory))
	if err != nil {
		return err
	}
	defer f.Close()
	return m.stateDir.withMonitor(ctx, func(q *monitor) error {
		if err := q.call("getfd", map[string]string{"fdname": "memory"}, nil, int(f.Fd())); err != nil {
			return err
		}
		if err := q.call("migrate-incoming", map[string]string{"uri": "fd:memory"}, nil); err != nil {
			return err
		}
		if err := q.awaitMigration(ctx); err != nil {
			return err
		}
		return q.call("cont", nil, nil)
	})
}

// guards starts the processes that end the machine without this one.
func (m *creation) guards() error {
	if d := m.spec.Lifetime.Timeout; d > 0 {
		m.rec.Expires = m.rec.Created.Add(d)
		g, err := guard(m.rec.Machine, time.Until(m.rec.Expires))
		if err != nil {
			return err
		}
		m.rec.Guards = append(m.rec.Guards, g)
	}
	if m.p.opts.Attached {
		g, err := guard(m.rec.Machine, 0)
		if err != nil {
			return err
		}
		m.rec.Guards = append(m.rec.Guards, g)
	}
	return m.stateDir.save(m.rec)
}

// prepareDisk makes the disk of the writable layer, or copies that of a snapshot.
func (m *creation) prepareDisk(ctx context.Context, size int64) (err error) {
	if m.from != nil {
		m.disk, err = m.from.loadDisk(ctx, m.stateDir.path(fileDisk))
		return err
	}
	m.disk, err = makeDisk(ctx, m.stateDir.path(fileDisk), size)
	return err
}

// connect makes the network card.
func (m *creation) connect(ctx context.Context, l *launch) error {
	if !m.spec.Network.Asked() {
		return nil
	}
	var former Known
	if m.from != nil {
		former = m.from.Known
	}
	link, err := m.p.opts.Network.Connect(ctx, m.spec, former)
	if err != nil {
		return err
	}
	m.link, l.card = link, link.File
	l.config.Link, l.config.MTU = true, link.MTU
	for _, a := range link.Addresses {
		l.config.Address = append(l.config.Address, a.Addr().String())
	}
	return nil
}

// configure sets the defaults of commands.
func (m *creation) configure(ctx context.Context, in *Instance) error {
	client, err := in.Reach(ctx)
	if err != nil {
		return err
	}
	d := guest.Defaults{Env: map[string]string{}, User: m.spec.User, Workdir: m.spec.Workdir, Hostname: m.spec.Hostname}
	for _, kv := range m.img.Config.Env {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			d.Env[k] = v
		}
	}
	if m.link != nil && len(m.link.CA) > 0 {
		netfiles.TrustEnv(d.Env)
	}
	maps.Copy(d.Env, m.spec.Env)
	if d.User == "" {
		d.User = m.img.Config.User
	}
	if d.Workdir == "" {
		d.Workdir = m.img.Config.Workdir
	}
	if err := client.Configure(ctx, d); err != nil {
		return fmt.Errorf("configuring the guest: %w", err)
	}
	if err := m.plugIn(ctx, client, d.Env["JAVA_HOME"]); err != nil {
		return fmt.Errorf("preparing the network: %w", err)
	}
	return nil
}

// plugIn writes the files of the network, or removes those that a snapshot has of
// another network.
func (m *creation) plugIn(ctx context.Context, client *guest.Client, javaHome string) error {
	files := netfiles.Files{Client: client, Restored: m.from != nil}
	switch {
	case m.link != nil:
		return files.PlugIn(ctx, &netfiles.Network{DNS: m.link.DNS, CA: m.link.CA}, javaHome)
	case m.from != nil:
		return files.NameServer(ctx, "")
	}
	return nil
}

// instance returns a sandbox by its record. It makes no call.
func (p *Provider) instance(r *record) *Instance {
	in := &Instance{p: p, id: r.ID, stateDir: p.stateDir(r.ID), rec: r, released: make(chan struct{})}
	in.Instance = guestkit.Connected(r.ID, in.connect, in, r.Expires)
	use := in.Use
	in.Use = func(ctx context.Context, lasting bool, f func(context.Context, *guest.Client) error) error {
		if err := in.awake(ctx); err != nil {
			return err
		}
		return use(ctx, lasting, f)
	}
	go in.watch()
	return in
}
