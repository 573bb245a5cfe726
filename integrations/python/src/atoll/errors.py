"""Errors. Each code of the API is a class; see docs/reference/errors.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar


class AtollError(Exception):
    """An error of the API. A code that this version does not know is a plain AtollError."""

    code: str = ""
    classes: ClassVar[dict[str, type[AtollError]]] = {}

    def __init_subclass__(cls) -> None:
        AtollError.classes[cls.code] = cls

    def __init__(
        self,
        message: str,
        *,
        op: str = "",
        subject: str = "",
        hint: str = "",
        rule: str = "",
        code: str = "",
        retry_after: float | None = None,
    ):
        super().__init__(message)
        self.code = code or type(self).code
        self.message, self.op, self.subject, self.hint, self.rule = message, op, subject, hint, rule
        self.retry_after = retry_after
        """Seconds after which another try makes sense, where that is known."""

    def __str__(self) -> str:
        text = f"{self.subject}: {self.message}" if self.subject else self.message
        return f"{text} ({self.hint})" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, {k: getattr(self, k) for k in ("op", "subject", "hint", "rule", "code", "retry_after")})


def _rebuild(cls: type[AtollError], message: str, fields: dict[str, Any]) -> AtollError:
    return cls(message, **fields)


class InvalidError(AtollError, ValueError):
    """The request can never succeed as written."""

    code = "invalid"


class UnauthorizedError(AtollError):
    """The API key is missing or not valid."""

    code = "unauthorized"


class DeniedError(AtollError, PermissionError):
    """The caller is known but not allowed to do this."""

    code = "denied"


class NotFoundError(AtollError, LookupError):
    """There is no such sandbox, command or file."""

    code = "not_found"


class AlreadyExistsError(AtollError):
    """The name or path is taken."""

    code = "already_exists"


class ConflictError(AtollError):
    """It is not possible in the present state; the hint names the next step."""

    code = "conflict"


class StaleError(AtollError):
    """Another sandbox serves the session now; the call had no effect."""

    code = "stale"


class GoneError(AtollError, LookupError):
    """The sandbox is proved not to exist any more."""

    code = "gone"


class ExhaustedError(AtollError):
    """A quota, a limit or a disk is full."""

    code = "exhausted"


class CanceledError(AtollError):
    """The call was canceled."""

    code = "canceled"


class InternalError(AtollError):
    """A bug in Atoll."""

    code = "internal"


class UnsupportedError(AtollError):
    """This provider cannot do that."""

    code = "unsupported"


class UnavailableError(AtollError, ConnectionError):
    """It could not be reached. This says nothing about whether it exists."""

    code = "unavailable"


class TimedOutError(AtollError, TimeoutError):
    """It took too long."""

    code = "timeout"


def from_problem(problem: Any, headers: Mapping[str, str] | None = None) -> AtollError | None:
    """The error in a response of the API, if there is one."""
    if not isinstance(problem, dict) or not isinstance(problem.get("code"), str):
        return None
    code, hint, request = problem["code"], problem.get("hint", ""), problem.get("request", "")
    subject, message = problem.get("subject", ""), problem.get("detail") or problem.get("message") or problem.get("title", "")
    if request and not hint:
        hint = f"see the daemon's log for request {request}"
    if faults := problem.get("faults"):
        subject, message = faults[0]["field"], faults[0]["message"]
    after = (headers or {}).get("retry-after", "")
    return AtollError.classes.get(code, AtollError)(
        message,
        op=problem.get("op", ""),
        subject=subject,
        hint=hint,
        rule=problem.get("rule", ""),
        code=code,
        retry_after=float(after) if after.isdigit() else None,
    )


def from_answer(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> AtollError:
    """The error of a response with an error status."""
    try:
        problem = from_problem(json.loads(body), headers)
    except ValueError:
        problem = None
    return problem or UnavailableError(f"something that is not Atoll answered with status {status}", op="client.request")


def unreachable(cause: BaseException | None = None) -> UnavailableError:
    detail = f": {cause}" if cause is not None and str(cause) else ""
    return UnavailableError(f"the daemon does not answer{detail}", op="client.request", hint="start one with: atoll up")
