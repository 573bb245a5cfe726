package sessions

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// anySet matches the name of a set of tar archives of any installation.
var anySet = regexp.MustCompile(`^se-[0-9a-f]{24}(-plain)?$`)

// shared refuses a tar archive of another installation, unless both use the
// same blob store. why is the error otherwise. Names and digests are not
// secret, so only the owner of the machine can read archives of other
// installations.
func (s *archives) shared(ctx context.Context, a durable.Archive, why error) error {
	if guard.ForTenant(ctx) {
		return why
	}
	set, at, err := s.place(ctx, key.DefaultTenant, a)
	if err != nil {
		return why
	}
	all, err := s.blobs.List(ctx, set)
	if err != nil || !slices.ContainsFunc(all, func(k archive.Kept) bool { return k.Version == at.Version && k.Digest == at.Digest }) {
		return why
	}
	return nil
}

// Uploaded archives have their SHA-256 in their notes. They are for envelopes,
// and are removed like all archives that no session uses.
const (
	sentNote = "sent "
	// maxSent limits the size of an uploaded archive, and mostSent the number of a
	// tenant's uploaded archives that no session uses yet.
	maxSent  = 16 << 30
	mostSent = 16
)

// Send stores a tar archive of /workspace for a session that is resumed within
// an hour from an envelope that names it.
func (s *Service) Send(ctx context.Context, r io.Reader) (out durable.ArchiveFile, err error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return out, err
	}
	err = s.Do(ctx, ops.SessionResume, guard.Subject{Subject: "archive"}, func(ctx context.Context) error {
		out, err = s.archives.keepSent(ctx, who.Tenant, r)
		return err
	})
	return out, err
}

func (s *archives) keepSent(ctx context.Context, tenant string, r io.Reader) (out durable.ArchiveFile, err error) {
	set, err := s.ownSet(ctx, tenant)
	if err != nil {
		return out, err
	}
	waiting, err := s.waiting(ctx, tenant, set)
	switch {
	case err != nil:
		return out, err
	case waiting >= mostSent:
		return out, &sandbox.Error{
			Code: sandbox.CodeExhausted, Op: "session.resume", Subject: "archive", Message: fmt.Sprintf("%d archives were sent that no session uses", waiting),
			Hint: "resume sessions from them, or wait an hour",
		}
	}
	_, _, err = s.blobs.Take(ctx, set, s.scratch, func(w io.Writer) (note string, err error) {
		sum := sha256.New()
		out.Size, err = io.Copy(io.MultiWriter(w, sum), io.LimitReader(r, maxSent+1))
		if err == nil && out.Size > maxSent {
			err = &sandbox.Error{Code: sandbox.CodeExhausted, Op: "session.resume", Subject: "archive", Message: "is larger than 16 GiB"}
		}
		out.Hash = "sha256:" + hex.EncodeToString(sum.Sum(nil))
		return sentNote + out.Hash, err
	})
	return out, err
}

// ownSet returns the set for new tar archives of a tenant.
func (s *archives) ownSet(ctx context.Context, tenant string) (archive.Set, error) {
	if s.blobs == nil {
		return archive.Set{}, &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "session.resume", Subject: "archive", Message: "this daemon has no blob store"}
	}
	plain, sealed, err := s.sets(ctx, tenant)
	if s.plain {
		return plain, err
	}
	return sealed, err
}

// waiting counts the uploaded archives that no session uses.
func (s *archives) waiting(ctx context.Context, tenant string, set archive.Set) (n int, err error) {
	all, err := s.blobs.List(ctx, set)
	if err != nil || len(all) < mostSent {
		return 0, err
	}
	wanted, err := store.Read(ctx, s.Store, func(tx *store.Tx) (map[string]bool, error) { return wantedTars(ctx, tx, tenant) })
	for _, k := range all {
		if strings.HasPrefix(k.Note, sentNote) && !wanted[set.ID+"."+strconv.Itoa(k.Version)] {
			n++
		}
	}
	return n, err
}

// sent finds the tenant's upload of an envelope's file. Uploads of other
// tenants are ignored, because knowing a digest does not prove having the file.
func (s *archives) sent(ctx context.Context, tenant string, f durable.ArchiveFile) (*durable.Archive, error) {
	set, err := s.ownSet(ctx, tenant)
	if err != nil {
		return nil, err
	}
	all, err := s.blobs.List(ctx, set)
	if err != nil {
		return nil, err
	}
	for _, k := range all {
		if k.Note == sentNote+f.Hash {
			return &durable.Archive{
				Kind: tarKind, Ref: set.ID + "." + strconv.Itoa(k.Version), Size: f.Size, Hash: "sha256:" + k.Digest, Binding: string(s.own),
			}, nil
		}
	}
	return nil, nil
}

// choose selects the archive that a session is rebuilt from: the one saved
// here, else the file of its envelope. A file for an envelope with a sandbox
// that cannot be reached from here means that the caller wants a new sandbox.
func (s *Service) choose(ctx context.Context, tenant string, e *durable.Envelope, unreachable error) error {
	var file *durable.Archive
	if e.Files != nil {
		var err error
		if file, err = s.archives.sent(ctx, tenant, *e.Files); err != nil {
			return err
		}
	}
	if file != nil && (e.Archive == nil || s.archives.readable(ctx, tenant, *e.Archive) != nil) {
		file.Provider, e.Archive = e.Backend, file
	} else {
		file = nil
	}
	err := unreachable
	code := sandbox.CodeOf(err)
	switch _, other := s.provision.own.elsewhere(e.Binding); {
	case file != nil && len(e.Spec.Workspaces) > 0:
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "envelope", Message: "its workspaces are those of another installation", Hint: "resume the session where it was",
		}
	case file != nil && (code == sandbox.CodeUnavailable || code == sandbox.CodeDenied):
		e.Sandbox, e.State, e.Binding = "", nil, ""
		return nil
	case err != nil:
	case e.Archive != nil && (e.Sandbox == "" || !other):
		// An archive of another installation is refused only when it is needed,
		// because its sandbox may still exist.
		err = s.archives.readable(ctx, tenant, *e.Archive)
	case e.Archive == nil && e.Sandbox == "" && e.Files != nil:
		err = &sandbox.Error{Code: sandbox.CodeNotFound, Op: "session.resume", Subject: "archive", Message: "the file that goes along with the envelope was not sent"}
	}
	var refused *sandbox.Error
	if e.Files != nil && errors.As(err, &refused) {
		hinted := *refused
		hinted.Hint = "send the file that goes along with the envelope: atoll session resume --archive FILE"
		return &hinted
	}
	return err
}
