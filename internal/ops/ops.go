// Package ops lists the operations of the control plane, with the permission
// each needs and how it is recorded.
package ops

import (
	"slices"
	"strings"
)

// Verb is a permission of an API key. Admin includes the others.
type Verb string

// The verbs.
const (
	Read  Verb = "read"
	Exec  Verb = "exec"
	Write Verb = "write"
	Admin Verb = "admin"

	// Owner is no permission of keys. Only the owner of the machine has it.
	Owner Verb = "owner"
	// Page marks the keys of pages that a link of the owner signed in, which may
	// also use what OfPages names. No key can be asked for with it.
	Page Verb = "page"
)

// Verbs lists the permissions that a key can have.
func Verbs() []Verb { return []Verb{Read, Exec, Write, Admin} }

// Class is how an operation is recorded.
type Class uint8

const (
	// Recorded operations are recorded before they happen, and again with their
	// outcome.
	Recorded Class = iota
	// Glance operations only read the daemon's state, or are part of another
	// recorded operation. They are recorded only if they are refused.
	Glance
)

// Op is an operation. An operation that is not listed here needs Admin and is
// recorded.
type Op string

// The operations, by subject.
const (
	AuditPrune  Op = "audit.prune"
	AuditVerify Op = "audit.verify"

	ComputerAct  Op = "computer.act"
	ComputerView Op = "computer.view"

	DaemonConsole  Op = "daemon.console"
	DaemonDiagnose Op = "daemon.diagnose"
	DaemonE2B      Op = "daemon.e2b"

	EgressFlow Op = "egress.flow"
	EgressGet  Op = "egress.get"

	EventFollow Op = "event.follow"
	EventList   Op = "event.list"

	FilesExport Op = "files.export"
	FilesImport Op = "files.import"
	FilesList   Op = "files.list"
	FilesMkdir  Op = "files.mkdir"
	FilesMove   Op = "files.move"
	FilesRead   Op = "files.read"
	FilesRemove Op = "files.remove"
	FilesStat   Op = "files.stat"
	FilesWatch  Op = "files.watch"
	FilesWrite  Op = "files.write"

	GitRead Op = "git.read"

	ImageGet    Op = "image.get"
	ImageImport Op = "image.import"
	ImageUses   Op = "image.uses"

	KeyCreate Op = "key.create"
	KeyList   Op = "key.list"
	KeyRevoke Op = "key.revoke"

	LoadGet Op = "load.get"

	MachineApprove Op = "machine.approve"
	MachineConsent Op = "machine.consent" // of the machine's owner, on the machine
	MachineInvite  Op = "machine.invite"
	MachineList    Op = "machine.list"
	MachineLookup  Op = "machine.lookup"
	MachineRevoke  Op = "machine.revoke"

	MetricsGet Op = "metrics.get"

	NodeChange Op = "node.change"
	NodeDrain  Op = "node.drain"
	NodeList   Op = "node.list"
	NodePlace  Op = "node.place"
	NodeRemove Op = "node.remove"

	PolicyExplain Op = "policy.explain"
	PolicyGet     Op = "policy.get"
	PolicyReload  Op = "policy.reload"

	PortList      Op = "port.list"
	PortOpen      Op = "port.open"
	PortPublish   Op = "port.publish"
	PortShare     Op = "port.share"
	PortUnpublish Op = "port.unpublish"

	PreviewCreate Op = "preview.create"
	PreviewList   Op = "preview.list"
	PreviewPublic Op = "preview.public"
	PreviewRemove Op = "preview.remove"

	ProcessClose     Op = "process.close"
	ProcessExec      Op = "process.exec"
	ProcessKill      Op = "process.kill"
	ProcessList      Op = "process.list"
	ProcessLogs      Op = "process.logs"
	ProcessReconnect Op = "process.reconnect"
	ProcessResize    Op = "process.resize"
	ProcessSignal    Op = "process.signal"
	ProcessWait      Op = "process.wait"

	ProfileApply  Op = "profile.apply"
	ProfileCreate Op = "profile.create"
	ProfileGet    Op = "profile.get"
	ProfileList   Op = "profile.list"
	ProfileRemove Op = "profile.remove"
	ProfileTest   Op = "profile.test"

	ProviderList  Op = "provider.list"
	ProviderProbe Op = "provider.probe"

	QuotaGet Op = "quota.get"

	RecordingFetch      Op = "recording.fetch"
	RecordingFetchInput Op = "recording.fetch_input" // of a recording with input
	RecordingList       Op = "recording.list"
	RecordingRemove     Op = "recording.remove"
	RecordingStart      Op = "recording.start"
	RecordingStop       Op = "recording.stop"

	SandboxAdopt    Op = "sandbox.adopt"
	SandboxCreate   Op = "sandbox.create"
	SandboxDestroy  Op = "sandbox.destroy"
	SandboxDiff     Op = "sandbox.diff"
	SandboxEnter    Op = "sandbox.enter"
	SandboxExpire   Op = "sandbox.expire"
	SandboxFind     Op = "sandbox.find"
	SandboxFork     Op = "sandbox.fork"
	SandboxGet      Op = "sandbox.get"
	SandboxIdle     Op = "sandbox.idle"
	SandboxKill     Op = "sandbox.kill"
	SandboxList     Op = "sandbox.list"
	SandboxObserve  Op = "sandbox.observe"
	SandboxPause    Op = "sandbox.pause"
	SandboxResume   Op = "sandbox.resume"
	SandboxSnapshot Op = "sandbox.snapshot"
	SandboxStart    Op = "sandbox.start"
	SandboxStop     Op = "sandbox.stop"
	SandboxSweep    Op = "sandbox.sweep"
	SandboxUpdate   Op = "sandbox.update"
	SandboxUsage    Op = "sandbox.usage"
	SandboxWait     Op = "sandbox.wait"
	SandboxWake     Op = "sandbox.wake"

	SecretCreate Op = "secret.create"
	SecretList   Op = "secret.list"
	SecretRemove Op = "secret.remove"
	SecretRotate Op = "secret.rotate"
	SecretUse    Op = "secret.use"

	SessionAcquire   Op = "session.acquire"
	SessionCreate    Op = "session.create"
	SessionDrain     Op = "session.drain"
	SessionEnvelope  Op = "session.envelope"
	SessionGet       Op = "session.get"
	SessionHeartbeat Op = "session.heartbeat"
	SessionList      Op = "session.list"
	SessionRelease   Op = "session.release"
	SessionRemove    Op = "session.remove"
	SessionResume    Op = "session.resume"
	SessionRoute     Op = "session.route"
	SessionRunOn     Op = "session.run_on"
	SessionSave      Op = "session.save"
	SessionSwap      Op = "session.swap"
	SessionTargets   Op = "session.targets"
	SessionUpdate    Op = "session.update"

	SnapshotCreate    Op = "snapshot.create"
	SnapshotExport    Op = "snapshot.export"
	SnapshotForgotten Op = "snapshot.forgotten"
	SnapshotGet       Op = "snapshot.get"
	SnapshotImport    Op = "snapshot.import"
	SnapshotKept      Op = "snapshot.kept"
	SnapshotList      Op = "snapshot.list"
	SnapshotRecorded  Op = "snapshot.recorded"
	SnapshotRemove    Op = "snapshot.remove"

	StateBackup Op = "state.backup"

	StreamControl Op = "stream.control"
	StreamList    Op = "stream.list"
	StreamRevoke  Op = "stream.revoke"
	StreamView    Op = "stream.view"

	TemplateBuild     Op = "template.build"
	TemplateGet       Op = "template.get"
	TemplateList      Op = "template.list"
	TemplatePrune     Op = "template.prune"
	TemplatePublish   Op = "template.publish"
	TemplateRemove    Op = "template.remove"
	TemplateTag       Op = "template.tag"
	TemplateUnpublish Op = "template.unpublish"

	TenantCreate  Op = "tenant.create"
	TenantDisable Op = "tenant.disable"
	TenantGet     Op = "tenant.get"
	TenantLimits  Op = "tenant.limits"
	TenantList    Op = "tenant.list"

	UsageGet Op = "usage.get"

	WorkspaceCreate  Op = "workspace.create"
	WorkspaceDetach  Op = "workspace.detach"
	WorkspaceDiff    Op = "workspace.diff"
	WorkspaceEnter   Op = "workspace.enter"
	WorkspaceGet     Op = "workspace.get"
	WorkspaceHistory Op = "workspace.history"
	WorkspaceList    Op = "workspace.list"
	WorkspacePersist Op = "workspace.persist"
	WorkspacePrune   Op = "workspace.prune"
	WorkspaceRead    Op = "workspace.read"
	WorkspaceRemove  Op = "workspace.remove"
	WorkspaceRestore Op = "workspace.restore"
	WorkspaceVerify  Op = "workspace.verify"
	WorkspaceWrite   Op = "workspace.write"
)

// about is the permission and the class of an operation.
type about struct {
	verb  Verb
	class Class
}

var table = map[Op]about{
	AuditPrune:  {Owner, Recorded},
	AuditVerify: {Admin, Recorded},

	ComputerAct:  {Exec, Recorded},
	ComputerView: {Read, Recorded},

	DaemonConsole:  {Owner, Recorded},
	DaemonDiagnose: {Owner, Glance},
	DaemonE2B:      {Owner, Recorded},

	EgressFlow: {Admin, Recorded},
	EgressGet:  {Admin, Recorded},

	EventFollow: {Read, Glance},
	EventList:   {Read, Glance},

	FilesExport: {Read, Recorded},
	FilesImport: {Write, Recorded},
	FilesList:   {Read, Glance},
	FilesMkdir:  {Write, Recorded},
	FilesMove:   {Write, Recorded},
	FilesRead:   {Read, Recorded},
	FilesRemove: {Write, Recorded},
	FilesStat:   {Read, Glance},
	FilesWatch:  {Read, Recorded},
	FilesWrite:  {Write, Recorded},

	GitRead: {Read, Recorded},

	ImageGet:    {Read, Recorded},
	ImageImport: {Write, Recorded},
	ImageUses:   {Owner, Glance},

	KeyCreate: {Admin, Recorded},
	KeyList:   {Admin, Glance},
	KeyRevoke: {Admin, Recorded},

	LoadGet: {Read, Glance},

	MachineApprove: {Admin, Recorded},
	MachineConsent: {Admin, Recorded},
	MachineInvite:  {Admin, Recorded},
	MachineList:    {Read, Glance},
	MachineLookup:  {Admin, Glance},
	MachineRevoke:  {Admin, Recorded},

	MetricsGet: {Read, Glance},

	NodeChange: {Owner, Recorded},
	NodeDrain:  {Owner, Recorded},
	NodeList:   {Owner, Glance},
	NodePlace:  {Admin, Recorded},
	NodeRemove: {Owner, Recorded},

	PolicyExplain: {Read, Glance},
	PolicyGet:     {Read, Glance},
	PolicyReload:  {Owner, Recorded},

	PortList:      {Read, Glance},
	PortOpen:      {Exec, Recorded},
	PortPublish:   {Owner, Recorded},
	PortShare:     {Exec, Recorded},
	PortUnpublish: {Owner, Recorded},

	PreviewCreate: {Write, Recorded},
	PreviewList:   {Read, Glance},
	PreviewPublic: {Admin, Recorded},
	PreviewRemove: {Write, Recorded},

	ProcessClose:     {Exec, Glance},
	ProcessExec:      {Exec, Recorded},
	ProcessKill:      {Exec, Recorded},
	ProcessList:      {Read, Glance},
	ProcessLogs:      {Read, Recorded},
	ProcessReconnect: {Exec, Recorded},
	ProcessResize:    {Exec, Glance},
	ProcessSignal:    {Exec, Recorded},
	ProcessWait:      {Read, Glance},

	ProfileApply:  {Admin, Recorded},
	ProfileCreate: {Admin, Recorded},
	ProfileGet:    {Read, Glance},
	ProfileList:   {Read, Glance},
	ProfileRemove: {Admin, Recorded},
	ProfileTest:   {Read, Glance},

	ProviderList:  {Read, Glance},
	ProviderProbe: {Admin, Recorded},

	QuotaGet: {Read, Glance},

	RecordingFetch:      {Read, Recorded},
	RecordingFetchInput: {Exec, Recorded},
	RecordingList:       {Read, Glance},
	RecordingRemove:     {Write, Recorded},
	RecordingStart:      {Exec, Recorded},
	RecordingStop:       {Exec, Recorded},

	SandboxAdopt:    {Admin, Recorded},
	SandboxCreate:   {Write, Recorded},
	SandboxDestroy:  {Write, Recorded},
	SandboxDiff:     {Read, Recorded},
	SandboxEnter:    {Admin, Recorded},
	SandboxExpire:   {Admin, Recorded},
	SandboxFind:     {Read, Glance},
	SandboxFork:     {Write, Recorded},
	SandboxGet:      {Read, Glance},
	SandboxIdle:     {Admin, Recorded},
	SandboxKill:     {Write, Recorded},
	SandboxList:     {Read, Glance},
	SandboxObserve:  {Admin, Recorded},
	SandboxPause:    {Write, Recorded},
	SandboxResume:   {Write, Recorded},
	SandboxSnapshot: {Admin, Recorded},
	SandboxStart:    {Write, Recorded},
	SandboxStop:     {Write, Recorded},
	SandboxSweep:    {Admin, Recorded},
	SandboxUpdate:   {Write, Recorded},
	SandboxUsage:    {Read, Glance},
	SandboxWait:     {Read, Glance},
	SandboxWake:     {Admin, Recorded},

	SecretCreate: {Admin, Recorded},
	SecretList:   {Read, Glance},
	SecretRemove: {Admin, Recorded},
	SecretRotate: {Admin, Recorded},
	SecretUse:    {Admin, Recorded},

	SessionAcquire:   {Exec, Recorded},
	SessionCreate:    {Write, Recorded},
	SessionDrain:     {Admin, Recorded},
	SessionEnvelope:  {Read, Recorded},
	SessionGet:       {Read, Glance},
	SessionHeartbeat: {Exec, Glance},
	SessionList:      {Read, Glance},
	SessionRelease:   {Exec, Recorded},
	SessionRemove:    {Write, Recorded},
	SessionResume:    {Write, Recorded},
	SessionRoute:     {Read, Glance},
	SessionRunOn:     {Exec, Recorded},
	SessionSave:      {Write, Recorded},
	SessionSwap:      {Write, Recorded},
	SessionTargets:   {Read, Glance},
	SessionUpdate:    {Write, Recorded},

	SnapshotCreate:    {Write, Recorded},
	SnapshotExport:    {Exec, Recorded},
	SnapshotForgotten: {Admin, Recorded},
	SnapshotGet:       {Read, Recorded},
	SnapshotImport:    {Write, Recorded},
	SnapshotKept:      {Admin, Recorded},
	SnapshotList:      {Read, Recorded},
	SnapshotRecorded:  {Admin, Recorded},
	SnapshotRemove:    {Write, Recorded},

	StateBackup: {Owner, Recorded},

	StreamControl: {Exec, Recorded},
	StreamList:    {Read, Glance},
	StreamRevoke:  {Exec, Recorded},
	StreamView:    {Read, Recorded},

	TemplateBuild:     {Write, Recorded},
	TemplateGet:       {Read, Glance},
	TemplateList:      {Read, Glance},
	TemplatePrune:     {Write, Recorded},
	TemplatePublish:   {Admin, Recorded},
	TemplateRemove:    {Write, Recorded},
	TemplateTag:       {Write, Recorded},
	TemplateUnpublish: {Write, Recorded},

	TenantCreate:  {Owner, Recorded},
	TenantDisable: {Owner, Recorded},
	TenantGet:     {Owner, Glance},
	TenantLimits:  {Owner, Recorded},
	TenantList:    {Owner, Glance},

	UsageGet: {Read, Glance},

	WorkspaceCreate:  {Write, Recorded},
	WorkspaceDetach:  {Admin, Recorded},
	WorkspaceDiff:    {Read, Glance},
	WorkspaceEnter:   {Admin, Recorded},
	WorkspaceGet:     {Read, Glance},
	WorkspaceHistory: {Read, Glance},
	WorkspaceList:    {Read, Glance},
	WorkspacePersist: {Write, Recorded},
	WorkspacePrune:   {Write, Recorded},
	WorkspaceRead:    {Read, Recorded},
	WorkspaceRemove:  {Write, Recorded},
	WorkspaceRestore: {Write, Recorded},
	WorkspaceVerify:  {Read, Glance},
	WorkspaceWrite:   {Write, Recorded},
}

// All lists the operations by name.
func All() []Op {
	all := make([]Op, 0, len(table))
	for o := range table {
		all = append(all, o)
	}
	slices.Sort(all)
	return all
}

// Verb returns the permission that the operation needs.
func (o Op) Verb() Verb {
	if a, ok := table[o]; ok {
		return a.verb
	}
	return Admin
}

// Class returns how the operation is recorded.
func (o Op) Class() Class { return table[o].class }

// OfPages reports whether the operation is one of the owner's that pages may use
// which a link of the owner signed in. None of them leads to files or programs of
// the machine.
func (o Op) OfPages() bool {
	area, _, _ := strings.Cut(string(o), ".")
	return area == "node" || o == TenantList
}

// frees are the operations that free space or revoke access.
var frees = []Op{
	AuditPrune, FilesRemove, KeyRevoke, MachineRevoke, NodeRemove, PreviewRemove, ProfileRemove, SandboxDestroy, SandboxExpire, SandboxIdle, SandboxKill, SandboxSweep,
	SecretRemove, SessionRemove, SnapshotRemove, StreamRevoke, TemplatePrune, TemplateRemove, TemplateUnpublish, TenantDisable, WorkspaceDetach, WorkspacePrune, WorkspaceRemove,
}

// Frees reports whether the operation is possible on a full disk: it frees
// space or revokes access.
func (o Op) Frees() bool { return slices.Contains(frees, o) }

// Inside reports whether the operation takes place in one sandbox, so that the
// sandbox's own token allows it.
func (o Op) Inside() bool {
	if o == SandboxFind || o == SandboxUsage {
		return true
	}
	area, _, _ := strings.Cut(string(o), ".")
	return area == "process" || area == "files" || area == "port"
}
