"""Values of ctx.sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atoll import errors
from atoll import models as m
from atoll.types import milliseconds

__all__ = ["DEFAULT_IMAGE", "DEFAULT_TIMEOUT", "MAX_OUTPUT", "ExecResult", "SandboxSpec", "SandboxUnavailable"]

DEFAULT_IMAGE = "python:3.11-slim"
DEFAULT_TIMEOUT = 600.0
"""Seconds of a command."""
MAX_OUTPUT = 1 << 20
"""How many bytes of each stream of a command are kept."""


class SandboxUnavailable(RuntimeError):
    """No runtime is attached: there is no daemon, or it cannot make sandboxes."""


@dataclass(frozen=True)
class SandboxSpec:
    """The options of a sandbox. It can reach no hosts unless egress allows them."""

    name: str
    """Empty: a generated name."""
    image: str = DEFAULT_IMAGE
    """If this machine has no registry for the default image, the daemon's own default image is used, with a warning. $ATOLL_CTX_IMAGE
    names another one."""
    memory_mib: int = 512
    cpus: float = 1
    workspace: str | None = None
    """A durable directory at /workspace, made if it is missing."""
    secrets: Sequence[str] = ()
    """Names of stored secrets. Each is an environment variable; the gateway sends its value, which is not in the sandbox."""
    egress: Sequence[str] = ()
    """Hosts that can be reached. Empty: none, or the provider is refused."""
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    lifetime: float = 3600
    """Seconds after which the sandbox ends by itself."""

    def to_spec(self, image: str | None) -> m.Spec:
        if self.memory_mib <= 0 or self.cpus <= 0 or self.lifetime <= 0:
            raise errors.InvalidError("are not above zero", op="sandbox.create", subject="limits")
        return m.Spec(
            name=self.name or None, image=image, env=dict(self.env) or None, labels=dict(self.labels) or None,
            resources=m.Resources(memory=self.memory_mib << 20, cpus=self.cpus),
            lifetime=m.Lifetime(timeout_ms=milliseconds(self.lifetime)),
            network=m.Network(egress=[*self.egress]),
            secrets=[m.SecretRef(name=name) for name in self.secrets] or None,
            workspaces=[m.WorkspaceMount(name=self.workspace, create=True)] if self.workspace else None,
        )  # fmt: skip


@dataclass(frozen=True)
class ExecResult:
    """The exit and the output of a command."""

    stdout: str
    stderr: str = ""
    exit_code: int = 0
    """128 and the signal, if one ended it."""
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


def last_lines(text: str, tail: int | None) -> str:
    return text if tail is None else "".join(text.splitlines(keepends=True)[-tail:]) if tail > 0 else ""
