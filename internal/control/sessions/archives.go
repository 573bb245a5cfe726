package sessions

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/session"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// The kinds of archives. A snapshot of this daemon has all files, and belongs
// to one provider. A tar archive in the blob store has the files below
// /workspace, like a move of the session. Any provider that accepts file trees
// can use it.
const (
	snapshotKind = "snapshot"
	tarKind      = "tar"
)

// archives reads and writes the archives of all tenants' sessions.
type archives struct {
	*core.Core
	own       installation
	snapshots Snapshots
	blobs     *archive.Archive // nil: no blob store
	plain     bool
	scratch   string
	trees     trees
}

// readable refuses an archive that this daemon cannot read.
func (s *archives) readable(ctx context.Context, tenant string, a durable.Archive) error {
	err := s.own.has("archive", a.Binding)
	if err != nil && a.Kind == tarKind {
		return s.shared(ctx, a, err)
	}
	switch a.Kind {
	case snapshotKind:
		return core.FirstError(sandbox.ValidateName(a.Ref), err)
	case tarKind:
		if err == nil {
			_, _, err = s.place(ctx, tenant, a)
		}
		return err
	}
	return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "session.resume", Subject: "archive", Message: fmt.Sprintf("an archive of the kind %.20q cannot be read here", a.Kind)}
}

// sets returns the tenant's sets of tar archives in the blob store, without and
// with encryption. A later tenant with the same name has other sets.
func (s *archives) sets(ctx context.Context, tenant string) (plain, sealed archive.Set, err error) {
	t, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenants().Get(ctx, tenant) })
	sum := sha256.Sum256([]byte(string(s.own) + "\n" + tenant + "\n" + t.Created.UTC().Format(time.RFC3339Nano)))
	id := "se-" + hex.EncodeToString(sum[:12])
	return archive.Set{ID: id + "-plain"}, archive.Set{ID: id, Encrypted: true}, err
}

// pack stores the files below /workspace of a sandbox in the blob store.
func (s *archives) pack(ctx context.Context, tenant, group string, sb session.Sandbox) (*durable.Archive, error) {
	set, err := s.ownSet(ctx, tenant)
	if err != nil {
		return nil, err
	}
	at, size, err := s.blobs.Write(ctx, set, group, s.scratch, func(w io.Writer) error { return s.trees.exportTree(ctx, sb.ID, w) })
	if err != nil {
		return nil, err
	}
	a := durable.Archive{
		Kind: tarKind, Ref: set.ID + "." + strconv.Itoa(at.Version), Size: size, Hash: "sha256:" + at.Digest,
		Provider: sb.Provider, Binding: string(s.own),
	}
	return &a, s.register(ctx, tenant, group, a)
}

// place finds a tar archive of the tenant. The reference is untrusted.
func (s *archives) place(ctx context.Context, tenant string, a durable.Archive) (set archive.Set, at archive.Place, err error) {
	if s.blobs == nil {
		return set, at, &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "session.resume", Subject: "archive", Message: "this daemon has no blob store"}
	}
	plain, sealed, err := s.sets(ctx, tenant)
	if err != nil {
		return set, at, err
	}
	id, number, _ := strings.Cut(a.Ref, ".")
	version, parseErr := strconv.Atoi(number)
	digest, isSum := strings.CutPrefix(a.Hash, "sha256:")
	switch {
	case parseErr != nil || version <= 0 || !isSum:
		return set, at, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "session.resume", Subject: "archive", Message: "names no archive"}
	case id == plain.ID:
		set = plain
	case id == sealed.ID:
		set = sealed
	case a.Binding != string(s.own) && anySet.MatchString(id) && !guard.ForTenant(ctx):
		set = archive.Set{ID: id, Encrypted: !strings.HasSuffix(id, "-plain")}
	default:
		return set, at, &sandbox.Error{Code: sandbox.CodeNotFound, Op: "session.resume", Subject: "archive", Message: "there is no such archive"}
	}
	return set, archive.Place{Version: version, Digest: digest}, nil
}

// unpack replaces the files below /workspace of a sandbox with those of an archive.
func (s *archives) unpack(ctx context.Context, tenant string, to sandbox.ID, a durable.Archive) error {
	set, at, err := s.place(ctx, tenant, a)
	if err != nil {
		return err
	}
	return s.blobs.Read(ctx, set, at, s.scratch, func(r io.Reader) error { return s.trees.importTree(ctx, to, r) })
}

// remove removes an archive. A missing archive is success.
func (s *archives) remove(ctx context.Context, tenant string, a durable.Archive) error {
	if s.own.has("archive", a.Binding) != nil {
		return nil // its owner removes it
	}
	if a.Kind == snapshotKind {
		return ignore(s.snapshots.RemoveSnapshot(ctx, a.Ref), sandbox.CodeNotFound)
	}
	set, at, err := s.place(ctx, tenant, a)
	if err != nil {
		return err
	}
	// A concurrent save is no failure: sweepTars tries again.
	return ignore(s.blobs.Sweep(ctx, set, []int{at.Version}), sandbox.CodeConflict)
}

const (
	tarSweep = time.Hour // between sweeps of unused archives
	// tarGrace is how long an archive may exist before a lease names it.
	tarGrace = time.Hour
)

// sweepTars marks the tar archives for deletion that no session is rebuilt from,
// such as one whose daemon was killed before it recorded the next.
func (s *archives) sweepTars(ctx context.Context) error {
	if s.blobs == nil {
		return nil
	}
	all, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Tenant, error) { return tx.Operator().Tenants(ctx) })
	failed := []error{err}
	for _, t := range all {
		plain, sealed, err := s.sets(ctx, t.ID)
		if err == nil {
			err = errors.Join(s.sweepSet(ctx, t.ID, plain), s.sweepSet(ctx, t.ID, sealed))
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// sweepSet lets the ledger decide: an archive that is recorded while the sweep
// runs stays, and one that is marked first can no longer be published.
func (s *archives) sweepSet(ctx context.Context, tenant string, set archive.Set) error {
	there, err := s.blobs.List(ctx, set) // list before reading the records, because archives are saved before they are recorded
	old := slices.DeleteFunc(there, func(k archive.Kept) bool { return s.Store.Now().Sub(k.Created) <= tarGrace })
	if err != nil || len(old) == 0 {
		return err
	}
	if err := s.Fault("tars.listed"); err != nil {
		return err
	}
	return s.Store.Update(ctx, func(tx *store.Tx) error {
		wanted, err := wantedTars(ctx, tx, tenant)
		if err != nil {
			return err
		}
		for _, k := range old {
			a := durable.Archive{Kind: tarKind, Ref: set.ID + "." + strconv.Itoa(k.Version), Hash: "sha256:" + k.Digest, Binding: string(s.own)}
			if wanted[a.Ref] {
				continue
			}
			if err := tx.Sessions().RegisterArchive(ctx, tenant, noGroup, a); err != nil {
				return err
			}
			if _, err := tx.Sessions().RetireArchive(ctx, tenant, a.Ref, false); err != nil {
				return err
			}
		}
		return nil
	})
}

// noGroup is the group of archives in the ledger that belong to no session.
const noGroup = "-"

// wantedTars are the archives that sessions of a tenant are rebuilt from, and
// those in the ledger.
func wantedTars(ctx context.Context, tx *store.Tx, tenant string) (map[string]bool, error) {
	wanted := map[string]bool{}
	kept, err := tx.Sessions().Archives(ctx, tenant, "")
	if err != nil {
		return nil, err
	}
	for _, k := range kept {
		wanted[k.Archive.Ref] = true
	}
	rows, err := tx.Sessions().List(ctx, tenant)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		l, err := tx.Sessions().Lease(ctx, tenant, row.Group)
		if err != nil {
			return nil, err
		}
		if row.Prior != nil && row.Prior.Archive != nil {
			wanted[row.Prior.Archive.Ref] = true
		}
		if l.Archive == nil {
			continue
		}
		e, err := durable.ParseEnvelope(l.Archive)
		if err != nil {
			return nil, err // it may name any of them
		}
		if e.Archive != nil {
			wanted[e.Archive.Ref] = true
		}
	}
	return wanted, nil
}
