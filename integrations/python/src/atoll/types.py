"""Small values of the client that are not part of the API."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from atoll import models as m

Arg = str | bytes


@dataclass(frozen=True)
class Result:
    """The exit and the output of a command."""

    exit: m.Exit
    stdout: bytes
    stderr: bytes
    truncated: bool
    """More was written than the output limit."""
    hint: str = ""
    """How to allow hosts, if the command failed and its output says that it could not reach one."""

    @property
    def code(self) -> int:
        return self.exit.code

    @property
    def timed_out(self) -> bool:
        return self.exit.reason == "timeout"

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.stdout.decode(errors="replace")

    @property
    def error_text(self) -> str:
        """Standard error as text."""
        return self.stderr.decode(errors="replace")

    @property
    def ok(self) -> bool:
        """It exited with code 0."""
        return self.code == 0 and not self.timed_out


@dataclass(frozen=True)
class Output:
    """A chunk of a command's output."""

    stream: Literal["stdout", "stderr"]
    data: bytes
    dropped: int = 0
    """Bytes lost before this piece, because the log was full."""

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


@dataclass(frozen=True)
class FileEvent:
    """A change of a file below a watched path, which path is relative to."""

    op: str
    path: str
    dir: bool = False
    revision: int = 0
    """Grows with each event."""
    lease_epoch: int = 0
    """Which sandbox of the session, if a session is watched."""


@dataclass(frozen=True)
class GitEvent:
    """The state of a watched git repository. Outside of one, is_repo is False."""

    is_repo: bool
    head: str
    """The current branch; empty if HEAD is detached."""
    commit: str
    """Empty before the first one."""
    detached: bool
    upstream: str
    ahead: int
    behind: int
    dirty: bool
    changed_file_count: int
    reason: str
    """start, watch or poll."""
    revision: int
    """Grows by one with each state."""
    lease_epoch: int
    """Which sandbox of the session, if a session is watched."""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> GitEvent:
        """Read an event of the HTTP API."""
        return cls(
            is_repo=data["isRepo"],
            head=data.get("head", ""),
            commit=data.get("commit", ""),
            detached=data.get("detached", False),
            upstream=data.get("upstream", ""),
            ahead=data["ahead"],
            behind=data["behind"],
            dirty=data["dirty"],
            changed_file_count=data["changedFileCount"],
            reason=data["reason"],
            revision=data["revision"],
            lease_epoch=data.get("leaseEpoch", 0),
        )


@dataclass(frozen=True)
class Execution:
    """What code in the code interpreter did. Pictures in results are base64; see png."""

    results: Sequence[m.CodeResult]
    """What the code showed, each in all its forms."""
    stdout: str
    stderr: str
    error: m.CodeError | None
    """The exception that ended the code."""
    count: int
    """The executions that the context has had."""
    timed_out: bool = False
    """The timeout interrupted the code."""

    @property
    def text(self) -> str:
        """The value of the last expression, as text."""
        return next((r.text or "" for r in self.results if r.main), "")

    @property
    def png(self) -> list[bytes]:
        """The pictures that the code showed, as PNG images."""
        return [base64.b64decode(r.png) for r in self.results if r.png]

    @property
    def ok(self) -> bool:
        """It ended without an exception."""
        return self.error is None


def milliseconds(seconds: float | None) -> int | None:
    """Rounded up, so that a short time does not become 0."""
    return None if seconds is None else -int(-seconds * 1000 // 1)


def command(
    args: Sequence[Arg] | str,
    *,
    env: dict[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    timeout: float | None = None,
    tty: tuple[int, int] | None = None,
    stdin: bool = False,
    background: bool = False,
    hold: float | None = None,
    input: bytes | None = None,
    output_limit: int | None = None,
) -> m.ExecRequest:
    """A command as JSON. A string is a script for /bin/sh, a list a program with its arguments."""
    out = m.ExecRequest(
        env=env or None, dir=cwd, user=user, timeout_ms=milliseconds(timeout), stdin=stdin or tty is not None or None, background=background or None,
        hold_ms=milliseconds(hold), output_limit=output_limit, tty=m.WindowSize(cols=tty[0], rows=tty[1]) if tty else None,
        input_base64=base64.b64encode(input).decode() if input else None,
    )  # fmt: skip
    if isinstance(args, str):
        out.shell = args
        return out
    raw = [a.encode(errors="surrogateescape") if isinstance(a, str) else a for a in args]
    try:
        out.args = [a.decode() for a in raw]
    except UnicodeDecodeError:
        out.args_base64 = [base64.b64encode(a).decode() for a in raw]
    return out


def result(r: m.ExecResult) -> Result:
    if r.exit is None:
        raise ValueError("a background command has no result")
    stdout, stderr = (o or m.Output(data="", encoding="utf-8", truncated=False) for o in (r.stdout, r.stderr))
    return Result(r.exit, _data(stdout), _data(stderr), stdout.truncated or stderr.truncated, r.hint or "")


def _data(o: m.Output) -> bytes:
    return base64.b64decode(o.data) if o.encoding == "base64" else o.data.encode()
