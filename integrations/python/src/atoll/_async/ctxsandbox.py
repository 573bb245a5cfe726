"""ctx.sandbox, the interface of agent platforms."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from atoll import errors
from atoll._async.client import AsyncClient, connect_async
from atoll._async.sandbox import AsyncSandbox
from atoll._ctx import DEFAULT_IMAGE, DEFAULT_TIMEOUT, MAX_OUTPUT, ExecResult, SandboxSpec, SandboxUnavailable, last_lines

STOP_GRACE = 10.0


@contextlib.contextmanager
def attached() -> Any:
    """Reports a daemon that does not answer as SandboxUnavailable."""
    try:
        yield
    except errors.UnavailableError as e:
        raise SandboxUnavailable(str(e)) from e


class SandboxHandle:
    """A handle on a sandbox. Dropping it does not end the sandbox."""

    def __init__(self, sandbox: AsyncSandbox):
        self.sandbox = sandbox
        """Atoll's own handle, for what is not part of ctx.sandbox."""
        self.name: str = sandbox.name
        self._shell = ""

    @property
    def id(self) -> str:
        """Never reused."""
        return self.sandbox.id

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.sandbox.info.labels or {})

    async def exec(self, cmd: str, args: Sequence[str] | None = None, *, timeout: float | None = None) -> ExecResult:
        """Run a program without a shell and wait for it. A nonzero exit code is no error. It ends after timeout seconds (None: ten minutes),
        and when the call is canceled."""
        with attached():
            # In the background, because the sandbox keeps the logs of background commands.
            async with await self.sandbox.exec([cmd, *(args or ())], timeout=timeout or DEFAULT_TIMEOUT, background=True) as process:
                kept, cut = {"stdout": bytearray(), "stderr": bytearray()}, False
                try:
                    async for piece in process:
                        into = kept[piece.stream]
                        room = MAX_OUTPUT - len(into)
                        into += piece.data[:room]
                        cut = cut or len(piece.data) > room
                    end = await process.wait()
                except BaseException as e:
                    if not isinstance(e, errors.AtollError):
                        with contextlib.suppress(errors.AtollError):  # it may just have ended
                            await self.sandbox.signal(process.info.id, signal.SIGKILL)
                    raise
        out, err = (bytes(kept[name]).decode(errors="replace") for name in ("stdout", "stderr"))
        return ExecResult(out, err, end.code, truncated=cut, timed_out=end.reason == "timeout")

    async def shell(self, script: str, *, timeout: float | None = None) -> ExecResult:
        """Run a script with bash if the image has it, else with /bin/sh."""
        if not self._shell:
            self._shell = "/bin/sh"
            for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"):
                if await self.sandbox.files.exists(path):
                    self._shell = path
                    break
        return await self.exec(self._shell, ["-c", script], timeout=timeout)

    async def logs(self, *, tail: int | None = None) -> str:
        """Output of the commands of the sandbox, oldest command first; with tail, only that many last lines. The logs are bounded."""
        out = b""
        with attached():
            for process in await self.sandbox.processes():
                with contextlib.suppress(errors.ConflictError, errors.NotFoundError):  # a command without a log
                    async for piece in self.sandbox.logs(process.id):
                        out += piece.data
        return last_lines(out.decode(errors="replace"), tail)

    async def stop(self) -> None:
        """Stop the sandbox and keep its files. If they cannot be kept, this raises UnsupportedError and changes nothing."""
        with attached():
            await self.sandbox.stop(STOP_GRACE)

    async def kill(self) -> None:
        """End the sandbox at once and delete its files. Its workspace is kept. A sandbox that is already gone is success."""
        with attached():
            await self.sandbox.destroy()


def made(sandbox: AsyncSandbox) -> SandboxHandle:
    """A handle on a new sandbox. Limits that its provider does not hold are not passed over in silence."""
    for name, limit in (sandbox.info.limits or {}).items():
        if not limit.enforced:
            warnings.warn(f"the provider {sandbox.info.provider} does not enforce {name}: {limit.why}", stacklevel=3)
    return SandboxHandle(sandbox)


class SandboxClient:
    """Makes sandboxes and finds them again. Without a client, it finds or starts the local daemon when it is first used."""

    def __init__(self, client: AsyncClient | None = None):
        self._given = client

    @classmethod
    async def connect(cls, host: str | None = None, key: str | None = None) -> SandboxClient:
        """A client of the daemon that connect_async finds or starts."""
        with attached():
            return cls(await connect_async(host, key))

    async def _client(self) -> AsyncClient:
        if self._given is None:
            self._given = await connect_async()
        return self._given

    async def __aenter__(self) -> SandboxClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection. Sandboxes keep running."""
        if self._given is not None:
            await self._given.aclose()

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Make a sandbox. A name that is in use is AlreadyExistsError."""
        with attached():
            client = await self._client()
            image: str | None = spec.image
            if image == DEFAULT_IMAGE:
                image = os.environ.get("ATOLL_CTX_IMAGE") or image
            try:
                return made(await client.create(spec.to_spec(image)))
            except errors.AtollError as e:
                if image != DEFAULT_IMAGE or e.op != "image.pull":
                    raise
            warnings.warn(
                f"the image {image} cannot be fetched, so the daemon's default image is used; set ATOLL_CTX_IMAGE, or get it with: atoll image pull {image}",
                stacklevel=2,
            )
            return made(await client.create(spec.to_spec(None)))

    async def get(self, name: str) -> SandboxHandle:
        """The sandbox with that name. If there is none, this raises NotFoundError."""
        with attached():
            return SandboxHandle(await (await self._client()).get(name))

    async def list(self, *, labels: Mapping[str, str] | None = None) -> list[str]:
        """The names of the sandboxes that have all of the labels, newest first."""
        with attached():
            return [info.name async for info in (await self._client()).list(labels)]

    async def remove(self, name: str) -> None:
        """End the sandbox with that name. If there is none, that is success."""
        with attached(), contextlib.suppress(errors.NotFoundError):
            await (await self._client()).remove(name)

    async def run_python(self, code: str, *, image: str = DEFAULT_IMAGE, timeout: float | None = None, **kwargs: Any) -> ExecResult:
        """Run a Python 3 program in a new sandbox, which is removed before this returns. kwargs are fields of SandboxSpec. The image must
        have python3."""
        async with self._once(image, timeout, kwargs) as handle:
            return await handle.exec("python3", ["-c", code], timeout=timeout)

    async def run_shell(self, script: str, *, image: str = DEFAULT_IMAGE, timeout: float | None = None, **kwargs: Any) -> ExecResult:
        """Like run_python, but runs a script."""
        async with self._once(image, timeout, kwargs) as handle:
            return await handle.shell(script, timeout=timeout)

    @contextlib.asynccontextmanager
    async def _once(self, image: str, timeout: float | None, fields: Mapping[str, Any]) -> AsyncIterator[SandboxHandle]:
        spec = SandboxSpec(**{"name": "", **fields, "image": image})
        if "lifetime" not in fields:  # if this program crashes, the sandbox still ends
            spec = dataclasses.replace(spec, lifetime=(timeout or DEFAULT_TIMEOUT) + 60)
        handle = await self.create(spec)
        try:
            yield handle
        finally:
            await handle.kill()


async def run_shell(script: str, *, image: str = DEFAULT_IMAGE, timeout: float | None = None, **kwargs: Any) -> ExecResult:
    """SandboxClient.run_shell at the daemon that is found or started."""
    async with SandboxClient() as client:
        return await client.run_shell(script, image=image, timeout=timeout, **kwargs)


async def run_python(code: str, *, image: str = DEFAULT_IMAGE, timeout: float | None = None, **kwargs: Any) -> ExecResult:
    """SandboxClient.run_python at the daemon that is found or started."""
    async with SandboxClient() as client:
        return await client.run_python(code, image=image, timeout=timeout, **kwargs)
