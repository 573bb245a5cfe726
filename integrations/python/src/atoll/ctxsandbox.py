"""ctx.sandbox, the interface of agent platforms: small, with strict defaults, and the same code for every provider.

The names that begin with Sync, and run_python_sync and run_shell_sync, are the same for programs without asyncio.
"""

from atoll._async.ctxsandbox import SandboxClient, SandboxHandle, run_python, run_shell
from atoll._ctx import DEFAULT_IMAGE, DEFAULT_TIMEOUT, MAX_OUTPUT, ExecResult, SandboxSpec, SandboxUnavailable
from atoll._sync.ctxsandbox import SyncSandboxClient, SyncSandboxHandle, run_python_sync, run_shell_sync

__all__ = [
    "DEFAULT_IMAGE", "DEFAULT_TIMEOUT", "MAX_OUTPUT", "ExecResult", "SandboxClient", "SandboxHandle", "SandboxSpec", "SandboxUnavailable",
    "SyncSandboxClient", "SyncSandboxHandle", "run_python", "run_python_sync", "run_shell", "run_shell_sync",
]  # fmt: skip
