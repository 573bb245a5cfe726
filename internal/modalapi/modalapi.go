// Package modalapi has messages of Modal's gRPC API: those that Atoll's driver
// uses and its fake serves, with the fields that they need. The encoding is that
// of package plainproto.
package modalapi

// Prefixes of the methods of the two services: the control plane, and the
// command router on the worker that runs a sandbox.
const (
	Client = "/modal.client.ModalClient/"
	Router = "/modal.task_command_router.TaskCommandRouter/"
)

// Empty is a message without fields.
type Empty struct{}

// AuthToken is the answer of AuthTokenGet.
type AuthToken struct {
	Token string `pb:"1"` // a JWT
}

// RetryPolicy is a detail of the error RESOURCE_EXHAUSTED.
type RetryPolicy struct {
	RetryAfter float32 `pb:"1"` // seconds
}

// RetryPolicyName is the full name of RetryPolicy.
const RetryPolicyName = "modal.client.RPCRetryPolicy"

// CreateIfMissing makes AppGetOrCreate create an app.
const CreateIfMissing int32 = 1

// AppRequest is the request of AppGetOrCreate.
type AppRequest struct {
	Name        string `pb:"1"`
	Environment string `pb:"2"`
	Creation    int32  `pb:"3"`
}

// App is the answer of AppGetOrCreate.
type App struct {
	ID string `pb:"1"`
}

// EnvironmentRequest is the request of EnvironmentGetOrCreate.
type EnvironmentRequest struct {
	Name     string `pb:"1"` // empty: the default
	Creation int32  `pb:"2"`
}

// Environment is the answer of EnvironmentGetOrCreate.
type Environment struct {
	ID       string               `pb:"1"`
	Metadata *EnvironmentMetadata `pb:"2"`
}

// EnvironmentMetadata describes an environment.
type EnvironmentMetadata struct {
	Name     string               `pb:"1"`
	Settings *EnvironmentSettings `pb:"2"`
}

// EnvironmentSettings are the settings of an environment.
type EnvironmentSettings struct {
	Builder string `pb:"1"` // the version of the image builder
}

// Statuses of a Result. Zero: there is no result yet.
const (
	Success    int32 = 1
	Failure    int32 = 2
	Terminated int32 = 3
	Timeout    int32 = 4
	// LastStatus is the last one that is known.
	LastStatus int32 = 10
)

// Result is how something ended.
type Result struct {
	Status    int32  `pb:"1"`
	Exception string `pb:"2"`
	Code      int32  `pb:"3"`
}

// ImageRequest is the request of ImageGetOrCreate.
type ImageRequest struct {
	Image   *Dockerfile `pb:"2"`
	App     string      `pb:"4"`
	Builder string      `pb:"9"`
}

// Dockerfile says how to build an image.
type Dockerfile struct {
	Commands []string `pb:"6"`
}

// Image is the answer of ImageGetOrCreate, and of ImageFromId, which has no
// result.
type Image struct {
	ID     string  `pb:"1"`
	Result *Result `pb:"2"`
}

// ImageJoin is the request of ImageJoinStreaming.
type ImageJoin struct {
	ID      string  `pb:"1"`
	Timeout float32 `pb:"2"`
	Last    string  `pb:"3"` // entry that was received
}

// ImageProgress is a message of ImageJoinStreaming.
type ImageProgress struct {
	Result *Result `pb:"1"`
	Entry  string  `pb:"3"`
	EOF    bool    `pb:"4"`
}

// ImageRef is the request of ImageFromId and ImageDelete.
type ImageRef struct {
	ID string `pb:"1"`
}

// ImageTag is the request of ImagePublish.
type ImageTag struct {
	ID          string `pb:"1"`
	Tag         string `pb:"2"`
	Environment string `pb:"3"`
}

// ImageName is the request of ImageNameDelete and ImageGetByTag.
type ImageName struct {
	Tag         string `pb:"1"`
	Environment string `pb:"2"` // of ImageGetByTag
}

// TagsRequest is the request of ImageListTags.
type TagsRequest struct {
	Environment string `pb:"1"`
	Prefix      string `pb:"2"`
	Max         uint32 `pb:"3"`
	Page        string `pb:"4"`
}

// Tags is a page of ImageListTags.
type Tags struct {
	Items []*TagItem `pb:"1"`
	Next  string     `pb:"2"`
}

// TagItem is a tag of an image.
type TagItem struct {
	Tag     string  `pb:"1"`
	Image   string  `pb:"2"`
	Created float64 `pb:"4"`
}

// Tag is a tag of a sandbox.
type Tag struct {
	Name  string `pb:"1"`
	Value string `pb:"2"`
}

// CreateRequest is the request of SandboxCreateV2.
type CreateRequest struct {
	App     string          `pb:"1"`
	Sandbox *Sandbox        `pb:"2"`
	Tags    []*Tag          `pb:"4"`
	Secrets []*SecretSource `pb:"6"`
}

// SecretSource has variables of the environment.
type SecretSource struct {
	Env *StringMap `pb:"2"`
}

// StringMap is a map.
type StringMap struct {
	Contents map[string]string `pb:"1"`
}

// Sandbox describes a new sandbox.
type Sandbox struct {
	Args      []string   `pb:"1"` // empty: it sleeps
	Image     string     `pb:"3"`
	Resources *Resources `pb:"5"`
	Timeout   uint32     `pb:"7"` // seconds
	Workdir   *string    `pb:"8"`
	Network   *Network   `pb:"22"`
	Name      *string    `pb:"30"` // unique among the sandboxes of an app that run
}

// Resources are requests and limits. Zero: the service decides.
type Resources struct {
	Memory    uint32 `pb:"2"` // MiB
	CPU       uint32 `pb:"3"` // thousandths of a core
	MemoryMax uint32 `pb:"5"`
	CPUMax    uint32 `pb:"7"`
}

// Types of a Network.
const (
	Open      int32 = 1
	Blocked   int32 = 2
	Allowlist int32 = 3
)

// Network is what a sandbox may reach.
type Network struct {
	Type    int32    `pb:"1"`
	CIDRs   []string `pb:"2"`
	Domains []string `pb:"3"`
}

// Created is the answer of SandboxCreateV2.
type Created struct {
	ID   string `pb:"1"`
	Task string `pb:"3"`
}

// SandboxRef is the request of SandboxTagsGetV2, SandboxTerminateV2,
// SandboxGetTaskIdV2 and SandboxGetCommandRouterAccess.
type SandboxRef struct {
	ID string `pb:"1"`
}

// WaitRequest is the request of SandboxWaitV2.
type WaitRequest struct {
	ID      string  `pb:"1"`
	Timeout float32 `pb:"2"`
}

// Waited is the answer of SandboxWaitV2.
type Waited struct {
	Result *Result `pb:"1"`
}

// NameRequest is the request of SandboxGetFromNameV2.
type NameRequest struct {
	Name        string `pb:"1"`
	Environment string `pb:"2"`
	App         string `pb:"3"` // its name
}

// Named is the answer of SandboxGetFromNameV2.
type Named struct {
	ID string `pb:"1"`
}

// TagsGet is the answer of SandboxTagsGetV2.
type TagsGet struct {
	Tags []*Tag `pb:"1"`
}

// TagsSet is the request of SandboxTagsSetV2. It replaces all tags.
type TagsSet struct {
	Environment string `pb:"1"`
	ID          string `pb:"2"`
	Tags        []*Tag `pb:"3"`
}

// ListRequest is the request of SandboxListV2.
type ListRequest struct {
	App         string  `pb:"1"`
	Before      float64 `pb:"2"` // only sandboxes that were created earlier
	Environment string  `pb:"3"`
	Tags        []*Tag  `pb:"5"`
}

// List is a page of SandboxListV2. An empty one is the last.
type List struct {
	Sandboxes []*Info `pb:"1"`
}

// Info is a sandbox in a list.
type Info struct {
	ID      string  `pb:"1"`
	Created float64 `pb:"3"`
	Task    *Task   `pb:"4"`
	Tags    []*Tag  `pb:"6"`
	Name    string  `pb:"7"`
	Timeout uint32  `pb:"11"`
}

// Task is the run of a sandbox.
type Task struct {
	ID     string  `pb:"1"`
	Result *Result `pb:"4"`
}

// TaskID is the answer of SandboxGetTaskIdV2.
type TaskID struct {
	ID     *string `pb:"1"`
	Result *Result `pb:"2"`
}

// Access is the answer of SandboxGetCommandRouterAccess.
type Access struct {
	JWT string `pb:"1"`
	URL string `pb:"2"`
}

// Pipe makes ExecStart keep output.
const Pipe int32 = 1

// ExecStart is the request of TaskExecStart. Its ID makes it idempotent.
type ExecStart struct {
	Task    string          `pb:"1"`
	ID      string          `pb:"2"`
	Args    []string        `pb:"3"`
	Stdout  int32           `pb:"4"`
	Stderr  int32           `pb:"5"`
	Timeout *uint32         `pb:"6"` // seconds
	Workdir *string         `pb:"7"`
	Secrets []*SecretSource `pb:"13"`
}

// Output channels of a command.
const (
	Stdout int32 = 0
	Stderr int32 = 1
)

// ExecRead is the request of TaskExecStdioRead.
type ExecRead struct {
	Task   string `pb:"1"`
	ID     string `pb:"2"`
	Offset uint64 `pb:"3"`
	From   int32  `pb:"4"`
}

// Output is a message of TaskExecStdioRead.
type Output struct {
	Data []byte `pb:"1"`
}

// ExecWrite is the request of TaskExecStdinWrite. What is before the offset was
// sent already.
type ExecWrite struct {
	Task   string `pb:"1"`
	ID     string `pb:"2"`
	Offset uint64 `pb:"3"`
	Data   []byte `pb:"4"`
	EOF    bool   `pb:"5"`
}

// ExecRef is the request of TaskExecWait and TaskExecPoll.
type ExecRef struct {
	Task string `pb:"1"`
	ID   string `pb:"2"`
}

// ExecEnd is the answer of TaskExecWait and TaskExecPoll: one of both, or
// neither while the command runs.
type ExecEnd struct {
	Code   *int32 `pb:"1"`
	Signal *int32 `pb:"2"`
}

// SnapshotRequest is the request of TaskSnapshotFilesystem. Its ID makes it
// idempotent.
type SnapshotRequest struct {
	Task string `pb:"1"`
	ID   string `pb:"2"`
	TTL  *int64 `pb:"3"` // seconds; -1: it does not expire
}

// Snapshot is the answer of TaskSnapshotFilesystem.
type Snapshot struct {
	Image string `pb:"1"`
}
