package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

// Instance is a container with a guest in it.
type Instance struct {
	*guestkit.Instance
	p    *Provider
	id   sandbox.ID
	name string // the daemon's ID of the container

	network string      // the network that it must be connected to; empty if none
	apart   atomic.Bool // it may not be connected to its network
}

func (p *Provider) instance(id sandbox.ID, name string, labels map[string]string, mode container.NetworkMode, created time.Time) *Instance {
	var ends time.Time // at the earliest, because the lifetime starts with the container
	if life, ok := lifeOf(labels); ok {
		ends = created.Add(life)
	}
	in := &Instance{
		Instance: p.kit.Instance(id, &machine{p: p, id: id, name: name, labels: labels}, ends),
		p:        p, id: id, name: name, network: joinable(mode),
	}
	use := in.Use
	in.Use = func(ctx context.Context, lasting bool, f func(context.Context, *guest.Client) error) error {
		if err := in.running(ctx); err != nil {
			return err
		}
		if in.apart.Load() {
			if err := in.join(ctx); err != nil {
				return err
			}
		}
		return use(ctx, lasting, f)
	}
	return in
}

func lifeOf(labels map[string]string) (life time.Duration, ok bool) {
	s, err := strconv.ParseInt(labels[labelLife], 10, 64)
	return time.Duration(s) * time.Second, err == nil && s > 0
}

// resumePoll is the interval of checking a paused container for which a call
// waits.
const resumePoll = 100 * time.Millisecond

// running waits until a paused container is resumed and connects to the guest.
// Calls on an existing connection wait in the guest's client.
func (in *Instance) running(ctx context.Context) error {
	for {
		_, err := in.Reach(ctx)
		if sandbox.CodeOf(err) != sandbox.CodeConflict {
			return err
		}
		if s, ended, asked := in.Ask(ctx); ended || asked != nil || s.State != sandbox.Paused {
			continue // Reach returns the reason
		}
		select {
		case <-time.After(resumePoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// exitOf returns how a container ended.
func exitOf(s *container.State, labels map[string]string) sandbox.Exit {
	exit := sandbox.Exit{Code: s.ExitCode, Reason: sandbox.ReasonCrashed, Detail: fmt.Sprintf("the container ended with status %d", s.ExitCode)}
	switch _, limited := lifeOf(labels); {
	case s.ExitCode == exitLifetime && limited:
		return guestkit.Expired
	case s.OOMKilled:
		exit.Reason, exit.Detail = sandbox.ReasonMemory, "the container reached its memory limit"
	case s.ExitCode == exitTools:
		exit.Detail = "the image has no date or no sleep"
	case s.Error != "":
		exit.Detail = clip(s.Error)
	}
	return exit
}

// remove removes a container with its volumes. It succeeds if the container is
// gone.
func (p *Provider) remove(ctx context.Context, id sandbox.ID, name string) error {
	for {
		_, err := p.api.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		err = p.explain(ctx, err)
		switch sandbox.CodeOf(err) {
		case sandbox.CodeNotFound:
			if err = p.gone(ctx, id); sandbox.CodeOf(err) == sandbox.CodeGone {
				err = nil
			}
			return err
		case sandbox.CodeConflict: // another request is removing it
		default:
			return err
		}
		select {
		case <-time.After(resumePoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Destroy implements driver.Instance. It does not remove a container that
// another directory has adopted.
func (in *Instance) Destroy(ctx context.Context) error {
	in.SetDying(true)
	var err error
	image := ""
	for err == nil {
		// Use its present name, so that the container is not removed after a rename.
		var c container.InspectResponse
		if c, err = in.p.inspect(ctx, in.id, in.name, false); err == nil {
			image = c.Image
			err = in.p.remove(ctx, in.id, strings.TrimPrefix(c.Name, "/"))
		}
	}
	if sandbox.CodeOf(err) != sandbox.CodeGone {
		in.SetDying(false)
		return err
	}
	in.Finish(guestkit.Killed)
	if image != "" {
		in.p.tidy(ctx, image)
	}
	return nil
}

// inspect asks the daemon about one of our containers. A missing one is
// CodeGone.
func (p *Provider) inspect(ctx context.Context, id sandbox.ID, name string, size bool) (container.InspectResponse, error) {
	res, err := p.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{Size: size})
	if err = p.explain(ctx, err); sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = p.gone(ctx, id)
	}
	if err == nil && res.Container.State == nil {
		err = &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: p.opts.Host, Message: "the daemon does not report the state of the container"}
	}
	if err == nil && res.Container.Config != nil {
		err = p.mine(id, res.Container.Config.Labels, res.Container.Name)
	}
	return res.Container, err
}

// State implements driver.StateTeller, because other clients can pause a
// container.
func (p *Provider) State(ctx context.Context, id sandbox.ID) (sandbox.State, error) {
	c, err := p.find(ctx, id)
	if err != nil {
		return "", err
	}
	f, err := p.found(ctx, c)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = p.gone(ctx, id)
	}
	return f.State, err
}

// Pause implements driver.Pauser. Connections survive, because they end in
// processes of the daemon.
func (in *Instance) Pause(ctx context.Context) error {
	return in.turn(ctx, sandbox.Paused, func() error {
		_, err := in.p.api.ContainerPause(ctx, in.name, client.ContainerPauseOptions{})
		return in.p.explain(ctx, err)
	})
}

// Resume implements driver.Pauser. It connects the network first: a container
// that cannot be connected stays paused.
func (in *Instance) Resume(ctx context.Context) error {
	return in.turn(ctx, sandbox.Running, func() error {
		if err := in.join(ctx); err != nil {
			return err
		}
		_, err := in.p.api.ContainerUnpause(ctx, in.name, client.ContainerUnpauseOptions{})
		return in.p.explain(ctx, err)
	})
}

// turn changes the state of the container, unless it is in that state.
func (in *Instance) turn(ctx context.Context, to sandbox.State, do func() error) error {
	s, ended, err := in.Ask(ctx)
	if err != nil || !ended && s.State == to {
		return err
	}
	if ended {
		return guestkit.Gone(in.id)
	}
	failed := do()
	if failed == nil || ctx.Err() != nil {
		return failed
	}
	switch s, ended, err := in.Ask(ctx); {
	case ended:
		return guestkit.Gone(in.id)
	case err == nil && s.State == to:
		return nil // another caller was faster
	}
	return failed
}

// Resize implements driver.Resizer.
func (in *Instance) Resize(ctx context.Context, want sandbox.Resources) error {
	refuse := func(limit, why string) error {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "docker.resize", Subject: limit, Message: why}
	}
	if want.Disk != 0 {
		return refuse("disk", "Docker has no limit for the files of a container")
	}
	info, err := in.p.info(ctx)
	if err != nil {
		return err
	}
	holds := enforced(info)
	for limit, asked := range map[string]bool{"memory": want.Memory != 0, "cpus": want.CPUs != 0, "pids": want.PIDs != 0} {
		if asked && !holds[limit] {
			return refuse(limit, "the daemon does not enforce it")
		}
	}
	if want.Memory > 0 {
		stats, err := in.stats(ctx)
		if err != nil {
			return err
		}
		if used := memoryOf(stats); used > want.Memory {
			return &sandbox.Error{
				Code: sandbox.CodeConflict, Op: "docker.resize", Subject: "memory",
				Message: fmt.Sprintf("the sandbox uses %d bytes now, more than the new limit", used),
				Hint:    "end programs inside first, or choose a higher limit",
			}
		}
	}
	r := resources(want)
	_, err = in.p.api.ContainerUpdate(ctx, in.name, client.ContainerUpdateOptions{Resources: &r})
	return in.known(ctx, err)
}

// known converts the error of a call about the container.
func (in *Instance) known(ctx context.Context, err error) error {
	if err = in.p.explain(ctx, err); err == nil || ctx.Err() != nil {
		return err
	}
	if _, ended, _ := in.Ask(ctx); ended {
		return guestkit.Gone(in.id)
	}
	return err
}

func (in *Instance) stats(ctx context.Context) (stats container.StatsResponse, err error) {
	if _, ended := in.Ended(); ended {
		return stats, guestkit.Gone(in.id)
	}
	res, err := in.p.api.ContainerStats(ctx, in.name, client.ContainerStatsOptions{})
	if err == nil {
		defer res.Body.Close()
		err = json.NewDecoder(res.Body).Decode(&stats)
	}
	return stats, in.known(ctx, err)
}

// memoryOf returns the memory that cannot be reclaimed at once, like docker
// stats.
func memoryOf(s container.StatsResponse) int64 {
	for _, name := range []string{"total_inactive_file", "inactive_file"} { // cgroup v1, v2
		if cache, ok := s.MemoryStats.Stats[name]; ok && cache < s.MemoryStats.Usage {
			return int64(s.MemoryStats.Usage - cache)
		}
	}
	return int64(s.MemoryStats.Usage)
}

// Usage implements driver.Meter.
func (in *Instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	stats, err := in.stats(ctx)
	if err != nil {
		return sandbox.Usage{}, err
	}
	u := sandbox.Usage{
		CPU: time.Duration(stats.CPUStats.CPUUsage.TotalUsage), Memory: memoryOf(stats), PIDs: int64(stats.PidsStats.Current), Disk: -1, Sampled: stats.Read,
	}
	c, err := in.p.inspect(ctx, in.id, in.name, true)
	if err == nil && c.SizeRw != nil {
		u.Disk = *c.SizeRw
	}
	return u, err
}
