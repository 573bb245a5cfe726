// Package driver defines the interfaces of a sandbox provider: two mandatory
// ones, [Provider] and [Instance], and optional ones for capabilities that not
// every provider has. Package drivertest tests a provider against the rules
// written here.
//
// A driver can rely on this: the control plane has validated every Spec,
// Command and path and filled in defaults. Option structs may be their zero
// value. A driver is not called after Close.
//
// A driver must do this: Every method may be called concurrently. A call whose
// context is canceled returns soon and leaves nothing half-made. Errors are
// returned unwrapped, are classified by ErrorCode, and contain no secrets. The
// driver does not modify a value after it has returned it. A driver reports
// that a sandbox is gone only if it has evidence about that sandbox, never
// because the sandbox could not be reached.
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
	// Probe checks what the provider can do on this machine now. It makes no
	// sandbox. A provider that cannot work here returns Facts with Available false
	// and Findings that say why, and a nil error. An error means that Probe itself
	// failed.
	Probe(ctx context.Context) (Facts, error)

	// Create makes and starts a sandbox. When it returns, commands can be run.
	// spec.ID is set and unique; if a sandbox with that ID exists, the error is
	// CodeAlreadyExists. On an error, or if ctx ends first, nothing is left behind.
	Create(ctx context.Context, spec *sandbox.Spec) (Instance, error)

	// Attach returns a sandbox that this or an earlier process made. It returns
	// CodeGone only with evidence that the sandbox does not exist.
	Attach(ctx context.Context, id sandbox.ID) (Instance, error)

	// List yields the sandboxes that exist. It looks them up each time, because
	// orphans are removed based on the result. It stops at the first error.
	List(ctx context.Context) iter.Seq2[Found, error]

	// ErrorCode classifies an error returned by this provider or by its instances
	// and processes. It returns "" for an unknown error.
	ErrorCode(err error) sandbox.Code

	// Close releases the provider's resources in this process. Sandboxes keep
	// running. Close is idempotent.
	Close() error
}

// Instance is an existing sandbox. Dropping an Instance does not end the
// sandbox; only Destroy does.
type Instance interface {
	ID() sandbox.ID

	// Exec starts a command. The context limits only the start. Processes that a
	// command leaves behind when it exits by itself, such as a server started with
	// "&", keep running until the sandbox ends. Their output on the command's
	// streams is read, even if the caller does not. When a command is ended (by
	// its Timeout, SIGKILL or Process.Close, or because its caller was lost and
	// did not rejoin), all processes that it started are ended too. A program that
	// cannot be started (not found, not executable, no such user or directory) is
	// not an error of Exec: the command ends with code 127 or 126 and the reason
	// on standard error, as in a shell.
	Exec(ctx context.Context, cmd *sandbox.Command) (Process, error)

	// Wait blocks until the sandbox has ended, and returns why it ended.
	Wait(ctx context.Context) (sandbox.Exit, error)

	// Destroy ends the sandbox and removes everything that belongs to it.
	// Destroying a sandbox that is already gone is success.
	Destroy(ctx context.Context) error
}

// Process is a connection to one command. Its methods may be called
// concurrently, but Stdin, Stdout and Stderr may each have only one user at a
// time.
//
// A command that writes more than the buffers hold blocks until the caller
// reads. A background command blocks only while the Process that started it is
// open. After that, its output goes to a bounded log, which drops the oldest
// bytes.
type Process interface {
	// Info returns the id of the command within its sandbox.
	Info() sandbox.ProcessInfo

	// Stdin is the command's standard input. Closing it sends the end of input; on
	// a terminal, it sends the end-of-file character. It is never nil: without
	// Command.Stdin it is closed already.
	Stdin() io.WriteCloser
	// Stdout and Stderr end with io.EOF when the command and all processes that
	// inherited the stream have closed it. Unread output is kept when the command
	// ends. Stderr is empty on a terminal.
	Stdout() io.Reader
	Stderr() io.Reader

	// Signal sends a signal, by its Linux number, to the command's process
	// group; SIGKILL ends everything that the command started. A command that
	// has ended is CodeNotFound.
	Signal(ctx context.Context, sig int) error
	// Resize sets the size of the terminal; without one it is CodeInvalid.
	Resize(ctx context.Context, size sandbox.WindowSize) error

	// Wait blocks until the command has ended. It may be called several times and
	// concurrently. It does not wait until the output is read.
	Wait(ctx context.Context) (sandbox.Exit, error)

	// Close closes the connection. A background command keeps running. Any other
	// running command is killed with all its processes. Processes left behind by a
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
	// Engine is the engine that runs it, as in Facts.Engine; empty if it is not
	// known.
	Engine string
}

// Facts are the result of Probe.
type Facts struct {
	Provider     string            // the name it is registered under
	Version      string            // version of the underlying technology
	Engine       string            // name and version of what runs new sandboxes; memory is restored only by the same engine; empty if the provider has no engines
	Available    bool              // sandboxes can be made here
	Isolates     bool              // code inside cannot harm the machine
	Isolation    sandbox.Isolation // of the sandboxes made here now; empty: as the provider's descriptor says
	SharesFiles  bool              // sandboxes do not have their own root file system: commands see the files of the machine
	Findings     []Finding         // what works, what does not, and what can be fixed, most important first
	Capabilities Capabilities      // capabilities of instances on this machine
	Limits       map[string]Limit  // by name: cpus, memory, disk, pids, lifetime
}

// Severity orders findings.
type Severity string

// Severities of findings.
const (
	OK      Severity = "ok"
	Note    Severity = "note"    // works; for information
	Warning Severity = "warning" // works with something missing
	Blocker Severity = "blocker" // no sandbox can be made
)

// Finding is the result of one check of Probe.
type Finding struct {
	Severity Severity `json:"severity"`
	Subject  string   `json:"subject"` // e.g. "cgroups"
	Message  string   `json:"message"` // the result
	Fix      string   `json:"fix,omitempty"`
}

// Limit says whether a kind of limit is enforced on this machine.
type Limit struct {
	Holds bool   `json:"holds"`
	By    string `json:"by,omitempty"` // what enforces it, e.g. "cgroup v2"
	Why   string `json:"why,omitempty"`
	// Fixed says that the provider chooses the size of every sandbox, so that a
	// request for another size must be refused.
	Fixed bool `json:"fixed,omitempty"`
}

// Capabilities list the optional interfaces of a provider's instances. The
// listed, implemented and working capabilities must be the same; drivertest
// checks that.
type Capabilities struct {
	Files     bool `json:"files"`     // Instance is a FileSystem
	Watch     bool `json:"watch"`     // … and a Watcher
	Archive   bool `json:"archive"`   // … and an Archiver
	Terminal  bool `json:"terminal"`  // Command.TTY is honoured
	Processes bool `json:"processes"` // Instance is a ProcessManager; Command.Background is honoured
	Users     bool `json:"users"`     // Command.User is honoured
	Images    bool `json:"images"`    // Spec.Image other than "host" is honoured
	Mounts    bool `json:"mounts"`    // Spec.Mounts is honoured
	Network   bool `json:"network"`   // Spec.Network is honoured: traffic that its policy does not allow is blocked
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

// ProcessManager is implemented by instances that keep records of their
// commands.
type ProcessManager interface {
	// Processes lists the running commands that were started through the API, and a
	// bounded number of those that ended last, oldest first. Processes that
	// outlived their command follow, each with its own ID and with Background set.
	// They are listed only while they run, and without their descendants. Kill
	// accepts their IDs and signals their descendants too. For them, Reconnect and
	// Logs return CodeConflict.
	Processes(ctx context.Context) ([]sandbox.ProcessInfo, error)
	// Reconnect connects to a background command. Output begins with the oldest
	// byte that is kept, and then follows live. Closing the Process does not end
	// the command.
	Reconnect(ctx context.Context, id string) (Process, error)
	// Logs reads the bounded log of a command. The reader ends at the end of the
	// log or, with Follow, when the command has ended. The caller closes it.
	Logs(ctx context.Context, id string, opts LogOptions) (LogReader, error)
	// Kill sends a signal to the command with that id, like Process.Signal.
	Kill(ctx context.Context, id string, sig int) error
}

// LogOptions select a part of a command's log.
type LogOptions struct {
	Tail   int  // number of last lines; 0: everything that is kept
	Follow bool // wait for more output until the command ends
}

// LogReader yields a log in the order it was written.
type LogReader interface {
	// Next returns the next chunk, and io.EOF after the last. The caller owns the
	// bytes.
	Next() (sandbox.LogChunk, error)
	Close() error
}

// FileSystem is implemented by instances whose files can be accessed without
// running a command. Paths are absolute and clean. The sandbox's own kernel
// resolves them: symbolic links are resolved as for a process inside, and never
// lead out of the sandbox. A file of another type where a regular file is
// expected is CodeInvalid. A missing file is CodeNotFound, never CodeGone.
type FileSystem interface {
	// Stat describes a file. It does not follow a symbolic link in the last
	// element.
	Stat(ctx context.Context, path string) (sandbox.FileInfo, error)
	// List yields the files below a directory in lexical order, parents first, down
	// to opts.Depth levels. It does not follow symbolic links.
	List(ctx context.Context, path string, opts ListOptions) iter.Seq2[sandbox.FileInfo, error]
	// Read opens a regular file. The caller closes the reader.
	Read(ctx context.Context, path string, opts ReadOptions) (io.ReadCloser, sandbox.FileInfo, error)
	// Write creates or replaces a regular file with the content of r. It is atomic:
	// a reader sees either the old content or the new, also after a crash. If
	// reading r fails, nothing changes and that error is returned.
	Write(ctx context.Context, path string, r io.Reader, opts WriteOptions) (sandbox.FileInfo, error)
	// Mkdir makes a directory. An existing directory is success if
	// opts.Parents, else CodeAlreadyExists.
	Mkdir(ctx context.Context, path string, opts MkdirOptions) error
	// Remove removes a file or, if recursive, a tree; without it a directory
	// that is not empty is CodeConflict. A missing file is CodeNotFound. The
	// root is CodeInvalid.
	Remove(ctx context.Context, path string, recursive bool) error
	// Move renames a file or directory. An existing destination is
	// CodeAlreadyExists, unless overwrite is set and the destination is not a
	// directory.
	Move(ctx context.Context, from, to string, overwrite bool) error
}

// ListOptions limit a listing.
type ListOptions struct {
	Depth int // levels below the directory; 0 means 1, negative means all
}

// ReadOptions select a part of a file.
type ReadOptions struct {
	Offset int64 // bytes to skip; beyond the end, nothing is read
	Length int64 // maximum number of bytes; 0 means to the end
}

// WriteOptions are options of FileSystem.Write.
type WriteOptions struct {
	Mode      uint32 // permission bits; 0 keeps an existing file's, else 0o644
	Owner     string // as Spec.User; empty: keeps an existing file's, else the sandbox's user
	NoParents bool   // do not make missing parents (otherwise they get mode 0o755 and the Owner)
	NoReplace bool   // an existing file is CodeAlreadyExists
}

// MkdirOptions are options of FileSystem.Mkdir.
type MkdirOptions struct {
	Mode    uint32 // permission bits; 0 means 0o755
	Owner   string // as WriteOptions.Owner
	Parents bool   // make missing parents too
}

// Archiver is implemented by instances that export and import trees as tar
// streams.
type Archiver interface {
	// Export writes the file or tree at path as a tar stream. Names are relative to
	// path's parent, so the first member is path's base name ("." for the root).
	// Modes, numeric owners, times, links, and extended attributes are kept;
	// sockets are left out. Runs of zeros in large files may be sent as holes, in
	// the sparse format of GNU tar (PAX, version 1.0).
	Export(ctx context.Context, path string, w io.Writer, opts ExportOptions) error
	// Import unpacks a tar stream into the directory at path, and creates the
	// directory if it is missing. A member whose name is absolute, contains "..",
	// or leads through a link out of the directory is CodeInvalid; the error names
	// the member. Device nodes are refused in the same way.
	//
	// Import is atomic: nothing in the directory changes until the whole stream has
	// been read and checked. After an error there are no new files, and no new
	// directory. Holes of sparse files are kept if the file system supports them.
	Import(ctx context.Context, path string, r io.Reader, opts ImportOptions) error
}

// ExportOptions select what is exported.
type ExportOptions struct {
	// Exclude lists patterns, as in path.Match, against the path relative to the
	// exported directory; an excluded directory is left out with its content.
	Exclude []string
	// Zstd compresses the stream. The control plane does that, outside the sandbox,
	// so a provider never sees it set.
	Zstd bool
}

// ImportOptions are options of Archiver.Import.
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

// Overwriter is implemented by instances that can write into an existing file.
// FileSystem.Write replaces the file instead.
type Overwriter interface {
	// Overwrite creates or truncates a regular file, and writes the content of r
	// into it. An existing file keeps its hard links, and watchers of the file get
	// a write event. Until r ends, or if reading r fails, the file has a part of
	// the content. A sandbox of an earlier version may return CodeUnsupported; it
	// has then read nothing from r.
	Overwrite(ctx context.Context, path string, r io.Reader, opts OverwriteOptions) (sandbox.FileInfo, error)
}

// OverwriteOptions are options of Overwriter.Overwrite.
type OverwriteOptions struct {
	Owner string // as Spec.User; empty: keeps an existing file's, else the sandbox's user
	// Namespace is a prefix of names of extended attributes in the user namespace,
	// without "user.". Attributes with this prefix are replaced by Attributes,
	// whose names follow the prefix. Empty: all attributes are kept. On a file
	// system without extended attributes, they are ignored.
	Namespace  string
	Attributes map[string]string
}

// Describer is implemented by instances that return more details of files than
// FileSystem.
type Describer interface {
	// Describe yields the files below a directory like List. If depth is 0, it
	// yields only the file itself, like Stat, with the path ".". A sandbox of an
	// earlier version may return CodeUnsupported.
	Describe(ctx context.Context, path string, depth int) iter.Seq2[sandbox.FileDetails, error]
}

// Finisher is implemented by processes that can report that they have finished.
type Finisher interface {
	// Finished returns true if the command has ended and all of its output has
	// arrived, so that neither Wait nor reading output blocks. False means that
	// this is not known.
	Finished() bool
}

// Unwrapper is implemented by wrappers of an Instance, a Process or a Provider.
type Unwrapper interface {
	// Unwrap returns the wrapped value.
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
