package snapshots

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

const (
	opExport = ops.SnapshotExport
	opImport = ops.SnapshotImport
)

// A snapshot travels between daemons as the archive of its provider, after one
// file with what the record says of it. Its name sorts before those of the
// provider's files, so that it stays the first one when the files are packed
// again.
const (
	aboutName = "+snapshot.json"
	maxAbout  = 64 << 10
	tarBlock  = 512
)

// about has the fields of a snapshot's record that its provider does not know.
type about struct {
	Provider  string            `json:"provider"` // name of the provider
	Image     string            `json:"image"`    // as in the record
	Ref       string            `json:"ref"`      // image of the Spec
	User      string            `json:"user,omitempty"`
	Workdir   string            `json:"workdir,omitempty"`
	Isolation sandbox.Isolation `json:"isolation,omitempty"`
	Resources sandbox.Resources `json:"resources"`
}

func aboutOf(s *store.Snapshot) about {
	return about{s.Provider, s.Image, pinned(s.Image, s.Spec.Image), s.Spec.User, s.Spec.Workdir, s.Spec.Isolation, s.Spec.Resources}
}

// pinned returns a reference with which another daemon finds an image. digest is
// that of the image here, and name what it was asked for as. An image of a
// registry is found there by its digest, others only if the daemon has them.
func pinned(name, digest string) string {
	local := []string{"dir:", "tar:", "oci:", "docker-archive:", "template:", "sha256:"}
	if !strings.HasPrefix(digest, "sha256:") || name == "" || name == plan.HostImage ||
		slices.ContainsFunc(local, func(scheme string) bool { return strings.HasPrefix(name, scheme) }) {
		return digest
	}
	name, _, _ = strings.Cut(name, "@")
	if tag := strings.LastIndexByte(name, ':'); tag > strings.LastIndexByte(name, '/') {
		name = name[:tag]
	}
	return name + "@" + digest
}

func (a about) record(s durable.Snapshot) store.Snapshot {
	s.Provider, s.Image, s.Resources = a.Provider, a.Image, a.Resources
	return store.Snapshot{Snapshot: s, Spec: sandbox.Spec{
		Image: a.Ref, User: a.User, Workdir: a.Workdir, Isolation: a.Isolation, Resources: a.Resources,
	}}
}

// write writes the file as the first one of a tar archive.
func (a about) write(w io.Writer) error {
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	err = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: aboutName, Size: int64(len(text)), Mode: 0o600, Format: tar.FormatUSTAR})
	if err == nil {
		_, err = tw.Write(text)
	}
	return errors.Join(err, tw.Flush())
}

// readAbout reads the first file of an archive. What follows is the archive of
// the provider.
func readAbout(r io.Reader) (a about, err error) {
	header := make([]byte, tarBlock)
	if _, err := io.ReadFull(r, header); err != nil {
		return a, noSnapshot(err)
	}
	h, err := tar.NewReader(bytes.NewReader(header)).Next()
	if err != nil || h.Name != aboutName || h.Typeflag != tar.TypeReg || h.Size > maxAbout {
		return a, noSnapshot(nil)
	}
	text := make([]byte, (h.Size+tarBlock-1)/tarBlock*tarBlock)
	if _, err := io.ReadFull(r, text); err != nil {
		return a, noSnapshot(err)
	}
	d := json.NewDecoder(bytes.NewReader(text[:h.Size]))
	d.DisallowUnknownFields()
	if d.Decode(&a) != nil {
		return a, noSnapshot(nil)
	}
	s := sandbox.Spec{Image: a.Ref, User: a.User, Workdir: a.Workdir, Isolation: a.Isolation, Resources: a.Resources}
	return a, s.Validate()
}

// noSnapshot is the error for an archive that is not one of a snapshot. cause is
// that of reading it.
func noSnapshot(cause error) error {
	if cause != nil && !errors.Is(cause, io.EOF) && !errors.Is(cause, io.ErrUnexpectedEOF) {
		return cause
	}
	return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "archive", Message: "this is not a snapshot that a daemon exported, or it is incomplete"}
}

// ExportSnapshot writes a snapshot of the caller's tenant as a tar archive that
// ImportSnapshot of another daemon reads. It checks for damage before it writes
// anything. Values of environment variables are not in it, except in memory.
func (svc *Service) ExportSnapshot(ctx context.Context, ref string, w io.Writer) error {
	who, err := svc.Look(ctx, opGet, ref)
	if err != nil {
		return err
	}
	err = svc.Do(ctx, opExport, guard.Subject{Subject: ref}, func(ctx context.Context) error {
		s, err := svc.Find(ctx, who.Tenant, ref)
		if err != nil {
			return err
		}
		if !s.Ready {
			return beingCreated(&s)
		}
		be, keeper, err := svc.providerOf(ctx, &s)
		if err != nil {
			return err
		}
		from, err := exporter(keeper)
		if err != nil {
			return err
		}
		return svc.use(ctx, be, &s, func(ref driver.SnapshotRef) error {
			out := &prefixed{w: w, prefix: aboutOf(&s).write}
			err := from.ExportSnapshot(ctx, ref, out)
			if err != nil && out.begun {
				return fmt.Errorf("the archive broke off: %v", err) //nolint:errorlint // must not be taken for a lost snapshot, and begin again
			}
			return err
		})
	})
	return core.Named(opExport, err)
}

// prefixed writes a prefix before the first byte.
type prefixed struct {
	w      io.Writer
	prefix func(io.Writer) error
	begun  bool
}

func (p *prefixed) Write(b []byte) (int, error) {
	if !p.begun {
		p.begun = true
		if err := p.prefix(p.w); err != nil {
			return 0, err
		}
	}
	return p.w.Write(b)
}

// ImportSnapshot stores an archive of ExportSnapshot as a snapshot of the
// caller's tenant. A name that is in use is CodeAlreadyExists, and an archive
// that is not valid or not complete is CodeInvalid; nothing of it is stored then.
//
// Memory of a snapshot contains the state of a kernel, so a caller who forges it
// could attack that of the machine. Only the owner of the machine, and keys of
// the owner's tenant, may import.
func (svc *Service) ImportSnapshot(ctx context.Context, name string, labels map[string]string, r io.Reader) (durable.Snapshot, error) {
	s, err := svc.importSnapshot(ctx, name, labels, r)
	return s.Snapshot, core.Named(opImport, err)
}

func (svc *Service) importSnapshot(ctx context.Context, name string, labels map[string]string, r io.Reader) (store.Snapshot, error) {
	who, action, err := svc.Admit(ctx, opImport, guard.Subject{Subject: name}, mayImport)
	if err != nil {
		return store.Snapshot{}, err
	}
	a, err := readAbout(r)
	if err != nil {
		return store.Snapshot{}, err
	}
	be, into, err := svc.importer(ctx, who, a.Provider)
	if err != nil {
		return store.Snapshot{}, err
	}
	s := a.record(durable.Snapshot{ID: NewID(), Name: name, Labels: labels})
	s.Node, s.Binding = svc.Node, be.Binding
	defer svc.archive.soon()
	defer svc.writing.Begin(s.ID)()
	return svc.write(ctx, who.Tenant, s, action, func() (driver.Snapshot, error) { return into.ImportSnapshot(ctx, s.ID, r) })
}

func mayImport(who key.Principal) error {
	if who.UID == nil && who.Tenant != key.DefaultTenant {
		return &sandbox.Error{Code: sandbox.CodeDenied, Message: "only the owner of the machine, and keys of the tenant " + key.DefaultTenant + ", may import snapshots"}
	}
	return nil
}

// importer returns the provider of a new snapshot, if the caller may use it.
func (svc *Service) importer(ctx context.Context, who key.Principal, provider string) (*providers.Backend, driver.SnapshotExporter, error) {
	if provider == "" {
		return nil, nil, noSnapshot(nil)
	}
	if err := svc.cfg.Providers.Permit(ctx, who, provider); err != nil {
		return nil, nil, err
	}
	be, err := svc.cfg.Providers.Backend(ctx, provider)
	if err != nil {
		return nil, nil, err
	}
	keeper, err := keeper(be)
	if err != nil {
		return nil, nil, err
	}
	into, err := exporter(keeper)
	return be, into, err
}

// write records a snapshot, lets make store it, and records the outcome. On an
// error nothing is left. The caller has called Begin.
func (svc *Service) write(ctx context.Context, tenant string, s store.Snapshot, a audit.Action, make func() (driver.Snapshot, error)) (store.Snapshot, error) {
	a.Subject = s.Name
	var intent *audit.Intent
	err := svc.Store.Update(ctx, func(tx *store.Tx) (err error) {
		if s, err = tx.Snapshots().Create(ctx, tenant, s); err != nil {
			return err
		}
		intent, err = svc.Audit.BeginTx(ctx, tx, a)
		return err
	})
	if err != nil {
		return s, err
	}
	if err := svc.Fault("snapshot.recorded"); err != nil {
		return s, err
	}
	snap, err := make()
	if fault := svc.Fault("snapshot.kept"); fault != nil {
		return s, fault
	}
	late, cancel := context.WithTimeout(store.WithReserve(context.WithoutCancel(ctx)), finalizeTimeout)
	defer cancel()
	if err == nil {
		err = svc.Store.Update(late, func(tx *store.Tx) error {
			if err := tx.Snapshots().Finish(late, tenant, s.ID, Taken(snap)); err != nil {
				return err
			}
			return intent.EndTx(late, tx, audit.Outcome{})
		})
	}
	if err != nil {
		svc.Report(ctx, intent.End(audit.Outcome{Err: err}))
		svc.Report(ctx, svc.Store.Update(late, func(tx *store.Tx) error { return tx.Snapshots().Delete(late, tenant, s.ID) }))
		svc.Drop(late, s.Provider, s.ID)
		return s, err
	}
	got := Taken(snap)
	s.Ready, s.Memory, s.Engine, s.Size, s.Ref = true, got.Memory, got.Engine, got.Size, got.Ref
	return s, nil
}
