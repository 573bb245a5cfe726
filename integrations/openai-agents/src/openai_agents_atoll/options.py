"""Options and state of a sandbox. New fields are only appended."""

from __future__ import annotations

from typing import Any, Literal

from agents.sandbox.session import SandboxSessionState
from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
from pydantic import Field

from atoll import models as m
from atoll.types import milliseconds


class AtollSandboxClientOptions(BaseSandboxClientOptions):
    """Options of a sandbox. It can reach no hosts unless profile or egress allows them."""

    type: Literal["atoll"] = "atoll"
    image: str | None = None
    template: str | None = None
    from_snapshot: str | None = None
    """Name or id of a snapshot of Atoll to start from."""
    provider: str | None = None
    memory: int | None = None
    """Bytes."""
    cpus: float | None = None
    disk: int | None = None
    """Bytes."""
    pids: int | None = None
    profile: str | None = None
    """Name of an egress profile."""
    egress: tuple[str, ...] = ()
    """Hosts that can be reached."""
    secrets: tuple[str, ...] = ()
    """Names of stored secrets."""
    workspace: str | None = None
    """Name of a durable directory at /workspace, made if it is missing."""
    labels: dict[str, str] = Field(default_factory=dict)
    exposed_ports: tuple[int, ...] = ()
    pause_on_exit: bool = False
    """Pause the sandbox at the end of a run, and wake it at the next, instead of ending it."""
    lifetime_s: float | None = None
    """The sandbox ends then at the latest."""
    workspace_persistence: Literal["tar", "snapshot"] = "tar"
    """What a snapshot of the SDK holds: the workspace, or a reference to a snapshot of Atoll with all files. Where the latter is not possible, the
    workspace."""

    def to_spec(self, labels: dict[str, str]) -> m.Spec:
        limits = m.Resources(memory=self.memory, cpus=self.cpus, disk=self.disk, pids=self.pids)
        network = m.Network(profile=self.profile, egress=[*self.egress] or None)
        return m.Spec(
            image=f"template:{self.template}" if self.template else self.image, snapshot=self.from_snapshot, provider=self.provider,
            resources=limits if limits.to_json() else None, network=network if network.to_json() else None,
            secrets=[m.SecretRef(name=name) for name in self.secrets] or None,
            workspaces=[m.WorkspaceMount(name=self.workspace, create=True)] if self.workspace else None,
            labels={**self.labels, **labels}, lifetime=m.Lifetime(timeout_ms=milliseconds(self.lifetime_s)) if self.lifetime_s else None,
        )  # fmt: skip


class AtollSandboxSessionState(SandboxSessionState):
    """What another process needs to continue, in addition to the address of the daemon and a key."""

    type: Literal["atoll"] = "atoll"
    options: AtollSandboxClientOptions
    atoll_session: str
    """Its id."""
    envelope: dict[str, Any] | None = None
    """From which the daemon finds the sandbox again, or rebuilds it."""
    native_snapshot: str | None = None
    """Id of the snapshot that the latest snapshot of the SDK refers to."""
