// Package sandbox holds the types that all other packages share, such as Spec,
// Sandbox, Command and Error. It depends on the standard library only and has
// no behaviour beyond validation.
//
// Values of these types are plain data. They may be copied, and may be read
// concurrently; a value must not be changed while another goroutine reads it.
package sandbox

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/field"
)

// ID identifies one sandbox. The control plane assigns it and never reuses it.
// It is safe in file names and host names: 1 to 63 characters of [a-z0-9-],
// beginning with a letter.
type ID string

// State is the state of a sandbox. A stopped sandbox can be started again. A
// gone sandbox is proved not to exist any more. A lost sandbox cannot be
// reached, so its real state is unknown.
type State string

// The states of a sandbox. The list is append-only.
const (
	Creating State = "creating" // being made; commands cannot be run yet
	Running  State = "running"  // commands can be run
	Pausing  State = "pausing"
	Paused   State = "paused"
	Resuming State = "resuming"
	Exited   State = "exited"  // its main command has ended; commands can still be run
	Stopped  State = "stopped" // its processes have ended; its files are kept
	Lost     State = "lost"    // cannot be reached; its real state is unknown
	Failed   State = "failed"  // its kernel failed, or a limit broke it
	Gone     State = "gone"    // does not exist any more
)

// Spec describes a sandbox to create. A provider receives a Spec only after
// [Spec.Validate] accepted it and the control plane has set ID, Name and Image.
type Spec struct {
	ID   ID     `json:"id,omitempty" readOnly:"true" doc:"assigned by the server"`
	Name string `json:"name,omitempty" maxLength:"63" doc:"unique among your sandboxes; the id if it is left out"`

	// Provider is the name of the provider that makes the sandbox. Empty: the
	// daemon's default.
	Provider string `json:"provider,omitempty" maxLength:"63" doc:"name of the provider; the daemon's default if it is left out"`
	// Isolation is the weakest isolation that the sandbox may have, wherever it is
	// made again. Empty: any, unless a policy demands one.
	Isolation Isolation `json:"isolation,omitempty" enum:"none,kernel,hardware" doc:"the weakest isolation that it may have: none, a kernel of its own, or a virtual machine; that of the provider if it is left out"`
	// Image is the source of the root file system. Empty means "host", which uses
	// the machine's own files. The other forms are an OCI reference ("debian:12",
	// "debian@sha256:…"), "oci:DIR[:TAG]", "docker-archive:FILE[:REF]", "dir:DIR"
	// and "tar:FILE".
	Image string `json:"image,omitempty" maxLength:"4096" doc:"source of the root file system; the machine's own programs if it is left out" example:"debian:12"`
	// Snapshot is the name or id of a snapshot to start from instead of an
	// image. The snapshot's user, directory, environment and limits apply where
	// this Spec leaves them out.
	Snapshot string `json:"snapshot,omitempty" maxLength:"63" doc:"name or id of a snapshot to start from, instead of an image"`

	Resources Resources `json:"resources,omitzero"`
	// RequireLimits makes the creation fail if the provider does not enforce a
	// limit in Resources.
	RequireLimits bool `json:"requireLimits,omitempty" doc:"fail if the provider does not enforce a limit in resources"`

	// Env is added to the image's environment for every command.
	Env map[string]string `json:"env,omitempty" doc:"added to the image's environment of every command; values are not stored in the database"`
	// User runs commands: "name", "uid", "name:group" or "uid:gid". Empty:
	// the image's user, else root.
	User string `json:"user,omitempty" maxLength:"128" doc:"user that runs commands: NAME, UID, NAME:GROUP or UID:GID"`
	// Workdir is the absolute directory commands start in; it is made when it
	// is missing. Empty: the image's, else "/".
	Workdir string `json:"workdir,omitempty" maxLength:"4096" doc:"absolute directory where commands start"`
	// Hostname inside the sandbox. Empty: the name.
	Hostname string `json:"hostname,omitempty" maxLength:"63"`

	// Main is the main command, as of a Docker container. It needs a daemon. Nil:
	// none; commands are run with Exec.
	Main *MainCommand `json:"main,omitempty" doc:"the main command, as of a container; none if left out"`

	// Mounts are host directories and files that are mounted into the sandbox. It
	// sees no other host paths.
	Mounts []Mount `json:"mounts,omitempty" maxItems:"64" doc:"files and directories of the machine; only for its owner"`

	// Workspaces are durable directories, each at its own path.
	Workspaces []WorkspaceMount `json:"workspaces,omitempty" maxItems:"32" doc:"durable directories, each at its own path"`

	// Ports are the ports that are published on the daemon's machine.
	Ports []PublishedPort `json:"ports,omitempty" maxItems:"64" doc:"ports to publish on the daemon's machine; only for its owner"`

	// Network says which hosts the sandbox may reach. Zero: none.
	Network Network `json:"network,omitzero" doc:"hosts that the sandbox may reach; none if it is left out"`
	// Secrets are the stored secrets that the sandbox uses. Values are never part
	// of a Spec.
	Secrets []SecretRef `json:"secrets,omitempty" maxItems:"64" doc:"stored secrets that the sandbox uses"`
	// Redact replaces the values of secrets of the mode env by asterisks in the
	// output of commands.
	Redact bool `json:"redact,omitempty" doc:"replace values of secrets of mode env by asterisks in the output of commands"`

	Lifetime Lifetime          `json:"lifetime,omitzero"`
	Labels   map[string]string `json:"labels,omitempty"`
}

// Resources are upper limits. Zero means the provider's default. A negative
// value means that Atoll sets no limit.
type Resources struct {
	CPUs   float64 `json:"cpus,omitempty" doc:"processors' worth of time, such as 0.5"`
	Memory int64   `json:"memory,omitempty" doc:"bytes, including those of the sandbox's kernel"`
	Disk   int64   `json:"disk,omitempty" doc:"bytes of the writable layer"`
	PIDs   int64   `json:"pids,omitempty" doc:"processes and threads alive at once"`
}

// Enforcement says whether a limit of a sandbox is enforced.
type Enforcement struct {
	Enforced bool   `json:"enforced"`
	Why      string `json:"why,omitempty"` // why not
}

// Mount mounts the host path Source at the absolute path Target in the sandbox.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Lifetime limits how long a sandbox may live.
type Lifetime struct {
	// Timeout is the time from creation to TimeoutAction. Time while the sandbox is
	// stopped or paused does not count. Zero: no limit.
	Timeout time.Duration `json:"timeoutMs,omitempty" minimum:"0" doc:"how long the sandbox may run, in milliseconds; no limit if it is left out"`
	// TimeoutAction is what happens then: IdleDelete, IdleSleep or IdleStop.
	// Empty: IdleDelete. Anything but deletion needs a daemon.
	TimeoutAction IdleAction `json:"timeoutAction,omitempty" enum:"sleep,stop,delete" doc:"what happens then; delete if it is left out"`
	// Wakes resumes a paused sandbox when it is used, even if a caller paused it.
	Wakes bool `json:"wakes,omitempty" doc:"resume a paused sandbox when it is used, even if a caller paused it"`
	// Idle is how long the sandbox may be unused before IdleAction happens. A
	// running command, a file transfer and an open port count as use. Zero: no
	// limit.
	Idle time.Duration `json:"idleMs,omitempty" minimum:"0" doc:"how long it may be unused before idleAction, in milliseconds; no limit if it is left out"`
	// IdleAction is what happens then. Empty: IdleStop.
	IdleAction IdleAction `json:"idleAction,omitempty" enum:"pause,sleep,stop,delete" doc:"pause in memory, sleep on disk, stop and keep the files, or delete; stop if it is left out"`
}

// HardTimeout returns the Timeout that the provider enforces by ending the
// sandbox. It is zero if the daemon stops or pauses the sandbox instead.
func (l Lifetime) HardTimeout() time.Duration {
	if l.TimeoutAction == "" || l.TimeoutAction == IdleDelete {
		return l.Timeout
	}
	return 0
}

// MarshalJSON writes durations in milliseconds.
func (l Lifetime) MarshalJSON() ([]byte, error) {
	type plain Lifetime
	field.ToMS(&l.Timeout, &l.Idle)
	return json.Marshal(plain(l))
}

// UnmarshalJSON reads durations in milliseconds.
func (l *Lifetime) UnmarshalJSON(text []byte) error {
	type plain Lifetime
	field.ToMS(&l.Timeout, &l.Idle)
	err := json.Unmarshal(text, (*plain)(l))
	field.FromMS(&l.Timeout, &l.Idle)
	return err
}

// Change describes changes to a sandbox. Fields that are nil or zero stay as
// they are.
type Change struct {
	Resources Resources `json:"resources,omitzero" doc:"limits that are left out do not change"`
	// RequireLimits refuses the change if a limit in Resources is not enforced.
	RequireLimits bool               `json:"requireLimits,omitempty" doc:"refuse the change if a limit in resources is not enforced"`
	Labels        map[string]*string `json:"labels,omitempty" doc:"labels to set; null removes one"`
	Lifetime      LifetimeChange     `json:"lifetime,omitzero"`
	// Network replaces the egress rules of a sandbox whose Network has Egress or
	// Inline, by new ones in either form. It cannot be changed together with other
	// fields.
	Network *Network `json:"network,omitempty" doc:"new egress or inline rules, for a sandbox that has such rules; not together with other changes"`
}

// ApplyResources returns r with the limits that change.
func (c Change) ApplyResources(r Resources) Resources {
	r.CPUs = cmp.Or(c.Resources.CPUs, r.CPUs)
	r.Memory = cmp.Or(c.Resources.Memory, r.Memory)
	r.Disk = cmp.Or(c.Resources.Disk, r.Disk)
	r.PIDs = cmp.Or(c.Resources.PIDs, r.PIDs)
	return r
}

// ApplyLabels returns labels with the changes made. It does not modify labels.
func (c Change) ApplyLabels(labels map[string]string) map[string]string {
	if len(c.Labels) == 0 {
		return labels
	}
	out := maps.Clone(labels)
	for k, v := range c.Labels {
		if v == nil {
			delete(out, k)
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = *v
	}
	return out
}

// LifetimeChange describes changes to a [Lifetime]. Fields that are nil stay as
// they are.
type LifetimeChange struct {
	// Timeout is how long the sandbox may run from now on. Zero: no limit.
	Timeout       *time.Duration `json:"timeoutMs,omitempty" minimum:"0" doc:"how long the sandbox may run from now on, in milliseconds; 0: no limit"`
	TimeoutAction *IdleAction    `json:"timeoutAction,omitempty" enum:"sleep,stop,delete"`
	Wakes         *bool          `json:"wakes,omitempty"`
	Idle          *time.Duration `json:"idleMs,omitempty" minimum:"0" doc:"in milliseconds; 0: never idle"`
	IdleAction    *IdleAction    `json:"idleAction,omitempty" enum:"pause,sleep,stop,delete"`
}

// MarshalJSON writes durations in milliseconds.
func (c LifetimeChange) MarshalJSON() ([]byte, error) {
	type plain LifetimeChange
	for _, d := range []**time.Duration{&c.Timeout, &c.Idle} {
		if *d != nil {
			scaled := **d
			field.ToMS(&scaled)
			*d = &scaled
		}
	}
	return json.Marshal(plain(c))
}

// UnmarshalJSON reads durations in milliseconds.
func (c *LifetimeChange) UnmarshalJSON(text []byte) error {
	type plain LifetimeChange
	*c = LifetimeChange{}
	if err := json.Unmarshal(text, (*plain)(c)); err != nil {
		return err
	}
	for _, d := range []*time.Duration{c.Timeout, c.Idle} {
		if d != nil {
			field.FromMS(d)
		}
	}
	return nil
}

// Apply returns l with the changes made.
func (c LifetimeChange) Apply(l Lifetime) Lifetime {
	field.Change(&l.Timeout, c.Timeout)
	field.Change(&l.TimeoutAction, c.TimeoutAction)
	field.Change(&l.Wakes, c.Wakes)
	field.Change(&l.Idle, c.Idle)
	field.Change(&l.IdleAction, c.IdleAction)
	return l
}

// PauseKind says where the state of a paused sandbox is. The list is
// append-only.
type PauseKind string

// The kinds of pause.
const (
	PauseMemory PauseKind = "memory" // processes are frozen and stay in memory
	PauseDisk   PauseKind = "disk"   // state is in a snapshot; no memory and no processes are left
)

// IdleAction is what happens to an unused sandbox. The list is append-only.
type IdleAction string

// The idle actions. A sandbox paused by one of them resumes when it is used
// again.
const (
	IdlePause  IdleAction = "pause"  // paused in memory
	IdleSleep  IdleAction = "sleep"  // paused on disk
	IdleStop   IdleAction = "stop"   // processes end, files are kept
	IdleDelete IdleAction = "delete" // the sandbox and its files are deleted
)

// Command is one program to run in a sandbox.
type Command struct {
	// Args is the program and its arguments. Each may contain any byte but NUL. A
	// program without a slash is looked up in the command's PATH.
	Args []string `json:"args,omitempty"`
	// Shell is a script for the sandbox's /bin/sh, used instead of Args.
	// Exactly one of Args and Shell is set.
	Shell string `json:"shell,omitempty"`

	Env  map[string]string `json:"env,omitempty"`  // added to the sandbox's
	Dir  string            `json:"dir,omitempty"`  // absolute; empty: the sandbox's workdir
	User string            `json:"user,omitempty"` // as Spec.User; empty: the sandbox's user

	// TTY runs the command on a pseudo-terminal of this size. Standard error
	// then arrives merged into standard output, as on any terminal.
	TTY *WindowSize `json:"tty,omitempty"`

	// Stdin says that the caller will write standard input and close it.
	// Without it the command reads an empty input.
	Stdin bool `json:"stdin,omitempty"`

	// Timeout ends the command with SIGKILL, with its session and all its
	// descendants. A process that has left both, such as a daemonized one, keeps
	// running, and so does the sandbox. Zero: no timeout.
	Timeout time.Duration `json:"timeout,omitempty"`

	// Background keeps the command running after its Process is closed. Its output
	// goes to a bounded log, which drops the oldest bytes and can be read later.
	// Without Background, closing the Process kills the command.
	Background bool `json:"background,omitempty"`

	// Hold keeps the command running for this long after its connection is lost, so
	// that the caller can rejoin. The command blocks if its output would be lost.
	// When the time is over, its processes get SIGHUP, and SIGKILL 10 s later.
	// Closing the Process kills it at once, as without Hold. Zero: SIGHUP comes as
	// soon as the connection is lost. Providers that cannot rejoin ignore Hold.
	Hold time.Duration `json:"hold,omitempty"`
}

// Usage is the resource usage of a sandbox. An unknown figure is negative.
type Usage struct {
	CPU     time.Duration `json:"cpu"`     // processor time since it was made
	Memory  int64         `json:"memory"`  // bytes now, its kernel included
	Disk    int64         `json:"disk"`    // bytes of the writable layer now
	PIDs    int64         `json:"pids"`    // processes and threads now
	Sampled time.Time     `json:"sampled"` // when
}

// WindowSize is the size of a terminal in characters.
type WindowSize struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// Exit says how a command, or a whole sandbox, ended.
type Exit struct {
	// Code is the exit status; 128+n when signal n ended it, as in a shell.
	Code int `json:"code"`
	// Signal that ended it, 0 if none did.
	Signal int `json:"signal,omitempty"`
	// Reason says why it ended.
	Reason Reason `json:"reason" doc:"exited, signaled, timeout, memory, killed, lifetime, crashed or lost"`
	// Detail is text for people, possibly empty. It holds no secrets.
	Detail string `json:"detail,omitempty"`
}

// String returns a short text, such as "exit code 1".
func (e Exit) String() string {
	switch e.Reason {
	case ReasonExited, "":
		return fmt.Sprintf("exit code %d", e.Code)
	case ReasonSignaled:
		return fmt.Sprintf("killed by signal %d", e.Signal)
	}
	why := string(e.Reason)
	if e.Detail != "" {
		why += ": " + e.Detail
	}
	return fmt.Sprintf("exit code %d (%s)", e.Code, why)
}

// Reason is why a command or sandbox ended. The list is append-only.
type Reason string

// The reasons.
const (
	ReasonExited   Reason = "exited"   // by itself, with Code
	ReasonSignaled Reason = "signaled" // by a signal from inside or from a caller
	ReasonTimeout  Reason = "timeout"  // its Timeout ended it
	ReasonMemory   Reason = "memory"   // the sandbox reached its memory limit
	ReasonKilled   Reason = "killed"   // the sandbox was destroyed
	ReasonLifetime Reason = "lifetime" // the sandbox reached the end of its lifetime
	ReasonCrashed  Reason = "crashed"  // the sandbox's kernel failed or was killed
	ReasonLost     Reason = "lost"     // the sandbox could not be reached

	// Of terminals, besides those of commands.
	ReasonOwnerGone Reason = "owner_gone" // the connection that it was made for ended
)

// ProcessInfo describes a command that was started through the API.
type ProcessInfo struct {
	ID         string    `json:"id"`  // names the command within its sandbox; never reused
	PID        int       `json:"pid"` // as seen inside
	Args       []string  `json:"args"`
	Started    time.Time `json:"started"`
	Background bool      `json:"background,omitempty"`
	TTY        bool      `json:"tty,omitempty"`
	Running    bool      `json:"running"`
	Exit       *Exit     `json:"exit,omitempty"` // set once it ended
}

// LeftBehind reports whether the process outlived the command that started it,
// as a server that a shell started with "&" does. It can be listed and
// signalled; its output goes where that command's went.
func (p ProcessInfo) LeftBehind() bool {
	return strings.HasPrefix(p.ID, "o") && strings.Contains(p.ID, ".")
}

// FileType is the kind of a directory entry.
type FileType string

// The kinds of directory entries.
const (
	TypeFile    FileType = "file"
	TypeDir     FileType = "dir"
	TypeSymlink FileType = "symlink"
	TypeFIFO    FileType = "fifo"
	TypeSocket  FileType = "socket"
	TypeDevice  FileType = "device"
)

// FileInfo describes a file inside a sandbox.
type FileInfo struct {
	Path     string    `json:"path"` // absolute for Stat; relative to the listed directory for List
	Type     FileType  `json:"type" enum:"file,dir,symlink,fifo,socket,device"`
	Size     int64     `json:"size"` // bytes; 0 for anything but files
	Mode     uint32    `json:"mode"` // permission, set-id and sticky bits, as in chmod: 0o7777 at most
	UID      uint32    `json:"uid"`
	GID      uint32    `json:"gid"`
	ModTime  time.Time `json:"modTime"`
	Target   string    `json:"target,omitempty"` // of a symlink, as stored
	Nlink    uint64    `json:"nlink,omitempty"`
	Identity uint64    `json:"identity,omitempty"` // inode number, 0 if unknown
}

// FileDetails is everything that stat and listxattr report about a file.
type FileDetails struct {
	FileInfo
	StatSize   int64             // bytes, as stat reports them for directories and links too
	Attributes map[string]string // extended attributes of the user namespace; names without "user."
}

// FileOp is what happened to a watched file.
type FileOp string

// What can happen to a watched file. A rename arrives as a removal of the old
// name and a creation of the new one.
const (
	OpCreate FileOp = "create"
	OpWrite  FileOp = "write"
	OpRemove FileOp = "remove"
	OpChmod  FileOp = "chmod"
	// OpOverflow reports that events were lost; the watcher should list again.
	OpOverflow FileOp = "overflow"
)

// FileEvent is one change below a watched directory.
type FileEvent struct {
	Op   FileOp `json:"op"`
	Path string `json:"path"` // relative to the watched path; "." for itself
	Dir  bool   `json:"dir,omitempty"`
	// Revision grows with each event; 0 from a daemon that does not count them.
	Revision   int64 `json:"revision,omitempty"`
	LeaseEpoch int64 `json:"leaseEpoch,omitempty"` // which sandbox of the session, if a session is watched
}

// LogChunk is a piece of one stream of a command's log.
type LogChunk struct {
	Stream  int    `json:"stream" enum:"1,2" doc:"1 standard output or terminal, 2 standard error"`
	Data    []byte `json:"data"`
	Dropped int64  `json:"dropped,omitempty" doc:"bytes lost before this piece because the log was full"`
}

// PortToken gives access to ports of one sandbox over HTTP, and to nothing
// else.
type PortToken struct {
	Token   string    `json:"token" doc:"for the header Atoll-Token; shown only now"`
	Expires time.Time `json:"expires"`
}
