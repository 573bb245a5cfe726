package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/provider/gvisor/cgroup"
	"github.com/atoll-run/atoll/provider/gvisor/kernel"
	"github.com/atoll-run/atoll/provider/gvisor/snapshot"
	"github.com/atoll-run/atoll/provider/internal/netfiles"
	"github.com/atoll-run/atoll/sandbox"
)

// createTimeout limits creating a sandbox, without fetching its image.
const createTimeout = 60 * time.Second

// Create creates a sandbox or takes one from the pool. See driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	p.sweepOnce()
	if f := p.static(); f.Severity == driver.Blocker {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: f.Message, Hint: f.Fix}
	}
	img, err := p.opts.Images.Get(ctx, spec.Image, image.GetOptions{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	defer p.pool.Begin()()
	m, err := p.begin(spec, img, nil, "")
	if err != nil {
		return nil, err
	}
	in, err := m.make(ctx)
	if err != nil {
		m.Undo()
		return nil, withCause(ctx, err)
	}
	return in, nil
}

// withCause adds the context's error if the caller gave up.
func withCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return err
}

func withDefaults(r sandbox.Resources) sandbox.Resources {
	def := func(v *int64, d int64) {
		switch {
		case *v == 0:
			*v = d
		case *v < 0:
			*v = 0
		}
	}
	def(&r.Memory, DefaultMemory)
	def(&r.Disk, DefaultDisk)
	def(&r.PIDs, DefaultPIDs)
	r.CPUs = max(r.CPUs, 0)
	return r
}

// creation is one sandbox that is being created. It notes what to undo.
type creation struct {
	p    *Provider
	spec *sandbox.Spec
	img  *image.Image
	res  sandbox.Resources

	from     *snapshot.Saved // the snapshot to restore; nil: none
	why      string          // why its memory cannot be restored
	stateDir stateDir
	rec      *record
	args     *launchArgs
	files    []*os.File // of args
	procs    *launched
	conn     *guest.Pipes // to the guest, until the client owns it
	door     *os.File     // through which a restored guest is woken
	in       *Instance
	link     *Link // nil: no network

	kernel   string // its executable
	platform string // of its kernel; empty: the one that the provider has chosen
}

func (p *Provider) newCreation(spec *sandbox.Spec, img *image.Image) *creation {
	return &creation{p: p, spec: spec, img: img, res: withDefaults(spec.Resources), kernel: p.opts.Kernel}
}

// make creates the sandbox, or completes a prewarmed one, and returns it.
func (m *creation) make(ctx context.Context) (*Instance, error) {
	if m.in == nil {
		if err := m.start(ctx); err != nil {
			return nil, err
		}
	} else if err := m.join(ctx); err != nil {
		return nil, err
	}
	return m.finish(ctx)
}

// start creates a sandbox whose guest is not configured yet.
func (m *creation) start(ctx context.Context) error {
	if m.procs != nil {
		m.decideMemory()
	} else if err := m.prepare(); err != nil {
		return err
	}
	link := m.p.connect(ctx, m.spec, m.known())
	defer closeLink(link)
	if m.procs == nil {
		if err := m.launch(ctx); err != nil {
			return err
		}
	}
	if err := m.boot(ctx, link); err != nil {
		return m.explain(err)
	}
	m.in = newInstance(m.p, m.stateDir, m.rec)
	m.in.watchChildren(m.procs)
	conn := m.conn
	m.conn = nil
	if err := m.in.dial(ctx, conn); err != nil {
		return m.explain(fmt.Errorf("reaching the guest: %w", err))
	}
	m.in.memory.spareGuest()
	return m.p.opts.Fault("create.connected")
}

// finish configures a started sandbox.
func (m *creation) finish(ctx context.Context) (*Instance, error) {
	defaults := m.defaults()
	if err := m.in.client.Configure(ctx, defaults); err != nil {
		return nil, m.explain(fmt.Errorf("configuring the guest: %w", err))
	}
	if err := m.restoreFiles(ctx); err != nil {
		return nil, m.explain(fmt.Errorf("restoring the files: %w", err))
	}
	if m.from != nil && !m.restoresMemory() { // the files have the former name
		if err := m.in.client.Configure(ctx, defaults); err != nil {
			return nil, m.explain(fmt.Errorf("configuring the guest: %w", err))
		}
	}
	if err := m.plugIn(ctx, defaults.Env["JAVA_HOME"]); err != nil {
		return nil, m.explain(fmt.Errorf("preparing the network: %w", err))
	}
	if err := m.in.boundLifetime(m.spec.Lifetime.Timeout); err != nil {
		return nil, err
	}
	m.rec.Ready = true
	if err := m.stateDir.save(m.rec); err != nil {
		return nil, err
	}
	if err := m.p.opts.Fault("create.ready"); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return m.in, m.publish()
}

// plugIn writes the files of the network, or removes those that a snapshot has of
// another network.
func (m *creation) plugIn(ctx context.Context, javaHome string) error {
	if m.link == nil && m.from == nil {
		return nil
	}
	n := netfiles.Files{Client: m.in.client, Mounts: m.spec.Mounts, Restored: m.from != nil}
	if m.link == nil {
		return n.NameServer(ctx, "")
	}
	return n.PlugIn(ctx, &netfiles.Network{DNS: m.link.DNS, CA: m.link.CA}, javaHome)
}

func (m *creation) publish() error {
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	if m.p.closed {
		return errors.New("the provider is closed")
	}
	m.p.remember(m.in)
	m.in.memory.watchLimit()
	return nil
}

// Undo removes everything that a failed make left behind.
func (m *creation) Undo() {
	if m.in != nil {
		m.in.release()
	}
	m.letGo()
	if m.procs != nil {
		m.procs.kill()
	}
	if m.stateDir.dir != "" {
		_ = m.stateDir.remove(m.rec)
	}
}

// prepare creates the state directory and the control group, and opens the
// files that the processes inherit.
func (m *creation) prepare() error {
	m.rec = &record{
		ID:       m.spec.ID,
		Created:  time.Now().UTC(),
		Labels:   m.spec.Labels,
		Attached: m.p.opts.Attached,
		Maker:    self(),
		Inside:   string(m.spec.ID),
		Spec:     sandboxDescription{Image: m.spec.Image, Digest: m.img.Digest, Resources: m.spec.Resources},
	}
	if m.platform == "" {
		m.platform = m.p.chosen().platform
	}
	m.rec.Engine = engineOn(m.platform)
	cg := m.p.groups().Group(m.p.groupName(m.spec.ID))
	if cg != nil {
		m.rec.Version, m.rec.Cgroup = cg.Version, cg.Dirs
	}
	b, upper, err := createStateDir(m.p.sandboxes, m.rec)
	if errors.Is(err, fs.ErrExist) {
		return &providerError{sandbox.CodeAlreadyExists, fmt.Sprintf("sandbox %s already exists", m.spec.ID), nil}
	} else if err != nil {
		return fmt.Errorf("making the state directory: %w", err)
	}
	m.stateDir = b
	m.files = append(m.files, upper)
	if err := m.p.opts.Fault("create.box"); err != nil {
		return err
	}
	if err := cg.Create(cgroup.Limits{CPUs: m.res.CPUs, Memory: m.res.Memory, PIDs: hostThreads(m.res.PIDs)}); err != nil {
		return err
	}
	if err := m.p.opts.Fault("create.cgroup"); err != nil {
		return err
	}
	m.args, err = m.launchArgs()
	return err
}

// groupName returns the name of a sandbox's control group. The groups of all
// state directories on the machine share one parent, and sandboxes in two state
// directories may have the same name.
func (p *Provider) groupName(id sandbox.ID) string {
	sandboxes, err := filepath.Abs(p.sandboxes)
	if err != nil {
		sandboxes = p.sandboxes
	}
	where := sha256.Sum256([]byte(sandboxes))
	return string(id) + "-" + hex.EncodeToString(where[:4])
}

// self returns a reference to this process.
func self() processRef { return refTo(os.Getpid()) }

// hostThreads returns the limit of host threads for a sandbox. The kernel needs
// threads in addition to those of the programs inside, which it limits exactly.
func hostThreads(pids int64) int64 {
	if pids <= 0 {
		return 0
	}
	return 2*pids + 512
}

// closeFiles closes our copies of the files that the processes have inherited.
func (m *creation) closeFiles() {
	closeAll(m.files)
	m.files, m.args = nil, nil
}

// letGo closes the connections to the guest.
func (m *creation) letGo() {
	m.closeFiles()
	if m.conn != nil {
		m.conn.Close()
	}
	if m.door != nil {
		m.door.Close()
	}
	m.conn, m.door = nil, nil
}

// launch starts the processes of the sandbox. Its kernel then waits for a call
// that says what to start.
func (m *creation) launch(ctx context.Context) error {
	defer m.closeFiles()
	if err := span.In(ctx, "engine", "launch", m.rec.ID, func(ctx context.Context) (err error) {
		m.procs, err = launch(ctx, m.args)
		return err
	}); err != nil {
		return m.explain(err)
	}
	m.rec.Kernel = m.procs.kernel.ref()
	if m.procs.gofer != nil {
		m.rec.Gofer = m.procs.gofer.ref()
	}
	if err := m.stateDir.save(m.rec); err != nil {
		return err
	}
	return m.p.opts.Fault("create.launched")
}

// boot starts the guest of a waiting kernel.
func (m *creation) boot(ctx context.Context, link func() (*Link, error)) (err error) {
	// The calls below take no context. Killing the kernel ends them.
	stop := context.AfterFunc(ctx, func() { _ = m.procs.kernel.proc.Kill() })
	defer stop()
	if m.link, err = link(); err != nil {
		return err
	}
	if err := span.In(ctx, "engine", "start", m.rec.ID, m.startKernel); err != nil {
		return err
	}
	m.door.Close()
	m.door = nil
	return m.p.opts.Fault("create.started")
}

// startKernel starts the guest, or restores the memory of a snapshot.
func (m *creation) startKernel(ctx context.Context) error {
	if !m.restoresMemory() {
		return startKernel(ctx, m.stateDir.dir, m.rec.Inside, m.res, m.link)
	}
	if err := restoreKernel(ctx, m.stateDir.dir, m.link, m.from); err != nil {
		return &memoryError{err}
	}
	if err := m.p.opts.Fault("restore.kernel"); err != nil {
		return err
	}
	var g errgroup.Group
	// On a new connection, because another kernel answers now.
	g.Go(func() error { return boundRestored(ctx, m.stateDir.dir, m.rec.group(), m.res) })
	g.Go(func() error { return guest.Waken(ctx, m.door, m.conn) })
	if err := g.Wait(); err != nil {
		return &memoryError{err}
	}
	return nil
}

// explain adds the kernel's last message to an error.
func (m *creation) explain(err error) error {
	if said := m.stateDir.lastWords(); said != "" {
		return fmt.Errorf("%w (%s)", err, said)
	}
	return err
}

func (m *creation) launchArgs() (_ *launchArgs, err error) {
	mounts, err := resolveMounts(m.spec.Mounts)
	if err != nil {
		return nil, err
	}
	total := hostMemory()
	memory := total
	if m.res.Memory > 0 {
		memory = min(total, uint64(m.res.Memory))
	}
	bun, err := newBundle(m.spec, mounts, m.img, diskSize(m.res.Disk), memory)
	if err != nil {
		return nil, err
	}
	m.rec.Mounts = bun.targets
	m.decideMemory()
	a := &launchArgs{
		id: string(m.spec.ID), dir: m.stateDir.dir, kernel: m.kernel, spec: bun.spec, mounts: bun.mounts, binds: bun.binds,
		cpus: cpuCount(m.res.CPUs), cpuQuota: int64(m.res.CPUs * 100_000), total: total, memory: memory,
		cgroup: m.rec.cgroup(), attached: m.p.opts.Attached, identity: len(mounts) > 0,
		upper: m.files[0], reaper: &m.p.reaper, platform: m.platform,
	}
	open := func(dst **os.File, f *os.File, err2 error) {
		if err2 != nil {
			err = errors.Join(err, err2)
			return
		}
		*dst = f
		m.files = append(m.files, f)
	}
	if a.layers, err = m.openImage(); err != nil {
		return nil, err
	}
	m.files = append(m.files, a.layers...)
	f, err2 := m.keepGuest()
	open(&a.program, f, err2)
	f, err2 = listenControl(m.stateDir.dir)
	open(&a.control, f, err2)
	f, err2 = os.OpenFile(m.stateDir.path(filePanic), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	open(&a.panicLog, f, err2)
	if m.p.opts.DebugDir != "" {
		f, err2 = os.OpenFile(filepath.Join(m.p.opts.DebugDir, a.id+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		open(&a.debugLog, f, err2)
	}
	if a.platform == PlatformKVM {
		f, err2 = os.OpenFile(kvmDevice, os.O_RDWR, 0)
		open(&a.device, f, err2)
	}
	f, f2, err2 := os.Pipe()
	open(&a.door[0], f, err2)
	a.door[1], m.door = f2, f2
	if err != nil {
		return nil, err
	}
	m.conn, a.link, err = guest.NewPipes()
	if err != nil {
		return nil, err
	}
	m.files = append(m.files, a.link[:]...)
	return a, nil
}

// openImage opens the layers of the image, the upper one first.
func (m *creation) openImage() ([]*os.File, error) {
	files, err := m.img.OpenLayers()
	if err != nil || len(files) == 1 {
		return files, err
	}
	if err := kernel.Layered(); err != nil {
		closeAll(files)
		return nil, &providerError{sandbox.CodeUnavailable, "this program cannot use images of several layers", err}
	}
	return files, nil
}

func diskSize(bytes int64) string {
	if bytes <= 0 {
		return ""
	}
	return strconv.FormatInt(bytes, 10)
}

func hostMemory() uint64 {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return 0
	}
	return si.Totalram * uint64(si.Unit)
}

// resolveMounts resolves links in mount sources once and rejects missing
// sources. The file server would report them later and less clearly.
func resolveMounts(mounts []sandbox.Mount) ([]sandbox.Mount, error) {
	out := make([]sandbox.Mount, 0, len(mounts))
	for _, m := range mounts {
		src, err := filepath.EvalSymlinks(m.Source)
		if err != nil {
			return nil, &providerError{sandbox.CodeInvalid, "mount source " + m.Source, err}
		}
		info, err := os.Stat(src)
		if err != nil {
			return nil, &providerError{sandbox.CodeInvalid, "mount source " + m.Source, err}
		}
		if !info.IsDir() && !info.Mode().IsRegular() {
			return nil, &providerError{sandbox.CodeInvalid, "mount source " + m.Source + " is neither a directory nor a file", nil}
		}
		m.Source = src
		out = append(out, m)
	}
	return out, nil
}

// defaults returns the defaults of the sandbox's commands.
func (m *creation) defaults() guest.Defaults {
	env := map[string]string{}
	for _, kv := range m.img.Config.Env {
		if k, v, ok := cutEnv(kv); ok {
			env[k] = v
		}
	}
	if m.link != nil && len(m.link.CA) > 0 {
		netfiles.TrustEnv(env)
	}
	for k, v := range m.spec.Env {
		env[k] = v
	}
	d := guest.Defaults{Env: env, User: m.spec.User, Workdir: m.spec.Workdir, Hostname: m.spec.Hostname}
	if d.User == "" {
		d.User = m.img.Config.User
	}
	if d.Workdir == "" {
		d.Workdir = m.img.Config.Workdir
	}
	return d
}

func cutEnv(kv string) (k, v string, ok bool) {
	for i := range len(kv) {
		if kv[i] == '=' {
			return kv[:i], kv[i+1:], i > 0
		}
	}
	return "", "", false
}
