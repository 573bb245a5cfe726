package gvisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/provider/gvisor/snapshot"
	"github.com/atoll-run/atoll/sandbox"
)

// snapshots opens snapshots, with their memory if this engine can restore it.
var snapshots = snapshot.Reader{Restorable: restorable}

// Restore creates a sandbox from a snapshot. See driver.Restorer.
func (p *Provider) Restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	return p.restore(ctx, spec, ref, "")
}

// RestoreFiles implements driver.FileRestorer.
func (p *Provider) RestoreFiles(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, error) {
	in, _, err := p.restore(ctx, spec, ref, "only its files were asked for")
	return in, err
}

// restore also restores the memory, unless refused says why not.
func (p *Provider) restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef, refused string) (driver.Instance, driver.Restored, error) {
	none := driver.Restored{}
	p.sweepOnce()
	if f := p.static(); f.Severity == driver.Blocker {
		return nil, none, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: f.Message, Hint: f.Fix}
	}
	dir, release, err := p.snapshots.Use(ctx, ref)
	if err != nil {
		return nil, none, withCause(ctx, err)
	}
	defer release()
	from, err := snapshots.Open(ctx, dir)
	if err != nil {
		return nil, none, withCause(ctx, err)
	}
	defer from.Close()
	img, err := p.opts.Images.Get(ctx, spec.Image, image.GetOptions{})
	if err != nil {
		return nil, none, err
	}
	if img.Digest != from.Digest {
		return nil, none, &sandbox.Error{
			Code: sandbox.CodeConflict, Subject: spec.Image, Message: "the snapshot was made from another version of the image",
			Hint: "name the image by its digest, " + from.Digest,
		}
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	defer p.pool.Begin()()
	for {
		m, err := p.begin(spec, img, from, refused)
		if err != nil {
			return nil, none, err
		}
		in, err := m.make(ctx)
		if err == nil {
			return in, driver.Restored{Memory: m.restoresMemory(), Why: m.why}, nil
		}
		m.Undo()
		var kernel *memoryError
		if ctx.Err() != nil || refused != "" || !errors.As(err, &kernel) {
			return nil, none, withCause(ctx, err)
		}
		// The kernel checks more than decideMemory. The files can still be restored.
		refused = "the kernel could not restore its memory: " + plain(kernel.Error())
	}
}

// memoryError means that a kernel could not restore a snapshot's memory.
type memoryError struct{ cause error }

func (e *memoryError) Error() string { return "restoring the memory: " + e.cause.Error() }
func (e *memoryError) Unwrap() error { return e.cause }

// restoresMemory reports whether processes continue, or only files are
// restored.
func (m *creation) restoresMemory() bool {
	return m.from != nil && m.from.Memory != nil && m.why == ""
}

// decideMemory determines whether the memory of the snapshot can be restored in
// this sandbox.
func (m *creation) decideMemory() {
	if m.from == nil || m.from.Memory == nil || m.why != "" {
		return
	}
	mem := m.from.Memory
	switch lacking := mem.Lacks(cpuFeatures()); {
	case mem.Engine != m.rec.Engine:
		m.why = fmt.Sprintf("its memory was written by engine %s, and this is %s", plain(mem.Engine), m.rec.Engine)
	case len(lacking) > 0:
		m.why = "its processes may use features that this processor lacks: " + plain(strings.Join(lacking, " "))
	case !slices.Equal(mem.Mounts, m.rec.Mounts):
		m.why = "other host files are mounted than when it was made"
	default:
		m.rec.Group = mem.Group
	}
}

// known returns the network state in the snapshot's files, and in its memory if
// that is restored.
func (m *creation) known() (k Known) {
	if m.from != nil {
		k.CA = m.from.CA
	}
	if m.restoresMemory() {
		k.Names = m.from.Memory.Names
	}
	return k
}

// plain makes a text of a manifest safe to print.
func plain(s string) string {
	const most = 200
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), most)]
}

// restoreFiles unpacks the files of the snapshot into a sandbox that was
// started from its image.
func (m *creation) restoreFiles(ctx context.Context) error {
	if m.from == nil || m.restoresMemory() {
		return nil
	}
	err := m.in.client.ImportLayer(ctx, m.from.Files())
	if err == nil {
		err = m.p.opts.Fault("restore.files")
	}
	var se *sandbox.Error
	if errors.As(err, &se) && se.Code == sandbox.CodeInvalid {
		return snapshot.Damaged("%s", se.Message)
	}
	return err
}
