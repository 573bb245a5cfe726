package driver

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// SnapshotKind says what a snapshot contains.
type SnapshotKind string

// The kinds of snapshots.
const (
	SnapshotFilesystem SnapshotKind = "filesystem" // files
	SnapshotMemory     SnapshotKind = "memory"     // files, processes and their memory
)

// SnapshotRef identifies a snapshot of a provider. It can be stored as JSON and
// stays valid in later processes. It contains no secrets.
type SnapshotRef struct {
	// Provider is the Facts.Provider of the provider that wrote the snapshot. Any
	// other provider returns CodeInvalid for the reference.
	Provider string       `json:"provider"`
	Kind     SnapshotKind `json:"kind"`
	// Data identifies the snapshot. Only the provider reads it.
	Data string `json:"data"`
}

// ErrSnapshotLost is wrapped by errors that mean that the snapshot itself is
// missing (CodeNotFound) or damaged (CodeInvalid). Another copy of the snapshot
// can then be used.
var ErrSnapshotLost = errors.New("the snapshot is missing or damaged")

// Snapshotter is implemented by instances whose state can be saved. Their
// provider is a [Restorer] and a [SnapshotKeeper].
type Snapshotter interface {
	// Snapshot saves the state of the sandbox. When it returns, the snapshot is
	// complete and survives a crash of the machine. With opts.Stop, the sandbox is
	// ended after the snapshot is complete. Without it, the sandbox continues, and
	// is frozen only as long as necessary. On an error nothing is left of the
	// snapshot and the sandbox runs as before. An ID that is in use is
	// CodeAlreadyExists.
	Snapshot(ctx context.Context, opts SnapshotOptions) (Snapshot, error)
}

// RestingSnapshotter is implemented by Snapshotters that can only save a
// sandbox whose processes have ended. For a running sandbox without opts.Stop,
// Snapshot returns CodeConflict and the sandbox continues.
type RestingSnapshotter interface {
	Snapshotter
	AtRest()
}

// AttributeDropper is implemented by Restorers whose snapshots have files without
// their extended attributes.
type AttributeDropper interface{ DropsAttributes() }

// SnapshotOptions say what to save.
type SnapshotOptions struct {
	// ID is chosen by the caller. If the caller crashes before it gets the
	// reference, it can find the snapshot by this ID. It must be a valid name, and
	// unique.
	ID     string
	Memory bool // processes and their memory too, not only files
	Stop   bool // end the sandbox at the moment of the snapshot
	// Transient says that this process restores the snapshot at once and then
	// removes it. It need not survive a crash or be checked for damage.
	Transient bool
}

// Snapshot describes a complete snapshot.
type Snapshot struct {
	Ref    SnapshotRef
	Engine string // engine that wrote it; any build with the same engine can restore its memory
	Size   int64  // bytes
}

// Restorer is implemented by providers that make sandboxes from snapshots.
type Restorer interface {
	// Restore is like Create, but starts from a snapshot. Identity (id, name, host
	// name), environment, limits and mounts are those of spec. The snapshot may be
	// removed when Restore has returned.
	//
	// If the memory cannot be restored here (it was written by another engine, or
	// needs a processor with more features), the sandbox starts from its files, and
	// Restored says so. If the snapshot is missing or damaged, no sandbox is made,
	// and the error wraps ErrSnapshotLost.
	Restore(ctx context.Context, spec *sandbox.Spec, ref SnapshotRef) (Instance, Restored, error)
}

// Restored says what a Restorer has restored.
type Restored struct {
	Memory bool   // processes continue where they were
	Why    string // why not, if the snapshot had memory
}

// FileRestorer is implemented by the Restorers whose snapshots hold memory.
type FileRestorer interface {
	// RestoreFiles is like Restore, but ignores the memory of the snapshot: the
	// sandbox starts from its files.
	RestoreFiles(ctx context.Context, spec *sandbox.Spec, ref SnapshotRef) (Instance, error)
}

// SnapshotKeeper is implemented by every Restorer. It finds and removes
// snapshots.
type SnapshotKeeper interface {
	// FindSnapshot returns the complete snapshot with that ID, also one that
	// another process wrote. A missing or incomplete snapshot is CodeNotFound. It
	// does not check for damage.
	FindSnapshot(ctx context.Context, id string) (Snapshot, error)

	// RemoveSnapshot removes a snapshot, complete or not, when no Restore uses it
	// any more. A snapshot that does not exist is success.
	RemoveSnapshot(ctx context.Context, ref SnapshotRef) error

	// Snapshots lists the snapshots within the provider's binding, including
	// incomplete ones, in no particular order. It ends at the first error.
	Snapshots(ctx context.Context) iter.Seq2[FoundSnapshot, error]
}

// FoundSnapshot is a snapshot that SnapshotKeeper.Snapshots found.
type FoundSnapshot struct {
	ID   string
	Ref  SnapshotRef
	Size int64     // bytes; zero if it is incomplete or damaged
	Used time.Time // when it was written or last restored; zero: unknown
}

// SnapshotExporter is implemented by SnapshotKeepers whose snapshots can be
// copied to another provider of the same kind, such as one on another machine.
type SnapshotExporter interface {
	// ExportSnapshot writes a snapshot as a tar archive of regular files in
	// directories, which only this kind of provider understands. If the snapshot is
	// damaged, it returns an error. The caller closes w.
	ExportSnapshot(ctx context.Context, ref SnapshotRef, w io.Writer) error

	// ImportSnapshot reads an archive of ExportSnapshot and stores it under an ID.
	// An ID that is in use is CodeAlreadyExists. An archive that is not valid or
	// not complete is CodeInvalid, and nothing of it is stored.
	ImportSnapshot(ctx context.Context, id string, r io.Reader) (Snapshot, error)
}

// SnapshotCopier is implemented by SnapshotKeepers that can copy a snapshot
// faster than by exporting and importing it.
type SnapshotCopier interface {
	// CopySnapshot stores a copy of a snapshot under another ID, which must not be
	// in use.
	CopySnapshot(ctx context.Context, ref SnapshotRef, id string) (Snapshot, error)
}
