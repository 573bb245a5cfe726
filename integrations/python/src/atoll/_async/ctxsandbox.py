"""ctx.sandbox, the interface of agent platforms."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import AsyncIterator, Mapping, Sequence

from atoll import errors
from atoll._async.client import AsyncClient, connect_async
from atoll._async.sandbox import AsyncSandbox
from atoll._ctx import DEFAULT_TIMEOUT, MAX_OUTPUT, ExecResult, SandboxSpec, last_lines

STOP_GRACE = 10.0


class AsyncSandboxHandle:
    """A handle on a sandbox. Dropping it does not end the sandbox."""

    def __init__(self, sandbox: AsyncSandbox):
        self.sandbox = sandbox
        """Atoll's own handle, for what is not part of ctx.sandbox."""
        self._shell = ""

    @property
    def name(self) -> str:
        return self.sandbox.name

    @property
    def id(self) -> str:
        """Never reused."""
        return self.sandbox.id

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.sandbox.info.labels or {})

    async def exec(self, cmd: str, args: Sequence[str] = (), timeout: float = 0) -> ExecResult:
        """Run a program without a shell and wait for it. A nonzero exit code is no error. It ends after timeout seconds (0: ten minutes), and
        when the call is canceled."""
        # In the background, because the sandbox keeps the logs of background commands.
        async with await self.sandbox.exec([cmd, *args], timeout=timeout or DEFAULT_TIMEOUT, background=True) as process:
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
        return ExecResult(end.code, out, err, truncated=cut, timed_out=end.reason == "timeout")

    async def shell(self, script: str, timeout: float = 0) -> ExecResult:
        """Run a script with bash if the image has it, else with /bin/sh."""
        if not self._shell:
            self._shell = "/bin/sh"
            for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"):
                if await self.sandbox.files.exists(path):
                    self._shell = path
                    break
        return await self.exec(self._shell, ["-c", script], timeout)

    async def logs(self, tail: int = 0) -> str:
        """Output of the commands of the sandbox, oldest command first; with tail, only that many last lines. The logs are bounded."""
        out = b""
        for process in await self.sandbox.processes():
            with contextlib.suppress(errors.ConflictError, errors.NotFoundError):  # a command without a log
                async for piece in self.sandbox.logs(process.id):
                    out += piece.data
        return last_lines(out.decode(errors="replace"), tail)

    async def stop(self) -> None:
        """Stop the sandbox and keep its files. If they cannot be kept, this raises UnsupportedError and changes nothing."""
        await self.sandbox.stop(STOP_GRACE)

    async def kill(self) -> None:
        """End the sandbox at once and delete its files. Its workspace is kept. A sandbox that is already gone is success."""
        await self.sandbox.destroy()


class AsyncSandboxClient:
    """Makes sandboxes and finds them again."""

    def __init__(self, client: AsyncClient):
        self._client = client

    @classmethod
    async def connect(cls, host: str | None = None, key: str | None = None) -> AsyncSandboxClient:
        """A client of the daemon that connect_async finds or starts."""
        return cls(await connect_async(host, key))

    async def __aenter__(self) -> AsyncSandboxClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection. Sandboxes keep running."""
        await self._client.aclose()

    async def create(self, spec: SandboxSpec | None = None) -> AsyncSandboxHandle:
        """Make a sandbox. A name that is in use is AlreadyExistsError."""
        return AsyncSandboxHandle(await self._client.create((spec or SandboxSpec()).to_spec()))

    async def get(self, name: str) -> AsyncSandboxHandle:
        """The sandbox with that name. If there is none, this raises NotFoundError."""
        return AsyncSandboxHandle(await self._client.get(name))

    async def list(self, labels: Mapping[str, str] | None = None) -> AsyncIterator[AsyncSandboxHandle]:
        """The sandboxes that have all of the labels, newest first."""
        async for info in self._client.list(labels):
            with contextlib.suppress(errors.NotFoundError):  # it was removed meanwhile
                yield await self.get(info.id)

    async def remove(self, name: str) -> None:
        """End the sandbox with that name. If there is none, that is success."""
        with contextlib.suppress(errors.NotFoundError):
            await self._client.remove(name)

    async def run_shell(self, script: str, timeout: float = 0, spec: SandboxSpec | None = None) -> ExecResult:
        """Run a script in a new sandbox, which is removed before this returns."""
        async with self._once(timeout, spec) as handle:
            return await handle.shell(script, timeout)

    async def run_python(self, program: str, timeout: float = 0, spec: SandboxSpec | None = None) -> ExecResult:
        """Like run_shell, but runs a Python 3 program. The image must have python3."""
        async with self._once(timeout, spec) as handle:
            await handle.sandbox.files.write("/tmp/main.py", program)
            return await handle.exec("python3", ["/tmp/main.py"], timeout)

    @contextlib.asynccontextmanager
    async def _once(self, timeout: float, spec: SandboxSpec | None) -> AsyncIterator[AsyncSandboxHandle]:
        spec = spec or SandboxSpec()
        if not spec.lifetime:  # if this program crashes, the sandbox still ends
            spec = dataclasses.replace(spec, lifetime=(timeout or DEFAULT_TIMEOUT) + 60)
        handle = await self.create(spec)
        try:
            yield handle
        finally:
            await handle.kill()


async def run_shell_async(script: str, timeout: float = 0, spec: SandboxSpec | None = None) -> ExecResult:
    """AsyncSandboxClient.run_shell at the daemon that is found or started."""
    async with await AsyncSandboxClient.connect() as client:
        return await client.run_shell(script, timeout, spec)


async def run_python_async(program: str, timeout: float = 0, spec: SandboxSpec | None = None) -> ExecResult:
    """AsyncSandboxClient.run_python at the daemon that is found or started."""
    async with await AsyncSandboxClient.connect() as client:
        return await client.run_python(program, timeout, spec)
