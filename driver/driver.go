// Package driver is the contract of a sandbox provider: two small mandatory
// interfaces, [Provider] and [Instance], and optional interfaces for
// capabilities that not every provider has. Package drivertest is the
// executable form of the promises written here; a provider is finished when it
// passes.
//
// Promises to the implementer: every Spec, Command and path handed to a driver
// has been validated and completed by the control plane; option structs may be
// their zero value; a driver is never called after Close.
//
// Promises from the implementer: every method may be called concurrently; a
// canceled context makes a call return soon, and leaves nothing half-made;
// errors are returned raw, classified by ErrorCode, and contain no secret; no
// returned value is changed by the driver afterwards. Absence of a sandbox is
// reported only from evidence about that very sandbox, never because it could
// not be reached.
package driver

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Provider makes sandboxes of one technology.
type Provider interface {
	// Probe finds out what is possible here, now, without making a sandbox.
	// A provider that cannot work here returns Facts with Available false and
	// the reasons, and a nil error; an error means that probing itself failed.
	Probe(ctx context.Context) (Facts, error)

	// Create makes and starts a sandbox: when it returns, commands can be
	// run. spec.ID is set and unique; a living sandbox with that ID is
	// CodeAlreadyExists. On an error, or when ctx ends first, nothing remains.
	Create(ctx context.Context, spec *sandbox.Spec) (Instance, error)

	// Attach finds a sandbox that this or an earlier process made. It is
	// CodeGone only with evidence that it does not exist.
	Attach(ctx context.Context, id sandbox.ID) (Instance, error)

	// List yields what really exists, found by looking and not by
	// remembering: the reaper's truth. It stops at the first error.
	List(ctx context.Context) iter.Seq2[Found, error]

	// ErrorCode classifies an error returned by this provider or anything it
	// made. It returns "" for an error it does not know.
	ErrorCode(err error) sandbox.Code

	// Close releases what the provider holds in this process. It ends no
	// sandbox. Close is idempotent.
	Close() error
}

// Instance is a living sandbox as its provider sees it. Dropping an Instance
// ends nothing: only Destroy does.
type Instance interface {
	ID() sandbox.ID

	// Exec starts a command. The context bounds the start only: a command
	// outlives it. Processes that a command leaves behind when it exits by
	// itself, such as a server started with "&", keep running until the sandbox
	// ends. Their output on the command's streams is read, even if the caller
	// does not. A command that is ended (by its Timeout, SIGKILL or
	// Process.Close, or because its caller was lost and did not rejoin) takes
	// along everything it started. A program that cannot be started (not found,
	// not executable, no such user or directory) is not an error of Exec: the
	// command ends with code 127 or 126 and the reason on standard error, as in
	// a shell.
	Exec(ctx context.Context, cmd *sandbox.Command) (Process, error)

	// Wait blocks until the sandbox itself has ended, and says why.
	Wait(ctx context.Context) (sandbox.Exit, error)

	// Destroy ends the sandbox with everything in it and removes every trace
	// of it. When it returns nil nothing is left; destroying what is gone is
	// success.
	Destroy(ctx context.Context) error
}

// Process is one command, connected to the caller. Its methods may be called
// concurrently, but Stdin, Stdout and Stderr each want one user at a time.
//
// Output waits for its reader: a command that writes more than the buffers
// hold stops until the caller reads. A background command does so for the
// Process that started it; once that is closed, output beyond a bounded log is
// dropped, oldest first.
type Process interface {
	// Info tells the identity the command has within its sandbox.
	Info() sandbox.ProcessInfo

	// Stdin is the command's input; closing it is the end of input. It is
	// never nil: without Command.Stdin it is closed already, and on a
	// terminal closing it sends the end-of-file character.
	Stdin() io.WriteCloser
	// Stdout and Stderr end with io.EOF when the command, and all that
	// inherited the stream, have closed it. Unread output does not get lost
	// when the command ends. Stderr is empty on a terminal.
	Stdout() io.Reader
	Stderr() io.Reader

	// Signal sends a signal, by its Linux number, to the command's process
	// group; SIGKILL ends everything that the command started. A command that
	// has ended is CodeNotFound.
	Signal(ctx context.Context, sig int) error
	// Resize sets the size of the terminal; without one it is CodeInvalid.
	Resize(ctx context.Context, size sandbox.WindowSize) error

	// Wait blocks until the command has ended. It may be called by many and
	// again; it does not wait for output to be read.
	Wait(ctx context.Context) (sandbox.Exit, error)

	// Close lets go of the command: a background one runs on, any other that
	// still runs is killed with all its processes. Processes left behind by a
	// command that has exited keep running. Close is idempotent.
	Close() error
}

// Found is one sandbox that exists.
type Found struct {
	ID      sandbox.ID
	State   sandbox.State
	Created time.Time
	Labels  map[string]string
	// Exit says why a sandbox in state failed or stopped ended.
	Exit *sandbox.Exit
	// Engine names what runs it, as Facts.Engine does; empty if
	// that is not known.
	Engine string
}

// Facts are what Probe found.
type Facts struct {
	Provider     string           // the name it is registered under
	Version      string           // of the technology behind it
	Engine       string           // names what runs new sandboxes, and restores memory that names it, too; empty if there is none to tell from another
	Available    bool             // sandboxes can be made here
	Isolates     bool             // code inside cannot harm the machine
	SharesFiles  bool             // sandboxes have no root file system of their own: commands see the files of the machine
	Findings     []Finding        // what is, is not and could be made possible, most important first
	Capabilities Capabilities     // what instances can do here
	Limits       map[string]Limit // by name: cpus, memory, disk, pids, lifetime
}

// Severity orders findings.
type Severity string

// Severities of findings.
const (
	OK      Severity = "ok"
	Note    Severity = "note"    // works, and worth knowing
	Warning Severity = "warning" // works with something missing
	Blocker Severity = "blocker" // no sandbox can be made
)

// Finding is one thing Probe looked at.
type Finding struct {
	Severity Severity `json:"severity"`
	Subject  string   `json:"subject"` // e.g. "cgroups"
	Message  string   `json:"message"` // what is
	Fix      string   `json:"fix,omitempty"`
}

// Limit says whether a kind of limit really holds here.
type Limit struct {
	Holds bool   `json:"holds"`
	By    string `json:"by,omitempty"` // what enforces it, e.g. "cgroup v2"
	Why   string `json:"why,omitempty"`
	// Fixed says that the provider gives every sandbox a size of its own
	// choosing, so that a request for another one must be refused.
	Fixed bool `json:"fixed,omitempty"`
}

// Capabilities announce the optional interfaces of a provider's instances.
// Announced, implemented and working capabilities must be the same set;
// drivertest checks that.
type Capabilities struct {
	Files     bool `json:"files"`     // Instance is a FileSystem
	Watch     bool `json:"watch"`     // … and a Watcher
	Archive   bool `json:"archive"`   // … and an Archiver
	Terminal  bool `json:"terminal"`  // Command.TTY is honoured
	Processes bool `json:"processes"` // Instance is a ProcessManager; Command.Background is honoured
	Users     bool `json:"users"`     // Command.User is honoured
	Images    bool `json:"images"`    // Spec.Image other than "host" is honoured
	Mounts    bool `json:"mounts"`    // Spec.Mounts is honoured
	Network   bool `json:"network"`   // Spec.Network is honoured: what its policy does not allow does not flow
	Reattach  bool `json:"reattach"`  // Attach finds sandboxes of another process
	Pause     bool `json:"pause"`     // Instance is a Pauser
	Snapshot  bool `json:"snapshot"`  // Instance is a Snapshotter, the provider a Restorer
	Memory    bool `json:"memory"`    // … that keep memory and processes too
	Diff      bool `json:"diff"`      // Instance is a Differ
	Ports     bool `json:"ports"`     // Instance is a Dialer
	Resize    bool `json:"resize"`    // Instance is a Resizer
	Deadline  bool `json:"deadline"`  // Instance is a DeadlineSetter
	Usage     bool `json:"usage"`     // Instance is a Meter
	Previews  bool `json:"previews"`  // Instance is a Previewer
	Rejoin    bool `json:"rejoin"`    // Instance is a Rejoiner; Command.Hold is honoured
}

// ProcessManager is implemented by instances that remember their commands.
type ProcessManager interface {
	// Processes lists the commands started through the API that still run,
	// and a bounded number of those that ended last, oldest first; and then
	// the processes that outlived the command that started them, with an ID
	// of their own and Background set. Of those only the topmost are listed,
	// not their descendants, and only as long as they run. Kill takes their
	// IDs, and signals their descendants too; Reconnect and Logs are
	// CodeConflict.
	Processes(ctx context.Context) ([]sandbox.ProcessInfo, error)
	// Reconnect connects to a background command: its log from the oldest
	// byte kept, and then live. Closing the Process leaves the command alone.
	Reconnect(ctx context.Context, id string) (Process, error)
	// Logs reads what a command wrote, as kept in its bounded log. The
	// reader ends at the end of the log or, when following, when the command
	// has ended. The caller closes it.
	Logs(ctx context.Context, id string, opts LogOptions) (LogReader, error)
	// Kill signals a command by its id, as Process.Signal.
	Kill(ctx context.Context, id string, sig int) error
}

// LogOptions select a part of a command's log.
type LogOptions struct {
	Tail   int  // only the last so many lines; 0: all that is kept
	Follow bool // go on until the command ends
}

// LogReader yields a log in the order it was written.
type LogReader interface {
	// Next returns the next piece, io.EOF after the last. The bytes are the
	// caller's.
	Next() (sandbox.LogChunk, error)
	Close() error
}

// FileSystem is implemented by instances whose files can be reached without
// running a command. Paths are absolute and clean, and are resolved by the
// sandbox's own kernel: symbolic links lead where they lead for a process
// inside, and never out of the sandbox. Anything but a regular file where one
// is expected is CodeInvalid; a missing file is CodeNotFound, never CodeGone.
type FileSystem interface {
	// Stat describes a file, not following a link in the last element.
	Stat(ctx context.Context, path string) (sandbox.FileInfo, error)
	// List yields what is below a directory in lexical order, parents first,
	// down to opts.Depth levels, without following links.
	List(ctx context.Context, path string, opts ListOptions) iter.Seq2[sandbox.FileInfo, error]
	// Read opens a regular file. The caller closes the reader.
	Read(ctx context.Context, path string, opts ReadOptions) (io.ReadCloser, sandbox.FileInfo, error)
	// Write makes or replaces a regular file with all of r: a reader, or a
	// crash, sees the old content or the new, never a part. If r fails,
	// nothing changes and that error is returned.
	Write(ctx context.Context, path string, r io.Reader, opts WriteOptions) (sandbox.FileInfo, error)
	// Mkdir makes a directory. An existing directory is success if
	// opts.Parents, else CodeAlreadyExists.
	Mkdir(ctx context.Context, path string, opts MkdirOptions) error
	// Remove removes a file or, if recursive, a tree; without it a directory
	// that is not empty is CodeConflict. A missing file is CodeNotFound. The
	// root is CodeInvalid.
	Remove(ctx context.Context, path string, recursive bool) error
	// Move renames. An existing destination is CodeAlreadyExists unless
	// overwrite is set and it is not a directory.
	Move(ctx context.Context, from, to string, overwrite bool) error
}

// ListOptions bound a listing.
type ListOptions struct {
	Depth int // levels below the directory; 0 means 1, negative means all
}

// ReadOptions select a part of a file.
type ReadOptions struct {
	Offset int64 // bytes to skip; beyond the end reads nothing
	Length int64 // at most so many bytes; 0 means to the end
}

// WriteOptions say what a written file is to look like.
type WriteOptions struct {
	Mode      uint32 // permission bits; 0 keeps an existing file's, else 0o644
	Owner     string // as Spec.User; empty: keeps an existing file's, else the sandbox's user
	NoParents bool   // do not make missing parents, which get mode 0o755 and the Owner
	NoReplace bool   // an existing file is CodeAlreadyExists
}

// MkdirOptions say what a made directory is to look like.
type MkdirOptions struct {
	Mode    uint32 // permission bits; 0 means 0o755
	Owner   string // as WriteOptions
	Parents bool   // make missing parents too
}

// Archiver is implemented by instances that move trees as tar streams.
type Archiver interface {
	// Export writes the file or tree at path as a tar stream. Names are
	// relative to path's parent, so the first member is path's base name ("."
	// for the root). Modes, numeric owners, times, links, and extended
	// attributes are kept; sockets are left out. Of large files what is zero
	// may be sent as holes, in the form of GNU tar (PAX, version 1.0).
	Export(ctx context.Context, path string, w io.Writer, opts ExportOptions) error
	// Import unpacks a tar stream into the directory at path, making it. A
	// member that is absolute, climbs with "..", or leads through a link out
	// of the directory is CodeInvalid, named in the error. Device nodes are
	// refused likewise.
	//
	// It is all or nothing: until the whole stream has been read and found
	// good, nothing in the directory is changed or seen, and after an error
	// there is nothing new, the directory itself included. Holes of sparse
	// files are kept where the file system has them.
	Import(ctx context.Context, path string, r io.Reader, opts ImportOptions) error
}

// ExportOptions select what is exported.
type ExportOptions struct {
	// Exclude lists patterns, as in path.Match, against the path relative to
	// the exported directory; an excluded directory is left out whole.
	Exclude []string
	// Zstd compresses the stream. The control plane does it, outside the
	// sandbox: a provider never sees it set.
	Zstd bool
}

// ImportOptions say who is to own what is imported.
type ImportOptions struct {
	Owner string // as Spec.User; empty keeps the numeric owners of the members
}

// Watcher is implemented by instances that report changes of files.
type Watcher interface {
	// Watch reports changes below a directory, or of a file, that happen
	// after it returned. The channel is closed when ctx ends or the watched
	// path is removed; events that a slow receiver missed are replaced by one
	// OpOverflow.
	Watch(ctx context.Context, path string, recursive bool) (<-chan sandbox.FileEvent, error)
}

// Overwriter is implemented by instances that write into files, which FileSystem
// replaces.
type Overwriter interface {
	// Overwrite makes a regular file, or empties it, and writes all of r into
	// it. An existing file keeps its other names, and those who watch it see
	// that it was written. Until r ends, and if it fails, the file has a part of
	// it. A sandbox of an earlier version may answer CodeUnsupported, and has
	// then read nothing from r.
	Overwrite(ctx context.Context, path string, r io.Reader, opts OverwriteOptions) (sandbox.FileInfo, error)
}

// OverwriteOptions say what a file that is written into is to look like.
type OverwriteOptions struct {
	Owner string // as Spec.User; empty: keeps an existing file's, else the sandbox's user
	// Namespace is how the names of some user extended attributes begin, without
	// "user.": the file gets Attributes, whose names follow it, instead of those
	// that it has. Empty: it keeps all. Where files have no attributes, they are
	// left out.
	Namespace  string
	Attributes map[string]string
}

// Describer is implemented by instances that tell more of files than FileSystem.
type Describer interface {
	// Describe yields what is below a directory as List does or, if depth is 0,
	// only the file itself, as Stat does, whose path is ".". A sandbox of an
	// earlier version may answer CodeUnsupported.
	Describe(ctx context.Context, path string, depth int) iter.Seq2[sandbox.FileDetails, error]
}

// Finisher is implemented by processes that may know that there is nothing to
// wait for.
type Finisher interface {
	// Finished reports that the command has ended, and that all that it wrote
	// is here: neither Wait nor reading will block. False says nothing.
	Finished() bool
}

// Unwrapper is implemented by wrappers of an Instance, a Process or a Provider.
type Unwrapper interface {
	// Unwrap returns what is wrapped.
	Unwrap() any
}

// As finds the optional interface T on v or on anything it wraps.
func As[T any](v any) (T, bool) {
	for v != nil {
		if t, ok := v.(T); ok {
			return t, true
		}
		u, ok := v.(Unwrapper)
		if !ok {
			break
		}
		v = u.Unwrap()
	}
	var zero T
	return zero, false
}
