package docker

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

var (
	_ driver.Snapshotter    = (*Instance)(nil)
	_ driver.Restorer       = (*Provider)(nil)
	_ driver.SnapshotKeeper = (*Provider)(nil)

	_ driver.AttributeDropper = (*Provider)(nil)
)

// A snapshot is an image of the daemon, committed from a container: its files,
// without processes. Its tag is SCOPE-ID. An image that is removed while
// containers use it stays without a tag until the last of them is removed.

// snapshots is the repository of the images that are snapshots.
const snapshots = "atoll-snapshot"

// The labels of an image that is a snapshot.
const (
	labelSnapshot = "run.atoll.snapshot" // its ID
	labelSize     = "run.atoll.size"     // bytes that the image of the container does not have
)

// usableRef matches the Data of references to our snapshots.
var usableRef = regexp.MustCompile(`^(` + snapshots + `:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}|sha256:[0-9a-f]{64})$`)

func tagOf(scope, id string) string { return snapshots + ":" + scope + "-" + id }

// describe describes a snapshot with the labels of its image.
func describe(tag string, labels map[string]string) driver.Snapshot {
	size, _ := strconv.ParseInt(labels[labelSize], 10, 64)
	return driver.Snapshot{Ref: driver.SnapshotRef{Provider: Name, Kind: driver.SnapshotFilesystem, Data: tag}, Engine: Name, Size: max(size, 1)}
}

// DropsAttributes implements driver.AttributeDropper.
func (p *Provider) DropsAttributes() {}

// lost returns the error for an image that the daemon does not have.
func (p *Provider) lost(ctx context.Context, id string) error {
	if _, err := p.info(ctx); err != nil {
		return err
	}
	return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: id, Message: "the daemon has no such snapshot", Cause: driver.ErrSnapshotLost}
}

func check(ref driver.SnapshotRef) error {
	if ref.Provider == Name && ref.Kind == driver.SnapshotFilesystem && usableRef.MatchString(ref.Data) {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "docker.restore", Message: "the reference belongs to another provider"}
}

// Snapshot implements driver.Snapshotter. The container is frozen while the
// daemon copies its changed files.
func (in *Instance) Snapshot(ctx context.Context, opts driver.SnapshotOptions) (driver.Snapshot, error) {
	e := &sandbox.Error{Code: sandbox.CodeInvalid, Op: "docker.snapshot", Subject: opts.ID}
	if err := sandbox.ValidateName(opts.ID); err != nil {
		e.Subject, e.Message, e.Cause = "id", "is not a valid id", err
		return driver.Snapshot{}, e
	}
	if opts.Memory {
		e.Code, e.Message = sandbox.CodeUnsupported, "Docker saves files, not processes and their memory"
		return driver.Snapshot{}, e
	}
	release, err := in.p.saving.Take(ctx, opts.ID)
	if err != nil {
		return driver.Snapshot{}, err
	}
	return later(ctx, in.p, func() (driver.Snapshot, error) {
		defer release()
		return in.capture(ctx, opts)
	})
}

func (in *Instance) capture(ctx context.Context, opts driver.SnapshotOptions) (s driver.Snapshot, err error) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), making)
	defer cancel()
	scope, err := in.p.scope()
	if err != nil {
		return s, err
	}
	tag := tagOf(scope, opts.ID)
	switch _, err := in.p.FindSnapshot(ctx, opts.ID); {
	case err == nil:
		return s, &sandbox.Error{Code: sandbox.CodeAlreadyExists, Op: "docker.snapshot", Subject: opts.ID, Message: "a snapshot with this ID already exists"}
	case !errors.Is(err, driver.ErrSnapshotLost):
		return s, err
	}
	c, err := in.p.inspect(ctx, in.id, in.name, true)
	if err == nil {
		err = savable(c)
	}
	if err != nil {
		return s, err
	}
	if opts.Stop && !c.State.Paused { // nothing changes between the snapshot and the end
		if err := in.Pause(ctx); err != nil {
			return s, err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, in.Resume(asking))
			}
		}()
	}
	if s, err = in.commit(asking, tag, opts.ID, scope, c); err == nil {
		err = ctx.Err()
	}
	if err == nil && opts.Stop {
		err = in.Destroy(ctx)
	}
	if err == nil {
		return s, nil
	}
	if undone := in.p.discard(asking, tag); ctx.Err() == nil { // the answer may have been lost
		return driver.Snapshot{}, errors.Join(err, undone)
	}
	return driver.Snapshot{}, ctx.Err()
}

// savable refuses containers that have ended, and those with files that an image
// of them would lack.
func savable(c container.InspectResponse) error {
	if !c.State.Running && !c.State.Paused {
		return guestkit.Gone(sandbox.ID(c.Config.Labels[labelID]))
	}
	for _, m := range c.Mounts {
		if m.Type == mount.TypeVolume {
			return &sandbox.Error{
				Code: sandbox.CodeUnsupported, Op: "docker.snapshot", Subject: m.Destination, Message: "the image keeps this directory in a volume, which a snapshot would lack",
				Hint: "use an image without VOLUME instructions",
			}
		}
	}
	return nil
}

// commit makes the daemon write an image of the container. Its labels describe
// the snapshot, not the container.
func (in *Instance) commit(ctx context.Context, tag, id, scope string, c container.InspectResponse) (driver.Snapshot, error) {
	labels := map[string]string{labelSnapshot: id, labelScope: scope, labelDefaults: c.Config.Labels[labelDefaults], labelSize: "1"}
	if c.SizeRw != nil {
		labels[labelSize] = strconv.FormatInt(*c.SizeRw, 10)
	}
	for name := range c.Config.Labels {
		if _, ours := labels[name]; !ours && strings.HasPrefix(name, labelPrefix) {
			labels[name] = ""
		}
	}
	_, err := in.p.api.ContainerCommit(ctx, in.name, client.ContainerCommitOptions{Reference: tag, Config: &container.Config{Labels: labels}})
	return describe(tag, labels), in.known(ctx, err)
}

// FindSnapshot implements driver.SnapshotKeeper.
func (p *Provider) FindSnapshot(ctx context.Context, id string) (driver.Snapshot, error) {
	scope, err := p.scope()
	if err != nil {
		return driver.Snapshot{}, err
	}
	if sandbox.ValidateName(id) != nil {
		return driver.Snapshot{}, p.lost(ctx, id)
	}
	tag := tagOf(scope, id)
	labels, err := p.labels(ctx, tag)
	if err == nil && labels[labelSnapshot] == "" {
		err = p.lost(ctx, id)
	}
	return describe(tag, labels), err
}

// labels returns the labels of the image of a snapshot.
func (p *Provider) labels(ctx context.Context, tag string) (map[string]string, error) {
	res, err := p.api.ImageInspect(ctx, tag)
	if err = p.explain(ctx, err); sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = p.lost(ctx, tag)
	}
	if err != nil || res.Config == nil {
		return nil, err
	}
	return res.Config.Labels, nil
}

// Snapshots implements driver.SnapshotKeeper. An image without a tag and without
// containers is listed as incomplete.
func (p *Provider) Snapshots(ctx context.Context) iter.Seq2[driver.FoundSnapshot, error] {
	return func(yield func(driver.FoundSnapshot, error) bool) {
		all, err := p.images(ctx)
		if err != nil {
			yield(driver.FoundSnapshot{}, err)
			return
		}
		for _, f := range all {
			if !yield(f, nil) {
				return
			}
		}
	}
}

func (p *Provider) images(ctx context.Context) (out []driver.FoundSnapshot, err error) {
	scope, err := p.scope()
	if err != nil {
		return nil, err
	}
	if _, err := p.info(ctx); err != nil {
		return nil, err
	}
	res, err := p.api.ImageList(ctx, client.ImageListOptions{Filters: client.Filters{}.Add("label", labelSnapshot, labelScope+"="+scope)})
	if err != nil {
		return nil, p.unanswered(ctx, err)
	}
	used, err := p.api.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, p.unanswered(ctx, err)
	}
	users := map[string]bool{}
	for _, c := range used.Items {
		users[c.ImageID] = true
	}
	for _, image := range res.Items {
		tagged := false
		for _, tag := range image.RepoTags {
			id, ours := strings.CutPrefix(tag, tagOf(scope, ""))
			tagged = tagged || tag != "<none>:<none>"
			if !ours || sandbox.ValidateName(id) != nil {
				continue
			}
			s := describe(tag, image.Labels)
			out = append(out, driver.FoundSnapshot{ID: id, Ref: s.Ref, Size: s.Size, Used: time.Unix(image.Created, 0)})
		}
		if !tagged && !users[image.ID] {
			out = append(out, driver.FoundSnapshot{ID: image.Labels[labelSnapshot], Ref: describe(image.ID, nil).Ref, Used: time.Unix(image.Created, 0)})
		}
	}
	return out, nil
}

// RemoveSnapshot implements driver.SnapshotKeeper.
func (p *Provider) RemoveSnapshot(ctx context.Context, ref driver.SnapshotRef) error {
	if err := check(ref); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p.restoring.Lock()
	defer p.restoring.Unlock()
	return p.discard(ctx, ref.Data)
}

// discard removes an image with its parents that have no tag. One that does not
// exist, or that containers use, is success: with the last of them it is removed,
// too.
func (p *Provider) discard(ctx context.Context, image string) error {
	tag := !strings.HasPrefix(image, "sha256:")
	_, err := p.api.ImageRemove(ctx, image, client.ImageRemoveOptions{Force: tag, PruneChildren: true})
	err = p.explain(ctx, err)
	switch code := sandbox.CodeOf(err); {
	case code == sandbox.CodeNotFound:
		_, err = p.info(ctx)
	case code == sandbox.CodeConflict && !tag:
		err = nil
	}
	return err
}

// tidy removes the image of a container that was removed, if it is a snapshot
// that was removed before. What is left after an error is listed by Snapshots.
func (p *Provider) tidy(ctx context.Context, image string) {
	res, err := p.api.ImageInspect(ctx, image)
	if err == nil && len(res.RepoTags) == 0 && res.Config != nil && res.Config.Labels[labelSnapshot] != "" {
		_ = p.discard(ctx, res.ID)
	}
}

// Restore implements driver.Restorer.
func (p *Provider) Restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	in, err := p.restore(ctx, spec, ref)
	return in, driver.Restored{}, err
}

func (p *Provider) restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, error) {
	if err := check(ref); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.restoring.RLock()
	defer p.restoring.RUnlock()
	res, err := p.api.ImageInspect(ctx, ref.Data)
	if err = p.explain(ctx, err); sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = p.lost(ctx, ref.Data)
	}
	if err == nil && (res.Config == nil || res.Config.Labels[labelSnapshot] == "") {
		err = &sandbox.Error{Code: sandbox.CodeInvalid, Op: "docker.restore", Subject: ref.Data, Message: "the image is not a snapshot", Cause: driver.ErrSnapshotLost}
	}
	if err != nil {
		return nil, err
	}
	return p.start(ctx, spec, res.ID, settings(res.InspectResponse))
}

// ownDefaults are the settings of commands of the image from which a container
// was first made, as a label.
type ownDefaults struct {
	User    string `json:"user,omitempty"`
	Workdir string `json:"workdir,omitempty"`
}

func label(v any) string {
	text, err := json.Marshal(v)
	if err != nil { // of strings
		panic(err)
	}
	return string(text)
}

// noSnapshot refuses a snapshot as an image: it may be of another tenant.
func noSnapshot(labels map[string]string, image string) error {
	if labels[labelSnapshot] == "" {
		return nil
	}
	return &sandbox.Error{
		Code: sandbox.CodeDenied, Op: "docker.create", Subject: image, Message: "this image is a snapshot of a sandbox",
		Hint: "make a sandbox from the snapshot by its name in Atoll",
	}
}
