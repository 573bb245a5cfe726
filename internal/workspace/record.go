package workspace

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/workspace/chunk"
	"github.com/atoll-run/atoll/sandbox"
)

// Version is one state of a workspace.
type Version struct {
	sandbox.WorkspaceVersion
	Root []byte `json:"root"` // the encoding of a directory whose only entry is the top
}

// Digest names the content of the version, in hexadecimal: all files with their
// names and attributes. Restoring it elsewhere changes none of that.
func (v Version) Digest() string {
	sum := sha256.Sum256(v.Root)
	return hex.EncodeToString(sum[:])
}

// record is the whole state of a workspace after one change: which versions
// there are, and which packs count. Records are numbered, and a number is given
// to the first who asks: that is the commit, and all the locking there is. The
// highest number is the truth.
type record struct {
	Format   int          `json:"format"`
	Number   int          `json:"number"`
	Claim    string       `json:"claim"`            // made up by who wrote it
	Before   []string     `json:"before,omitempty"` // the claims of the last records it continues
	Versions []Version    `json:"versions"`
	Packs    []chunk.Pack `json:"packs"`
}

// latest returns the newest version; a workspace without one has a zero one.
func (r *record) latest() Version {
	if len(r.Versions) == 0 {
		return Version{}
	}
	return r.Versions[len(r.Versions)-1]
}

// find returns a version, 0 meaning the newest.
func (r *record) find(number int) (Version, error) {
	if number == 0 && len(r.Versions) > 0 {
		return r.latest(), nil
	}
	i, ok := slices.BinarySearchFunc(r.Versions, number, func(v Version, n int) int { return cmp.Compare(v.Number, n) })
	if !ok {
		return Version{}, &sandbox.Error{
			Code: sandbox.CodeNotFound, Op: "workspace", Message: fmt.Sprintf("there is no version %d", number),
			Hint: "see the history for the versions that exist",
		}
	}
	return r.Versions[i], nil
}

const recordPrefix = "versions/"

func recordKey(number int) string { return fmt.Sprintf("%s%010d", recordPrefix, number) }

// MaxVersions is how many versions a workspace can have. All of them are
// described in each record.
const MaxVersions = 10_000

// head reads the newest record. Without any it is a zero one.
func (w *Workspace) head(ctx context.Context) (*record, error) {
	for {
		number, err := w.newest(ctx)
		if err != nil || number == 0 {
			return &record{}, err
		}
		r, err := w.record(ctx, number)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			continue // a prune was faster; there is a newer one
		}
		return r, err
	}
}

func (w *Workspace) newest(ctx context.Context) (number int, err error) {
	for info, err := range w.blobs.List(ctx, recordPrefix) {
		if err != nil {
			return 0, err
		}
		n, err := strconv.Atoi(strings.TrimPrefix(info.Key, recordPrefix))
		if err == nil && info.Key == recordKey(n) {
			number = max(number, n)
		}
	}
	return number, nil
}

func (w *Workspace) record(ctx context.Context, number int) (*record, error) {
	key := recordKey(number)
	body, err := w.blobs.Get(ctx, key, 0, chunk.MaxState+1)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }() // it was only read
	sealed, err := io.ReadAll(io.LimitReader(body, chunk.MaxState))
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "workspace", Message: "the blob store stopped in the middle of an answer", Cause: err}
	}
	opened, err := w.codec.Open(sealed, []byte(key))
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(opened, &r); err != nil {
		return nil, damaged("the record %d cannot be read", number)
	}
	switch {
	case r.Format > format:
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "workspace", Message: "the workspace was written by a newer Atoll", Hint: "upgrade this one",
		}
	case r.Number != number || r.Claim == "" || !slices.IsSortedFunc(r.Versions, func(a, b Version) int { return cmp.Compare(a.Number, b.Number) }):
		return nil, damaged("the record %d is not one", number)
	}
	return &r, nil
}

// errStale says that somebody else changed the workspace first.
func errStale(message string) error {
	return &sandbox.Error{
		Code: sandbox.CodeConflict, Op: "workspace", Message: message,
		Hint: "compare it with the newer version, then decide which one to keep",
	}
}

// commit makes next the newest record, or says errStale: next's number must be
// that of the record it was derived from, plus one.
func (w *Workspace) commit(ctx context.Context, next *record) error {
	if len(next.Versions) > MaxVersions {
		return &sandbox.Error{
			Code: sandbox.CodeExhausted, Op: "workspace", Message: fmt.Sprintf("a workspace has at most %d versions", MaxVersions),
			Hint: "prune it",
		}
	}
	next.Format, next.Claim = format, rand.Text()
	encoded, err := json.Marshal(next)
	if err != nil {
		return err
	}
	key := recordKey(next.Number)
	sealed, err := w.codec.Seal(encoded, []byte(key))
	if err != nil {
		return err
	}
	err = w.blobs.Put(ctx, key, bytes.NewReader(sealed), blob.PutOptions{IfAbsent: true, Size: int64(len(sealed))})
	if sandbox.CodeOf(err) == sandbox.CodeAlreadyExists {
		return errStale("somebody else changed the workspace meanwhile")
	}
	if err != nil {
		return err
	}
	return w.confirm(ctx, next)
}

// confirm finds out if a record that was just written counts. A writer that
// slept so long that its number was used, and pruned away, could take it again.
func (w *Workspace) confirm(ctx context.Context, own *record) error {
	newest, err := w.newest(ctx)
	if err != nil || newest == own.Number {
		return err
	}
	later, err := w.head(ctx)
	if err != nil {
		return err
	}
	if later.Number == own.Number || slices.Contains(later.Before, own.Claim) {
		return nil // somebody went on from here
	}
	if err := w.blobs.Delete(ctx, recordKey(own.Number)); err != nil {
		return err
	}
	return errStale("somebody else changed the workspace long ago")
}

// remembered is how many records a later one names.
const remembered = 256

// next returns a record that continues r.
func (r *record) next() *record {
	next := &record{Number: r.Number + 1, Versions: slices.Clone(r.Versions), Packs: slices.Clone(r.Packs)}
	if r.Claim != "" {
		next.Before = append(slices.Clone(r.Before), r.Claim)
		next.Before = next.Before[max(0, len(next.Before)-remembered):]
	}
	return next
}

// now is the time of a version. It is kept without a time zone.
func now() time.Time { return time.Now().UTC() }
