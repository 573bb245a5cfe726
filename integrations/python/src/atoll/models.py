"""Values of the API. Generated from docs/openapi.json by scripts/generate.py; do not edit."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AwareDatetime

from atoll._model import Cells, Model


class Archive(Model):
    binding: str | None = None
    hash: str | None = None
    kind: str
    provider: str | None = None
    ref: str
    size: int | None = None


class ArchiveFile(Model):
    hash: str
    """
    sha256: and 64 hexadecimal digits
    """
    size: int
    """
    bytes
    """


class Attachment(Model):
    mode: Literal["exclusive", "shared", "read"]
    sandbox: str
    """
    id of the sandbox
    """
    since: AwareDatetime


class AuditPrune(Model):
    before: AwareDatetime | None = None
    """
    only records older than this
    """
    tenant: str | None = None
    """
    tenant of the log; your own if left out
    """
    up_to: int | None = None
    """
    only records up to this number
    """


class AuditPruned(Model):
    removed: int
    """
    number of records
    """
    through: int | None = None
    """
    the number of the last of them
    """


class AuditReport(Model):
    anchored: int
    """
    last record that is covered by a head stored outside the log
    """
    fault: str | None = None
    fault_seq: int | None = None
    pruned: int | None = None
    """
    the last record that was removed on purpose
    """
    pruned_at: AwareDatetime | None = None
    """
    when that was
    """
    records: int
    """
    number of valid records, from the first that still exists
    """
    sound: bool


class Caller(Model):
    key: str | None = None
    """
    public part of the key
    """
    machines: bool
    """
    whether self-hosted machines can connect to this daemon
    """
    nodes: bool
    """
    whether the caller may manage the nodes of this daemon
    """
    owner: bool
    """
    whether this is the owner of the machine
    """
    tenant: str
    tenants: bool
    """
    whether the caller may list the tenants of this daemon
    """
    verbs: list[str] | None
    """
    permissions: read, exec, write, admin
    """


class Candidate(Model):
    fits: bool
    provider: str
    reasons: list[str] | None


class Choice(Model):
    candidates: list[Candidate] | None
    choice: str | None = None


class CodeContext(Model):
    dir: str
    """
    where it started
    """
    id: str
    language: str


class CodeError(Model):
    name: str
    traceback: str
    value: str


class CodeRequest(Model):
    code: str
    """
    the code
    """
    context: str | None = None
    """
    id of a context, instead of the default one of the language
    """
    env: dict[str, str] | None = None
    """
    environment for this execution
    """
    language: str | None = None
    """
    python, javascript, typescript, bash, r or java, as far as the image has them; python if it is left out
    """
    timeout_ms: int | None = None
    """
    milliseconds after which the code is interrupted; 0 or left out: never
    """


class CodeResult(Model):
    chart: Any | None = None
    """
    what a figure shows, in the form of E2B's SDKs
    """
    data: Any | None = None
    """
    columns of a table
    """
    html: str | None = None
    javascript: str | None = None
    jpeg: str | None = None
    json_: Any | None = None
    latex: str | None = None
    main: bool | None = None
    """
    the value of the last expression
    """
    markdown: str | None = None
    pdf: str | None = None
    png: str | None = None
    svg: str | None = None
    text: str | None = None


class ComputerUseCell(Model):
    available: bool
    read_only: bool
    reason: str | None = None


class ConsoleLink(Model):
    expires: AwareDatetime
    """
    of the code
    """
    url: str
    """
    with a code that is valid once
    """


class ConsoleSettings(Model):
    listen: str | None = None


class ContextsOutputBody(Model):
    contexts: list[CodeContext] | None


class Credential(Model):
    env: str
    name: str
    required: bool
    secret: bool
    with_: str | None = None


class DesktopInputBody(Model):
    dpi: int | None = None
    """
    96 if left out
    """
    height: int | None = None
    """
    pixels; 800 if left out, or what it has
    """
    vnc: bool | None = None
    """
    start a VNC server too, for streams
    """
    width: int | None = None
    """
    pixels, together with height; 1280 if left out, or what it has
    """


class DesktopState(Model):
    height: int
    port: int | None = None
    """
    of its VNC server, inside the sandbox; left out if none was started
    """
    width: int


class DesktopSupport(Model):
    available: bool
    transport: str | None = None


class DriverSupport(Model):
    available: bool
    reason: str | None = None


class E2BPlace(Model):
    address: str
    domain: str | None = None


class E2BSettings(Model):
    domain: str | None = None
    internet: bool | None = None
    listen: str


class EgressSettingsOutputBody(Model):
    fingerprints: dict[str, str]


class Enforcement(Model):
    enforced: bool
    why: str | None = None


class Epoch(Model):
    began: AwareDatetime
    ended: AwareDatetime | None = None
    """
    left out while it serves the session
    """
    epoch: int
    holders: list[str] | None = None
    """
    kinds and ids of the holders when it began and when it ended
    """
    provider: str
    sandbox: str
    why: str | None = None
    """
    why it ended
    """


class Event(Model):
    argc: int | None = None
    args: list[str] | None = None
    bytes: int | None = None
    code: str | None = None
    """
    of a failure
    """
    cols: int | None = None
    """
    of a terminal, when it began
    """
    cwd: str | None = None
    """
    where the command of a terminal began, if that was asked for
    """
    duration_ms: int | None = None
    """
    how long a command ran, in milliseconds
    """
    epoch: int | None = None
    """
    which sandbox of a session, counted from 1
    """
    exit: int | None = None
    key: str | None = None
    """
    public part of the caller's API key
    """
    labels: dict[str, str] | None = None
    """
    labels that the sandbox had then
    """
    name: str | None = None
    """
    of the sandbox
    """
    node: str | None = None
    """
    the daemon that recorded it
    """
    op: str
    """
    the operation
    """
    policy: str | None = None
    """
    the rule that decided
    """
    program: str | None = None
    reason: str | None = None
    ref: int | None = None
    """
    seq of the attempted event that this is the outcome of
    """
    request: str | None = None
    """
    id of the request
    """
    rows: int | None = None
    sandbox: str | None = None
    seq: int
    """
    1, 2, 3, …; the cursor
    """
    subject: str | None = None
    """
    object of the operation, such as a path
    """
    time: AwareDatetime
    trace: str | None = None
    """
    id of the request's trace
    """
    type: str
    uid: int | None = None
    """
    user id of the caller on the local socket
    """
    viewers: int | None = None
    """
    of a stream, afterwards
    """


class EventsOutputBody(Model):
    events: list[Event] | None
    """
    oldest first
    """


class Exit(Model):
    code: int
    detail: str | None = None
    reason: str
    """
    exited, signaled, timeout, memory, killed, lifetime, crashed or lost
    """
    signal: int | None = None


class ExplainStep(Model):
    action: str
    matches: bool
    rule: str
    why: str | None = None
    """
    why it does not match
    """


class Fault(Model):
    field: str
    message: str


class FileInfo(Model):
    gid: int
    identity: int | None = None
    mod_time: AwareDatetime
    mode: int
    nlink: int | None = None
    path: str
    size: int
    target: str | None = None
    type: Literal["file", "dir", "symlink", "fifo", "socket", "device"]
    uid: int


class FileSystemCell(Model):
    available: bool
    path_sep: str
    read_only: bool
    reason: str | None = None
    root: str
    tree_mode: str


class FileSystemSupport(Model):
    available: bool
    read_only: bool


class Filter(Model):
    bytes: int | None = None
    """
    for size: the maximum; for regex: how much of a body is buffered and searched, 1 MiB if left out
    """
    direction: Literal["request", "response", "both"] | None = None
    """
    both if left out
    """
    pattern: str | None = None
    """
    for regex: RE2, searched in the body
    """
    type: Literal["regex", "size", "content_type"]
    types: list[str] | None = None
    """
    for content_type: the allowed types, such as application/json or text/*
    """


class Finding(Model):
    fix: str | None = None
    """
    what to do about it
    """
    message: str
    severity: Literal["ok", "note", "warning", "blocker"]
    subject: str


class ForkRequest(Model):
    count: int | None = 1
    labels: dict[str, str] | None = None
    """
    added to those of the parent
    """
    prefix: str | None = None
    """
    prefix of their names, PREFIX-1 and so on; their ids if it is left out
    """


class GitBlameLine(Model):
    commit: str
    """
    sha
    """
    no: int
    """
    number of the line
    """
    text: str


class GitBlob(Model):
    content: str
    size: int
    """
    bytes of the whole file
    """
    truncated: bool | None = None
    """
    the file has more than was asked for
    """


class GitCell(Model):
    available: bool
    reason: str | None = None
    repos: list[str] | None


class GitFileStatus(Model):
    conflicted: bool | None = None
    index: str | None = None
    """
    the index compared with the commit
    """
    old_path: str | None = None
    """
    of a renamed or copied file
    """
    path: str
    worktree: str | None = None
    """
    the working tree compared with the index
    """


class GitLine(Model):
    new_no: int | None = None
    no_end: bool | None = None
    """
    the file ends here, without an end of the line
    """
    old_no: int | None = None
    """
    number of the line before; left out for an added one
    """
    text: str
    """
    without the end of the line
    """
    type: Literal["context", "add", "del"]


class GitPerson(Model):
    email: str
    name: str
    time: AwareDatetime


class GitStatus(Model):
    ahead: int
    """
    commits that the upstream lacks
    """
    behind: int
    """
    commits of the upstream that are missing here
    """
    commit: str | None = None
    """
    the current commit; empty before the first one
    """
    detached: bool | None = None
    files: list[GitFileStatus] | None
    head: str | None = None
    """
    the current branch; empty if HEAD is detached
    """
    is_repo: bool
    root: str | None = None
    """
    the top directory of the working tree; paths are relative to it
    """
    truncated: bool | None = None
    upstream: str | None = None


class Holder(Model):
    beat: AwareDatetime
    id: str
    kind: str
    subject: str | None = None


class HolderRef(Model):
    epoch: int | None = None
    """
    fail with the code stale if the sandbox is at another epoch
    """
    holder: str
    """
    unique among the holders of that kind
    """
    kind: Literal["turn", "viewer", "operator"] | None = None
    """
    viewers and operators expire without heartbeats; operator if it is left out
    """


class ImageUse(Model):
    by: str
    """
    description of the sandbox, snapshot or template that needs it
    """
    image: str
    """
    its digest, else its name
    """


class ImageUsesOutputBody(Model):
    uses: list[ImageUse] | None


class InjectPart(Model):
    audience: str | None = None
    """
    audience of an identity token of the sandbox that goes here: a short-lived JSON Web Token, signed by the daemon
    """
    secret: str | None = None
    """
    name of the secret whose value goes here
    """
    text: str | None = None
    """
    as it is
    """


class Injection(Model):
    access_key: str | None = None
    """
    for sigv4: the id that belongs to the secret key
    """
    format: str | None = None
    """
    of the header's value, with {} in place of the secret; {} if left out
    """
    mode: Literal["header", "bearer", "basic", "query", "sigv4", "parts"]
    name: str | None = None
    """
    of the header or query parameter
    """
    parts: list[InjectPart] | None = None
    """
    for parts: texts, secrets and identity tokens that make up the header's value, in order
    """
    region: str | None = None
    """
    for sigv4
    """
    secret: str | None = None
    """
    name of the secret; left out for parts
    """
    service: str | None = None
    """
    for sigv4
    """
    session_token: str | None = None
    """
    for sigv4: name of the secret that holds the session token
    """
    username: str | None = None
    """
    for basic
    """


class Key(Model):
    created: AwareDatetime
    expires: AwareDatetime | None = None
    """
    never if it is left out
    """
    id: str
    """
    its public part
    """
    name: str | None = None
    page: bool | None = None
    """
    of a page of the console that a link of the owner of the machine signed in
    """
    revoked: AwareDatetime | None = None
    token: str | None = None
    """
    the key itself; only in the response that creates it
    """
    verbs: list[str] | None
    """
    permissions: read, exec, write, admin
    """


class KeysOutputBody(Model):
    keys: list[Key] | None
    """
    oldest first
    """


class KillInputBody(Model):
    signal: int
    """
    number of the signal on Linux
    """


class LeaseInfo(Model):
    epoch: int
    expires: AwareDatetime | None = None
    history: list[Epoch] | None = None
    """
    the latest epochs, the present one first; not in lists
    """
    holders: list[Holder] | None
    idle: AwareDatetime | None = None
    provider: str | None = None
    sandbox: str | None = None
    state: str


class Lifetime(Model):
    idle_action: Literal["pause", "sleep", "stop", "delete"] | None = None
    """
    pause in memory, sleep on disk, stop and keep the files, or delete; stop if it is left out
    """
    idle_ms: int | None = None
    """
    how long it may be unused before idleAction, in milliseconds; no limit if it is left out
    """
    timeout_action: Literal["sleep", "stop", "delete"] | None = None
    """
    what happens then; delete if it is left out
    """
    timeout_ms: int | None = None
    """
    how long the sandbox may run, in milliseconds; no limit if it is left out
    """
    wakes: bool | None = None
    """
    resume a paused sandbox when it is used, even if a caller paused it
    """


class LifetimeChange(Model):
    idle_action: Literal["pause", "sleep", "stop", "delete"] | None = None
    idle_ms: int | None = None
    """
    in milliseconds; 0: never idle
    """
    timeout_action: Literal["sleep", "stop", "delete"] | None = None
    timeout_ms: int | None = None
    """
    how long the sandbox may run from now on, in milliseconds; 0: no limit
    """
    wakes: bool | None = None


class LifetimeSupport(Model):
    hard: int | None = None
    idle_killer: bool
    lock_free_resume: bool
    rollover: bool
    suspend: bool


class Limits(Model):
    boxes: int | None = None
    """
    sandboxes that are not gone
    """
    cpus: float | None = None
    """
    processors' worth of time of the sandboxes that may run
    """
    disk: int | None = None
    """
    bytes of the writable layers of all sandboxes that are not gone
    """
    exec_burst: int | None = None
    """
    commands that may start at once; one second's worth, at least 1, if it is left out
    """
    exec_rate: float | None = None
    """
    commands started per second
    """
    memory: int | None = None
    """
    bytes of memory of the sandboxes that may run
    """
    output_burst: int | None = None
    """
    bytes at once, at least 64 KiB; one second's worth if it is left out
    """
    output_rate: int | None = None
    """
    bytes of command output per second; more is slowed down
    """
    snapshot_bytes: int | None = None
    """
    bytes of all snapshots, including those of stopped sandboxes
    """
    snapshots: int | None = None
    """
    snapshots with a name
    """
    warm_hours: float | None = None
    """
    hours per calendar month (UTC) that sandboxes of sessions may exist, in total; running turns continue
    """


class LimitsChange(Model):
    boxes: int | None = None
    cpus: float | None = None
    disk: int | None = None
    exec_burst: int | None = None
    exec_rate: float | None = None
    memory: int | None = None
    output_burst: int | None = None
    output_rate: int | None = None
    snapshot_bytes: int | None = None
    snapshots: int | None = None
    warm_hours: float | None = None


class Load(Model):
    images: list[str] | None
    """
    names of the images that are stored there
    """
    isolation: Literal["none", "kernel", "hardware"] | None = None
    """
    what isolates a new sandbox there; missing: it is not known
    """
    memory_free: int
    """
    free memory of the machine, in bytes
    """
    memory_reserved: int
    """
    memory that the running sandboxes may use, in bytes
    """
    memory_total: int
    """
    memory of the machine, in bytes
    """
    sandboxes: int
    """
    how many there are
    """


class Machine(Model):
    approved: AwareDatetime | None = None
    arch: str | None = None
    consents: list[Literal["sandboxes", "whole-machine", "screen", "updates"]] | None = None
    """
    what its owner agreed to, as it said last; of a pending machine, what it asks for; of an invited one, what its token allows
    """
    created: AwareDatetime | None = None
    directory: str | None = None
    """
    where commands of the mode whole-machine run
    """
    expires: AwareDatetime | None = None
    """
    when a pending or invited machine is forgotten
    """
    id: str
    key: str | None = None
    """
    the public key that it proves to have
    """
    liveness: Literal["online", "reconnecting", "offline"]
    """
    whether it answers
    """
    mode: Literal["sandboxes", "whole-machine"]
    """
    what its owner offers: sandboxes, or commands with all rights of the owner
    """
    name: str
    """
    what its owner calls it
    """
    os: str | None = None
    provider: str | None = None
    """
    the provider that makes sandboxes there; none before it is approved
    """
    revoked: AwareDatetime | None = None
    seen: AwareDatetime | None = None
    """
    when it was heard of last
    """
    state: Literal["pending", "invited", "active", "revoked"]
    version: str | None = None
    """
    of its program
    """


class MachineApproval(Model):
    code: str
    """
    the code that the machine shows
    """
    consents: list[Literal["sandboxes", "whole-machine", "screen", "updates"]] | None = None
    """
    what the caller takes of what the machine's owner agreed to; whole-machine must be taken, and without screen it is not shared
    """
    whole_machine: bool | None = None
    """
    the same as whole-machine in consents
    """


class MachineToken(Model):
    machine: Machine
    token: str
    """
    only in this response
    """


class MachinesOutputBody(Model):
    machines: list[Machine] | None
    """
    oldest first
    """


class MkdirInputBody(Model):
    mode: int | None = None
    owner: str | None = None
    parents: bool | None = None
    """
    make missing parents; an existing directory is success
    """
    path: str


class Mount(Model):
    read_only: bool | None = None
    source: str
    target: str


class MoveInputBody(Model):
    from_: str
    overwrite: bool | None = None
    to: str


class Needs(Model):
    desktop: bool | None = None
    egress: str | None = None
    fork: bool | None = None
    images: bool | None = None
    isolated: bool | None = None
    isolation: str | None = None
    limits: list[str] | None = None
    mounts: bool | None = None
    own_files: bool | None = None
    pause: str | None = None
    ports: bool | None = None
    price: str | None = None
    provider: str | None = None
    snapshot: str | None = None
    user: bool | None = None


class NewCodeContext(Model):
    dir: str | None = None
    """
    its working directory; that of the interpreter if it is left out
    """
    language: str | None = None
    """
    python if it is left out
    """


class NewKey(Model):
    expires_ms: int | None = None
    """
    from now, in milliseconds; never if it is left out
    """
    name: str | None = None
    """
    a description for people
    """
    tenant: str | None = None
    """
    tenant of the key; a tenant other than your own only for the owner of the machine
    """
    verbs: list[str] | None
    """
    permissions: read, exec, write, admin
    """


class NewMachineToken(Model):
    consents: list[Literal["sandboxes", "whole-machine", "screen", "updates"]] | None = None
    """
    what the machine's owner may agree to, beside the mode sandboxes
    """
    name: str
    """
    name of the machine
    """
    whole_machine: bool | None = None
    """
    the same as whole-machine in consents
    """


class NewPortToken(Model):
    expires_ms: int | None = None
    """
    lifetime of the token in milliseconds; a day if it is left out
    """
    ports: list[int] | None = None
    """
    ports that the token is valid for; all if left out
    """


class NewSecret(Model):
    allow_env: bool | None = None
    """
    sandboxes may get the value itself
    """
    description: str | None = None
    hosts: list[str] | None = None
    """
    hosts that it may be sent to, such as api.example.com; if left out, only stored profiles may send it, to the hosts in their rules
    """
    labels: dict[str, str] | None = None
    name: str
    source: str | None = None
    """
    where the daemon reads the value from instead: env:NAME or file:/PATH; only for the owner of the machine
    """
    value: str | None = None
    """
    the value, if it is UTF-8
    """
    value_base64: str | None = None
    """
    the value, at most 64 KiB
    """


class NewTenant(Model):
    id: str
    limits: Limits | None = None


class NewWorkspace(Model):
    bucket: str | None = None
    """
    S3 bucket that holds the workspace, one that the owner of the machine has configured; without versions
    """
    encrypted: bool | None = None
    """
    encrypt what is stored with a key of the daemon
    """
    max_bytes: int | None = None
    """
    bytes that one version may hold; more cannot be persisted
    """
    name: str


class Node(Model):
    load: Load | None = None
    """
    as it was at the last answer
    """
    lost: bool | None = None
    """
    it was removed while it did not answer
    """
    name: str
    placed: int
    """
    sandboxes that this daemon has there
    """
    provider: str
    """
    the provider that makes sandboxes there
    """
    reason: str | None = None
    """
    why it gets no new sandboxes
    """
    removed: AwareDatetime | None = None
    seen: AwareDatetime | None = None
    """
    when it answered last
    """
    state: Literal["ready", "unreachable", "cordoned", "draining", "removed"]
    url: str


class NodeChange(Model):
    cordoned: bool | None = None
    """
    whether it gets no new sandboxes; false also ends a drain, and takes back a removed node
    """


class NodeDrain(Model):
    force: bool | None = None
    """
    end the sandboxes that belong to no session
    """


class NodeSandbox(Model):
    name: str
    reason: str | None = None
    """
    why it is still there
    """
    sandbox: str
    session: str | None = None
    tenant: str


class NodesOutputBody(Model):
    nodes: list[Node] | None
    """
    by name
    """


class NoteInputBody(Model):
    note: str | None = None
    """
    kept with the version
    """


class OSList(Model):
    default: str
    supported: list[str] | None


class Output(Model):
    data: str
    dropped: int | None = None
    """
    bytes that are missing at the end
    """
    encoding: Literal["utf-8", "base64"]
    truncated: bool


class PatchRequest(Model):
    dry_run: bool | None = None
    """
    only check whether the patch fits
    """
    patch: str
    """
    a unified diff, or a patch in the format of the apply_patch tool
    """
    path: str
    """
    absolute path of the directory that names in the patch are relative to
    """


class PatchedFile(Model):
    additions: int
    deletions: int
    old_path: str | None = None
    """
    of a renamed or copied file
    """
    path: str
    """
    as in the patch
    """
    status: Literal["added", "modified", "deleted", "renamed", "copied"]


class PauseInputBody(Model):
    to_disk: bool | None = None
    """
    pause on disk, without memory and processes; otherwise the processes are frozen in memory
    """


class Point(Model):
    x: int
    y: int


class PolicyFinding(Model):
    asked: str
    file: str
    limit: str
    line: int
    ok: bool
    rule: str
    """
    POLICY.FIELD
    """


class PortSupport(Model):
    kind: str
    on_demand: bool


class PortToken(Model):
    expires: AwareDatetime
    token: str
    """
    for the header Atoll-Token; shown only now
    """


class Preview(Model):
    expires: AwareDatetime | None = None
    """
    when the token expires
    """
    header: str | None = None
    """
    request header for the token
    """
    port: int
    """
    port inside the sandbox
    """
    public: bool
    """
    requests need no token
    """
    token: str | None = None
    """
    only in the response that creates the preview
    """
    url: str


class PreviewRequest(Model):
    port: int
    """
    port inside the sandbox
    """
    public: bool | None = None
    """
    the URL works without a token; needs the permission admin
    """


class PreviewsOutputBody(Model):
    previews: list[Preview] | None
    """
    by port, without tokens
    """


class Problem(Model):
    code: str
    detail: str | None = None
    faults: list[Fault] | None = None
    """
    what is wrong with the fields of the request
    """
    hint: str | None = None
    op: str | None = None
    request: str | None = None
    """
    for an internal error: id of the request in the log of the daemon
    """
    rule: str | None = None
    """
    policy rule that refused it, as POLICY.FIELD
    """
    status: int
    subject: str | None = None
    title: str


class ProcessInfo(Model):
    args: list[str] | None
    background: bool | None = None
    exit: Exit | None = None
    id: str
    pid: int
    running: bool
    started: AwareDatetime
    tty: bool | None = None


class ProcessesOutputBody(Model):
    processes: list[ProcessInfo] | None
    """
    oldest first
    """


class ProfileTest(Model):
    method: str | None = None
    """
    GET if it is left out
    """
    url: str
    """
    with the scheme https, http, wss, ws, or tcp for a bare connection
    """


class ProxyTLS(Model):
    ca: str | None = None
    """
    PEM certificates, trusted in place of the machine's
    """
    server_name: str | None = None
    """
    name in the certificate; the host of the address if left out
    """


class PruneBuildsInputBody(Model):
    unused_ms: int | None = None
    """
    only entries that no build has used for this time, in milliseconds
    """


class PruneBuildsOutputBody(Model):
    freed: int
    """
    bytes
    """


class PruneInputBody(Model):
    labels: dict[str, str] | None = None
    """
    only snapshots with all of these labels
    """


class PruneWorkspaceInputBody(Model):
    keep_last: int | None = None
    """
    number of newest versions to keep
    """
    keep_within_ms: int | None = None
    """
    keep all versions younger than this, in milliseconds
    """


class Publication(Model):
    address: str | None = None
    """
    IP address of the daemon's machine to listen on; 127.0.0.1 if left out
    """
    error: str | None = None
    """
    why the daemon does not listen now; it tries again
    """
    host_port: int | None = None
    """
    port there; a free port if left out
    """
    name: str
    """
    of the sandbox
    """
    port: int
    """
    port inside the sandbox
    """
    sandbox: str


class PublishedOutputBody(Model):
    ports: list[Publication] | None
    """
    by the names of the sandboxes
    """


class PublishedPort(Model):
    address: str | None = None
    """
    IP address of the daemon's machine to listen on; 127.0.0.1 if left out
    """
    host_port: int | None = None
    """
    port there; a free port if left out
    """
    port: int
    """
    port inside the sandbox
    """


class ReadyOutputBody(Model):
    status: Literal["ok"]


class Recording(Model):
    ended: AwareDatetime | None = None
    format: Literal["asciicast-v2", "h264-mp4"]
    fps: int | None = None
    """
    of a desktop: pictures per second
    """
    id: str
    input: bool | None = None
    """
    it contains what viewers typed
    """
    kind: Literal["terminal", "desktop"]
    max_seconds: int
    """
    seconds after which it ends
    """
    name: str
    """
    of the sandbox
    """
    process: str
    """
    the command in the terminal; empty for a desktop
    """
    reason: str | None = None
    """
    why it ended or failed
    """
    sandbox: str
    session: str | None = None
    """
    name of the session that it was started for
    """
    size: int
    """
    bytes recorded, as far as they are stored
    """
    started: AwareDatetime
    state: Literal["recording", "finalizing", "available", "failed"]
    title: str | None = None


class RecordingCell(Model):
    available: bool
    codecs: list[str] | None
    modes: list[str] | None
    reason: str | None = None


class RecordingListOutputBody(Model):
    next: str | None = None
    """
    the cursor of the next page; empty at the end
    """
    recordings: list[Recording] | None
    """
    newest first
    """


class Region(Model):
    height: int
    width: int
    x: int
    y: int


class Resolution(Model):
    height: int
    width: int


class Resources(Model):
    cpus: float | None = None
    """
    processors' worth of time, such as 0.5
    """
    disk: int | None = None
    """
    bytes of the writable layer
    """
    memory: int | None = None
    """
    bytes, including those of the sandbox's kernel
    """
    pids: int | None = None
    """
    processes and threads alive at once
    """


class RestoreInputBody(Model):
    note: str | None = None
    """
    kept with the new version
    """
    version: int


class RuleLimits(Model):
    burst: int | None = None
    """
    how many may come at the same time; a sixth of perMinute if left out
    """
    connections: int | None = None
    """
    open at the same time
    """
    per_minute: int | None = None
    """
    requests, or connections where requests cannot be seen
    """
    request_bytes: int | None = None
    """
    sent per request, or per connection
    """
    response_bytes: int | None = None
    """
    received per request, or per connection
    """


class SandboxUsage(Model):
    cpu_ms: int
    """
    processor time since it was made, in milliseconds
    """
    disk: int
    """
    bytes of the writable layer now
    """
    memory: int
    """
    bytes now, its kernel included
    """
    pids: int
    """
    processes and threads now
    """
    sampled: AwareDatetime


class Screenshot(Model):
    height: int
    png: str
    """
    a PNG image, in Base64
    """
    width: int


class SearchMatch(Model):
    column: int | None = None
    """
    first matching byte of the line, from 1
    """
    line: int | None = None
    """
    number of the line, if content was asked for
    """
    path: str
    """
    relative to the directory of the request
    """
    text: str | None = None
    """
    the line, at most 1000 bytes of it around the match
    """


class SearchRequest(Model):
    content: str | None = None
    """
    a regular expression (RE2) for lines of text files
    """
    exclude: list[str] | None = None
    """
    names of files and directories to leave out; .git and node_modules if it is left out
    """
    ignore_case: bool | None = None
    literal: bool | None = None
    """
    content is text, not a regular expression
    """
    max: int | None = None
    """
    matches; 200 if it is left out
    """
    name: str | None = None
    """
    a pattern of names such as *.go; with a slash it is of paths, such as src/**/*.go
    """
    path: str
    """
    absolute path of a directory
    """


class SearchResult(Model):
    files: int
    """
    files that were looked at
    """
    matches: list[SearchMatch] | None
    skipped: int | None = None
    """
    files that are larger than 4 MiB, and were not searched
    """
    truncated: bool | None = None
    """
    there may be more matches: the limit of matches, of files or of bytes was reached
    """


class SecretRef(Model):
    env: str | None = None
    """
    environment variable for the placeholder or the value; the name if left out
    """
    hosts: list[str] | None = None
    """
    hosts that the value is sent to; those of the secret if left out
    """
    in_: list[str] | None = None
    """
    where the placeholder is replaced: header, header:NAME, basic, query, query:NAME, body
    """
    mode: Literal["gateway", "env"] | None = None
    name: str
    """
    of the stored secret
    """


class SecretValue(Model):
    labels: dict[str, str] | None = None
    """
    new labels; if left out, the labels do not change
    """
    value: str | None = None
    """
    the value, if it is UTF-8
    """
    value_base64: str | None = None
    """
    the value, at most 64 KiB
    """


class SessionChange(Model):
    labels: dict[str, str | None] | None = None
    """
    labels to set; null removes one. The present sandbox keeps its labels
    """
    pause_on_exit: bool | None = None
    record: Literal["manual", "on-turn"] | None = None
    """
    it applies to turns that begin, or send a heartbeat, from now on
    """


class SessionTarget(Model):
    carries: Literal["workspaces", "/workspace"] | None = None
    """
    what moves with the session: its workspaces, or the files below /workspace
    """
    current: bool
    """
    whether it serves the session now
    """
    fits: bool
    provider: str
    reasons: list[str] | None
    """
    why it does not fit, or its advantages
    """


class SessionUsage(Model):
    value: str
    """
    value of the label, or the group or provider; empty: those without it
    """
    warm_ms: int
    """
    in milliseconds
    """


class SessionUsageOutputBody(Model):
    usage: list[SessionUsage] | None
    """
    by value
    """


class SignedImage(Model):
    image: str
    """
    a pattern of names
    """
    signed_by: list[str] | None
    """
    files with public keys; a signature of one of them is enough
    """


class Snapshot(Model):
    children: int
    """
    sandboxes that were made from it and are not gone
    """
    created: AwareDatetime
    encrypted: bool | None = None
    """
    it is encrypted in the blob store
    """
    engine: str | None = None
    """
    the engine that wrote it; only the same engine restores memory
    """
    id: str
    image: str
    labels: dict[str, str] | None = None
    memory: bool
    """
    it holds processes and their memory too
    """
    name: str
    parent: str
    """
    id of the sandbox it was taken of
    """
    parent_name: str
    problem: str | None = None
    """
    why it could not be saved
    """
    provider: str | None = None
    ready: bool
    """
    false while it is being made
    """
    resources: Resources
    saved: bool
    """
    it is in the blob store; daemons that share the store can make sandboxes from it
    """
    size: int
    """
    bytes
    """
    stored: int | None = None
    """
    bytes that the blob store grew by
    """


class SnapshotListOutputBody(Model):
    next: str | None = None
    """
    the cursor of the next page; empty at the end
    """
    snapshots: list[Snapshot] | None


class SnapshotRequest(Model):
    labels: dict[str, str] | None = None
    memory: bool | None = None
    """
    processes and their memory too, not only files
    """
    name: str | None = None
    """
    unique among your snapshots; its id if it is left out
    """
    save: bool | None = None
    """
    respond when it is in the blob store; otherwise it is saved after the response
    """


class SnapshotSupport(Model):
    kind: str
    tar_fallback: bool


class StopInputBody(Model):
    grace_ms: int | None = None
    """
    how long commands may take to end after SIGTERM, in milliseconds
    """


class StoredSecret(Model):
    allow_env: bool | None = None
    """
    sandboxes may get the value itself
    """
    created: AwareDatetime
    description: str | None = None
    hosts: list[str] | None = None
    """
    hosts that it may be sent to
    """
    labels: dict[str, str] | None = None
    name: str
    source: str | None = None
    """
    where the daemon reads the value from: env:NAME or file:/PATH
    """
    updated: AwareDatetime
    uses: int | None = None
    """
    number of sandboxes that use it; only in a list
    """
    version: int
    """
    raised by every new value
    """


class Stream(Model):
    expires_at: AwareDatetime
    """
    until then its token opens sockets
    """
    id: str
    kind: str
    lease_epoch: int
    """
    of the session; 0 if the stream was opened for a sandbox
    """
    mode: str
    port: int | None = None
    process: str | None = None
    """
    of a terminal
    """
    sandbox: str
    viewers: int
    """
    number of open sockets
    """


class StreamAccess(Model):
    client: Literal["xterm", "novnc", "bytes"]
    """
    what can show it
    """
    code: str | None = None
    """
    one-time code that redeemStream exchanges for the token; only with link
    """
    code_expires_at: AwareDatetime | None = None
    """
    until then the code can be exchanged
    """
    expires_at: AwareDatetime
    """
    until then its token opens sockets
    """
    id: str
    kind: str
    lease_epoch: int
    """
    of the session; 0 if the stream was opened for a sandbox
    """
    mode: str
    port: int | None = None
    process: str | None = None
    """
    of a terminal
    """
    sandbox: str
    token: str
    """
    for the first message or the subprotocol; never for a URL
    """
    transport: Literal["terminal-ws", "vnc-ws", "tcp-ws"]
    url: str
    """
    path of the WebSocket, below the address of the API
    """
    viewers: int
    """
    number of open sockets
    """


class StreamRedemption(Model):
    code: str | None = None
    """
    one-time code of the link
    """
    token: str | None = None
    """
    token of the stream that is still valid, also of an earlier sandbox of its session
    """


class StreamRenewalBody(Model):
    ttl: int | None = None
    """
    seconds during which the token opens sockets; 120 if it is left out
    """


class StreamsOutputBody(Model):
    streams: list[Stream] | None
    """
    by id, without tokens
    """


class SwapRequest(Model):
    target: str
    """
    a provider, or default for the provider that the session was created with
    """


class TagInputBody(Model):
    as_: str
    """
    the name to give it, NAME or NAME:TAG
    """


class TargetsOutputBody(Model):
    targets: list[SessionTarget] | None
    """
    best first
    """


class Template(Model):
    base: str
    """
    digest of the image it was built on
    """
    build: str | None = None
    """
    id of the build, for clients of E2B
    """
    cpus: float | None = None
    """
    default CPUs of sandboxes made from it
    """
    created: AwareDatetime
    image: str
    """
    digest of the image
    """
    memory: int | None = None
    """
    default memory of sandboxes made from it, in bytes
    """
    name: str
    public: bool | None = None
    """
    other tenants may use it, as TENANT/NAME
    """
    size: int
    """
    bytes of its files
    """
    snapshot: str | None = None
    """
    snapshot that its sandboxes are made from, with their memory
    """
    start: str | None = None
    """
    script that runs in every sandbox made from it
    """
    steps: int
    tag: str


class TemplatesOutputBody(Model):
    templates: list[Template] | None
    """
    by name and tag
    """


class TenantChange(Model):
    disabled: bool | None = None
    """
    refuse its keys from now on, or allow them again
    """
    limits: LimitsChange | None = None


class TenantUsage(Model):
    boxes: int
    cpus: float
    disk: int
    """
    bytes
    """
    memory: int
    """
    bytes
    """
    snapshot_bytes: int
    """
    of all snapshots
    """
    snapshots: int
    """
    those with a name
    """
    warm_hours: float | None = None
    """
    hours of this calendar month (UTC) that sandboxes of sessions existed
    """


class TerminalCell(Model):
    expires_at: AwareDatetime | None = None
    pty_capable: bool
    reason: str | None = None
    shell: str
    token: str | None = None
    transport: str | None = None
    url: str | None = None


class TerminalSupport(Model):
    available: bool
    pty: bool
    transport: str | None = None


class Unit(Model):
    of: str
    unit: str


class UpstreamProxy(Model):
    address: str
    """
    HOST:PORT of a SOCKS5 proxy
    """
    password: str | None = None
    """
    write-only: it is stored encrypted
    """
    sealed: str | None = None
    """
    the password, encrypted by the daemon
    """
    tls: ProxyTLS | None = None
    username: str | None = None


class Visibility(Model):
    name: str
    """
    TENANT/NAME, by which other tenants use it while it is public
    """
    public: bool
    """
    other tenants may use it
    """
    tags: list[str] | None
    """
    all of its tags
    """


class VisibilityInputBody(Model):
    public: bool
    """
    other tenants may use it; only admin keys may set it to true
    """


class WindowSize(Model):
    cols: int
    rows: int


class WorkspaceChange(Model):
    dir: bool | None = None
    kind: Literal["added", "removed", "modified", "touched"]
    path: str
    """
    below the workspace; bytes that are not UTF-8 are replaced
    """
    size: int
    """
    size in bytes after the change
    """


class WorkspaceMount(Model):
    create: bool | None = None
    """
    make the workspace if there is none of that name
    """
    mode: Literal["exclusive", "shared", "read"] | None = None
    """
    exclusive: no other sandbox may have it attached; shared or read: others may, in the same mode
    """
    name: str
    path: str | None = None
    """
    where the sandbox sees it; /workspace if left out
    """
    read_only: list[str] | None = None
    """
    directories below it that cannot be written to
    """
    writable: list[str] | None = None
    """
    the only directories below it that can be written to
    """


class WorkspacePruned(Model):
    freed: int
    """
    bytes by which the store shrank
    """
    versions: list[int] | None


class WorkspaceRef(Model):
    name: str
    version: str


class WorkspaceReport(Model):
    bytes: int
    """
    of everything that is stored
    """
    chunks: int
    versions: int


class WorkspaceVersion(Model):
    added: int
    """
    bytes that the store grew by
    """
    bytes: int
    """
    of file contents, without holes
    """
    created: AwareDatetime
    dirs: int
    files: int
    note: str | None = None
    number: int
    skipped: int | None = None
    """
    sockets and device nodes, which are not kept
    """


class CodeEvent(Model):
    count: int | None = None
    """
    of started: how many executions the context has had
    """
    exception: CodeError | None = None
    """
    of error
    """
    result: CodeResult | None = None
    """
    of result
    """
    text: str | None = None
    """
    of stdout and stderr
    """
    timed_out: bool | None = None
    """
    of end: the timeout interrupted the code
    """
    type: Literal["started", "stdout", "stderr", "result", "error", "alive", "end"]
    """
    alive comes every few seconds without another event; end is the last one
    """


class ComputerAction(Model):
    action: Literal[
        "screenshot",
        "cursor",
        "move",
        "click",
        "down",
        "up",
        "drag",
        "scroll",
        "type",
        "key",
        "wait",
        "copy",
        "clipboard",
    ]
    """
    screenshot and cursor only look; wait does nothing for durationMs; copy puts a text into the clipboard, and clipboard reads it
    """
    button: Literal["left", "middle", "right", "back", "forward"] | None = None
    """
    of click, down, up and drag; left if left out
    """
    count: int | None = None
    """
    clicks, or presses of a key; 1 if left out
    """
    duration_ms: int | None = None
    """
    of wait, and of key: how long to hold the keys
    """
    keys: list[str] | None = None
    """
    of key: the keys to press together; of others: keys to hold, such as ctrl
    """
    path: list[Point] | None = None
    """
    of drag: at least two points
    """
    region: Region | None = None
    """
    of screenshot: a part of the screen
    """
    scroll_x: int | None = None
    """
    of scroll: pixels to the right; 100 are one notch of the wheel, at most 15 notches
    """
    scroll_y: int | None = None
    """
    of scroll: pixels down
    """
    text: str | None = None
    """
    of type, at most 10000 characters; of copy, at most 1 MiB, and nothing clears the clipboard
    """
    x: int | None = None
    """
    pixels from the left, together with y; where the pointer is if left out
    """
    y: int | None = None
    """
    pixels from the top
    """


class ComputerRequest(Model):
    actions: list[ComputerAction]
    """
    in order; the first that fails ends the request
    """
    read_only: bool | None = None
    """
    refuse all actions that are more than looking
    """


class ComputerResult(Model):
    clipboard: str | None = None
    """
    text of the clipboard, when it was read last
    """
    cursor: Point | None = None
    """
    of the last cursor
    """
    screenshot: Screenshot | None = None
    """
    the last one
    """


class Descriptor(Model):
    backend_id: str
    credentials: list[Credential] | None = None
    desktop: DesktopSupport
    driver: DriverSupport
    egress: str
    file_system: FileSystemSupport
    find: str | None = None
    fork: bool
    git: bool
    isolation: str | None = None
    lifetime: LifetimeSupport
    name: str
    native_bucket_mount: bool
    os: OSList
    pause: str | None = None
    permanent: bool | None = None
    persistable: bool
    ports: PortSupport
    price: str
    recording: bool
    run_as: bool
    snapshot: SnapshotSupport
    summary: str
    terminal: TerminalSupport
    tier: str
    units: list[Unit] | None = None
    verified: str
    workspace_root: str


class DesktopCell(Model):
    acknowledged: bool
    client: str | None = None
    expires_at: AwareDatetime | None = None
    mode: str
    reason: str | None = None
    requires_acknowledgment: bool
    resolution: Resolution
    shared: bool
    shared_session_ids: list[str] | None
    token: str | None = None
    transport: str | None = None
    unredacted: bool
    url: str | None = None


class Diagnosis(Model):
    findings: list[Finding] | None
    healthy: bool
    """
    no finding is a blocker
    """
    node: str
    version: str | None = None
    """
    of the program
    """


class DiffOutputBody(Model):
    changes: list[WorkspaceChange] | None
    """
    by path
    """
    more: bool | None = None
    """
    there are more changes than are listed
    """


class ExecRequest(Model):
    args: list[str] | None = None
    """
    the program and its arguments
    """
    args_base64: list[str] | None = None
    """
    instead of args, when they are not UTF-8
    """
    background: bool | None = None
    """
    keep running when the caller disconnects
    """
    dir: str | None = None
    env: dict[str, str] | None = None
    hold_ms: int | None = None
    """
    how long the command waits for its caller to attach again after a lost connection, without losing output; only over a WebSocket
    """
    input: str | None = None
    """
    standard input of the command
    """
    input_base64: str | None = None
    """
    instead of input, when it is not UTF-8
    """
    output_limit: int | None = None
    """
    bytes of each stream to return, 1 MiB if it is left out
    """
    shell: str | None = None
    """
    a script for /bin/sh, instead of args
    """
    stdin: bool | None = None
    """
    standard input will be sent; only over a WebSocket
    """
    timeout_ms: int | None = None
    tty: WindowSize | None = None
    """
    run on a terminal of this size; only over a WebSocket
    """
    user: str | None = None


class ExecResult(Model):
    exit: Exit | None = None
    hint: str | None = None
    """
    how to allow hosts, if the command failed and its output says that a host could not be reached
    """
    process: ProcessInfo
    stderr: Output | None = None
    stdout: Output | None = None


class Explanation(Model):
    allow: bool
    host_only: bool
    """
    whether only the host name is checked, so that everything the host serves can be reached
    """
    inject: list[str] | None = None
    """
    names of the secrets that are added
    """
    inspect: bool
    """
    whether TLS is terminated and every request is checked
    """
    limits: RuleLimits | None = None
    message: str
    operator: list[str] | None = None
    """
    what the policies of the machine decide
    """
    path: str | None = None
    """
    the path that is forwarded
    """
    reason: str
    resolves: bool
    """
    whether the name has an address in the sandbox
    """
    rule: str | None = None
    """
    the rule that decides
    """
    steps: list[ExplainStep] | None
    """
    the rules for the host, in order, up to the one that decides
    """


class GitBlameCommit(Model):
    author: GitPerson
    subject: str


class GitCommit(Model):
    author: GitPerson
    body: str | None = None
    committer: GitPerson
    parents: list[str] | None
    refs: list[str] | None
    """
    branches and tags that are at this commit, such as refs/heads/main
    """
    sha: str
    short_sha: str
    subject: str


class GitHunk(Model):
    header: str | None = None
    """
    what git thinks the hunk is in, such as a function
    """
    lines: list[GitLine] | None
    new_lines: int
    new_start: int
    old_lines: int
    old_start: int


class GitLog(Model):
    commits: list[GitCommit] | None
    more: bool | None = None
    """
    there are earlier commits
    """


class MainCommand(Model):
    args: list[str] | None = None
    """
    the program and its arguments; the image's command if left out
    """
    entrypoint: str | None = None
    """
    replaces the image's entrypoint; empty for none
    """
    max_restarts: int | None = None
    """
    maximum number of restarts; no maximum if left out
    """
    process: str | None = None
    """
    id of the running command, or of the last one
    """
    remove: bool | None = None
    """
    remove the sandbox when the command has ended
    """
    restart: Literal["no", "on-failure", "always"] | None = None
    """
    when to start it again; never if left out
    """
    restarts: int | None = None
    """
    how often it was started again
    """
    stdin: bool | None = None
    """
    keep its standard input open for clients that attach
    """
    tty: WindowSize | None = None


class NewRecording(Model):
    fps: int | None = None
    """
    of a desktop: pictures per second, 15 if it is left out
    """
    input: bool | None = None
    """
    also record what viewers type, even if the terminal does not show it, such as passwords
    """
    kind: Literal["terminal", "desktop"] | None = None
    """
    what is recorded; a terminal if it is left out
    """
    max_seconds: int | None = None
    """
    seconds after which it ends; if it is left out, a day, and of a desktop ten minutes
    """
    process: str | None = None
    """
    id of a background command on a terminal; the login shell that viewers share if it is left out
    """
    size: WindowSize | None = None
    """
    of the terminal of a new login shell
    """
    title: str | None = None
    """
    a title for players
    """


class NewStream(Model):
    kind: Literal["terminal", "desktop", "port"]
    """
    terminal: a terminal that viewers share; desktop: a VNC server; port: the bytes of a port
    """
    link: bool | None = None
    """
    also return a one-time code, for a link that a browser opens without a key
    """
    mode: Literal["view", "control"] | None = None
    """
    view is the default; in it, the daemon drops keyboard, pointer and clipboard of RFB
    """
    port: int | None = None
    """
    port inside the sandbox; 5900 for a desktop if it is left out, where the desktop is started if it does not run
    """
    process: str | None = None
    """
    id of a background command on a terminal; a login shell in the workspace if it is left out
    """
    size: WindowSize | None = None
    """
    of the terminal of a new login shell
    """
    ttl: int | None = None
    """
    seconds during which the token opens sockets; 120 if it is left out
    """


class PatchResult(Model):
    files: list[PatchedFile] | None


class Provider(Model):
    available: bool
    binding: str | None = None
    capabilities: dict[str, bool]
    default: bool
    descriptor: Descriptor
    images: bool | None = None
    isolates: bool
    limits: dict[str, Enforcement] | None = None
    name: str
    problem: str | None = None
    shares_files: bool | None = None
    summary: str
    version: str | None = None
    warning: str | None = None


class ProvidersOutputBody(Model):
    providers: list[Provider] | None


class ReceiptFrom(Model):
    archive: Archive | None = None
    workspaces: list[WorkspaceRef] | None = None


class Rule(Model):
    action: Literal["allow", "deny"]
    filters: list[Filter] | None = None
    """
    checks of the bodies of allowed requests and their responses
    """
    hosts: list[str] | None
    """
    name, *.name, *, address or CIDR, each with an optional :port
    """
    inject: list[Injection] | None = None
    """
    credentials added to allowed requests after they have left the sandbox
    """
    limits: RuleLimits | None = None
    methods: list[str] | None = None
    """
    of HTTP requests
    """
    name: str | None = None
    paths: list[str] | None = None
    """
    of HTTP requests; * within a segment, ** for any number of segments
    """
    tls: Literal["terminate", "passthrough"] | None = None
    web_socket: bool | None = None
    """
    allowed requests may upgrade to WebSockets
    """


class RunOnRequest(Model):
    command: ExecRequest
    target: str
    """
    a provider, or default for the provider that the session was created with
    """


class Sandbox(Model):
    bound: bool | None = None
    """
    it ends with the process that made it
    """
    cmd: list[str] | None = None
    """
    command of the image; only in the response that creates the sandbox
    """
    created: AwareDatetime
    entrypoint: list[str] | None = None
    """
    entrypoint of the image; only in the response that creates the sandbox
    """
    exit: Exit | None = None
    """
    how it ended; in the state exited, how its main command ended
    """
    expires: AwareDatetime | None = None
    """
    when its lifetime ends; left out while it is stopped or paused
    """
    id: str
    image: str
    isolation: Literal["none", "kernel", "hardware"] | None = None
    """
    the wall between it and the machine that runs it; left out if it is not known
    """
    labels: dict[str, str] | None = None
    left_ms: int | None = None
    """
    rest of its lifetime while it is stopped or paused, in milliseconds; not in listings
    """
    lifetime: Lifetime | None = None
    """
    as requested; listings have the idle policy only
    """
    limits: dict[str, Enforcement] | None = None
    """
    limits in resources that the provider does not enforce, by name, and why
    """
    main: MainCommand | None = None
    """
    the main command; not in listings
    """
    name: str
    """
    unique among your sandboxes that are not gone
    """
    node: str | None = None
    """
    the daemon that runs it, if several share a store
    """
    origin: str | None = None
    """
    id of the snapshot it was made from; not in listings
    """
    pause: Literal["memory", "disk"] | None = None
    """
    where the state of a paused sandbox is; not in listings
    """
    ports: list[PublishedPort] | None = None
    """
    ports published on the daemon's machine; not in listings
    """
    provider: str | None = None
    reason: str | None = None
    """
    why it is in that state
    """
    resources: Resources | None = None
    state: Literal[
        "creating",
        "running",
        "exited",
        "pausing",
        "paused",
        "resuming",
        "stopped",
        "lost",
        "failed",
        "gone",
    ]
    updated: AwareDatetime | None = None
    wakes: bool | None = None
    """
    it resumes when it is used; not in listings
    """


class Saved(Model):
    archive: Archive | None = None
    """
    of a sandbox without workspaces
    """
    workspaces: list[WorkspaceRef] | None = None


class SecretsOutputBody(Model):
    secrets: list[StoredSecret] | None
    """
    by name
    """


class Tenant(Model):
    created: AwareDatetime
    disabled: AwareDatetime | None = None
    """
    since when its keys are refused
    """
    id: str
    limits: Limits
    usage: TenantUsage


class TenantsOutputBody(Model):
    tenants: list[Tenant] | None
    """
    by name
    """


class VersionsOutputBody(Model):
    versions: list[WorkspaceVersion] | None
    """
    oldest first
    """


class Workspace(Model):
    attached: list[Attachment] | None
    """
    the sandboxes that it is attached to
    """
    bucket: str | None = None
    """
    S3 bucket that holds the workspace, if any
    """
    created: AwareDatetime
    encrypted: bool | None = None
    id: str
    """
    assigned by the server; never reused
    """
    latest: WorkspaceVersion | None = None
    """
    the newest version; not in lists
    """
    max_bytes: int | None = None
    """
    bytes that one version may hold; no limit if it is left out
    """
    name: str
    problem: str | None = None
    """
    why the last state could not be persisted; it is kept on the machine
    """


class WorkspacesOutputBody(Model):
    workspaces: list[Workspace] | None
    """
    by name
    """


class CapabilityDocument(Cells):
    computer_use: ComputerUseCell
    desktop_stream: DesktopCell
    file_system: FileSystemCell
    git: GitCell
    recording: RecordingCell
    terminal: TerminalCell
    backend: str
    isolation: str | None = None
    lease_epoch: int
    liveness: str
    negotiated_at: AwareDatetime
    os: str
    session_id: str
    viewer_heartbeat_interval_ms: int


class ForkOutputBody(Model):
    sandboxes: list[Sandbox] | None


class GitBlame(Model):
    commits: dict[str, GitBlameCommit]
    """
    by sha; one of zeros only is what is not committed yet
    """
    lines: list[GitBlameLine] | None
    truncated: bool | None = None


class GitFileDiff(Model):
    additions: int
    """
    lines; 0 for a binary file
    """
    binary: bool | None = None
    deletions: int
    hunks: list[GitHunk] | None
    image: bool | None = None
    """
    a picture, by its name
    """
    new_mode: str | None = None
    old_mode: str | None = None
    """
    in octal, as 100644; left out if there was no file
    """
    old_path: str | None = None
    """
    of a renamed or copied file
    """
    path: str
    status: str
    truncated: bool | None = None
    """
    the changes are too large, so there are no hunks
    """


class ListOutputBody(Model):
    next: str | None = None
    """
    the cursor of the next page; empty at the end
    """
    sandboxes: list[Sandbox] | None
    """
    newest first
    """


class Profile(Model):
    default: Literal["allow", "deny"] | None = None
    """
    what happens when no rule matches; deny if left out
    """
    description: str | None = None
    dns_servers: list[str] | None = None
    """
    name servers, as ADDRESS or ADDRESS:PORT; those of the machine if left out
    """
    internet: bool | None = None
    """
    false denies everything, whatever the rules say
    """
    name: str | None = None
    """
    unique among the profiles of the tenant; empty for an inline profile
    """
    proxy: UpstreamProxy | None = None
    """
    SOCKS5 proxy for all connections
    """
    rules: list[Rule] | None = None
    """
    in order: the first that matches decides
    """


class Receipt(Model):
    epoch: int
    from_: ReceiptFrom | None = None
    lost: list[str] | None = None
    outcome: str
    provider: str
    sandbox: str
    time: AwareDatetime | None = None
    why: str | None = None


class StoredProfile(Model):
    created: AwareDatetime
    name: str
    profile: Profile
    updated: AwareDatetime
    uses: int | None = None
    """
    number of sandboxes that use it; only in a list
    """
    version: int
    """
    raised by every change
    """


class Swapped(Model):
    reason: str | None = None
    receipt: Receipt | None = None
    swapped: bool


class Acquired(Model):
    epoch: int
    receipt: Receipt
    role: str
    """
    spawner: this request made the sandbox; attached or rearmed: it existed already
    """
    sandbox: str


class GitDiff(Model):
    files: list[GitFileDiff] | None
    truncated: bool | None = None
    """
    there are more files, or more untracked ones
    """


class GitShow(Model):
    blob: GitBlob | None = None
    """
    if a file was asked for
    """
    commit: GitCommit
    diff: GitDiff | None = None
    """
    if no file was asked for
    """


class Network(Model):
    egress: list[str] | None = None
    inline: Profile | None = None
    profile: str | None = None


class NodeMoved(Model):
    receipt: Receipt
    session: str
    tenant: str


class Policy(Model):
    cpus: float | None = None
    description: str | None = None
    disk: int | None = None
    """
    bytes
    """
    egress: Profile | None = None
    """
    profile that must allow every connection as well
    """
    file: str
    images: list[str] | None = None
    isolation: str | None = None
    """
    the weakest isolation that sandboxes may have
    """
    labels: dict[str, list[str] | None] | None = None
    """
    patterns of the labels of the sandboxes that it applies to; a missing label is empty
    """
    lifetime_ms: int | None = None
    """
    in milliseconds
    """
    lines: dict[str, int]
    """
    line numbers of its fields in the file
    """
    memory: int | None = None
    """
    bytes
    """
    mounts: list[str] | None = None
    name: str
    network: bool | None = None
    on_unenforceable: str | None = None
    pids: int | None = None
    redact: bool | None = None
    """
    values of secrets are removed from the output of commands
    """
    secret_modes: list[str] | None = None
    secrets: list[str] | None = None
    signed_images: list[SignedImage] | None = None
    """
    allowed as well, if signed
    """
    tenants: list[str] | None = None
    """
    patterns of the tenants that it applies to; all if left out
    """


class PolicyCeiling(Model):
    policy: str
    profile: Profile


class ProfilesOutputBody(Model):
    profiles: list[StoredProfile] | None
    """
    by name
    """


class Spec(Model):
    env: dict[str, str] | None = None
    """
    added to the image's environment of every command; values are not stored in the database
    """
    hostname: str | None = None
    id: str | None = None
    """
    assigned by the server
    """
    image: str | None = None
    """
    source of the root file system; the machine's own programs if it is left out
    """
    isolation: Literal["none", "kernel", "hardware"] | None = None
    """
    the weakest isolation that it may have: none, a kernel of its own, or a virtual machine; that of the provider if it is left out
    """
    labels: dict[str, str] | None = None
    lifetime: Lifetime | None = None
    main: MainCommand | None = None
    """
    the main command, as of a container; none if left out
    """
    mounts: list[Mount] | None = None
    """
    files and directories of the machine; only for its owner
    """
    name: str | None = None
    """
    unique among your sandboxes; the id if it is left out
    """
    network: Network | None = None
    """
    hosts that the sandbox may reach; none if it is left out
    """
    ports: list[PublishedPort] | None = None
    """
    ports to publish on the daemon's machine; only for its owner
    """
    provider: str | None = None
    """
    name of the provider; the daemon's default if it is left out
    """
    redact: bool | None = None
    """
    replace values of secrets of mode env by asterisks in the output of commands
    """
    require_limits: bool | None = None
    """
    fail if the provider does not enforce a limit in resources
    """
    resources: Resources | None = None
    secrets: list[SecretRef] | None = None
    """
    stored secrets that the sandbox uses
    """
    snapshot: str | None = None
    """
    name or id of a snapshot to start from, instead of an image
    """
    user: str | None = None
    """
    user that runs commands: NAME, UID, NAME:GROUP or UID:GID
    """
    workdir: str | None = None
    """
    absolute directory where commands start
    """
    workspaces: list[WorkspaceMount] | None = None
    """
    durable directories, each at its own path
    """


class Change(Model):
    labels: dict[str, str | None] | None = None
    """
    labels to set; null removes one
    """
    lifetime: LifetimeChange | None = None
    network: Network | None = None
    """
    new egress or inline rules, for a sandbox that has such rules; not together with other changes
    """
    require_limits: bool | None = None
    """
    refuse the change if a limit in resources is not enforced
    """
    resources: Resources | None = None
    """
    limits that are left out do not change
    """


class CreateRequest(Model):
    env: dict[str, str] | None = None
    """
    added to the image's environment of every command; values are not stored in the database
    """
    hostname: str | None = None
    id: str | None = None
    """
    assigned by the server
    """
    image: str | None = None
    """
    source of the root file system; the machine's own programs if it is left out
    """
    isolation: Literal["none", "kernel", "hardware"] | None = None
    """
    the weakest isolation that it may have: none, a kernel of its own, or a virtual machine; that of the provider if it is left out
    """
    labels: dict[str, str] | None = None
    lifetime: Lifetime | None = None
    main: MainCommand | None = None
    """
    the main command, as of a container; none if left out
    """
    mounts: list[Mount] | None = None
    """
    files and directories of the machine; only for its owner
    """
    name: str | None = None
    """
    unique among your sandboxes; the id if it is left out
    """
    network: Network | None = None
    """
    hosts that the sandbox may reach; none if it is left out
    """
    platform: str | None = None
    ports: list[PublishedPort] | None = None
    """
    ports to publish on the daemon's machine; only for its owner
    """
    provider: str | None = None
    """
    name of the provider; the daemon's default if it is left out
    """
    pull: Literal["missing", "always", "never"] | None = None
    """
    when to fetch the image
    """
    redact: bool | None = None
    """
    replace values of secrets of mode env by asterisks in the output of commands
    """
    require_limits: bool | None = None
    """
    fail if the provider does not enforce a limit in resources
    """
    resources: Resources | None = None
    secrets: list[SecretRef] | None = None
    """
    stored secrets that the sandbox uses
    """
    snapshot: str | None = None
    """
    name or id of a snapshot to start from, instead of an image
    """
    user: str | None = None
    """
    user that runs commands: NAME, UID, NAME:GROUP or UID:GID
    """
    workdir: str | None = None
    """
    absolute directory where commands start
    """
    workspaces: list[WorkspaceMount] | None = None
    """
    durable directories, each at its own path
    """


class Envelope(Model):
    archive: Archive | None = None
    backend: str
    binding: str | None = None
    box: str | None = None
    files: ArchiveFile | None = None
    fingerprint: str | None = None
    spec: Spec
    state: Any | None = None
    version: int
    workspaces: list[WorkspaceRef] | None = None


class NewSession(Model):
    group: str | None = None
    """
    sessions with the same group share one sandbox; not shared if it is left out
    """
    holder: HolderRef | None = None
    """
    acquire the sandbox for this holder; without a holder, the sandbox is made when it is first used
    """
    if_exists: Literal["fail", "attach"] | None = None
    """
    what to do when there is a session of that name; fail if it is left out
    """
    labels: dict[str, str] | None = None
    """
    added to the labels of the spec; they apply to the sandboxes and the usage of the session
    """
    name: str | None = None
    """
    unique among your sessions; the id if it is left out
    """
    pause_on_exit: bool | None = None
    """
    pause the sandbox, instead of ending it, when no holder is left, if the provider can do that
    """
    record: Literal["manual", "on-turn"] | None = None
    """
    on-turn records the desktop during every turn that uses it; manual if it is left out
    """
    spec: Spec | None = None


class NodeDrained(Model):
    ended: list[NodeSandbox] | None
    """
    sandboxes without a session that were ended
    """
    kept: list[NodeSandbox] | None
    """
    sandboxes that are still there
    """
    moved: list[NodeMoved] | None
    """
    sessions that were moved
    """
    node: str


class Policies(Model):
    digest: str | None = None
    """
    of the files that apply; left out if there are no policies
    """
    loaded: AwareDatetime | None = None
    policies: list[Policy] | None
    problem: str | None = None
    """
    why the present files are not valid, so that the policies from before still apply; only for the owner of the machine
    """
    source: str | None = None
    """
    the file or directory; only for the owner of the machine
    """


class PolicyAnswer(Model):
    allow: bool
    ceilings: list[PolicyCeiling] | None
    """
    profiles that must allow its connections as well
    """
    findings: list[PolicyFinding] | None
    """
    result of every rule that applies to it
    """
    isolation: str | None = None
    """
    the weakest isolation that it may have; left out if no policy says
    """
    lifetime_ms: int | None = None
    """
    its longest lifetime, in milliseconds
    """
    limits: Resources
    """
    the lowest limits that apply to it; zero: none
    """
    message: str | None = None
    """
    why it would be refused
    """
    rule: str | None = None
    """
    rule that would refuse it, as POLICY.FIELD
    """


class ResumeRequest(Model):
    envelope: Envelope
    holder: HolderRef | None = None
    """
    acquire the sandbox for this holder; without a holder, the sandbox is found or made when it is first used
    """
    name: str | None = None
    """
    name of the session if it is a new one; its id if it is left out
    """
    provider: str | None = None
    """
    provider of the sandbox if it is rebuilt; that of the envelope if it is left out
    """


class Session(Model):
    created: AwareDatetime
    group: str
    id: str
    labels: dict[str, str] | None = None
    lease: LeaseInfo | None = None
    name: str
    pause_on_exit: bool | None = None
    provider: str | None = None
    receipt: Receipt | None = None
    record: Literal["manual", "on-turn"] | None = None
    spec: Spec
    updated: AwareDatetime


class SessionsOutputBody(Model):
    sessions: list[Session] | None
    """
    by name
    """


class Opened(Model):
    created: bool
    receipt: Receipt | None = None
    """
    of the sandbox, if a holder was given
    """
    session: Session
