package api

import (
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// CreateRequest asks for a sandbox.
type CreateRequest struct {
	sandbox.Spec
	Pull     string `json:"pull,omitempty" enum:"missing,always,never" doc:"when to fetch the image"`
	Platform string `json:"platform,omitempty" maxLength:"64" example:"linux/amd64"`

	// IdempotencyKey and Raw come from the header and the body.
	IdempotencyKey string `json:"-"`
	Raw            []byte `json:"-"`
}

// Sandbox is what is known of one.
type Sandbox struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	State     string            `json:"state" enum:"creating,running,pausing,paused,resuming,stopped,lost,failed,gone"`
	Reason    string            `json:"reason,omitempty" doc:"why it is in that state"`
	Image     string            `json:"image"`
	Provider  string            `json:"provider,omitempty"`
	Node      string            `json:"node,omitempty" doc:"the daemon that has it, if several share a store"`
	Resources sandbox.Resources `json:"resources"`
	// Limits are those that do not hold.
	Limits  map[string]sandbox.Enforcement `json:"limits,omitempty" doc:"limits in resources that the provider does not enforce, by name, and why"`
	Labels  map[string]string              `json:"labels,omitempty"`
	Created time.Time                      `json:"created"`
	Updated time.Time                      `json:"updated"`
	Expires *time.Time                     `json:"expires,omitempty" doc:"when its lifetime ends; left out while that stands still"`
	Exit    *Exit                          `json:"exit,omitempty" doc:"how it ended"`
	Pause   string                         `json:"pause,omitempty" enum:"memory,disk" doc:"where the state of a paused sandbox is; not in listings"`
	Wakes   bool                           `json:"wakes,omitempty" doc:"it goes on when it is used; not in listings"`
	LeftMS  int64                          `json:"leftMs,omitempty" doc:"what is left of its lifetime while that stands still, in milliseconds; not in listings"`
	Origin  string                         `json:"origin,omitempty" doc:"id of the snapshot it was made from; not in listings"`
	// Lifetime is what was asked for; not in listings.
	Lifetime sandbox.Lifetime `json:"lifetime,omitzero" doc:"what was asked for; not in listings"`

	Entrypoint []string `json:"entrypoint,omitempty" doc:"what the image wants to run; only in the answer that makes the sandbox"`
	Cmd        []string `json:"cmd,omitempty" doc:"the same"`
}

// Exit says how a command or a sandbox ended.
type Exit struct {
	Code   int    `json:"code"`
	Signal int    `json:"signal,omitempty"`
	Reason string `json:"reason" doc:"exited, signaled, timeout, memory, killed, lifetime, crashed or lost"`
	Detail string `json:"detail,omitempty"`
}

// ExitOf is the form in which an Exit travels.
func ExitOf(e sandbox.Exit) Exit {
	return Exit{Code: e.Code, Signal: e.Signal, Reason: string(e.Reason), Detail: e.Detail}
}

// ListQuery selects sandboxes.
type ListQuery struct {
	States []string
	Labels map[string]string
	Cursor string
	Limit  int
}

// Command is what to run.
type Command struct {
	Args       []string          `json:"args,omitempty" doc:"the program and its arguments"`
	ArgsBase64 [][]byte          `json:"argsBase64,omitempty" doc:"instead of args, when they are not UTF-8"`
	Shell      string            `json:"shell,omitempty" doc:"a script for /bin/sh, instead of args"`
	Env        map[string]string `json:"env,omitempty"`
	Dir        string            `json:"dir,omitempty"`
	User       string            `json:"user,omitempty"`
	TTY        *WindowSize       `json:"tty,omitempty" doc:"run on a terminal of this size; only over a WebSocket"`
	Stdin      bool              `json:"stdin,omitempty" doc:"standard input will be sent; only over a WebSocket"`
	TimeoutMS  int64             `json:"timeoutMs,omitempty" minimum:"0"`
	Background bool              `json:"background,omitempty" doc:"run on when the caller goes away"`
	HoldMS     int64             `json:"holdMs,omitempty" minimum:"0" maximum:"86400000" doc:"when the connection is cut, wait so long for the caller to attach again, and lose no output; only over a WebSocket"`
}

// WindowSize is the size of a terminal in characters.
type WindowSize struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// command returns the vocabulary's form.
func (c *Command) command() sandbox.Command {
	out := sandbox.Command{
		Args: c.Args, Shell: c.Shell, Env: c.Env, Dir: c.Dir, User: c.User, Stdin: c.Stdin,
		Timeout: milliseconds(c.TimeoutMS), Background: c.Background, Hold: milliseconds(c.HoldMS),
	}
	if len(c.ArgsBase64) > 0 {
		out.Args = make([]string, len(c.ArgsBase64))
		for i, a := range c.ArgsBase64 {
			out.Args[i] = string(a)
		}
	}
	if c.TTY != nil {
		out.TTY = &sandbox.WindowSize{Cols: c.TTY.Cols, Rows: c.TTY.Rows}
	}
	return out
}

// ForkRequest asks for copies of a sandbox.
type ForkRequest struct {
	Count  int               `json:"count,omitempty" minimum:"1" maximum:"100" default:"1"`
	Prefix string            `json:"prefix,omitempty" maxLength:"59" doc:"of their names, PREFIX-1 and so on; made up if it is left out"`
	Labels map[string]string `json:"labels,omitempty" doc:"added to those of the parent"`
}

// SnapshotRequest asks for a snapshot.
type SnapshotRequest struct {
	Name   string            `json:"name,omitempty" maxLength:"63" doc:"unique among your snapshots; its id if it is left out"`
	Memory bool              `json:"memory,omitempty" doc:"processes and their memory too, not only files"`
	Labels map[string]string `json:"labels,omitempty"`
	Save   bool              `json:"save,omitempty" doc:"answer when it is in the blob store too; else it is saved after the answer"`
}

// Snapshot is the state of a sandbox at a point in time.
type Snapshot struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Ready      bool              `json:"ready" doc:"false while it is being made"`
	Memory     bool              `json:"memory" doc:"it holds processes and their memory too"`
	Size       int64             `json:"size" doc:"bytes"`
	Saved      bool              `json:"saved" doc:"it is in the blob store, from which any daemon that shares it makes sandboxes"`
	Stored     int64             `json:"stored,omitempty" doc:"bytes that the blob store grew by"`
	Encrypted  bool              `json:"encrypted,omitempty" doc:"it is encrypted there"`
	Problem    string            `json:"problem,omitempty" doc:"what keeps it from being saved"`
	Engine     string            `json:"engine,omitempty" doc:"what can restore its memory; any build with the same engine"`
	Parent     string            `json:"parent" doc:"id of the sandbox it was taken of"`
	ParentName string            `json:"parentName"`
	Image      string            `json:"image"`
	Provider   string            `json:"provider,omitempty"`
	Resources  sandbox.Resources `json:"resources"`
	Labels     map[string]string `json:"labels,omitempty"`
	Created    time.Time         `json:"created"`
	Children   int64             `json:"children" doc:"sandboxes that were made from it and are not gone"`
}

// Milliseconds is ms as a duration; what does not fit is as long as can be.
func milliseconds(ms int64) time.Duration {
	const longest = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(ms, longest)) * time.Millisecond
}

// ExecRequest runs a command and waits for its end.
type ExecRequest struct {
	Command
	Input       string `json:"input,omitempty" doc:"what the command reads"`
	InputBase64 []byte `json:"inputBase64,omitempty" doc:"instead of input, when it is not UTF-8"`
	OutputLimit int64  `json:"outputLimit,omitempty" minimum:"0" maximum:"16777216" doc:"bytes of each stream to return, 1 MiB if it is left out"`
}

// ExecResult is how a command ended and what it wrote. Of one that was started
// in the background only the process is known.
type ExecResult struct {
	Process Process `json:"process"`
	Exit    *Exit   `json:"exit,omitempty"`
	Stdout  *Output `json:"stdout,omitempty"`
	Stderr  *Output `json:"stderr,omitempty"`
}

// Output is the beginning of what was written to a stream.
type Output struct {
	Data      string `json:"data"`
	Encoding  string `json:"encoding" enum:"utf-8,base64"`
	Truncated bool   `json:"truncated"`
	Dropped   int64  `json:"dropped,omitempty" doc:"bytes that are missing at the end"`
}

// Process is a command that was started.
type Process struct {
	ID         string    `json:"id"`
	PID        int       `json:"pid"`
	Args       []string  `json:"args"`
	Started    time.Time `json:"started"`
	Background bool      `json:"background,omitempty"`
	TTY        bool      `json:"tty,omitempty"`
	Running    bool      `json:"running"`
	Exit       *Exit     `json:"exit,omitempty"`
}

func processOf(p sandbox.ProcessInfo) Process {
	out := Process{
		ID: p.ID, PID: p.PID, Args: append([]string{}, p.Args...), Started: p.Started,
		Background: p.Background, TTY: p.TTY, Running: p.Running,
	}
	if p.Exit != nil {
		e := ExitOf(*p.Exit)
		out.Exit = &e
	}
	return out
}

// LogChunk is a piece of a command's log.
type LogChunk struct {
	Stream  int    `json:"stream" enum:"1,2"`
	Data    []byte `json:"data"`
	Dropped int64  `json:"dropped,omitempty" doc:"bytes lost before this piece"`
}

// NewKey asks for an API key.
type NewKey struct {
	Name      string   `json:"name,omitempty" maxLength:"100" doc:"for people"`
	Verbs     []string `json:"verbs" minItems:"1" maxItems:"8" doc:"what it allows: read, exec, write, admin"`
	Tenant    string   `json:"tenant,omitempty" maxLength:"63" doc:"whose key it is; others than your own only for the owner of the machine"`
	ExpiresMS int64    `json:"expiresMs,omitempty" minimum:"0" doc:"from now, in milliseconds; never if it is left out"`
}

// Expires is how long the key is valid, zero for ever.
func (k *NewKey) Expires() time.Duration { return milliseconds(k.ExpiresMS) }

// Key is what is known of an API key.
type Key struct {
	ID      string     `json:"id" doc:"its public part"`
	Name    string     `json:"name,omitempty"`
	Verbs   []string   `json:"verbs"`
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires,omitempty"`
	Revoked *time.Time `json:"revoked,omitempty"`
	Token   string     `json:"token,omitempty" doc:"the key itself, only in the answer that makes it"`
}

// EventQuery selects events.
type EventQuery struct {
	After   int64
	Limit   int
	Sandbox string
	Types   []string
	Ops     []string
	Since   time.Time
	Until   time.Time
}

// Event is one record of the log.
type Event struct {
	Seq     int64             `json:"seq" doc:"1, 2, 3, …; the cursor"`
	Time    time.Time         `json:"time"`
	Type    string            `json:"type"`
	Op      string            `json:"op"`
	Key     string            `json:"key,omitempty" doc:"public part of the API key of who did it"`
	UID     *uint32           `json:"uid,omitempty" doc:"of the local user who did it"`
	Node    string            `json:"node,omitempty"`
	Sandbox string            `json:"sandbox,omitempty"`
	Name    string            `json:"name,omitempty"`
	Labels  map[string]string `json:"labels,omitempty" doc:"those that the sandbox had then"`
	Subject string            `json:"subject,omitempty"`
	Policy  string            `json:"policy,omitempty" doc:"the rule that decided"`
	Ref     int64             `json:"ref,omitempty" doc:"the attempt that this is the outcome of"`
	Code    string            `json:"code,omitempty" doc:"of a failure"`
	Program string            `json:"program,omitempty"`
	Argc    int               `json:"argc,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Exit    *int              `json:"exit,omitempty"`
	Reason  string            `json:"reason,omitempty"`
	Bytes   int64             `json:"bytes,omitempty"`

	DurationMS int64 `json:"durationMs,omitempty"`

	Request string `json:"request,omitempty" doc:"id of the request that it was done for"`
	Trace   string `json:"trace,omitempty" doc:"id of the trace that request is part of"`
}

// AuditReport says whether the log is as it was written.
type AuditReport struct {
	Records  int64      `json:"records" doc:"how many are sound, from the first that is there"`
	Pruned   int64      `json:"pruned,omitempty" doc:"the last record that was removed on purpose"`
	PrunedAt *time.Time `json:"prunedAt,omitempty" doc:"when that was"`
	Anchored int64      `json:"anchored" doc:"the record up to which a head kept elsewhere vouches for the log"`
	Sound    bool       `json:"sound"`
	Fault    string     `json:"fault,omitempty"`
	FaultSeq int64      `json:"faultSeq,omitempty"`
}

// AuditPrune says which records of a log are to be removed: the oldest, up to
// the first that is not as described.
type AuditPrune struct {
	Tenant string     `json:"tenant,omitempty" maxLength:"63" doc:"whose log; your own if left out"`
	Before *time.Time `json:"before,omitempty" doc:"older than this"`
	UpTo   int64      `json:"upTo,omitempty" minimum:"0" doc:"with at most this number"`
}

// AuditPruned says what was removed.
type AuditPruned struct {
	Removed int64 `json:"removed" doc:"how many records"`
	Through int64 `json:"through,omitempty" doc:"the number of the last of them"`
}

// File describes a file in a sandbox.
type File struct {
	Path     string    `json:"path"`
	Type     string    `json:"type" enum:"file,dir,symlink,fifo,socket,device"`
	Size     int64     `json:"size"`
	Mode     uint32    `json:"mode"`
	UID      uint32    `json:"uid"`
	GID      uint32    `json:"gid"`
	ModTime  time.Time `json:"modTime"`
	Target   string    `json:"target,omitempty"`
	Nlink    uint64    `json:"nlink,omitempty"`
	Identity uint64    `json:"identity,omitempty"`
}

func fileOf(f sandbox.FileInfo) File {
	return File{
		Path: f.Path, Type: string(f.Type), Size: f.Size, Mode: f.Mode, UID: f.UID, GID: f.GID,
		ModTime: f.ModTime, Target: f.Target, Nlink: f.Nlink, Identity: f.Identity,
	}
}
