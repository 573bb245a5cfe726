"""A sandbox."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

from typing_extensions import Self
from websockets.exceptions import ConnectionClosed

from atoll import errors
from atoll import models as m
from atoll._async._conn import AsyncConn, clean
from atoll._async.files import AsyncFiles
from atoll._async.git import AsyncGit
from atoll._async.process import AsyncProcess
from atoll._async.terminal import AsyncTerminal
from atoll._io_async import WebSocket
from atoll.types import Arg, Execution, Output, Result, command, milliseconds, result


class AsyncSandbox:
    """A handle on a sandbox. Dropping it does not end the sandbox; as a context manager it destroys the sandbox."""

    def __init__(self, conn: AsyncConn, info: m.Sandbox, base: str = ""):
        self._conn = conn
        self._info = info
        self._base = base or f"/v1/sandboxes/{quote(info.id, safe='')}"
        self.files = AsyncFiles(conn, self._base)

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def state(self) -> str:
        """At the time of the last request; see refresh."""
        return self._info.state

    @property
    def labels(self) -> dict[str, str]:
        return dict(self._info.labels or {})

    @property
    def info(self) -> m.Sandbox:
        """The state at the time of the last request; see refresh."""
        return self._info

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.destroy()

    async def _change(self, method: str, rest: str, body: Any = None) -> m.Sandbox:
        self._info = await self._conn.get(m.Sandbox, method, self._base + rest, body)
        return self._info

    async def refresh(self) -> m.Sandbox:
        return await self._change("GET", "")

    async def run(
        self,
        args: Sequence[Arg] | str,
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        input: bytes | None = None,
        output_limit: int | None = None,
    ) -> Result:
        """Run a command and return its output. A list is a program with its arguments, a string a script for /bin/sh.

        A nonzero exit code is no error, nor is the end of timeout (seconds). One MiB of each stream is kept, up to 16 with output_limit.
        """
        body = command(args, env=env, cwd=cwd, user=user, timeout=timeout, input=input, output_limit=output_limit)
        return result(await self._conn.get(m.ExecResult, "POST", f"{self._base}/exec", body))

    async def exec(
        self,
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
    ) -> AsyncProcess:
        """Start a command with live streams. tty is the size of a terminal, as columns and rows. With hold, a command whose connection is cut
        waits this many seconds for attach, without losing output."""
        body = command(args, env=env, cwd=cwd, user=user, timeout=timeout, tty=tty, stdin=stdin, background=background, hold=hold)
        return await AsyncProcess.start(self._conn, f"{self._base}/exec", body)

    async def attach(self, process: str, *, stdout: int = 0, stderr: int = 0, skip: bool = True) -> AsyncProcess:
        """Connect to a background command, or to one with a hold. Output continues after the given number of bytes of each stream. If that
        output is lost, it begins with the oldest byte kept; without skip, this raises ExhaustedError."""
        query = urlencode(clean(stdout=stdout, stderr=stderr, skip=skip))
        return await AsyncProcess.start(self._conn, f"{self._process(process)}/attach?{query}", None)

    def _process(self, process: str) -> str:
        return f"{self._base}/processes/{quote(process, safe='')}"

    async def processes(self) -> Sequence[m.ProcessInfo]:
        """The commands that were started in the sandbox, oldest first."""
        return (await self._conn.get(m.ProcessesOutputBody, "GET", f"{self._base}/processes")).processes or []

    async def signal(self, process: str, number: int) -> None:
        """Send a signal, by its Linux number, to the process group of a command."""
        await self._conn.call("POST", f"{self._process(process)}/signal", {"signal": number})

    async def logs(self, process: str, *, tail: int | None = None, follow: bool = False) -> AsyncIterator[Output]:
        """The log of a background command."""
        async for line in self._conn.lines(f"{self._process(process)}/logs", clean(tail=tail or None, follow=follow)):
            yield Output("stdout" if line["stream"] == 1 else "stderr", b64decode(line.get("data") or ""), line.get("dropped", 0))

    async def wait(self) -> m.Exit:
        """Wait until the sandbox has ended."""
        return await self._conn.get(m.Exit, "GET", f"{self._base}/wait")

    async def stop(self, grace: float | None = None) -> m.Sandbox:
        """End all commands and keep the files."""
        return await self._change("POST", "/stop", {"graceMs": milliseconds(grace) or 0})

    async def start(self) -> m.Sandbox:
        """Start a sandbox that was stopped."""
        return await self._change("POST", "/start")

    async def pause(self, *, to_disk: bool = False) -> m.Sandbox:
        """Freeze the sandbox, in memory or on disk."""
        return await self._change("POST", "/pause", {"toDisk": to_disk})

    async def resume(self) -> m.Sandbox:
        return await self._change("POST", "/resume")

    async def update(self, change: m.Change) -> m.Sandbox:
        """Change labels, lifetime or resources."""
        return await self._change("PATCH", "", change)

    async def destroy(self) -> None:
        """End the sandbox and delete everything in it. One that is already gone is success."""
        await self._conn.call("DELETE", self._base)

    async def snapshot(self, request: m.SnapshotRequest | None = None, **fields: Any) -> m.Snapshot:
        """Save the state. Instead of a request, its fields can be given by name: snapshot(name="first")."""
        if request is not None and fields:
            raise errors.InvalidError("give a request or its fields, not both", op="snapshot.create", subject=", ".join(fields))
        return await self._conn.get(m.Snapshot, "POST", f"{self._base}/snapshots", request or m.SnapshotRequest(**fields))

    async def fork(self, count: int = 1, *, prefix: str | None = None, labels: dict[str, str] | None = None) -> Sequence[AsyncSandbox]:
        """Copies of the running sandbox, with its processes and memory."""
        body = m.ForkRequest(count=count, prefix=prefix, labels=labels)
        out = await self._conn.get(m.ForkOutputBody, "POST", f"{self._base}/fork", body)
        plain = self._conn.with_headers()
        return [AsyncSandbox(plain, info) for info in out.sandboxes or []]

    async def usage(self) -> m.SandboxUsage:
        return await self._conn.get(m.SandboxUsage, "GET", f"{self._base}/usage")

    async def port_token(self, *ports: int, expires: float | None = None) -> m.PortToken:
        """A token for the header Atoll-Token. It gives its bearer access to ports (all if none is named) at their port_url."""
        body = m.NewPortToken(ports=[*ports] or None, expires_ms=milliseconds(expires))
        return await self._conn.get(m.PortToken, "POST", f"{self._base}/port-tokens", body)

    async def port_url(self, port: int) -> str:
        """The URL of an HTTP server on a port, for requests with a token. Without TCP on the daemon, this raises UnsupportedError."""
        return self._conn.address.port_url(port, self.id)

    async def publish(self, port: int, host_port: int | None = None, *, address: str | None = None) -> m.PublishedPort:
        """Have the daemon's machine listen on a port (any that is free if none is named) and forward its connections to a port inside."""
        body = m.PublishedPort(port=port, host_port=host_port, address=address)
        return await self._conn.get(m.PublishedPort, "POST", f"{self._base}/published-ports", body)

    async def unpublish(self, host_port: int) -> None:
        """Stop listening on a port of the daemon's machine."""
        await self._conn.call("DELETE", f"{self._base}/published-ports/{host_port}")

    async def preview(self, port: int, *, public: bool = False) -> m.Preview:
        """A URL of the provider for an HTTP server on a port, with a token unless it is public. Many have none: UnsupportedError."""
        return await self._conn.get(m.Preview, "POST", f"{self._base}/previews", m.PreviewRequest(port=port, public=public))

    async def unpreview(self, port: int) -> None:
        """Take back the provider's URL of a port. A port without one is success."""
        await self._conn.call("DELETE", f"{self._base}/previews/{port}")

    async def previews(self) -> Sequence[m.Preview]:
        """The ports with a URL of the provider, without tokens."""
        return (await self._conn.get(m.PreviewsOutputBody, "GET", f"{self._base}/previews")).previews or []

    async def open_stream(
        self, kind: str, *, mode: str = "view", port: int | None = None, process: str | None = None, ttl: int = 0, link: bool = False
    ) -> m.StreamAccess:
        """Open the sandbox to viewers. Whoever has the token, for ttl seconds (two minutes), may connect to the URL.

        With link there is a one-time code, too, for /console/#view=ID.CODE below the daemon's address.
        """
        of = {**({"port": port} if port else {}), **({"process": process} if process else {})}
        body = {"kind": kind, "mode": mode, "ttl": ttl, "link": link, **of}
        return await self._conn.get(m.StreamAccess, "POST", f"{self._base}/streams", body)

    async def renew_stream(self, id: str, ttl: int = 0) -> m.StreamAccess:
        """A new token for a stream. One of a session then shows the sandbox that serves the session."""
        return await self._conn.get(m.StreamAccess, "POST", f"{self._base}/streams/{quote(id, safe='')}/token", {"ttl": ttl})

    async def streams(self) -> Sequence[m.Stream]:
        """The streams of the sandbox, with their numbers of viewers."""
        return (await self._conn.get(m.StreamsOutputBody, "GET", f"{self._base}/streams")).streams or []

    async def revoke_stream(self, id: str) -> None:
        """End a stream and disconnect its viewers."""
        await self._conn.call("DELETE", f"{self._base}/streams/{quote(id, safe='')}")

    async def terminal(self, process: str | None = None, *, watch: bool = False, cols: int = 80, rows: int = 24) -> AsyncTerminal:
        """Open a terminal that viewers share: a login shell in the workspace, or the terminal of a background command. watch: without typing."""
        request: dict[str, Any] = {"kind": "terminal", "mode": "view" if watch else "control", "size": {"cols": cols, "rows": rows}}
        if process:
            request["process"] = process
        return await AsyncTerminal.open(self._conn, self._base, request)

    async def start_desktop(self, width: int | None = None, height: int | None = None, dpi: int | None = None) -> m.DesktopState:
        """Start the desktop, unless one of that size runs. Another size ends the programs on it."""
        return await self._conn.get(m.DesktopState, "PUT", f"{self._base}/desktop", m.DesktopInputBody(width=width, height=height, dpi=dpi))

    async def clipboard(self) -> str:
        """The text of the clipboard of the desktop, empty if there is none."""
        return (await self.computer(m.ComputerAction(action="clipboard"))).clipboard or ""

    async def set_clipboard(self, text: str) -> None:
        """Put a text into the clipboard of the desktop, at most 1 MiB. Programs there paste it."""
        await self.computer(m.ComputerAction(action="copy", text=text))

    async def computer(self, *actions: m.ComputerAction, read_only: bool = False) -> m.ComputerResult:
        """Look at the desktop, or use its mouse and keyboard, in order. It is started if it does not run."""
        request = m.ComputerRequest(actions=list(actions), read_only=read_only)
        return await self._conn.get(m.ComputerResult, "POST", f"{self._base}/computer", request)

    async def screenshot(self) -> bytes:
        """A picture of the desktop, as a PNG image."""
        shot = (await self.computer(m.ComputerAction(action="screenshot"))).screenshot
        return b64decode(shot.png if shot else "")

    async def run_code(
        self,
        code: str,
        *,
        language: str | None = None,
        context: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float | None = None,
        on_event: Callable[[m.CodeEvent], object] | None = None,
    ) -> Execution:
        """Execute code in the code interpreter, which keeps variables from one call to the next.

        It runs in a context, or else in the default one of the language, python. on_event gets the events as they come. After timeout
        seconds the code is interrupted. An exception of the code is in the execution and is not raised here.
        """
        body = m.CodeRequest(code=code, language=language, context=context, env=env, timeout_ms=milliseconds(timeout))
        texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        results: list[m.CodeResult] = []
        error, count = None, 0
        async for line in self._conn.lines(f"{self._base}/code", body=body):
            event = m.CodeEvent.model_validate(line)
            if event.type in texts:
                texts[event.type].append(event.text or "")
            if event.result:
                results.append(event.result)
            error, count = event.exception or error, event.count or count
            if on_event:
                on_event(event)
            if event.type == "end":
                return Execution(results, "".join(texts["stdout"]), "".join(texts["stderr"]), error, count, bool(event.timed_out))
        raise errors.unreachable()

    def git(self, path: str | None = None) -> AsyncGit:
        """The git repository that a directory is in; by default the working directory of the sandbox."""
        return AsyncGit(self._conn, self._base, path)

    async def record(self, new: m.NewRecording | None = None) -> m.Recording:
        """Record a terminal: the login shell that viewers share, or that of a background command.

        With the kind desktop, record the desktop, which is started if it does not run.
        The recording goes on without the caller. AsyncClient.recordings stops and reads it.
        """
        return await self._conn.get(m.Recording, "POST", f"{self._base}/recordings", new or m.NewRecording())

    async def code_contexts(self) -> Sequence[m.CodeContext]:
        """The contexts of the code interpreter, with the default ones of the languages that were used."""
        return (await self._conn.get(m.ContextsOutputBody, "GET", f"{self._base}/code/contexts")).contexts or []

    async def create_code_context(self, language: str | None = None, dir: str | None = None) -> m.CodeContext:
        """Make a context with variables of its own."""
        return await self._conn.get(m.CodeContext, "POST", f"{self._base}/code/contexts", m.NewCodeContext(language=language, dir=dir))

    async def restart_code_context(self, id: str) -> None:
        """Forget the variables of a context."""
        await self._conn.call("POST", f"{self._base}/code/contexts/{quote(id, safe='')}/restart")

    async def interrupt_code_context(self, id: str) -> None:
        """Interrupt what a context executes. Its variables stay."""
        await self._conn.call("POST", f"{self._base}/code/contexts/{quote(id, safe='')}/interrupt")

    async def remove_code_context(self, id: str) -> None:
        """End a context. The default one of a language is made again when that is used."""
        await self._conn.call("DELETE", f"{self._base}/code/contexts/{quote(id, safe='')}")

    async def dial(self, port: int) -> AsyncTunnel:
        """Connect to a TCP port from the sandbox's own loopback."""
        return AsyncTunnel(await self._conn.websocket(f"{self._base}/ports/{port}"))


class AsyncTunnel:
    """A connection to a port."""

    def __init__(self, socket: WebSocket):
        self._socket = socket

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def receive(self) -> bytes:
        """The next bytes, none at the end."""
        try:
            data = await self._socket.recv()
        except ConnectionClosed:
            return b""
        return data if isinstance(data, bytes) else data.encode()

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            for i in range(0, len(view), 32 << 10):
                await self._socket.send(view[i : i + (32 << 10)])
        except ConnectionClosed as e:
            raise errors.unreachable(e) from e

    async def send_eof(self) -> None:
        """End this direction of the stream."""
        try:
            await self._socket.send(b"")
        except ConnectionClosed as e:
            raise errors.unreachable(e) from e

    async def aclose(self) -> None:
        await self._socket.close()
