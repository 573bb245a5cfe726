"""A sandbox of the SDK that Atoll makes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO

from agents.sandbox.errors import (
    ExecNonZeroError,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceStopError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.pty_types import PtyExecUpdate, clamp_pty_yield_time_ms, resolve_pty_write_yield_time_ms
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError
from agents.sandbox.workspace_paths import coerce_posix_path, posix_path_as_path, sandbox_path_str

from atoll import AsyncClient, AsyncSession, AsyncTunnel, errors
from atoll import models as m
from openai_agents_atoll import archive
from openai_agents_atoll.errors import context, exec_error, read_error, retryable, start_error, write_error
from openai_agents_atoll.options import AtollSandboxSessionState
from openai_agents_atoll.ports import Forwarder
from openai_agents_atoll.pty import Terminal, Terminals

MAX_OUTPUT = 16 << 20
"""Bytes of each stream of a command that is waited for."""
TERMINAL = (80, 24)

LOST_ALL = {"everything", "changes since the last save"}
LOST_SYSTEM = "files outside /workspace"


class _AsUser(str):
    """A prefix of a command that sets the user that it runs as."""


class AtollSandboxSession(BaseSandboxSession):
    """A sandbox. Its files and commands are those of a session of Atoll. If this program crashes, the daemon saves and ends it."""

    state: AtollSandboxSessionState

    def __init__(self, state: AtollSandboxSessionState, client: AsyncClient, session: AsyncSession):
        self.state = state
        self.client = client
        self.session = session
        """Atoll's own handle, for what is not part of the SDK."""
        self._fresh = True
        self._root_ready = False
        self._ended = False
        self._terminals = Terminals()
        self._ports: dict[int, Forwarder] = {}
        self._received()

    def _received(self) -> None:
        """Record whether the files of an earlier sandbox are left. Only files that are known to exist count."""
        receipt = self.session.receipt
        lost = set(receipt.lost or ()) if receipt else LOST_ALL
        same = receipt is not None and receipt.outcome != "created" and not lost & LOST_ALL
        if not same:
            self.state.workspace_root_ready = False
        self._set_start_state_preserved(same, system=same and LOST_SYSTEM not in lost)

    # Lifecycle.

    async def _ensure_backend_started(self) -> None:
        if not self._fresh:
            self._root_ready = False
            await self.session.acquire()
            self._received()
        self._fresh = self._ended = False

    async def _prepare_backend_workspace(self) -> None:
        await self.session.files.mkdir(self.state.manifest.root)
        self._root_ready = True

    async def _after_start(self) -> None:
        await self._remember()

    async def _remember(self) -> None:
        with contextlib.suppress(errors.AtollError):  # an earlier envelope identifies it too, and so does the id of the session
            self.state.envelope = (await self.session.envelope()).to_json()

    def _wrap_start_error(self, error: Exception) -> Exception:
        return start_error(error, self._workspace_root_path()) if isinstance(error, errors.AtollError) else error

    async def _after_stop(self) -> None:
        await self._remember()

    async def _shutdown_backend(self) -> None:
        for forwarder in self._ports.values():
            await forwarder.close()
        self._ports.clear()
        if self._ended:
            return
        try:
            await self._end()
        except (errors.NotFoundError, errors.GoneError):
            pass  # the session is gone
        except errors.AtollError as e:
            path = self._workspace_root_path()
            raise WorkspaceStopError(path=path, context=context(e), cause=e, retryable=retryable(e)) from e
        self._ended = True

    async def _end(self) -> None:
        if not self.state.options.pause_on_exit:
            await self.session.destroy()
            return
        with contextlib.suppress(errors.UnsupportedError):  # the daemon saves it when it has no holder
            await self.session.pause()
        await self.session.release()

    async def running(self) -> bool:
        try:
            return (await self.session.refresh()).state == "running"
        except Exception:
            return False

    async def _replace(self, snapshot: str) -> None:
        """Replace the sandbox by a new one with the files of a snapshot."""
        old, options = self.session, self.state.options
        spec = options.to_spec({"openai-agents-session": self.state.session_id.hex})
        spec.snapshot, spec.image = snapshot, None
        self.session = await self.client.sessions.create(spec, labels=spec.labels, pause_on_exit=options.pause_on_exit)
        self.state.atoll_session = self.session.session.id
        await old.destroy()
        await self._prepare_backend_workspace()

    # Commands.

    def _prepare_exec_command(self, *command: str | Path, shell: bool | list[str], user: str | User | None) -> list[str]:
        argv = super()._prepare_exec_command(*command, shell=shell, user=None)
        name = user.name if isinstance(user, User) else user
        return [_AsUser(name), *argv] if name else argv

    async def _exec_arguments(self, command: tuple[str | Path, ...]) -> tuple[list[str], dict[str, str], str | None, str]:
        user = str(command[0]) if isinstance(command[0], _AsUser) else None
        argv = [str(part) for part in (command[1:] if user else command)]
        env = await self.state.manifest.environment.resolve()
        return argv, env, user, self.state.manifest.root if self._root_ready else "/"

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        argv, env, user, cwd = await self._exec_arguments(command)
        limit = None if timeout is None else max(timeout, 0.001)
        try:
            done = await self.session.run(argv, env=env, cwd=cwd, user=user, timeout=limit, output_limit=MAX_OUTPUT)
        except errors.AtollError as e:
            raise exec_error(e, argv) from e
        if done.timed_out:
            raise ExecTimeoutError(command=argv, timeout_s=timeout)
        if done.truncated:
            raise ExecTransportError(
                command=argv, context={"backend": "atoll", "reason": "output_limit"}, message="more than 16 MiB of output", retryable=False
            )
        return ExecResult(stdout=done.stdout, stderr=done.stderr, exit_code=done.code)

    def supports_pty(self) -> bool:
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        argv, env, name, cwd = await self._exec_arguments(tuple(self._prepare_exec_command(*command, shell=shell, user=user)))
        try:
            process = await self.session.exec(argv, env=env, cwd=cwd, user=name, timeout=timeout, tty=TERMINAL if tty else None)
        except errors.AtollError as e:
            raise exec_error(e, argv) from e
        number = await self._terminals.add(Terminal(process, tty))
        yield_ms = 10_000 if yield_time_s is None else int(yield_time_s * 1000)
        return await self._terminals.update(number, clamp_pty_yield_time_ms(yield_ms), max_output_tokens)

    async def pty_write_stdin(
        self, *, session_id: int, chars: str, yield_time_s: float | None = None, max_output_tokens: int | None = None
    ) -> PtyExecUpdate:
        terminal = self._resolve_pty_session_entry(pty_processes=self._terminals.all, session_id=session_id)
        if chars:
            if not terminal.tty:
                raise RuntimeError("stdin is not available for this process")
            try:
                await terminal.process.write(chars.encode())
            except errors.AtollError as e:
                if not terminal.closed:
                    raise exec_error(e, ["write_stdin"]) from e
        yield_ms = 250 if yield_time_s is None else int(yield_time_s * 1000)
        yield_ms = resolve_pty_write_yield_time_ms(yield_time_ms=yield_ms, input_empty=not chars)
        return await self._terminals.update(session_id, yield_ms, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        await self._terminals.end()

    # Files.

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    def _current_runtime_helper_cache_key(self) -> object | None:
        return self.session.receipt.sandbox if self.session.receipt else None

    async def read(self, path: Path | str, *, user: str | User | None = None) -> io.IOBase:
        where = await (self._check_read_with_exec(path, user=user) if user is not None else self._validate_path_access(path))
        try:
            return io.BytesIO(await self.session.files.read(sandbox_path_str(where)))
        except errors.AtollError as e:
            raise read_error(e, posix_path_as_path(coerce_posix_path(path))) from e

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        where = await self._validate_path_access(path)
        try:
            return await self.session.files.read(sandbox_path_str(where), 0, max_bytes)
        except errors.AtollError as e:
            raise read_error(e, path) from e

    async def write(self, path: Path | str, data: io.IOBase, *, user: str | User | None = None) -> None:
        where = await (
            self._check_write_with_exec(path, user=user) if user is not None else self._validate_path_access(path, for_write=True)
        )
        try:
            await self.session.files.write(sandbox_path_str(where), _payload(path, data), owner=_name(user))
        except errors.AtollError as e:
            raise write_error(e, where) from e

    async def _write_new_file(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        where = await (
            self._check_write_with_exec(path, user=user) if user is not None else self._validate_path_access(path, for_write=True)
        )
        try:
            await self.session.files.write(sandbox_path_str(where), _payload(path, data), owner=_name(user), replace=False)
        except errors.AlreadyExistsError as e:
            raise FileExistsError(str(path)) from e
        except errors.AtollError as e:
            raise write_error(e, where) from e

    async def mv(self, source: Path | str, destination: Path | str, *, user: str | User | None = None) -> None:
        if user is not None:
            await super().mv(source, destination, user=user)
            return
        a = sandbox_path_str(await self._validate_path_access(source, for_write=True))
        b = sandbox_path_str(await self._validate_path_access(destination, for_write=True))
        try:
            if (await self.session.files.stat(a)).type not in ("file", "symlink"):
                raise errors.ConflictError("move source must be a regular file or symlink", subject=a)
            await self.session.files.move(a, b, overwrite=True)
        except errors.AtollError as e:
            if retryable(e):
                raise exec_error(e, ("mv", a, b)) from e
            raise ExecNonZeroError(ExecResult(stdout=b"", stderr=str(e).encode(), exit_code=1), command=("mv", a, b), cause=e) from e

    # Snapshots.

    async def persist_workspace(self) -> io.IOBase:
        root = self._workspace_root_path()
        for mount, path in self.state.manifest.ephemeral_mount_targets():
            await mount.mount_strategy.teardown_for_snapshot(mount, self, path)
        try:
            return await self._persist()
        except errors.AtollError as e:
            raise WorkspaceArchiveReadError(path=root, context=context(e), cause=e, retryable=retryable(e)) from e
        except (tarfile.TarError, OSError) as e:
            raise WorkspaceArchiveReadError(path=root, context={"backend": "atoll", "reason": "tar_failed"}, cause=e) from e
        finally:
            for mount, path in reversed(self.state.manifest.ephemeral_mount_targets()):
                await mount.mount_strategy.restore_after_snapshot(mount, self, path)

    async def _persist(self) -> io.IOBase:
        skip = self._persist_workspace_skip_relpaths()
        options = self.state.options
        whole = not skip and not options.workspace and not self._native_snapshot_requires_tar_fallback()
        if options.workspace_persistence == "snapshot" and whole:
            try:
                labels = {"openai-agents-session": self.state.session_id.hex}
                made = await self.session.snapshot(m.SnapshotRequest(memory=False, labels=labels))
            except errors.UnsupportedError:
                pass
            else:
                old, self.state.native_snapshot = self.state.native_snapshot, made.id
                if old:
                    await self._forget(old)
                return archive.native(made.id)
        raw = archive.new()
        async for chunk in self.session.files.export(self.state.manifest.root, exclude=sorted(p.as_posix() for p in skip)):
            raw.write(chunk)
        raw.seek(0)
        return _stream(await asyncio.to_thread(archive.portable, raw))

    async def _forget(self, snapshot: str) -> None:
        with contextlib.suppress(errors.ConflictError, errors.NotFoundError):  # a sandbox was made from it, or it is gone
            await self.client.snapshots.remove(snapshot)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root = self._workspace_root_path()
        with await asyncio.to_thread(archive.spool, data) as file:
            try:
                if (snapshot := archive.native_snapshot(file)) is not None:
                    await self._replace(snapshot)
                    return
                await asyncio.to_thread(archive.validate, file)
                await self.session.files.mkdir(root.as_posix())
                await self.session.files.extract(root.as_posix(), archive.chunks(file))
            except errors.AtollError as e:
                raise write_error(e, root) from e
            except (UnsafeTarMemberError, tarfile.TarError, ValueError, KeyError) as e:
                member = e.member if isinstance(e, UnsafeTarMemberError) else "<tar>"
                told: dict[str, object] = {"reason": "unsafe_or_invalid_tar", "member": member, "detail": str(e)}
                raise WorkspaceArchiveWriteError(path=root, context=told, cause=e) from e

    # Ports.

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        try:
            if not await self.running():
                raise errors.UnavailableError("the sandbox is not running", subject=str(port))
            if port not in self._ports:
                self._ports[port] = await Forwarder(self._dialer(port)).start()
        except (errors.AtollError, OSError) as e:
            told = context(e) if isinstance(e, errors.AtollError) else {"backend": "atoll"}
            raise ExposedPortUnavailableError(
                port=port, exposed_ports=self.state.exposed_ports, reason="backend_unavailable", context=told, cause=e
            ) from e
        return ExposedPortEndpoint(host="127.0.0.1", port=self._ports[port].port)

    def _dialer(self, port: int) -> Callable[[], Awaitable[AsyncTunnel]]:
        return lambda: self.session.dial(port)

    async def public_port(self, port: int, *, expires_s: float = 3600) -> tuple[str, dict[str, str]]:
        """The URL of a port for other machines, and the headers that requests need. The daemon must listen on TCP."""
        token = await self.session.port_token(port, expires=expires_s)
        return await self.session.port_url(port), {"Atoll-Token": token.token}


def _name(user: str | User | None) -> str | None:
    return user.name if isinstance(user, User) else user


def _payload(path: Path | str, data: io.IOBase) -> bytes:
    payload = data.read()
    if isinstance(payload, str):
        return payload.encode()
    if not isinstance(payload, (bytes, bytearray)):
        raise WorkspaceWriteTypeError(path=posix_path_as_path(coerce_posix_path(path)), actual_type=type(payload).__name__)
    return bytes(payload)


def _stream(file: IO[bytes]) -> io.IOBase:
    assert isinstance(file, io.IOBase)
    return file
