package driver

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// SnapshotKind says what a snapshot brings back.
type SnapshotKind string

// The kinds of snapshots.
const (
	SnapshotFilesystem SnapshotKind = "filesystem" // files
	SnapshotMemory     SnapshotKind = "memory"     // files, processes and their memory
)

// SnapshotRef names a snapshot that a provider keeps. It can be stored and
// shown: it contains no secret, and survives JSON and the end of the process.
type SnapshotRef struct {
	// Provider is the Facts.Provider of the provider that wrote the snapshot.
	// Any other provider refuses the reference as CodeInvalid.
	Provider string       `json:"provider"`
	Kind     SnapshotKind `json:"kind"`
	// Data finds the snapshot. Only the provider reads it.
	Data string `json:"data"`
}

// ErrSnapshotLost is in the chain of an error that says that the snapshot itself
// is missing (CodeNotFound) or damaged (CodeInvalid), so that another copy of it
// can help.
var ErrSnapshotLost = errors.New("the snapshot is missing or damaged")

// Snapshotter is implemented by instances whose state can be saved. Their
// provider is a [Restorer] and a [SnapshotKeeper].
type Snapshotter interface {
	// Snapshot saves the state of the sandbox where the provider keeps
	// snapshots. When it returns, the snapshot is complete and survives a crash
	// of the machine. With opts.Stop the sandbox has ended by then, but not
	// before the snapshot was complete; otherwise it goes on, and stands still
	// only as long as necessary. On an error nothing is left of the snapshot and
	// the sandbox runs as before. An ID that is taken is CodeAlreadyExists.
	Snapshot(ctx context.Context, opts SnapshotOptions) (Snapshot, error)
}

// RestingSnapshotter is implemented by Snapshotters that save only what stands
// still, and whose processes would not survive that. A running sandbox is
// CodeConflict without opts.Stop, and goes on.
type RestingSnapshotter interface {
	Snapshotter
	AtRest()
}

// SnapshotOptions say what to save.
type SnapshotOptions struct {
	// ID is chosen by the caller, who finds the snapshot by it should he not
	// live to see the reference. It must be a valid name, and unique.
	ID     string
	Memory bool // processes and their memory too, not only files
	Stop   bool // end the sandbox with it, losing nothing in between
	// Transient says that this process restores it within moments and then removes
	// it, so that it need not survive a crash nor be checked for damage.
	Transient bool
}

// Snapshot describes a complete snapshot.
type Snapshot struct {
	Ref    SnapshotRef
	Engine string // what can restore its memory; any build with the same engine
	Size   int64  // bytes
}

// Restorer is implemented by providers that make sandboxes from snapshots.
type Restorer interface {
	// Restore is Create from a snapshot, with spec's own identity (id, name,
	// host name), environment, limits and mounts. The snapshot may be removed
	// when Restore has returned.
	//
	// Memory is a cache and files are the truth: if the memory cannot be
	// restored here (it was written by another engine, or wants a processor
	// with more features), the sandbox starts from its files, and Restored
	// says so. If the snapshot is missing or damaged, nothing starts, and the
	// error wraps ErrSnapshotLost.
	Restore(ctx context.Context, spec *sandbox.Spec, ref SnapshotRef) (Instance, Restored, error)
}

// Restored says what a Restorer could bring back.
type Restored struct {
	Memory bool   // processes go on where they were
	Why    string // why not, if the snapshot had memory
}

// FileRestorer is implemented by the Restorers whose snapshots hold memory.
type FileRestorer interface {
	// RestoreFiles is Restore that leaves the memory of the snapshot aside: the
	// sandbox starts from its files, as if there had been nothing else.
	RestoreFiles(ctx context.Context, spec *sandbox.Spec, ref SnapshotRef) (Instance, error)
}

// SnapshotKeeper is implemented by every Restorer: it finds and removes what
// Snapshot left.
type SnapshotKeeper interface {
	// FindSnapshot finds the complete snapshot with an ID, whichever process
	// wrote it. None, or an incomplete one, is CodeNotFound. It does not look for
	// damage.
	FindSnapshot(ctx context.Context, id string) (Snapshot, error)

	// RemoveSnapshot removes a snapshot, complete or not, once no Restore uses it
	// any more. One that is not there is success.
	RemoveSnapshot(ctx context.Context, ref SnapshotRef) error

	// Snapshots lists what there is within the provider's binding, incomplete
	// snapshots included, in no particular order. It ends at the first error.
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
// taken to another provider of the same kind, such as one on another machine.
type SnapshotExporter interface {
	// ExportSnapshot writes a snapshot as a tar archive of regular files in
	// directories, which only this kind of provider understands. Damage is found
	// before it ends. The caller closes w.
	ExportSnapshot(ctx context.Context, ref SnapshotRef, w io.Writer) error

	// ImportSnapshot reads what ExportSnapshot wrote and keeps it under an ID
	// that is free, else it is CodeAlreadyExists. What is not such a snapshot, or
	// is cut off, is CodeInvalid, and nothing of it is kept.
	ImportSnapshot(ctx context.Context, id string, r io.Reader) (Snapshot, error)
}

// SnapshotCopier is implemented by SnapshotKeepers that copy a snapshot for less
// than exporting and importing it costs.
type SnapshotCopier interface {
	// CopySnapshot keeps the same snapshot under another ID, which must be free.
	CopySnapshot(ctx context.Context, ref SnapshotRef, id string) (Snapshot, error)
}
