"""ctx.sandbox, the interface of agent platforms: small, with strict defaults, and the same code for every provider."""

from atoll._async.ctxsandbox import AsyncSandboxClient, AsyncSandboxHandle, run_python_async, run_shell_async
from atoll._ctx import DEFAULT_TIMEOUT, MAX_OUTPUT, ExecResult, SandboxSpec, SandboxUnavailable
from atoll._sync.ctxsandbox import SandboxClient, SandboxHandle, run_python, run_shell

__all__ = [
    "DEFAULT_TIMEOUT", "MAX_OUTPUT", "AsyncSandboxClient", "AsyncSandboxHandle", "ExecResult", "SandboxClient", "SandboxHandle", "SandboxSpec",
    "SandboxUnavailable", "run_python", "run_python_async", "run_shell", "run_shell_async",
]  # fmt: skip
