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
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Version is one state of a workspace.
type Version struct {
	durable.WorkspaceVersion
	Root []byte `json:"root"` // the encoding of a directory whose only entry is the top directory
}

// Digest returns a hexadecimal digest of the version's content: all files with
// names and attributes. Restoring the version elsewhere does not change it.
func (v Version) Digest() string {
	sum := sha256.Sum256(v.Root)
	return hex.EncodeToString(sum[:])
}

// record is the state of a workspace after one change: its versions and its
// valid packs. Records are numbered, and a number can be used only once.
// Creating the record with the next number is the commit and needs no other
// lock. The record with the highest number is valid.
type record struct {
	Format   int          `json:"format"`
	Number   int          `json:"number"`
	Claim    string       `json:"claim"`            // random id of the writer
	Before   []string     `json:"before,omitempty"` // the claims of the preceding records
	Versions []Version    `json:"versions"`
	Packs    []chunk.Pack `json:"packs"`
}

// latest returns the newest version, or a zero Version if there is none.
func (r *record) latest() Version {
	if len(r.Versions) == 0 {
		return Version{}
	}
	return r.Versions[len(r.Versions)-1]
}

// find returns a version; 0 means the newest.
func (r *record) find(number int) (Version, error) {
	if number == 0 && len(r.Versions) > 0 {
		return r.latest(), nil
	}
	i, ok := slices.BinarySearchFunc(r.Versions, number, func(v Version, n int) int { return cmp.Compare(v.Number, n) })
	if !ok {
		return Version{}, &sandbox.Error{
			Code: sandbox.CodeNotFound, Op: "workspace", Message: fmt.Sprintf("there is no version %d", number),
			Hint: "list the versions with: atoll workspace history",
		}
	}
	return r.Versions[i], nil
}

const recordPrefix = "versions/"

func recordKey(number int) string { return fmt.Sprintf("%s%010d", recordPrefix, number) }

// MaxVersions is the maximum number of versions of a workspace. Each record
// lists all of them.
const MaxVersions = 10_000

// head reads the newest record. If there is none, it returns a zero record.
func (w *Workspace) head(ctx context.Context) (*record, error) {
	for {
		number, err := w.newest(ctx)
		if err != nil || number == 0 {
			return &record{}, err
		}
		r, err := w.record(ctx, number)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			continue // pruned meanwhile; there is a newer one
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
	defer func() { _ = body.Close() }() // errors after reading do not matter
	sealed, err := io.ReadAll(io.LimitReader(body, chunk.MaxState))
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "workspace", Message: "the response of the blob store is incomplete", Cause: err}
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
		return nil, damaged("the record %d is invalid", number)
	}
	return &r, nil
}

// errStale returns the error for a concurrent change.
func errStale(message string) error {
	return &sandbox.Error{
		Code: sandbox.CodeConflict, Op: "workspace", Message: message,
		Hint: "compare it with the newer version, then decide which one to keep",
	}
}

// commit stores next as the newest record, or returns errStale. next's number
// must be one higher than that of the record it is derived from.
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
		return errStale("the workspace was changed at the same time")
	}
	if err != nil {
		return err
	}
	return w.confirm(ctx, next)
}

// confirm checks that a record just written is valid. If the writer was
// suspended for long, its number may have been used and pruned, so that it
// could be created again.
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
		return nil // later records continue from it
	}
	if err := w.blobs.Delete(ctx, recordKey(own.Number)); err != nil {
		return err
	}
	return errStale("the workspace has been changed since")
}

// remembered is the number of preceding records that a record refers to.
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
