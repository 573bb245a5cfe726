"""Values of ctx.sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atoll import errors
from atoll import models as m
from atoll.errors import UnavailableError as SandboxUnavailable
from atoll.types import milliseconds

__all__ = ["DEFAULT_TIMEOUT", "MAX_OUTPUT", "ExecResult", "SandboxSpec", "SandboxUnavailable"]

DEFAULT_TIMEOUT = 600.0
"""Seconds of a command."""
MAX_OUTPUT = 1 << 20
"""How many bytes of each stream of a command are kept."""


@dataclass(frozen=True)
class SandboxSpec:
    """The options of a sandbox. It can reach no hosts unless egress allows them."""

    name: str = ""
    image: str = ""
    memory: int = 512 << 20
    """Bytes."""
    cpus: float = 1
    workspace: str = ""
    """A durable directory at /workspace, made if it is missing."""
    secrets: Sequence[str] = ()
    """Names of stored secrets. Each is an environment variable; the gateway sends its value, which is not in the sandbox."""
    egress: Sequence[str] = ()
    """Hosts that can be reached."""
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    lifetime: float = 0
    """Seconds; 0 is an hour."""

    def to_spec(self) -> m.Spec:
        if self.memory < 0 or self.cpus < 0 or self.lifetime < 0:
            raise errors.InvalidError("are below zero", op="sandbox.create", subject="limits")
        return m.Spec(
            name=self.name or None, image=self.image or None, env=dict(self.env) or None, labels=dict(self.labels) or None,
            resources=m.Resources(memory=self.memory or 512 << 20, cpus=self.cpus or 1),
            lifetime=m.Lifetime(timeout_ms=milliseconds(self.lifetime or 3600)),
            network=m.Network(egress=[*self.egress]) if self.egress else None,
            secrets=[m.SecretRef(name=name) for name in self.secrets] or None,
            workspaces=[m.WorkspaceMount(name=self.workspace, create=True)] if self.workspace else None,
        )  # fmt: skip


@dataclass(frozen=True)
class ExecResult:
    """The exit and the output of a command."""

    exit_code: int
    """128 and the signal, if one ended it."""
    stdout: str
    stderr: str
    truncated: bool = False
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """Whether the command exited with code 0."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def output(self) -> str:
        """Standard output, followed by standard error."""
        return self.stdout + self.stderr


def last_lines(text: str, tail: int) -> str:
    return "".join(text.splitlines(keepends=True)[-tail:]) if tail > 0 else text
