# Generated from _async by scripts/generate.py; do not edit.
"""A sandbox."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

from typing_extensions import Self
from websockets.exceptions import ConnectionClosed

from atoll import errors
from atoll import models as m
from atoll._io_sync import WebSocket
from atoll._sync._conn import Conn, clean
from atoll._sync.files import Files
from atoll._sync.git import Git
from atoll._sync.process import Process
from atoll._sync.terminal import Terminal
from atoll.types import Arg, Execution, Output, Result, command, milliseconds, result


class Sandbox:
    """A handle on a sandbox. Dropping it does not end the sandbox; as a context manager it destroys the sandbox."""

    def __init__(self, conn: Conn, info: m.Sandbox, base: str = ""):
        self._conn = conn
        self._info = info
        self._base = base or f"/v1/sandboxes/{quote(info.id, safe='')}"
        self.files = Files(conn, self._base)

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.destroy()

    def _change(self, method: str, rest: str, body: Any = None) -> m.Sandbox:
        self._info = self._conn.get(m.Sandbox, method, self._base + rest, body)
        return self._info

    def refresh(self) -> m.Sandbox:
        return self._change("GET", "")

    def run(
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
        return result(self._conn.get(m.ExecResult, "POST", f"{self._base}/exec", body))

    def exec(
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
    ) -> Process:
        """Start a command with live streams. tty is the size of a terminal, as columns and rows. With hold, a command whose connection is cut
        waits this many seconds for attach, without losing output."""
        body = command(args, env=env, cwd=cwd, user=user, timeout=timeout, tty=tty, stdin=stdin, background=background, hold=hold)
        return Process.start(self._conn, f"{self._base}/exec", body)

    def attach(self, process: str, *, stdout: int = 0, stderr: int = 0, skip: bool = True) -> Process:
        """Connect to a background command, or to one with a hold. Output continues after the given number of bytes of each stream. If that
        output is lost, it begins with the oldest byte kept; without skip, this raises ExhaustedError."""
        query = urlencode(clean(stdout=stdout, stderr=stderr, skip=skip))
        return Process.start(self._conn, f"{self._process(process)}/attach?{query}", None)

    def _process(self, process: str) -> str:
        return f"{self._base}/processes/{quote(process, safe='')}"

    def processes(self) -> Sequence[m.ProcessInfo]:
        """The commands that were started in the sandbox, oldest first."""
        return (self._conn.get(m.ProcessesOutputBody, "GET", f"{self._base}/processes")).processes or []

    def signal(self, process: str, number: int) -> None:
        """Send a signal, by its Linux number, to the process group of a command."""
        self._conn.call("POST", f"{self._process(process)}/signal", {"signal": number})

    def logs(self, process: str, *, tail: int | None = None, follow: bool = False) -> Iterator[Output]:
        """The log of a background command."""
        for line in self._conn.lines(f"{self._process(process)}/logs", clean(tail=tail or None, follow=follow)):
            yield Output("stdout" if line["stream"] == 1 else "stderr", b64decode(line.get("data") or ""), line.get("dropped", 0))

    def wait(self) -> m.Exit:
        """Wait until the sandbox has ended."""
        return self._conn.get(m.Exit, "GET", f"{self._base}/wait")

    def stop(self, grace: float | None = None) -> m.Sandbox:
        """End all commands and keep the files."""
        return self._change("POST", "/stop", {"graceMs": milliseconds(grace) or 0})

    def start(self) -> m.Sandbox:
        """Start a sandbox that was stopped."""
        return self._change("POST", "/start")

    def pause(self, *, to_disk: bool = False) -> m.Sandbox:
        """Freeze the sandbox, in memory or on disk."""
        return self._change("POST", "/pause", {"toDisk": to_disk})

    def resume(self) -> m.Sandbox:
        return self._change("POST", "/resume")

    def update(self, change: m.Change) -> m.Sandbox:
        """Change labels, lifetime or resources."""
        return self._change("PATCH", "", change)

    def destroy(self) -> None:
        """End the sandbox and delete everything in it. One that is already gone is success."""
        self._conn.call("DELETE", self._base)

    def snapshot(self, request: m.SnapshotRequest | None = None, **fields: Any) -> m.Snapshot:
        """Save the state. Instead of a request, its fields can be given by name: snapshot(name="first")."""
        if request is not None and fields:
            raise errors.InvalidError("give a request or its fields, not both", op="snapshot.create", subject=", ".join(fields))
        return self._conn.get(m.Snapshot, "POST", f"{self._base}/snapshots", request or m.SnapshotRequest(**fields))

    def fork(self, count: int = 1, *, prefix: str | None = None, labels: dict[str, str] | None = None) -> Sequence[Sandbox]:
        """Copies of the running sandbox, with its processes and memory."""
        body = m.ForkRequest(count=count, prefix=prefix, labels=labels)
        out = self._conn.get(m.ForkOutputBody, "POST", f"{self._base}/fork", body)
        plain = self._conn.with_headers()
        return [Sandbox(plain, info) for info in out.sandboxes or []]

    def usage(self) -> m.SandboxUsage:
        return self._conn.get(m.SandboxUsage, "GET", f"{self._base}/usage")

    def port_token(self, *ports: int, expires: float | None = None) -> m.PortToken:
        """A token for the header Atoll-Token. It gives its bearer access to ports (all if none is named) at their port_url."""
        body = m.NewPortToken(ports=[*ports] or None, expires_ms=milliseconds(expires))
        return self._conn.get(m.PortToken, "POST", f"{self._base}/port-tokens", body)

    def port_url(self, port: int) -> str:
        """The URL of an HTTP server on a port, for requests with a token. Without TCP on the daemon, this raises UnsupportedError."""
        return self._conn.address.port_url(port, self.id)

    def publish(self, port: int, host_port: int | None = None, *, address: str | None = None) -> m.PublishedPort:
        """Have the daemon's machine listen on a port (any that is free if none is named) and forward its connections to a port inside."""
        body = m.PublishedPort(port=port, host_port=host_port, address=address)
        return self._conn.get(m.PublishedPort, "POST", f"{self._base}/published-ports", body)

    def unpublish(self, host_port: int) -> None:
        """Stop listening on a port of the daemon's machine."""
        self._conn.call("DELETE", f"{self._base}/published-ports/{host_port}")

    def preview(self, port: int, *, public: bool = False) -> m.Preview:
        """A URL of the provider for an HTTP server on a port, with a token unless it is public. Many have none: UnsupportedError."""
        return self._conn.get(m.Preview, "POST", f"{self._base}/previews", m.PreviewRequest(port=port, public=public))

    def unpreview(self, port: int) -> None:
        """Take back the provider's URL of a port. A port without one is success."""
        self._conn.call("DELETE", f"{self._base}/previews/{port}")

    def previews(self) -> Sequence[m.Preview]:
        """The ports with a URL of the provider, without tokens."""
        return (self._conn.get(m.PreviewsOutputBody, "GET", f"{self._base}/previews")).previews or []

    def open_stream(
        self, kind: str, *, mode: str = "view", port: int | None = None, process: str | None = None, ttl: int = 0, link: bool = False
    ) -> m.StreamAccess:
        """Open the sandbox to viewers. Whoever has the token, for ttl seconds (two minutes), may connect to the URL.

        With link there is a one-time code, too, for /console/#view=ID.CODE below the daemon's address.
        """
        of = {**({"port": port} if port else {}), **({"process": process} if process else {})}
        body = {"kind": kind, "mode": mode, "ttl": ttl, "link": link, **of}
        return self._conn.get(m.StreamAccess, "POST", f"{self._base}/streams", body)

    def renew_stream(self, id: str, ttl: int = 0) -> m.StreamAccess:
        """A new token for a stream. One of a session then shows the sandbox that serves the session."""
        return self._conn.get(m.StreamAccess, "POST", f"{self._base}/streams/{quote(id, safe='')}/token", {"ttl": ttl})

    def streams(self) -> Sequence[m.Stream]:
        """The streams of the sandbox, with their numbers of viewers."""
        return (self._conn.get(m.StreamsOutputBody, "GET", f"{self._base}/streams")).streams or []

    def revoke_stream(self, id: str) -> None:
        """End a stream and disconnect its viewers."""
        self._conn.call("DELETE", f"{self._base}/streams/{quote(id, safe='')}")

    def terminal(self, process: str | None = None, *, watch: bool = False, cols: int = 80, rows: int = 24) -> Terminal:
        """Open a terminal that viewers share: a login shell in the workspace, or the terminal of a background command. watch: without typing."""
        request: dict[str, Any] = {"kind": "terminal", "mode": "view" if watch else "control", "size": {"cols": cols, "rows": rows}}
        if process:
            request["process"] = process
        return Terminal.open(self._conn, self._base, request)

    def start_desktop(self, width: int | None = None, height: int | None = None, dpi: int | None = None) -> m.DesktopState:
        """Start the desktop, unless one of that size runs. Another size ends the programs on it."""
        return self._conn.get(m.DesktopState, "PUT", f"{self._base}/desktop", m.DesktopInputBody(width=width, height=height, dpi=dpi))

    def clipboard(self) -> str:
        """The text of the clipboard of the desktop, empty if there is none."""
        return (self.computer(m.ComputerAction(action="clipboard"))).clipboard or ""

    def set_clipboard(self, text: str) -> None:
        """Put a text into the clipboard of the desktop, at most 1 MiB. Programs there paste it."""
        self.computer(m.ComputerAction(action="copy", text=text))

    def computer(self, *actions: m.ComputerAction, read_only: bool = False) -> m.ComputerResult:
        """Look at the desktop, or use its mouse and keyboard, in order. It is started if it does not run."""
        request = m.ComputerRequest(actions=list(actions), read_only=read_only)
        return self._conn.get(m.ComputerResult, "POST", f"{self._base}/computer", request)

    def screenshot(self) -> bytes:
        """A picture of the desktop, as a PNG image."""
        shot = (self.computer(m.ComputerAction(action="screenshot"))).screenshot
        return b64decode(shot.png if shot else "")

    def run_code(
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
        for line in self._conn.lines(f"{self._base}/code", body=body):
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

    def git(self, path: str | None = None) -> Git:
        """The git repository that a directory is in; by default the working directory of the sandbox."""
        return Git(self._conn, self._base, path)

    def record(self, new: m.NewRecording | None = None) -> m.Recording:
        """Record a terminal: the login shell that viewers share, or that of a background command.

        With the kind desktop, record the desktop, which is started if it does not run.
        The recording goes on without the caller. AsyncClient.recordings stops and reads it.
        """
        return self._conn.get(m.Recording, "POST", f"{self._base}/recordings", new or m.NewRecording())

    def code_contexts(self) -> Sequence[m.CodeContext]:
        """The contexts of the code interpreter, with the default ones of the languages that were used."""
        return (self._conn.get(m.ContextsOutputBody, "GET", f"{self._base}/code/contexts")).contexts or []

    def create_code_context(self, language: str | None = None, dir: str | None = None) -> m.CodeContext:
        """Make a context with variables of its own."""
        return self._conn.get(m.CodeContext, "POST", f"{self._base}/code/contexts", m.NewCodeContext(language=language, dir=dir))

    def restart_code_context(self, id: str) -> None:
        """Forget the variables of a context."""
        self._conn.call("POST", f"{self._base}/code/contexts/{quote(id, safe='')}/restart")

    def interrupt_code_context(self, id: str) -> None:
        """Interrupt what a context executes. Its variables stay."""
        self._conn.call("POST", f"{self._base}/code/contexts/{quote(id, safe='')}/interrupt")

    def remove_code_context(self, id: str) -> None:
        """End a context. The default one of a language is made again when that is used."""
        self._conn.call("DELETE", f"{self._base}/code/contexts/{quote(id, safe='')}")

    def dial(self, port: int) -> Tunnel:
        """Connect to a TCP port from the sandbox's own loopback."""
        return Tunnel(self._conn.websocket(f"{self._base}/ports/{port}"))


class Tunnel:
    """A connection to a port."""

    def __init__(self, socket: WebSocket):
        self._socket = socket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def receive(self) -> bytes:
        """The next bytes, none at the end."""
        try:
            data = self._socket.recv()
        except ConnectionClosed:
            return b""
        return data if isinstance(data, bytes) else data.encode()

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            for i in range(0, len(view), 32 << 10):
                self._socket.send(view[i : i + (32 << 10)])
        except ConnectionClosed as e:
            raise errors.unreachable(e) from e

    def send_eof(self) -> None:
        """End this direction of the stream."""
        try:
            self._socket.send(b"")
        except ConnectionClosed as e:
            raise errors.unreachable(e) from e

    def close(self) -> None:
        self._socket.close()
