// Package operator has the types that the operator of a daemon sees and
// changes: tenants and their limits, keys, policies, nodes, machines, the audit
// log and where the daemon serves its console and the API of E2B. As in package
// sandbox, they are plain data, the same in the API, the library and the store.
package operator

import (
	"encoding/json"
	"math"
	"time"

	"github.com/atoll-run/atoll/internal/field"
	"github.com/atoll-run/atoll/sandbox"
)

// Key describes an API key.
type Key struct {
	ID      string    `json:"id" doc:"its public part"`
	Name    string    `json:"name,omitempty"`
	Verbs   []string  `json:"verbs" doc:"permissions: read, exec, write, admin"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero" doc:"never if it is left out"`
	Revoked time.Time `json:"revoked,omitzero"`
	Page    bool      `json:"page,omitempty" doc:"of a page of the console that a link of the owner of the machine signed in"`
	Token   string    `json:"token,omitempty" doc:"the key itself; only in the response that creates it"`
}

// NewKey asks for an API key.
type NewKey struct {
	Name    string        `json:"name,omitempty" maxLength:"100" doc:"a description for people"`
	Verbs   []string      `json:"verbs" minItems:"1" maxItems:"8" doc:"permissions: read, exec, write, admin"`
	Tenant  string        `json:"tenant,omitempty" maxLength:"63" doc:"tenant of the key; a tenant other than your own only for the owner of the machine"`
	Expires time.Duration `json:"expiresMs,omitempty" minimum:"0" doc:"from now, in milliseconds; never if it is left out"`
}

// MarshalJSON writes the duration in milliseconds.
func (k NewKey) MarshalJSON() ([]byte, error) {
	type plain NewKey
	field.ToMS(&k.Expires)
	return json.Marshal(plain(k))
}

// UnmarshalJSON reads the duration in milliseconds.
func (k *NewKey) UnmarshalJSON(text []byte) error {
	type plain NewKey
	field.ToMS(&k.Expires)
	err := json.Unmarshal(text, (*plain)(k))
	field.FromMS(&k.Expires)
	return err
}

// TenantHeader is the header of a request that names the tenant to act in. The
// owner of the machine may name any, callers with a key only their own.
const TenantHeader = "Atoll-Tenant"

// Tenant is one customer of a daemon. Tenants cannot reach each other's
// objects.
type Tenant struct {
	ID       string      `json:"id"`
	Created  time.Time   `json:"created"`
	Disabled time.Time   `json:"disabled,omitzero" doc:"since when its keys are refused"`
	Limits   Limits      `json:"limits"`
	Usage    TenantUsage `json:"usage"`
}

// NewTenant asks for a tenant.
type NewTenant struct {
	ID     string `json:"id" minLength:"1" maxLength:"63"`
	Limits Limits `json:"limits,omitempty"`
}

// Limits bound what one tenant may use. Zero means no limit.
type Limits struct {
	Sandboxes     int64   `json:"boxes,omitempty" minimum:"0" doc:"sandboxes that are not gone"`
	CPUs          float64 `json:"cpus,omitempty" minimum:"0" doc:"processors' worth of time of the sandboxes that may run"`
	Memory        int64   `json:"memory,omitempty" minimum:"0" doc:"bytes of memory of the sandboxes that may run"`
	Disk          int64   `json:"disk,omitempty" minimum:"0" doc:"bytes of the writable layers of all sandboxes that are not gone"`
	Snapshots     int64   `json:"snapshots,omitempty" minimum:"0" doc:"snapshots with a name"`
	SnapshotBytes int64   `json:"snapshotBytes,omitempty" minimum:"0" doc:"bytes of all snapshots, including those of stopped sandboxes"`
	ExecRate      float64 `json:"execRate,omitempty" minimum:"0" doc:"commands started per second"`
	ExecBurst     int     `json:"execBurst,omitempty" minimum:"0" doc:"commands that may start at once; one second's worth, at least 1, if it is left out"`
	OutputRate    int64   `json:"outputRate,omitempty" minimum:"0" doc:"bytes of command output per second; more is slowed down"`
	OutputBurst   int64   `json:"outputBurst,omitempty" minimum:"0" doc:"bytes at once, at least 64 KiB; one second's worth if it is left out"`
	WarmHours     float64 `json:"warmHours,omitempty" minimum:"0" doc:"hours per calendar month (UTC) that sandboxes of sessions may exist, in total; running turns continue"`
}

// Validate returns an *Error with CodeInvalid for the first limit that is
// negative or not a finite number.
func (l Limits) Validate() error {
	for name, v := range map[string]float64{
		"boxes": float64(l.Sandboxes), "cpus": l.CPUs, "memory": float64(l.Memory), "disk": float64(l.Disk),
		"snapshots": float64(l.Snapshots), "snapshotBytes": float64(l.SnapshotBytes),
		"execRate": l.ExecRate, "execBurst": float64(l.ExecBurst),
		"outputRate": float64(l.OutputRate), "outputBurst": float64(l.OutputBurst),
		"warmHours": l.WarmHours,
	} {
		if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: name, Message: "a limit is 0 for none, or positive"}
		}
	}
	return nil
}

// TenantChange describes changes to a tenant. Fields that are nil stay as they
// are.
type TenantChange struct {
	Limits   *LimitsChange `json:"limits,omitempty"`
	Disabled *bool         `json:"disabled,omitempty" doc:"refuse its keys from now on, or allow them again"`
}

// LimitsChange describes changes to Limits. Fields that are nil stay as they
// are. Zero removes a limit.
type LimitsChange struct {
	Sandboxes     *int64   `json:"boxes,omitempty" minimum:"0"`
	CPUs          *float64 `json:"cpus,omitempty" minimum:"0"`
	Memory        *int64   `json:"memory,omitempty" minimum:"0"`
	Disk          *int64   `json:"disk,omitempty" minimum:"0"`
	Snapshots     *int64   `json:"snapshots,omitempty" minimum:"0"`
	SnapshotBytes *int64   `json:"snapshotBytes,omitempty" minimum:"0"`
	ExecRate      *float64 `json:"execRate,omitempty" minimum:"0"`
	ExecBurst     *int     `json:"execBurst,omitempty" minimum:"0"`
	OutputRate    *int64   `json:"outputRate,omitempty" minimum:"0"`
	OutputBurst   *int64   `json:"outputBurst,omitempty" minimum:"0"`
	WarmHours     *float64 `json:"warmHours,omitempty" minimum:"0"`
}

// Apply returns l with the changes made.
func (c LimitsChange) Apply(l Limits) Limits {
	field.Change(&l.Sandboxes, c.Sandboxes)
	field.Change(&l.CPUs, c.CPUs)
	field.Change(&l.Memory, c.Memory)
	field.Change(&l.Disk, c.Disk)
	field.Change(&l.Snapshots, c.Snapshots)
	field.Change(&l.SnapshotBytes, c.SnapshotBytes)
	field.Change(&l.ExecRate, c.ExecRate)
	field.Change(&l.ExecBurst, c.ExecBurst)
	field.Change(&l.OutputRate, c.OutputRate)
	field.Change(&l.OutputBurst, c.OutputBurst)
	field.Change(&l.WarmHours, c.WarmHours)
	return l
}

// TenantUsage is what a tenant uses.
type TenantUsage struct {
	Sandboxes int64   `json:"boxes"`
	CPUs      float64 `json:"cpus"`
	Memory    int64   `json:"memory" doc:"bytes"`
	Disk      int64   `json:"disk" doc:"bytes"`

	Snapshots     int64 `json:"snapshots" doc:"those with a name"`
	SnapshotBytes int64 `json:"snapshotBytes" doc:"of all snapshots"`

	WarmHours float64 `json:"warmHours,omitempty" doc:"hours of this calendar month (UTC) that sandboxes of sessions existed"`
}

// Finding is one result of a diagnosis.
type Finding struct {
	Severity string `json:"severity" enum:"ok,note,warning,blocker"` // blocker: no sandbox can be made until it is fixed
	Subject  string `json:"subject"`
	Message  string `json:"message"`
	Fix      string `json:"fix,omitempty" doc:"what to do about it"`
}

// Diagnosis is the health of a daemon.
type Diagnosis struct {
	Version  string    `json:"version,omitempty" doc:"of the program"`
	Node     string    `json:"node"`
	Healthy  bool      `json:"healthy" doc:"no finding is a blocker"`
	Findings []Finding `json:"findings"`
}

// ImageUse is an image that a stopped sandbox, a snapshot or a template needs.
type ImageUse struct {
	Image string `json:"image" doc:"its digest, else its name"`
	By    string `json:"by" doc:"description of the sandbox, snapshot or template that needs it"`
}

// AuditReport is the result of checking a tenant's log.
type AuditReport struct {
	Records  int64     `json:"records" doc:"number of valid records, from the first that still exists"`
	Pruned   int64     `json:"pruned,omitempty" doc:"the last record that was removed on purpose"`
	PrunedAt time.Time `json:"prunedAt,omitzero" doc:"when that was"`
	Anchored int64     `json:"anchored" doc:"last record that is covered by a head stored outside the log"`
	Sound    bool      `json:"sound"`
	Fault    string    `json:"fault,omitempty"`
	FaultSeq int64     `json:"faultSeq,omitempty"`
}

// AuditPrune selects records of a log to remove: the oldest, up to the first
// that does not match. Without Before and UpTo none are removed.
type AuditPrune struct {
	Tenant string    `json:"tenant,omitempty" maxLength:"63" doc:"tenant of the log; your own if left out"`
	Before time.Time `json:"before,omitzero" doc:"only records older than this"`
	UpTo   int64     `json:"upTo,omitempty" minimum:"0" doc:"only records up to this number"`
}

// AuditPruned says which records were removed from a log.
type AuditPruned struct {
	Removed int64 `json:"removed" doc:"number of records"`
	Through int64 `json:"through,omitempty" doc:"the number of the last of them"`
}
