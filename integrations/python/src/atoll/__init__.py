"""Sandboxes for AI agents.

connect() returns a Client of the local daemon, which it starts if none runs. Every class has an asynchronous form with the prefix Async.
"""

from atoll import computer, ctxsandbox, errors, models
from atoll._async.client import AsyncClient, connect_async
from atoll._async.files import AsyncFiles
from atoll._async.git import AsyncGit
from atoll._async.process import AsyncProcess
from atoll._async.sandbox import AsyncSandbox, AsyncTunnel
from atoll._async.session import AsyncSession, AsyncSessions
from atoll._async.terminal import AsyncTerminal
from atoll._sync.client import Client, connect
from atoll._sync.files import Files
from atoll._sync.git import Git
from atoll._sync.process import Process
from atoll._sync.sandbox import Sandbox, Tunnel
from atoll._sync.session import Session, Sessions
from atoll._sync.terminal import Terminal
from atoll.errors import AtollError
from atoll.models import CreateRequest, Lifetime, Network, Resources, SecretRef, Spec, WorkspaceMount
from atoll.types import Execution, FileEvent, GitEvent, Output, Result, command

__all__ = [
    "AsyncClient", "AsyncFiles", "AsyncGit", "AsyncProcess", "AsyncSandbox", "AsyncSession", "AsyncSessions", "AsyncTerminal", "AsyncTunnel", "AtollError", "Client",
    "CreateRequest", "Execution", "FileEvent", "Files", "Git", "GitEvent", "Lifetime", "Network", "Output", "Process", "Resources", "Result", "Sandbox", "SecretRef",
    "Session", "Sessions", "Spec", "Terminal", "Tunnel", "WorkspaceMount", "command", "computer", "connect", "connect_async", "ctxsandbox", "errors", "models",
]  # fmt: skip
