package docker

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"iter"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/image"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

// The labels of a container.
const (
	labelScope    = "run.atoll.scope" // the state directory that made it
	labelID       = "run.atoll.id"
	labelLife     = "run.atoll.life"     // its lifetime in seconds; 0: no end
	labelTry      = "run.atoll.try"      // the call of Create that created it
	labelUser     = "run.atoll.user."    // prefix of the user's labels, for filters of docker ps
	labelAll      = "run.atoll.labels"   // the user's labels as JSON; an image cannot add to them
	labelDefaults = "run.atoll.defaults" // ownDefaults as JSON
	labelPrefix   = "run.atoll."
)

// entry is the first process of a container. It reaps orphans and exits after
// the given number of seconds, or a little later; 0 means never.
const entry = `if [ "$1" -gt 0 ]; then
	now=$(date +%s) || exit 70
	end=$((now + $1 + 1))
fi
while :; do
s=86400
if [ "$1" -gt 0 ]; then
	now=$(date +%s) || exit 70
	s=$((end - now))
	[ "$s" -gt 0 ] || exit 0
	[ "$s" -le 86400 ] || s=86400
fi
sleep "$s" &
wait $!
case $? in 126|127) exit 70 ;; esac
done`

// The exit statuses of the entry.
const (
	exitLifetime = 0
	exitTools    = 70 // the image lacks date or sleep
)

// guestPIDs is how many processes and threads the entry and the guest may have
// in addition to the limit of the sandbox.
const guestPIDs = 24

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	image, err := p.image(spec.Image)
	if err != nil {
		return nil, err
	}
	if err := p.free(ctx, spec); err != nil {
		return nil, err
	}
	own, err := p.fetch(ctx, image)
	if err != nil {
		return nil, err
	}
	return p.start(ctx, spec, image, own)
}

// free returns nil if a sandbox can be made with the spec's ID and settings.
func (p *Provider) free(ctx context.Context, spec *sandbox.Spec) error {
	if _, err := p.hostConfig(spec); err != nil {
		return err
	}
	_, err := p.find(ctx, spec.ID)
	if err == nil {
		return taken(spec.ID)
	}
	if sandbox.CodeOf(err) != sandbox.CodeGone && !errors.Is(err, driver.ErrElsewhere) {
		return err
	}
	return nil
}

// start makes a sandbox from an image that the daemon has. Labels of an image
// that is a snapshot have the same names, so all of them are set.
func (p *Provider) start(ctx context.Context, spec *sandbox.Spec, image string, own guest.Defaults) (driver.Instance, error) {
	host, err := p.hostConfig(spec)
	if err != nil {
		return nil, err
	}
	scope, err := p.scope()
	if err != nil {
		return nil, err
	}
	life := "0"
	if d := spec.Lifetime.Timeout; d > 0 {
		life = strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
	}
	labels := map[string]string{
		labelScope: scope, labelID: string(spec.ID), labelTry: rand.Text(), labelLife: life,
		labelAll: label(spec.Labels), labelDefaults: label(ownDefaults{own.User, own.Workdir}),
	}
	for k, v := range spec.Labels {
		labels[labelUser+k] = v
	}
	create := client.ContainerCreateOptions{
		Name: containerName(scope, spec.ID),
		Config: &container.Config{
			Image: image, User: "0:0", WorkingDir: "/", Hostname: spec.Hostname, Labels: labels, StopSignal: "SIGKILL",
			Entrypoint: []string{"/bin/sh", "-c", entry, "atoll", life}, Cmd: []string{},
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		},
		HostConfig: host,
	}
	return p.make(ctx, create, defaults(spec, own), spec.ID)
}

func taken(id sandbox.ID) error {
	return &sandbox.Error{Code: sandbox.CodeAlreadyExists, Op: "docker.create", Subject: string(id), Message: "a sandbox with this ID already exists"}
}

// image returns the reference of an image for the daemon.
func (p *Provider) image(name string) (string, error) {
	if err := p.CheckImage(name); err != nil {
		return "", err
	}
	if name == "" || name == "host" {
		return p.opts.Image, nil
	}
	return name, nil
}

// CheckImage implements driver.ImageChecker.
func (p *Provider) CheckImage(image string) error {
	e := &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "docker.create", Subject: image}
	for _, scheme := range []string{"dir:", "tar:", "oci:", "template:"} {
		if strings.HasPrefix(image, scheme) {
			e.Message, e.Hint = "the daemon accepts images from registries and its own", "import it with docker import or docker load, and use its name"
			return e
		}
	}
	return nil
}

// hostConfig returns the container's limits, mounts and network.
func (p *Provider) hostConfig(spec *sandbox.Spec) (*container.HostConfig, error) {
	network, err := p.network(spec.Network)
	if err != nil {
		return nil, err
	}
	r := resources(spec.Resources)
	if r.PidsLimit == nil {
		r.PidsLimit = new(int64) // no limit
	}
	host := &container.HostConfig{
		NetworkMode: container.NetworkMode(network), Resources: r,
		LogConfig: container.LogConfig{Type: "none"}, // the entry has no output
	}
	for _, m := range spec.Mounts {
		if !p.local() {
			return nil, &sandbox.Error{
				Code: sandbox.CodeUnsupported, Op: "docker.create", Subject: "mounts", Message: "the daemon is not on this machine and cannot mount its directories",
			}
		}
		if _, err := os.Stat(m.Source); err != nil {
			code := sandbox.CodeInvalid
			if errors.Is(err, fs.ErrNotExist) {
				code = sandbox.CodeNotFound
			}
			return nil, &sandbox.Error{Code: code, Op: "docker.create", Subject: m.Source, Message: "cannot be mounted", Cause: err}
		}
		host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeBind, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return host, nil
}

// period is the period of the CPU quota, in microseconds.
const period = 100_000

// resources converts limits to Docker's. Zero leaves a limit unchanged, a
// negative value removes it.
func resources(r sandbox.Resources) (out container.Resources) {
	if r.Memory != 0 {
		out.Memory, out.MemorySwap = max(r.Memory, -1), max(r.Memory, -1) // no swap
	}
	if r.CPUs != 0 {
		out.CPUPeriod, out.CPUQuota = period, max(int64(r.CPUs*period), 1000)
		if r.CPUs < 0 {
			out.CPUQuota = -1
		}
	}
	if r.PIDs != 0 {
		limit := int64(-1)
		if r.PIDs > 0 {
			limit = r.PIDs + guestPIDs
		}
		out.PidsLimit = &limit
	}
	return out
}

// fetch pulls an image if the daemon does not have it, and returns the image's
// settings for commands.
func (p *Provider) fetch(ctx context.Context, image string) (own guest.Defaults, err error) {
	res, err := p.api.ImageInspect(ctx, image)
	if err = p.explain(ctx, err); sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = p.pull(ctx, image)
		if err == nil {
			res, err = p.api.ImageInspect(ctx, image)
			err = p.explain(ctx, err)
		}
	}
	if err != nil || res.Config == nil {
		return own, err
	}
	return settings(res.InspectResponse), noSnapshot(res.Config.Labels, image)
}

// settings returns an image's settings for commands.
func settings(image image.InspectResponse) guest.Defaults {
	own := guest.Defaults{Env: map[string]string{}, User: image.Config.User, Workdir: image.Config.WorkingDir}
	for _, v := range image.Config.Env {
		name, value, _ := strings.Cut(v, "=")
		own.Env[name] = value
	}
	var first ownDefaults // of the image before it was a container
	if json.Unmarshal([]byte(image.Config.Labels[labelDefaults]), &first) == nil {
		own.User, own.Workdir = first.User, first.Workdir
	}
	return own
}

func (p *Provider) pull(ctx context.Context, image string) error {
	res, err := p.api.ImagePull(ctx, image, client.ImagePullOptions{})
	if err == nil {
		err = res.Wait(ctx)
	}
	if err = p.explain(ctx, err); err == nil || ctx.Err() != nil {
		return err
	}
	return &sandbox.Error{
		Code: sandbox.CodeOf(err), Op: "docker.create", Subject: image, Message: "the image cannot be pulled: " + err.Error(),
		Hint: "pull it with: docker pull " + image, Cause: err,
	}
}

// defaults returns the settings of commands that the spec leaves open.
func defaults(spec *sandbox.Spec, own guest.Defaults) guest.Defaults {
	def := guest.Defaults{Env: own.Env, User: spec.User, Workdir: spec.Workdir}
	if def.Env == nil {
		def.Env = map[string]string{}
	}
	maps.Copy(def.Env, spec.Env)
	if def.User == "" {
		def.User = own.User
	}
	if def.Workdir == "" {
		def.Workdir = own.Workdir
	}
	return def
}

const (
	// making limits how long requests may continue after their caller gave up.
	making = 2 * time.Minute
	// grace is how long Create waits for the cleanup after its caller gave up.
	grace = 10 * time.Second
)

// make creates the sandbox. Its requests may continue after ctx has ended until
// the container is complete or removed, because a request to the daemon cannot
// be canceled.
func (p *Provider) make(ctx context.Context, create client.ContainerCreateOptions, def guest.Defaults, id sandbox.ID) (driver.Instance, error) {
	in, err := later(ctx, p, func() (*Instance, error) { return p.finish(ctx, create, def, id) })
	if err != nil {
		return nil, err
	}
	return in, nil
}

// later returns the result of f, or, a while after ctx has ended, its error. f
// continues and cleans up.
func later[T any](ctx context.Context, p *Provider, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	p.work.Go(func() {
		v, err := f()
		done <- result{v, err}
	})
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, func() { close(late) }) })
	defer stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-late:
		var none T
		return none, ctx.Err()
	}
}

// finish creates a sandbox that is ready for commands. After an error it
// removes the container.
func (p *Provider) finish(ctx context.Context, create client.ContainerCreateOptions, def guest.Defaults, id sandbox.ID) (*Instance, error) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), making)
	defer cancel()
	name, err := p.create(asking, create, id)
	if err != nil {
		return nil, err
	}
	in := p.instance(id, name, create.Config.Labels, create.HostConfig.NetworkMode, time.Now())
	if err = ctx.Err(); err == nil {
		_, err = p.api.ContainerStart(asking, name, client.ContainerStartOptions{})
		err = p.explain(asking, err)
		if e, ok := errors.AsType[*sandbox.Error](err); ok {
			e.Op, e.Subject, e.Hint = "docker.create", create.Config.Image, "the image needs /bin/sh"
		}
	}
	if err == nil {
		err = in.join(asking)
	}
	if err == nil {
		err = in.Use(ctx, false, func(ctx context.Context, c *guest.Client) error { return c.Configure(ctx, def) })
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err == nil {
		return in, nil
	}
	if exit, ended := in.Ended(); ended {
		err = &sandbox.Error{Code: sandbox.CodeInvalid, Op: "docker.create", Subject: create.Config.Image, Message: "the container ended at once: " + exit.Detail, Cause: err}
	}
	in.Finish(guestkit.Killed)
	if left := p.remove(asking, id, name); left != nil {
		err = errors.Join(err, left)
	}
	p.tidy(asking, create.Config.Image)
	return nil, err
}

// create creates a container that is not started and returns its name. If the
// answer is lost, it looks for the container.
func (p *Provider) create(ctx context.Context, create client.ContainerCreateOptions, id sandbox.ID) (string, error) {
	res, err := p.api.ContainerCreate(ctx, create)
	err = p.explain(ctx, err)
	switch code := sandbox.CodeOf(err); {
	case err == nil:
		return res.ID, nil
	case code == sandbox.CodeConflict:
		return "", taken(id)
	case code != sandbox.CodeUnavailable && code != sandbox.CodeTimeout:
		return "", err
	}
	c, lost := p.find(context.WithoutCancel(ctx), id)
	if lost != nil || c.Labels[labelTry] != create.Config.Labels[labelTry] {
		return "", err
	}
	return c.ID, nil
}

// find asks the daemon for the container of a sandbox. It returns CodeGone only
// if the daemon is the same as before and does not list the container.
func (p *Provider) find(ctx context.Context, id sandbox.ID) (container.Summary, error) {
	ours, foreign, err := p.list(ctx, labelID+"="+string(id))
	if err != nil {
		return container.Summary{}, err
	}
	for _, c := range ours {
		if c.Labels[labelID] == string(id) {
			return c, nil
		}
	}
	for _, c := range foreign {
		if c.Labels[labelID] == string(id) {
			return container.Summary{}, driver.Elsewhere(id)
		}
	}
	return container.Summary{}, p.gone(ctx, id)
}

// list returns the containers with labels, running or not: those of this
// directory, and those of others.
func (p *Provider) list(ctx context.Context, labels ...string) (ours, foreign []container.Summary, err error) {
	scope, err := p.scope()
	if err != nil {
		return nil, nil, err
	}
	filters := client.Filters{}.Add("label", append(labels, labelScope)...)
	res, err := p.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil {
		return nil, nil, p.unanswered(ctx, err)
	}
	for _, c := range res.Items {
		switch {
		case sandbox.ValidateName(c.Labels[labelID]) != nil || c.Labels[labelScope] == "":
		case ownerOf(c.Labels, c.Names...) == scope:
			ours = append(ours, c)
		default:
			foreign = append(foreign, c)
		}
	}
	return ours, foreign, nil
}

// Attach implements driver.Provider. It reconnects a sandbox that has lost its
// network. If that fails, calls that need the guest fail, but Destroy works.
func (p *Provider) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	c, err := p.find(ctx, id)
	if err != nil {
		return nil, err
	}
	in := p.instance(id, c.ID, c.Labels, container.NetworkMode(c.HostConfig.NetworkMode), time.Unix(c.Created, 0))
	if c.NetworkSettings == nil || !joined(c.NetworkSettings.Networks, in.network) {
		in.apart.Store(in.network != "")
		if c.State == container.StateRunning || c.State == container.StatePaused {
			_ = in.join(ctx) // the next use tries again and returns the error
		}
	}
	return in, nil
}

// List implements driver.Provider.
func (p *Provider) List(ctx context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		all, _, err := p.list(ctx)
		if err == nil {
			_, err = p.info(ctx) // checks that it is the same daemon
		}
		if err != nil {
			yield(driver.Found{}, err)
			return
		}
		for _, c := range all {
			f, err := p.found(ctx, c)
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				continue // removed meanwhile
			}
			if !yield(f, err) || err != nil {
				return
			}
		}
	}
}

// found describes a container. Only an inspection returns why it ended.
func (p *Provider) found(ctx context.Context, c container.Summary) (driver.Found, error) {
	f := driver.Found{ID: sandbox.ID(c.Labels[labelID]), State: sandbox.Running, Created: time.Unix(c.Created, 0), Labels: map[string]string{}}
	if all, ok := c.Labels[labelAll]; !ok || json.Unmarshal([]byte(all), &f.Labels) != nil {
		for k, v := range c.Labels { // of an earlier version
			if name, ok := strings.CutPrefix(k, labelUser); ok {
				f.Labels[name] = v
			}
		}
	}
	switch c.State {
	case container.StateRunning, container.StateRestarting:
		return f, nil
	case container.StatePaused:
		f.State = sandbox.Paused
		return f, nil
	case container.StateCreated:
		f.State = sandbox.Creating
		return f, nil
	}
	res, err := p.api.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
	if err != nil {
		return f, p.explain(ctx, err)
	}
	exit := exitOf(res.Container.State, c.Labels)
	f.Exit, f.State = &exit, sandbox.Stopped
	if exit.Reason != sandbox.ReasonLifetime {
		f.State = sandbox.Failed
	}
	return f, nil
}
