"""The sandbox environment "atoll" of Inspect: each sample gets its own sandbox."""

from __future__ import annotations

import posixpath
from typing import Any, Literal, overload
from uuid import uuid4

import anyio
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    sandboxenv,
)
from pydantic import BaseModel
from typing_extensions import override

import atoll
from atoll import errors
from atoll.models import Spec

LABEL = "inspect.task"
"""The label of every sandbox, with the name of its task."""

OUTPUT_LIMIT = 16 << 20
"""What Atoll keeps of a stream at most, in bytes."""

INPUT_LIMIT = 256 << 10
"""Input that is longer is put into a file first."""


class AtollSpec(Spec):
    """The configuration of a sandbox. It is hashable, because Inspect compares the configurations of samples by their hash."""

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


@sandboxenv(name="atoll")
class AtollSandboxEnvironment(SandboxEnvironment):
    """A sandbox of one sample. Its configuration is an AtollSpec, or the name of an image."""

    def __init__(self, client: atoll.AsyncClient, sandbox: atoll.AsyncSandbox, directory: str) -> None:
        super().__init__()
        self._client, self.sandbox, self._directory = client, sandbox, directory

    @override
    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        spec = config.model_copy() if isinstance(config, AtollSpec) else AtollSpec(image=config if isinstance(config, str) else None)
        spec.labels = {LABEL: task_name, **(spec.labels or {})}
        client = await atoll.connect_async()
        try:
            sandbox = await client.create(spec)
        except BaseException:
            await client.aclose()
            raise
        environment = cls(client, sandbox, "/")
        try:
            environment._directory = (await sandbox.run("pwd")).stdout.decode().rstrip("\n")
        except BaseException:
            await environment._remove()
            raise
        return {"default": environment}

    @override
    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(AtollSandboxEnvironment)._remove()

    async def _remove(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self.sandbox.destroy()
            finally:
                await self._client.aclose()

    @override
    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Remove the sandboxes that killed evaluations left behind: all of them, or one."""
        async with await atoll.connect_async() as client:
            async for found in client.list():
                if LABEL in (found.labels or {}) and id in (None, found.id, found.name):
                    await client.remove(found.id)

    @override
    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return AtollSpec.model_validate(config)

    @override
    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        limit = min(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE, OUTPUT_LIMIT)
        data = input.encode() if isinstance(input, str) else input
        try:
            if data and len(data) > INPUT_LIMIT:
                # The shell has opened the file before the command starts, and removes it.
                path = f"/tmp/inspect-{uuid4().hex}"
                await self.sandbox.files.write(path, data, owner=user)
                data, cmd = None, ["/bin/sh", "-c", 'exec <"$0" && rm "$0" && exec "$@"', path, *cmd]
            directory = self._path(cwd or "")
            done = await self.sandbox.run(cmd, input=data, cwd=directory, env=env, user=user, timeout=timeout, output_limit=limit)
        except (errors.GoneError, errors.NotFoundError, errors.ConflictError, errors.UnavailableError) as error:
            raise SandboxUnavailableError(str(error)) from error
        if done.timed_out:
            raise TimeoutError(f"the command was killed after {timeout} seconds")
        stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if done.truncated:
            raise OutputLimitExceededError(f"{limit} bytes", stdout + stderr)
        if done.code == 126 and "permission denied" in (done.exit.detail or ""):
            raise PermissionError(stderr)
        return ExecResult(done.ok, done.code, stdout, stderr)

    @override
    async def write_file(self, file: str, contents: str | bytes) -> None:
        path = self._path(file)
        try:
            await self.sandbox.files.write(path, contents)
        except errors.AtollError as error:
            raise await self._failure(path, error) from error

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    @override
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        path, limit = self._path(file), SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            content = await self.sandbox.files.read(path, length=limit + 1)
        except errors.AtollError as error:
            raise await self._failure(path, error) from error
        if len(content) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return content.decode() if text else content

    @override
    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        return SandboxConnection(type="atoll", command=f"atoll exec -it {self.sandbox.name} -- sh")

    @override
    def default_polling_interval(self) -> float:
        return 0.2

    def _path(self, path: str) -> str:
        return posixpath.join(self._directory, path)

    async def _failure(self, path: str, error: errors.AtollError) -> Exception:
        """The exception that Inspect expects for a file error."""
        if isinstance(error, errors.NotFoundError):
            return FileNotFoundError(f"{path}: no such file")
        if isinstance(error, errors.DeniedError):
            return PermissionError(str(error))
        if isinstance(error, errors.InvalidError) and (await self.sandbox.files.stat(path)).type == "dir":
            return IsADirectoryError(f"{path}: is a directory")
        return error
