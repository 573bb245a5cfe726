"""Converts errors of Atoll to errors of the SDK."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agents.sandbox.errors import (
    ConfigurationError,
    ErrorCode,
    ExecTransportError,
    SandboxError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)

from atoll import errors

_LATER = (errors.UnavailableError, errors.TimedOutError, errors.ExhaustedError)
_CONFIGURATION = (
    errors.InvalidError,
    errors.NotFoundError,
    errors.UnsupportedError,
    errors.DeniedError,
    errors.UnauthorizedError,
    errors.AlreadyExistsError,
)


def retryable(e: errors.AtollError) -> bool:
    """The same call may succeed later."""
    return isinstance(e, _LATER)


def context(e: errors.AtollError, **more: object) -> dict[str, object]:
    told = {"backend": "atoll", "code": e.code, "provider_error": str(e), "op": e.op, "subject": e.subject, "hint": e.hint}
    return {k: v for k, v in told.items() if v} | more


def start_error(e: errors.AtollError, path: Path) -> SandboxError:
    if isinstance(e, _CONFIGURATION):
        return ConfigurationError(
            message=f"Atoll: {e}", error_code=ErrorCode.SANDBOX_CONFIG_INVALID, op="start", context=context(e), cause=e, retryable=False
        )
    return WorkspaceStartError(path=path, context=context(e), cause=e, message=f"Atoll: {e}", retryable=retryable(e))


def exec_error(e: errors.AtollError, command: Sequence[str | Path]) -> ExecTransportError:
    # A response that refuses the command proves that it did not start.
    refused = not isinstance(e, (errors.UnavailableError, errors.InternalError, errors.CanceledError, errors.TimedOutError))
    return ExecTransportError(
        command=command,
        context=context(e, **({"retry_safe": True} if refused else {})),
        cause=e,
        message=f"Atoll: {e}",
        retryable=retryable(e),
    )


def read_error(e: errors.AtollError, path: Path) -> SandboxError:
    if isinstance(e, errors.NotFoundError):
        return WorkspaceReadNotFoundError(path=path, context=context(e), cause=e)
    return WorkspaceArchiveReadError(path=path, context=context(e), cause=e, retryable=retryable(e))


def write_error(e: errors.AtollError, path: Path, **more: object) -> WorkspaceArchiveWriteError:
    return WorkspaceArchiveWriteError(path=path, context=context(e, **more), cause=e, retryable=retryable(e))
